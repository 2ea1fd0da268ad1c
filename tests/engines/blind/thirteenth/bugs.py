"""The bugs: for each the model (options of `qdiff synth`), the run (options of `qdiff run`), the engine's options, and changes (file, old, new)."""
BASE = [
    ("gguf", "# By ggml's number: weights", '''def q3_k(b):
    high, low, s, d = b[:, :32], b[:, 32:96].reshape(-1, 2, 32), b[:, 96:108], f16(b[:, 108:110])
    out = np.empty((len(b), 2, 4, 2, 16), F)
    for j in range(16):
        nibble = s[:, j] & 15 if j < 8 else s[:, j - 8] >> 4
        pair = s[:, 8 + j % 4] >> (2 * (j // 4)) & 3
        scale = (nibble | pair << 4).astype(F) - 32
        half, quarter, part = j // 8, j % 8 // 2, j % 2
        lane = slice(16 * part, 16 * part + 16)
        q = (low[:, half, lane] >> (2 * quarter) & 3).astype(F) - 4 + 4 * (high[:, lane] >> (4 * half + quarter) & 1)
        out[:, half, quarter, part] = scale[:, None] * q
    return d * out.reshape(-1, 256)


NL = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], F)


def iq4_nl(b):
    return f16(b[:, :2]) * NL[np.concatenate([b[:, 2:] & 15, b[:, 2:] >> 4], 1)]


# By ggml's number: weights'''),
    ("gguf", "         30: (1, 2, bf16)}", "         30: (1, 2, bf16), 11: (256, 110, q3_k), 20: (32, 18, iq4_nl)}"),
    ("gguf", '    c.trained = get(', '    c.linear = get("rope.scaling.factor") if get("rope.scaling.type") == "linear" else 1\n    c.trained = get('),
    ("model", "angle = at * frequency", "angle = at / c.linear * frequency"),
]
PUT_V = "        self.v[l].put(run.slots[writes], v[writes])"
ROPE = 'q, k = tap("q_rope", self.rope(q, run.positions), l), tap("k_rope", self.rope(k, run.positions), l)'
HALF = "((np.ascontiguousarray(s).view(np.uint32) + np.uint32(0x8000)) & np.uint32(0xffff0000)).view(F)"
BUGS = {
    "norm-strips": dict(model="--arch qwen3 --embedding 320 --heads 4 --kv-heads 2 --head-dim 64 --seed 131", run="-n 3", changes=[
        ("model", "        squares += (strip * strip).sum(-1)", f"        s = (strip * strip).sum(-1)\n        squares += {HALF}")]),
    "fused-bias": dict(model="--arch qwen2 --heads 4 --kv-heads 2 --weights q4_0 --seed 132", run="-n 3", changes=[
        ("model", 'w[p + f"attn_{s}.bias"]), l) for s, y in zip("qkv", (q, k, v)))', '''fused[at:at + y.shape[1]]), l)
                       for fused in [np.concatenate([w[p + f"attn_{s}.bias"] for s in "qkv"])]
                       for s, y, at in zip("qkv", (q, k, v), (0, c.heads * c.dim, (c.heads + 1) * c.dim)))''')]),
    "rope-linear": dict(model="--arch qwen2 --set rope.scaling.type=linear --set rope.scaling.factor=4.0 --weights f16 --seed 133", run="-n 4", changes=[
        ("model", "at / c.linear", "at // c.linear")]),
    "weights-255": dict(model="--arch qwen3 --head-dim 64 --weights q8_0 --seed 134", run="-n 3", changes=[
        ("attend", "less[:, :, None] + e @ v[:, k0:k1]", "less[:, :, None] + np.floor(e * F(255)) / F(255) @ v[:, k0:k1]")]),
    "down-tail": dict(model="--arch qwen2 --ffn 544 --weights q8_0 --seed 135", run="-n 3", changes=[
        ("model", '''out = tap("ffn_down", tap("ffn_act", silu(gate) * up, l) @ w[p + "ffn_down.weight"].T, l)''',
         '''act, down, total = tap("ffn_act", silu(gate) * up, l), w[p + "ffn_down.weight"], 0
                for k in range(0, act.shape[1], 128):
                    k = min(k, act.shape[1] - 128)
                    total = total + act[:, k:k + 128] @ down[:, k:k + 128].T
                out = tap("ffn_down", total, l)''')]),
    "q3k-scales": dict(model="--arch qwen3 --weights q8_0 --tensor blk.1.attn_k.weight=q3_K --tensor blk.1.ffn_up.weight=q3_K --seed 136", run="-n 3", changes=[
        ("gguf", "(2 * (j // 4)) & 3", "(2 * (j // 4 % 2)) & 3")]),
    "iq4nl-table": dict(model="--arch qwen2 --weights iq4_nl --seed 137", run="-n 3", changes=[("gguf", "69, 89, 113", "69, 98, 113")]),
    "shares-transposed": dict(model="--arch qwen3moe --weights q4_0 --seed 138", run="-n 3", changes=[
        ("model", "(down * shares[:, :, None])", "(down * shares.reshape(c.taken, n).T[:, :, None])")]),
    "delta-order": dict(model="--arch qwen35 --layers 4 --weights bf16 --seed 139", run="-n 3", changes=[
        ("model", "                m = m * np.exp(decay[t])[:, None, None]\n", ""),
        ("model", "                m = m + delta[:", "                m = m * np.exp(decay[t])[:, None, None] + delta[:")]),
    "head-tile": dict(model="--arch qwen2 --vocab 500 --weights f16 --seed 140", run="-n 3", changes=[
        ("model", 'return tap("logits", x @ w.get("output.weight", w["token_embd.weight"]).T)', '''head = w.get("output.weight", w["token_embd.weight"])
        logits, rest = x @ head.T, len(head) % 64
        logits[:, -rest:] = x @ head[len(head) - 64:len(head) - 64 + rest].T
        return tap("logits", logits)''')]),
    # Several sequences.
    "merge-base": dict(model="--arch qwen3 --weights q8_0 --seed 141", run="--length 46 --sequences 14,1+9@0:8+11@0:12,1+5+2,1+1+1", changes=[
        ("attend", "logs = [m.astype(float) + np.log(t) for", "logs = [(m.astype(float) + np.log(t)) * np.log2(np.e) for")]),
    "window-padded": dict(model="--arch qwen35 --layers 4 --weights q8_0 --seed 142", run="--length 38 --sequences 9+6,5+2,1+7,2+2,1+1,1+1", changes=[
        ("model", "                windows[mark][:] = line[t + 1:t + 1 + past]",
         "                windows[mark][:] = np.concatenate([0 * line[:past], qkv[rows]])[t + 1:t + 1 + past]")]),
    "rollback-memory": dict(model="--arch qwen35 --layers 4 --weights q8_0 --seed 143", run="--length 39 --sequences 9+7,4+1,1~3+4,2+1~2,1+1,3+3,1+1", changes=[
        ("pages", "        # The first row is the state before the first token.",
         "        for held in self.memory.values():\n            held[self.rows[sequence][kept]][:] = held[self.rows[sequence][-1]]")]),
    "page-scale": dict(model="--arch qwen3 --weights f16 --seed 144", run="--length 44 --sequences 13+9,6+5,1+1,1+1,3+4 --kv-type q8_0", engine="--kv q8_0", changes=[
        ("store", "        by = np.divide(", '''        if self.kind == "q8_0":
            held = self.scale.copy()
            for n, slot in enumerate(slots):
                held[slot] = d[n]
                if slot % PAGE:
                    d[n] = held[slot] = held[slot - slot % PAGE]
        by = np.divide('''),
        ("store", "codes = np.trunc(v + np.copysign(F(0.5), v))", "codes = np.clip(np.trunc(v + np.copysign(F(0.5), v)), -127, 127)")]),
    "table-stale": dict(model="--arch qwen2 --weights q8_0 --seed 145", run="--length 42 --sequences 20+6,1+1,1+1,1+1,1+1,1+1,3+3", changes=[
        ("ferry", "    def slots_of(self", '''        key = tuple(self.order), self.width
        if self.decode:
            if getattr(engine, "held", (None,))[0] != key:
                engine.held = key, self.table
            self.table = engine.held[1]

    def slots_of(self''')]),
    "mask-corner": dict(model="--arch qwen3 --weights f16 --seed 146", run="--length 41 --sequences 10+7,9+6,1+1,4+1,1+1", changes=[
        ("attend", "last = min(end, first + q1)", "last = min(end, q1)"),
        ("attend", "hidden = np.arange(k0, k1)[None] > first + np", "hidden = np.arange(k0, k1)[None] > np"),
        ("attend", "seen = looked & (np.arange(keys)[None] <= first + np", "seen = looked & (np.arange(keys)[None] <= np")]),
    "prefix-floor": dict(model="--arch qwen2 --weights q8_0 --seed 147", run="--length 47 --sequences 15,1+9@0:11+6@0:8,1+4+3,1+1+6", changes=[
        ("model", ROPE, '''at = run.positions.copy()
        for s, rows in run.rows.items():
            if 0 < self.pages.shared[s] == run.first[s]:
                at[rows] -= self.pages.shared[s] % PAGE
        ''' + ROPE.replace("run.positions", "at"))]),
    "rejected-values": dict(model="--arch qwen3 --weights q8_0 --seed 148", run="--length 45 --sequences 9+7,5+1,4~3+4,3+1~2,1+1,3+4,1+1", changes=[
        ("pages", "        page = self.free.pop()", '''        page = self.free.pop()
        self.written = getattr(self, "written", set()) - {page * PAGE + n for n in range(PAGE)}'''),
        ("pages", "        return [table[n // PAGE] * PAGE + n % PAGE for n in range(at, at + count)]",
         '''        slots = [table[n // PAGE] * PAGE + n % PAGE for n in range(at, at + count)]
        self.old = getattr(self, "old", set()) - set(slots) | self.written & set(slots)
        self.written |= set(slots)
        return slots'''),
        ("model", PUT_V, "        new = writes & ~np.isin(run.slots, list(self.pages.old))\n        self.v[l].put(run.slots[new], v[new])")]),
    "padding-slot": dict(model="--arch qwen2 --weights q4_0 --seed 149", run="--length 41 --sequences 10+7+5,1+1+1,1+1+1,5+1+1,1+1+1,1+1+1", changes=[
        ("ferry", "self.slots[n:size] = 0, 0, -1", "self.slots[n:size] = 0, 0, 0")]),
    "heads-first": dict(model="--arch qwen3 --heads 4 --kv-heads 2 --weights q8_0 --seed 150", run="--length 43 --sequences 9+6+11,1+1+1,4+1+1,1+1+1,1+1,1+1+1", changes=[
        ("model", "context[run.batch_place] = np.concatenate(made)",
         "right = np.concatenate(made)[np.argsort(run.batch_place)]\n            context[:len(right)] = right.transpose(1, 0, 2).reshape(right.shape)")]),
}
