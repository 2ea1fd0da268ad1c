"""The bugs: for each the changes of the engine's text, how its model is written, its passes, and options of the engine."""
Q2, Q3, MOE, Q35 = (f"--arch {a} --layers 2 --embedding 128 --heads 4 --kv-heads 2 --head-dim 32 --ffn 320 --seed {s}{o}" for a, s, o in (
    ("qwen2", 65, ""), ("qwen3", 66, ""), ("qwen3moe", 67, ""), ("qwen35", 68, " --set full_attention_interval=2")))


def bug(model, passes, length, *changes, run="", engine=""):
    return {"model": model, "run": f"--sequences {passes} --length {length} --prompt long --color never {run}".rstrip(), "engine": engine,
            "changes": changes}


BUGS = {
    # Always.
    "splits-floor": bug(Q3, "14+9+5,2x1+1+1", 34,
        ("attend", "each = -(-length // splits)", "each = length // splits")),
    "context-log-base": bug(Q2, "11+6,7+5+9@0,6+1+1", 46,
        ("attend", """        one = part(q, k[:, at:end], v[:, at:end], scale, scores[:, :, at:end])
        times[:, at:end] += 1
        context =""", """        one = part(q, k[:, at:end], v[:, at:end], scale, scores[:, :, at:end])
        one = one[0], one[1] * np.log2(np.e)
        times[:, at:end] += 1
        context =""")),
    "window-zero-in-prefill": bug(Q35, "9+6,7+1+8,5+4+1", 41,
        ("model", "before = windows[at]", "before = windows[at] if len(rows) == 1 else np.zeros_like(windows[at])")),
    "shares-of-first-part": bug(MOE, "7+12,3+9,1+1", 33,
        ("model", "share[:count, :, None]", "shares[:count, :, None]")),
    "copy-half-page": bug(Q2, "14+9,3+2+6@0:13,1+1+1", 37,
        ("model", "held.copy(a, b)", "self.copy_bytes(held, a, b)"),
        ("model", "    def rope(self", """    def copy_bytes(self, held, a, b):
        size = PAGE * self.c.groups * self.c.dim  # a byte each
        whole = held.rows.reshape(len(held.rows) // PAGE, -1).view(np.uint8)
        whole[b, :size] = whole[a, :size]

    def rope(self"""), run="--kv-type bf16", engine="--kv bf16"),
    "prefix-turns-whole-pages": bug(Q3, "13+5,4+3+7@0:11,1+1+1", 35,
        ("batch", "self.turned[row] = count\n", "self.turned[row] = pages * PAGE\n")),
    "padding-writes-slot-0": bug(Q3, "10+7+4,2x1+1+1,3+1", 31,
        ("barge", "self.turns[n:size], self.slots[n:size] = 0, 0, -1", "self.turns[n:size], self.slots[n:size] = 0, 0, 0")),
    "state-of-whole-chunks": bug(Q35, "13+8,6+11,1+1", 40,
        ("model", """        m = power(last)[:, None, None] * m +""", """        if count < CHUNK:
            break
        m = power(last)[:, None, None] * m +""")),
    "prefix-state-latest": bug(Q35, "10+5,4+6,1+1+9@0:10,1+1+2", 40,
        ("batch", "self.window[l][row], self.memory[l][row] = self.again(source, l, count)",
         "self.window[l][row], self.memory[l][row] = self.window[l][of], self.memory[l][of]")),
    "mask-of-first-sequence": bug(Q2, "9+4,5+6+7,4+3+2", 40,
        ("model", "scale, first, run.first[sequence])", "scale, first, run.first[run.order[0]])")),
    "values-a-step-late": bug(Q3, "8+6+5,4x1+1+1,3+1+1,2x1+1+1", 42,
        ("barge", "            self.slots_of_values = self.slots\n", """            before, engine.buffers.before = engine.buffers.before, self.slots.copy()
            self.slots_of_values = self.slots if before is None or len(before) != len(self.slots) else before
""")),
    "context-part-moved-back": bug(Q2, "21+14,5+6,3+4+6@0:26", 59,
        ("attend", """        end = min(at + WORK, first)
        one = part(q""", """        end = min(at + WORK, first)
        at = max(0, end - WORK)  # always whole
        one = part(q""")),
    # Under a condition.
    "memory-not-moved": bug(Q35, "9+5+7,1+1+1,6~all+1+2,3+2+1", 39,
        ("batch", "            self.memory[l][hole] = self.memory[l][last]\n", "")),
    "draft-state-of-first-row": bug(Q35, "8+6,5+1,4~2+1,6+5~1,2+3", 41,
        ("batch", "for _, k, v, decay, beta in told[start:kept]:", "for _, k, v, decay, beta in told[start:min(kept, start + 1)]:"),
        ("batch", "self.window[l][row], self.memory[l][row] = self.again(source, l, count)", "self.window[l][row], self.memory[l][row] = self.right(source, l, count)"),
        ("batch", "    def restore(self", """    def right(self, sequence, l, kept):
        window, m = self.again(sequence, l, kept)
        start = max(n for n in self.marks[sequence] if n <= kept)
        for _, k, v, decay, beta in self.journal[sequence, l][start + 1:kept]:
            m = advance(m, k, v, decay, beta)
        return window, m

    def restore(self""")),
    "head-parts-misplaced": bug(Q3, "7+6,2+3+6,1+1+1,9+2", 38,
        ("model", "logits[i * HEAD:i * HEAD + len(rows)] = rows @ w.T", "logits[i * len(rows):(i + 1) * len(rows)] = rows @ w.T")),
    "page-count-before-token": bug(Q2, "7+14+8,4x1+1+1,2+1+1", 45,
        ("attend", "pages = -(-length // page)", "pages = -(-(length - 1) // page)")),
    "kept-page-freed": bug(Q3, "11+6,7+1,3~5+2,1~1+1", 32,
        ("batch", """        pages = -(-kept // PAGE)
        for page in self.table[row, pages""", """        pages = kept // PAGE
        for page in self.table[row, pages""")),
    "scale-only-grows": bug(Q2, "12+7,6+1,5~4+3,1+1", 36,
        ("store", "self.codes[slots], self.scale[slots], self.offset[slots] = codes.astype(np.int8), d, low",
         "self.codes[slots], self.scale[slots], self.offset[slots] = codes.astype(np.int8), np.maximum(self.scale[slots], d), low"),
        run="--kv-type q8_0", engine="--kv q8_0"),
    "ids-of-draft": bug(Q3, "9+5,6+1,3~4+2,2+3~1,1+1", 33,
        ("batch", "        self.written[row] -= gone\n", "")),
    "few-rows-whole-strips": bug(Q2, "12+9,3+2,1+1,4+10,1+5", 48,
        ("model", "for at in range(0, w.shape[1], STRIP):", "for at in range(0, w.shape[1] // STRIP * STRIP, STRIP):")),
}
