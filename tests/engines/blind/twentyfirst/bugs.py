"""The bugs of the round. BASE adds to the engine of the eleventh round four formats of weights, and the shared expert; it is no bug.

A bug has a model (options of `qdiff synth`), a run (options of `qdiff run`), options of the engine, and changes: file, old text, new text."""

BASE = [
    ("gguf", "# By ggml's number", '''def q3_k(b):
    """256 weights: 32 bytes of high bits, 64 of low pairs, sixteen scales of six bits in 12 bytes, d."""
    high, low, s, d = b[:, :32], b[:, 32:96].reshape(-1, 2, 1, 32), b[:, 96:108], f16(b[:, 108:110])
    fours = np.concatenate([s[:, :8] & 15, s[:, :8] >> 4], 1)
    twos = np.concatenate([s[:, 8:] >> (2 * j) & 3 for j in range(4)], 1)
    scale = (fours | twos << 4).astype(F) - 32
    q = (low >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3).reshape(-1, 8, 32).astype(F)
    q -= 4 * (1 - (high[:, None] >> np.arange(8, dtype=np.uint8)[:, None] & 1).astype(F))
    return ((d * scale)[:, :, None] * q.reshape(-1, 16, 16)).reshape(-1, 256)


def q5_k(b):
    """256 weights: as q4_k, with 32 bytes of fifth bits before the nibbles."""
    fifth = (b[:, 16:48][:, None] >> np.arange(8, dtype=np.uint8)[:, None] & 1).astype(F).reshape(-1, 256)
    ones = np.concatenate([b[:, :16], np.full((len(b), 128), 0x11, np.uint8)], 1)
    none = np.concatenate([b[:, :16], np.zeros((len(b), 128), np.uint8)], 1)
    return q4_k(np.concatenate([b[:, :16], b[:, 48:]], 1)) + 16 * fifth * (q4_k(ones) - q4_k(none))


UNEVEN = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], F)
HALVES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], F)


def iq4_nl(b):
    return f16(b[:, :2]) * UNEVEN[np.concatenate([b[:, 2:] & 15, b[:, 2:] >> 4], 1)]


def mxfp4(b):
    """32 weights: an exponent of 8 bits, and 16 bytes of nibbles, each a float of 4 bits; here twice that float, and half its power."""
    nibbles = np.concatenate([b[:, 1:] & 15, b[:, 1:] >> 4], 1)
    return np.ldexp(HALVES[nibbles], b[:, :1].astype(int) - 128).astype(F)


# By ggml's number'''),
    ("gguf", "14: (256, 210, q6_k),", "14: (256, 210, q6_k), 11: (256, 110, q3_k), 13: (256, 176, q5_k), 20: (32, 18, iq4_nl), 39: (32, 17, mxfp4),"),
    ("model", 'if c.arch == "qwen35":', 'if c.arch.startswith("qwen35"):'),
    ("model", 'if c.arch == "qwen35" else', 'if c.arch.startswith("qwen35") else'),
    ("model", '''        shares = tap("router_shares", weights / weights.sum(-1, keepdims=True), l)
''', '''        shares = weights if c.arch == "qwen2moe" else tap("router_shares", weights / weights.sum(-1, keepdims=True), l)
'''),
    ("model", '''        return tap("experts_out", (down * shares[:, :, None]).sum(1), l)
''', '''        out = tap("experts_out", (down * shares[:, :, None]).sum(1), l)
        if p + "ffn_gate_inp_shexp.weight" not in w:
            return out
        score = tap("shared_score", (x @ w[p + "ffn_gate_inp_shexp.weight"].reshape(-1))[:, None], l)
        weight = tap("shared_weight", sigmoid(score), l)
        gate, up = tap("shared_gate", x @ w[p + "ffn_gate_shexp.weight"].T, l), tap("shared_up", x @ w[p + "ffn_up_shexp.weight"].T, l)
        one = tap("shared_down", tap("shared_act", silu(gate) * up, l) @ w[p + "ffn_down_shexp.weight"].T, l)
        return tap("ffn_out", out + tap("shared_out", one * weight, l), l)
'''),
]

PAIRS = lambda layers, names, kind: " ".join(f"--tensor blk.{l}.{n}.weight={kind}" for l in range(layers) for n in names)

