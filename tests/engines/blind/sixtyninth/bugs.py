"""The bugs of this round: the model (words of `qdiff synth`), the plan, and the changes of the engine's text: file, old, new. Blind: nothing of
qdiff's search for causes was read, nor an earlier round's bugs, keys or results."""

QWEN2 = "--seed 690 --arch qwen2 --layers 3"
QWEN3 = "--seed 691 --arch qwen3 --layers 3 --heads 4 --kv-heads 2 --head-dim 64"
EXPERTS = "--seed 692 --arch qwen3moe --layers 2"
HYBRID = "--seed 693 --arch qwen35 --layers 4"
EIGHT = {"kv": "q8_0"}


def bug(model, plan, length, *changes, kv=None):
    run = f"--prompt long --length {length} --sequences {plan}" + (f" --kv-type {kv}" if kv else "")
    return {"model": model, "run": run, "engine": f"--kv {kv}" if kv else "", "changes": list(changes)}


BUGS = {
    # Always.
    "draft-positions": bug(QWEN3, "11+6,4+1,3~4+2,1+1~2", 29,
                           ("barge", "        self.counted[sequence] -= self.model.pages.length[sequence] - kept\n", "")),
    "table-by-row": bug(QWEN2, "10+7+12,0+1+1,3+0+2,0+4+1", 41,
                        ("barge", "            self.table[at, :len(pages.table[sequence])] = pages.table[sequence]",
                         "            own = pages.table[at][:self.table.shape[1]]\n            self.table[at, :len(own)] = own")),
    "rollback-page": bug(QWEN3, "13+10,1+3,4~5+1,1+2~2", 35,
                         ("pages", "table, pages = self.table[sequence], -(-kept // PAGE)", "table, pages = self.table[sequence], kept // PAGE")),
    "copied-codes": bug(QWEN3, "20,1+6@0:13,2+1,1+1+3@0:3", 35,
                        ("store", "for held in (self.codes, self.scale, self.offset):", "for held in (self.codes,):"), kv="q8_0"),
    "no-copy": bug(QWEN2, "15,0+5@0:11,1+1,2+3+4@1:14", 31,
                   ("pages", "if at % PAGE and self.users[table[-1]] > 1:", "if False:")),
    "padding-slot": bug(QWEN2, "9+6+4,1+1+1,1+1+1,3+0+1,1+1+1", 32,
                        ("barge", "self.slots[:n], self.slots[n:size] = slots, -1", "self.slots[:n], self.slots[n:size] = slots, 0")),
    "state-before": bug(HYBRID, "10+7,5+1,1~3+1,1+2~2,4+1", 33,
                        ("pages", "        self.restore(sequence, kept)\n        for saved", "        self.restore(sequence, kept - 1)\n        for saved")),
    "chunk-from-zero": bug(HYBRID, "12,6+5,1+1,9+4,1+1", 40,
                           ("model", "scan(m, q[rows]", "scan(np.zeros_like(m), q[rows]")),
    "expert-blocks": bug(EXPERTS, "7+9,1+4,1+1,5+1", 29,
                         ("model", "            for e, (begin, end) in enumerate(zip(begins, ends)):\n",
                          "            for e, begin, end in [(np.searchsorted(ends, b, 'right'), b, min(b + TILE, len(order))) for b in range(0, len(order), TILE)]:\n")),
    "pass-scale": bug(QWEN3, "9+5,1+1,4+1,1+6", 28,
                      ("store", "            largest = np.abs(b).max(-1, keepdims=True)\n",
                       "            largest = np.abs(b).max((0, -1), keepdims=True) + np.zeros_like(b[..., :1])\n"), kv="q8_0"),
    "window-of-source": bug(HYBRID, "17,1+5@0:9,1+1,2+1+6@0:12", 34,
                            ("pages", "        self.restore(sequence, count)\n",
                             "        self.restore(sequence, count)\n        for l, saved in self.saved[source].items():\n"
                             "            self.window[l][self.row[sequence]] = saved[-1][0]\n")),
    "last-row": bug(QWEN2, "8+5,1+1,3+6,1+4", 29,
                    ("model", "        logits[run.heads] = made\n",
                     "        logits[run.heads] = made\n        for rows in run.rows.values():\n            logits[rows[-1]] = logits[rows[-2:][0]]\n")),
    # Under a condition.
    "capacity": bug(EXPERTS, "40+30,1+1,6+1,1+33", 113,
                    ("model", "for at in range(begin, end, TILE):", "for at in range(begin, min(end, begin + 2 * TILE), TILE):")),
    "recorded-lengths": bug(QWEN3, "13+7,1+1,1+1,1+1,5+0,1+1,1+0", 34,
                            ("barge", "        self.lengths[:n], self.lengths[n:size] = lengths, 0\n",
                             "        if size != self.last:\n            self.lengths[:n], self.lengths[n:size] = lengths, 0\n")),
    "draft-mask": bug(QWEN2, "12+6,3+1,5+4,1+3,1+1,2+7", 46,
                      ("paged", "    reach = first + np.arange(tokens)",
                       "    reach = np.full(tokens, first + tokens - 1) if first and tokens <= QUERIES else first + np.arange(tokens)")),
    "merged-prefix": bug(QWEN3, "18,1+7@0:13,4+6,1+1,3+1+9@0:8", 51,
                         ("paged", "sum(e[:, :, None] * w.sums for e, w in zip(each, walks))", "sum(w.sums for w in walks)")),
    "decodes-first": bug(QWEN2, "6+5,4+1,1+1,7+1,1+3,8+1", 39,
                         ("barge", "        self.heads = np.arange(self.count)",
                          "        ids = ids[np.argsort([len(self.rows[s]) > 1 for s in sequences], kind=\"stable\")]\n        self.heads = np.arange(self.count)")),
    "four-columns": bug(QWEN3, "38+11,1+1,1+1,5+1,1+0", 60,
                        ("barge", "COLUMNS = 64", "COLUMNS = 4")),
    "neighbour-window": bug(HYBRID, "9+6,4+1+5,4+1,0+3+0+7", 40,
                            ("model", "            line = np.concatenate([befores[at], qkv[rows]])\n",
                             "            begins = run.first[sequence] == 0 and rows[0] >= past\n"
                             "            line = np.concatenate([qkv[rows[0] - past:rows[0]] if begins else befores[at], qkv[rows]])\n")),
    "joins-uncleared": bug(HYBRID, "10+8,1+1,1+6~all,1+1,4+5~all,1+1", 40,
                           ("barge", "states.begin(sequence, sequence in begins)", "states.begin(sequence, len(begins) == len(self.rows))")),
}
