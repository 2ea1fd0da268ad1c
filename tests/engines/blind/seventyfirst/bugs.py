"""Round 71: twenty bugs of serving, as changes of the texts in engine/. (file, old text, new text); the old text stands there once."""

F32 = "--weights F32"
LONG = "--prompt long"
Q8 = "--kv-type q8_0"


def bug(arch, length, plan, *changes, run="", engine=""):
    return {"model": f"--arch {arch} {F32}", "run": f"{LONG} --length {length} --sequences {plan} {run}".strip(), "engine": engine, "changes": changes}


BUGS = {
    # Masks and positions.
    "mask-of-a-later-chunk": bug("qwen3", 39, "12+7,9+4,6+1",
        ("paged", "    reach = first + np.arange(tokens)", "    reach = np.arange(tokens)")),
    "positions-behind-a-prefix": bug("qwen2", 26, "11,4+9@0,1+1",
        ("skiff", "        self.counted[sequence] = count\n", "        self.counted[sequence] = count // PAGE * PAGE\n")),
    "positions-after-a-draft": bug("qwen3", 29, "9+6,5+4,1~4+1~2,2+1",
        ("skiff", "        self.counted[sequence] -= self.model.pages.length[sequence] - kept\n",
         "        self.counted[sequence] = kept + 1 if kept else 0\n")),
    # Partitions and prefixes in attention.
    "last-partition-of-one-key": bug("qwen3", 37, "12+9,8x1+1",
        ("paged", "    parts = range(0, length, PARTITION)", "    parts = range(0, max(length - 1, 1), PARTITION)")),
    "partitions-without-totals": bug("qwen2", 44, "14+20,5x1+1",
        ("paged", "    share = [np.exp(p - most) * t for p, t in zip(peaks, totals)]", "    share = [np.exp(p - most) for p in peaks]")),
    "prefix-merged-unscaled": bug("qwen3", 31, "11,6+9@0,3+2",
        ("paged", "sum(e[:, :, None] * w.sums for e, w in zip(each, walks))", "sum(w.sums for w in walks)")),
    # Pages, copy-on-write.
    "copy-without-values": bug("qwen3", 28, "11,6+9@0,1+1",
        ("model", "        for cache in (self.k, self.v):\n", "        for cache in (self.k,):\n")),
    "no-copy-for-two": bug("qwen3", 30, "11,6+9@0,1+1,1+1",
        ("pages", "        if at % PAGE and self.users[table[-1]] > 1:", "        if at % PAGE and self.users[table[-1]] > 2:")),
    "table-one-step-late": bug("qwen3", 35, "6+13,8x1+1",
        ("skiff", "            self.table[at, :len(pages.table[sequence])] = pages.table[sequence]\n",
         "            known = -(-(self.lengths[at] - 1) // PAGE) if self.decode else len(pages.table[sequence])\n"
         "            self.table[at, :known] = pages.table[sequence][:known]\n")),
    # Recorded decode steps.
    "recorded-positions": bug("qwen3", 23, "9+6,4x1+1",
        ("skiff", "        self.turns[:n], self.turns[n:size] = turns, 0\n",
         "        if size != self.last:\n            self.turns[:n], self.turns[n:size] = turns, 0\n")),
    "padding-writes-slot-0": bug("qwen2", 29, "9+6+5,3x1+1+1",
        ("skiff", "        self.slots[:n], self.slots[n:size] = slots, -1\n", "        self.slots[:n], self.slots[n:size] = slots, 0\n")),
    "logits-left-sorted": bug("qwen3", 35, "6+11+9,3x1+1+1",
        ("model", "        logits[run.heads] = made\n", "        logits[:] = made\n")),
    # Quantised caches.
    "scale-of-the-page": bug("qwen2", 25, "11+6,5+1,1+1",
        ("store", "self.scale[slots].astype(F)", "self.scale[slots // PAGE * PAGE].astype(F)"), run=Q8, engine="--kv q8_0"),
    "copy-without-scales": bug("qwen3", 28, "11,6+9@0,1+1",
        ("store", "        for held in (self.codes, self.scale, self.offset):\n", "        for held in (self.codes,):\n"), run=Q8, engine="--kv q8_0"),
    # Recurrent states.
    "window-stays-after-a-draft": bug("qwen35", 30, "9+6,5+4,1~4+1~2,1+3",
        ("pages", "        self.restore(sequence, kept)\n        for saved in",
         "        windows = {l: held[self.row[sequence]].copy() for l, held in self.window.items()}\n        self.restore(sequence, kept)\n"
         "        for l, window in windows.items():\n            self.window[l][self.row[sequence]] = window\n        for saved in")),
    "states-kept-by-chunk": bug("qwen35", 39, "12+5,11+6,1~7+1~3,2+1",
        ("model", "        states += [state(gate[i], i + 1) for i in range(count)]\n",
         "        states += [state(gate[count - 1], count) if len(v) > CHUNK else state(gate[i], i + 1) for i in range(count)]\n")),
    "decay-after-the-read": bug("qwen35", 24, "9+6,1+1,1+4,1+1",
        ("model", "                m = m * np.exp(decay[r])[:, None, None]\n                delta = (v[r] - (m @ k[r][:, :, None])[:, :, 0]) * beta[r][:, None]\n",
         "                delta = (v[r] - (m @ k[r][:, :, None])[:, :, 0]) * beta[r][:, None]\n                m = m * np.exp(decay[r])[:, None, None]\n")),
    "state-row-by-batch-index": bug("qwen35", 37, "9+6+7,1+4+2,0+1+1,0+0+3,1+1+1",
        ("model", "        held = np.array([run.state[s] for s in run.order])", "        held = np.arange(len(run.order))")),
    # Experts.
    "second-tile-reads-the-first": bug("qwen3moe", 49, "34+9,1+5",
        ("model", "                        out[tile] = y[tile] @ w[p + name][e].T\n",
         "                        out[tile] = y[begin:begin + tile.stop - tile.start] @ w[p + name][e].T\n")),
    "shares-not-sorted": bug("qwen3moe", 33, "14+3,1+4,2+9",
        ("model", "lines, share = x[order // c.taken], shares.reshape(-1)[order]",
         "lines, share = x[order // c.taken], shares.reshape(-1)[order] if n <= 8 else shares.reshape(-1)")),
}