BUGS = {
    # Common ones.
    "shares": {
        "model": "--arch qwen2moe --layers 2 --heads 4 --kv-heads 2 --weights q5_0 --seed 2101",
        "run": "--prompt code --raw --length 21 -n 3",
        "changes": [("model", 'np.take_along_axis(probs, chosen, -1), l)\n',
                     '(lambda y: y / y.sum(-1, keepdims=True))(np.take_along_axis(probs, chosen, -1)), l)\n')],
    },
    "flatsplit": {
        "model": "--arch qwen35 --layers 4 --embedding 320 --heads 5 --kv-heads 1 --head-dim 64 --weights q8_0 --seed 2102",
        "run": "--prompt chinese -n 2",
        "changes": [("model", '"attn_q.weight"].T, l).reshape(n, c.heads, 2, c.dim)', '"attn_q.weight"].T, l).reshape(n, 2, c.heads, c.dim)'),
                    ("model", "both[:, :, 0].reshape(n, -1)", "both[:, 0].reshape(n, -1)"),
                    ("model", "both[:, :, 1].reshape(n, -1)", "both[:, 1].reshape(n, -1)")],
    },
    "headmap": {
        "model": "--arch qwen35 --layers 2 --heads 4 --kv-heads 2 --head-dim 64 --weights bf16 --set ssm.group_count=2 --set ssm.time_step_rank=6 --set ssm.inner_size=384 --seed 2103",
        "run": "--prompt emoji --raw --length 12 -n 3",
        "changes": [("model", "of_head = np.arange(c.value_heads) % c.key_heads", "of_head = np.arange(c.value_heads) // (c.value_heads // c.key_heads)")],
    },
    "mxpack": {
        "model": "--arch qwen3moe --layers 2 --heads 4 --kv-heads 1 --head-dim 64 --weights q8_0 "
                 + PAIRS(2, ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"), "mxfp4") + " --seed 2104",
        "run": "--prompt haiku -n 3",
        "changes": [("gguf", "nibbles = np.concatenate([b[:, 1:] & 15, b[:, 1:] >> 4], 1)", "nibbles = np.stack([b[:, 1:] & 15, b[:, 1:] >> 4], 2).reshape(-1, 32)")],
    },
    "fp8read": {
        "model": "--arch qwen2 --layers 3 --embedding 384 --heads 12 --kv-heads 2 --head-dim 32 --weights f16 --seed 2105",
        "run": "--prompt code --raw --length 19 -n 4 --kv-type f8_e4m3 --reference none",
        "engine": "--kv f8_e4m3",
        "changes": [("store", "self.scale = F(SCALES[which, layer])", 'self.scale, self.back = F(SCALES[which, layer]), F(SCALES["k", layer])'),
                    ("store", "return self.rows[slots] * self.scale", "return self.rows[slots] * self.back")],
    },
    "window": {
        "model": "--arch qwen2 --layers 4 --heads 8 --kv-heads 4 --embedding 256 --weights q4_0 --seed 2106",
        "run": "--prompt long --raw --length 43 -n 4",
        "changes": [("attend", "            hidden = np.arange(k0, k1)[None] > first + np.arange(q0, q1)[:, None]\n",
                     "            hidden = np.arange(k0, k1)[None] > first + np.arange(q0, q1)[:, None]\n"
                     "            hidden |= np.arange(k0, k1)[None] <= first + np.arange(q0, q1)[:, None] - WINDOW\n"),
                    ("attend", "    seen = looked &", "    seen = (np.arange(keys)[None] > first + np.arange(tokens)[:, None] - WINDOW) & looked &"),
                    ("attend", "        s = scores[:, :, k0:k0 + SPLIT] * scale\n",
                     "        s = scores[:, :, k0:k0 + SPLIT] * scale\n        s[:, :, np.arange(keys)[k0:k0 + SPLIT] <= keys - 1 - WINDOW] = F(-1e30)\n"),
                    ("model", "            if run.decode:\n                scores", "            attend.WINDOW = 16 if l >= c.layers // 2 else 1 << 30\n            if run.decode:\n                scores")],
    },
    "topleft": {
        "model": "--arch qwen2 --layers 2 --embedding 512 --heads 4 --kv-heads 2 --weights q3_K --tensor token_embd.weight=q6_K --seed 2107",
        "run": "--prompt long --raw --length 32 --passes 11,13,8 -n 3",
        "changes": [("attend", "        last = min(end, first + q1)", "        last = min(end, q1)"),
                    ("attend", "hidden = np.arange(k0, k1)[None] > first + np.arange(q0, q1)[:, None]", "hidden = np.arange(k0, k1)[None] > np.arange(q0, q1)[:, None]"),
                    ("attend", "(np.arange(keys)[None] <= first + np.arange(tokens)[:, None])", "(np.arange(keys)[None] <= np.arange(tokens)[:, None])")],
    },
    "wholenorm": {
        "model": "--arch qwen3 --layers 3 --embedding 256 --heads 6 --kv-heads 3 --head-dim 80 --weights f16 --seed 2108",
        "run": "--prompt haiku --raw -n 4",
        "changes": [("model", "            q = norm(q, w[p + \"attn_q_norm.weight\"], c.eps)\n            k = norm(k, w[p + \"attn_k_norm.weight\"], c.eps)\n",
                     "            whole = lambda y, b: norm(y.reshape(n, -1), np.tile(b, y.shape[1]), c.eps).reshape(y.shape)\n"
                     "            q = whole(q, w[p + \"attn_q_norm.weight\"])\n            k = whole(k, w[p + \"attn_k_norm.weight\"])\n")],
    },
    "gatesum": {
        "model": "--arch qwen35moe --layers 4 --heads 4 --kv-heads 2 --head-dim 64 --weights q8_0 --seed 2109",
        "run": "--prompt haiku -n 2",
        "changes": [("model", 'tap("ffn_out", out + tap("shared_out", one * weight, l), l)', 'tap("ffn_out", out * weight + tap("shared_out", one * weight, l), l)')],
    },
    "halfpos": {
        "model": "--arch qwen2 --layers 2 --heads 4 --kv-heads 1 --head-dim 64 --weights q8_0 --rope-base 10000 --seed 2110",
        "run": "--prompt long --raw --length 283 -n 4",
        "changes": [("model", "        half = c.rotated // 2\n        at = np.arange(c.context, dtype=np.float64)[:, None]\n",
                     "        half = c.rotated // 2\n        bits = np.arange(c.context, dtype=F).view(np.uint32)\n"
                     "        at = ((bits + 0x7fff + (bits >> 16 & 1)) & np.uint32(0xffff0000)).view(F).astype(np.float64)[:, None]\n")],
    },
    # Rare ones.
    "unitroot": {
        "model": "--arch qwen35 --layers 3 --heads 4 --kv-heads 2 --head-dim 64 --weights q5_0 --eps 0.00001 --seed 2111",
        "run": "--prompt code --raw --length 17 -n 3",
        "changes": [("model", "unit = lambda y: y / np.sqrt((y * y).sum(-1, keepdims=True) + c.eps)",
                     "unit = lambda y: y / np.sqrt((y * y).mean(-1, keepdims=True) + c.eps) / F(np.sqrt(d))")],
    },
    "typo": {
        "model": "--arch qwen3 --layers 2 --embedding 256 --heads 4 --kv-heads 2 --ffn 768 --weights q5_K " + PAIRS(2, ("ffn_up",), "iq4_nl") + " --seed 2112",
        "run": "--prompt chinese --raw -n 3",
        "changes": [("gguf", "-127, -104, -83, -65,", "-127, -104, -81, -65,")],
    },
    "bucketpos": {
        "model": "--arch qwen3vl --layers 2 --heads 8 --kv-heads 2 --embedding 512 --head-dim 64 --weights q4_K --tensor token_embd.weight=q8_0 --seed 2113",
        "run": "--prompt emoji --raw --length 13 -n 5",
        "changes": [("model", '        q, k = tap("q_rope", self.rope(q, run.positions), l), tap("k_rope", self.rope(k, run.positions), l)\n',
                     '        if not run.decode:\n            self.late = -int(run.positions[-1] + 1) % 8\n'
                     '        at = run.positions + (getattr(self, "late", 0) if run.decode else 0)\n'
                     '        q, k = tap("q_rope", self.rope(q, at), l), tap("k_rope", self.rope(k, at), l)\n')],
    },
    "lazymax": {
        "model": "--arch qwen3 --layers 2 --heads 4 --kv-heads 4 --head-dim 64 --weights q8_0 --seed 2114",
        "run": "--prompt long --raw --length 37 -n 3",
        "changes": [("attend", "            e, less = np.exp(s - base[:, :, None]), np.exp(before - base)\n",
                     "            e, less = np.exp(s - base[:, :, None]), np.where(now - before < 1, F(1), np.exp(before - base))\n")],
    },
    "capacity": {
        "model": "--arch qwen3moe --layers 3 --heads 4 --kv-heads 2 --embedding 256 --weights q4_0 --set expert_count=8 --set expert_used_count=2 --seed 2115",
        "run": "--prompt code --raw --length 26 -n 3",
        "changes": [("model", "        lines[place] = np.repeat(x, c.taken, 0)\n",
                     "        most = int(np.ceil(1.25 * n * c.taken / c.experts))\n        kept = place - starts[expert] < most\n"
                     "        lines[place[kept]] = np.repeat(x, c.taken, 0)[kept]\n")],
    },
    "shortturn": {
        "model": "--arch qwen35 --layers 4 --heads 8 --kv-heads 2 --head-dim 32 --weights f16 --seed 2116",
        "run": "--prompt long --raw --length 18 --passes 9,2,7 -n 3",
        "changes": [("model", "                windows[mark][:] = line[t + 1:t + 1 + past]\n",
                     "                windows[mark][:] = line[t + 1:t + 1 + past]\n"
                     "                if not run.decode and len(rows) < past:\n                    windows[mark][:past - t - 1] = 0\n")],
    },
    "coarse": {
        "model": "--arch qwen3 --layers 2 --embedding 256 --heads 4 --kv-heads 2 --head-dim 128 --weights bf16 --seed 2117",
        "run": "--prompt haiku -n 4 --kv-type q8_0/q4_1",
        "engine": "--kv q8_0/q4_1",
        "changes": [("store", "            low = b.min(-1, keepdims=True)\n            d = (b.max(-1, keepdims=True) - low) / F(15)\n",
                     "            low = np.broadcast_to(b.min((-2, -1), keepdims=True), (*b.shape[:-1], 1))\n"
                     "            d = (np.broadcast_to(b.max((-2, -1), keepdims=True), low.shape) - low) / F(15)\n")],
    },
    "lasttile": {
        "model": "--arch qwen2 --layers 2 --heads 4 --kv-heads 2 --tied --vocab 700 --weights q6_K --seed 2118",
        "run": "--prompt haiku -n 4",
        "changes": [("model", '        return tap("logits", x @ w.get("output.weight", w["token_embd.weight"]).T)\n',
                     '        head, tile = w.get("output.weight", w["token_embd.weight"]), 256\n        logits = np.empty((len(x), len(head)), F)\n'
                     '        for at in range(0, len(head), tile):\n            begin = min(at, len(head) - tile)  # whole tiles only\n'
                     '            logits[:, at:at + tile] = (x @ head[begin:begin + tile].T)[:, :len(head) - at]\n        return tap("logits", logits)\n')],
    },
    "ramp": {
        "model": "--arch qwen3 --layers 2 --head-dim 128 --heads 4 --kv-heads 2 --context 8192 --set rope.scaling.type=yarn --set rope.scaling.factor=4.0 "
                 "--set rope.scaling.original_context_length=2048 --weights q8_0 --seed 2119",
        "run": "--prompt long --raw --length 45 -n 3",
        "changes": [("model", "low, high = max(0, np.floor(pair(32))), min(c.rotated - 1, np.ceil(pair(1)))", "low, high = max(0, pair(32)), min(c.rotated - 1, pair(1))")],
    },
    "tableend": {
        "model": "--arch qwen3 --layers 2 --embedding 288 --heads 3 --kv-heads 1 --head-dim 96 --weights q8_0 --seed 2120",
        "run": "--prompt long --raw --length 75 -n 3",
        "changes": [("ferry", "self.table[at * self.width + n // PAGE]", "self.table[at * self.width + np.minimum(n // PAGE, 7)]")],
    },
}
