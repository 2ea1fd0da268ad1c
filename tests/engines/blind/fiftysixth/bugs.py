"""The bugs of the fifty-sixth round: changes of the text of the thirty-first round's engine.py, the model of each, and qdiff's options."""

MODELS = {
    "a": "--weights q3_K --layers 2 --seed 5601",
    "b": "--arch qwen3moe --weights q8_0 --tensor blk.1.ffn_down_exps.weight=mxfp4 --heads 4 --kv-heads 2 --head-dim 64 --seed 5602",
    "c": "--weights f16 --set rope.scaling.type=yarn --set rope.scaling.factor=8.0 --set rope.scaling.original_context_length=256 --seed 5603",
    "d": "--weights q5_0 --layers 3 --seed 5604",
    "e": "--weights q4_K --seed 5605",
    "f": "--arch qwen3 --weights q6_K --heads 4 --kv-heads 2 --head-dim 64 --seed 5606",
    "g": "--weights q8_0 --heads 8 --kv-heads 2 --seed 5607",
    "h": "--arch qwen3 --weights f16 --heads 4 --kv-heads 2 --head-dim 64 --seed 5608",
    "i": "--arch qwen2moe --weights q4_K --seed 5609",
    "j": "--arch qwen3moe --weights q4_0 --heads 4 --kv-heads 1 --head-dim 64 --seed 5610",
    "k": "--arch qwen3 --weights q8_0 --heads 4 --kv-heads 2 --head-dim 128 --layers 3 --seed 5611",
    "l": "--arch qwen35 --weights q8_0 --layers 4 --seed 5612",
    "m": "--arch qwen3 --weights f16 --embedding 260 --heads 4 --kv-heads 2 --head-dim 64 --seed 5613",
    "n": "--arch qwen3 --weights bf16 --heads 4 --kv-heads 4 --head-dim 64 --seed 5614",
    "o": "--weights q4_0 --embedding 384 --heads 6 --kv-heads 2 --seed 5615",
    "p": "--arch qwen35 --weights q6_K --layers 4 --seed 5616",
    "q": "--weights q8_0 --embedding 320 --heads 5 --kv-heads 5 --seed 5617",
    "r": "--arch qwen3 --weights iq4_nl --heads 4 --kv-heads 2 --head-dim 64 --seed 5618",
}

BUGS = {
    "v01": {"model": "a", "run": "--prompt haiku -n 2", "changes": [
        ("scale[:, j] = (four | two << 4).astype(F) - 32", "scale[:, j] = four.astype(F) - 8")]},
    "v02": {"model": "b", "run": "--prompt haiku -n 2", "changes": [
        ("return d * E2M1[np.concatenate([b[:, 1:] & 15, b[:, 1:] >> 4], 1)]", "return d * E2M1[np.stack([b[:, 1:] & 15, b[:, 1:] >> 4], "
            "2).reshape(-1, 32)]")]},
    "v03": {"model": "c", "run": "--prompt long --length 50 -n 3", "changes": [
        ("self.grown = 1 + 0.1 * np.log(c.yarn)", "self.grown = 1 + 0.1 * (1 + 0.1 * np.log(c.yarn)) * np.log(c.yarn)")]},
    "v04": {"model": "d", "run": "--prompt haiku -n 2", "changes": [
        ("        y[:, whole + r] = x @ w[whole + r]\n    return y\n",
         "        y[:, whole + r] = x @ w[whole + r]\n    return np.concatenate([y[:, :-(-len(w) // 2)], y[:, len(w) // 2:]], 1)[:, :len(w)]\n")]},
    "v05": {"model": "e", "run": "--prompt haiku -n 2", "changes": [
        ("VOCAB_PARTS = 2\n", "VOCAB_PARTS = 2\n\n\ndef fast_silu(x):\n    y = x / 2\n"
         "    return x * (F(0.5) + F(0.5) * np.clip(y * (1 + F(0.1834) * y * y), -1, 1).astype(F))\n"),
        ('tiled(tap("ffn_act", silu(gate) * up, l)', 'tiled(tap("ffn_act", fast_silu(gate) * up, l)')]},
    "v06": {"model": "f", "run": "--prompt haiku -n 3", "changes": [
        ("    context = sums / total\n    if tokens == 1:\n        context = decode(scores[:, 0] * scale, v)[:, None]\n",
         "    t = np.maximum((np.where(hidden[None], F(-1e4), scores * scale) - most) * F(np.log2(np.e)), F(-126))\n"
         "    whole = np.floor(t)\n    weights = np.ldexp(F(0.9702) * (1 + (t - whole)), whole.astype(int)).astype(F)\n"
         "    total = weights.sum(-1, keepdims=True)\n    context = (weights / total) @ v\n")]},
    "v07": {"model": "g", "run": "--prompt haiku -n 2", "changes": [
        ('w[p + "qkv.bias"] = np.concatenate([w.pop(p + f"attn_{s}.bias") for s in "qkv"])',
         'turned = lambda b: b.reshape(-1, 2, c.dim // 2).swapaxes(1, 2).reshape(-1)\n'
         '                w[p + "qkv.bias"] = np.concatenate([turned(w.pop(p + "attn_q.bias")), turned(w.pop(p + "attn_k.bias")), w.pop(p + '
         '"attn_v.bias")])')]},
    "v08": {"model": "h", "run": "--prompt haiku -n 3 --kv-type q8_0", "changes": [
        ("d = np.abs(x).max(-1, keepdims=True) / F(127)", "d = np.maximum(np.abs(x).max(-1, keepdims=True) / F(127), F(1))")]},
    "v09": {"model": "i", "run": "--prompt haiku -n 2", "changes": [
        ('        weights = tap("router_weights", np.take_along_axis(probs, chosen, -1), l)\n',
         '        best = np.take_along_axis(logits, chosen, -1)\n        best = np.exp(best - best[:, :1])\n'
         '        weights = tap("router_weights", best / best.sum(-1, keepdims=True), l)\n')]},
    "v10": {"model": "j", "run": "--prompt long --length 30 -n 2", "changes": [
        ('weight[np.searchsorted(ends, line, "right")]', 'weight[min(np.searchsorted(np.cumsum(counts), line, "right"), c.experts - 1)]')]},
    "v11": {"model": "k", "run": "--prompt haiku -n 2", "changes": [
        ('tap("attn_out", matmul(context, w[p + "attn_output.weight"]), l)',
         'tap("attn_out", matmul(context[:, :c.width], w[p + "attn_output.weight"][:, :c.width]), l)')]},
    "v12": {"model": "l", "run": "--prompt haiku -n 2", "changes": [
        ('decay = tap("delta_decay", soft * w[p + "ssm_a"], l)', 'decay = tap("delta_decay", soft * -np.exp(w[p + "ssm_a"]), l)')]},
    "v13": {"model": "m", "run": "--prompt haiku -n 2", "changes": [
        ("    return x * (F(1) / np.sqrt(block_sum(x * x) / F(x.shape[-1]) + eps)) * w\n",
         "    r = F(1) / np.sqrt(block_sum(x * x) / F(x.shape[-1]) + eps)\n    y, over = x * r * w, -x.shape[-1] % 8\n"
         "    if x.ndim == 2 and over:\n        y[1:, :over] = x[1:, :over] * r[:-1] * w[:over]\n    return y\n")]},
    "v14": {"model": "n", "run": "--prompt long --length 44 --passes 20,14,10 -n 3", "changes": [
        ("self.rope(q, positions), l), tap(\"k_rope\", self.rope(k, positions), l)",
         "self.rope(q, positions + (first if n > 1 else 0)), l), tap(\"k_rope\", self.rope(k, positions + (first if n > 1 else 0)), l)")]},
    "v15": {"model": "o", "run": "--prompt haiku -n 4", "changes": [
        ("    of = kv_head(heads, k.shape[1])\n",
         "    of = kv_head(heads, k.shape[1])\n    if tokens == 1:\n        of = np.arange(heads) // 2 * 2 // (heads // k.shape[1])\n")]},
    "v16": {"model": "p", "run": "--prompt long --length 45 --passes 25,20 -n 2", "changes": [
        ("    told = v - since * (k @ m.transpose(0, 2, 1))\n    for t in range(n):\n"
         "        told[:, t] = beta[:, t, None] * (told[:, t] - (among[:, t, None, :t] @ told[:, :t])[:, 0])\n",
         "    told, erased = v.copy(), k.copy()\n    for t in range(n):\n        for y in (told, erased):\n"
         "            y[:, t] = beta[:, t, None] * (y[:, t] - (among[:, t, None, :t] @ y[:, :t])[:, 0])\n"
         "    told = told - since * (erased @ m.transpose(0, 2, 1))\n")]},
    "v17": {"model": "l", "run": "--prompt long --length 26 -n 3", "changes": [
        ("        conv = sum(line[j:j + n] * ", "        ahead = np.concatenate([qkv, np.zeros((c.taps - 1, qkv.shape[1]), F)]) if n > 1 "
            "else line\n        conv = sum(ahead[j:j + n] * ")]},
    "v18": {"model": "d", "run": "--prompt haiku -n 3", "changes": [
        ("    for low, high in zip(cut, cut[1:]):\n        mine = (ids >= low) & (ids < high)\n        rows = table[low:high][np.where(mine, ids - low, 0)]\n",
         "    size = -(-len(table) // 64) * 64 // VOCAB_PARTS\n    for rank, begin in enumerate(cut[:-1]):\n        low = rank * size\n"
         "        mine = (ids >= low) & (ids < low + size)\n        rows = table[begin:][np.where(mine, ids - low, 0)]\n")]},
    "v19": {"model": "q", "run": "--prompt long --length 30 -n 20", "changes": [
        ("        context = decode(scores[:, 0] * scale, v)[:, None]\n",
         "        more = PAGE if k.shape[1] % PAGE == 0 else 0\n"
         "        context = decode(np.pad(scores[:, 0] * scale, ((0, 0), (0, more))), np.pad(v, ((0, 0), (0, more), (0, 0))))[:, None]\n")]},
    "v20": {"model": "r", "run": "--prompt long --length 44 --passes 20,24 -n 2", "changes": [
        ("    hidden = np.arange(k.shape[1])[None] > first + np.arange(tokens)[:, None]\n",
         "    hidden = np.arange(k.shape[1])[None] > first + np.arange(tokens)[:, None]\n"
         "    hidden |= np.arange(k.shape[1])[None] >= -(-(first + np.arange(tokens)[:, None] // TILE_M * TILE_M + 1) // KEYS) * KEYS\n")]},
}


def changed(text, name):
    for old, new in BUGS[name]["changes"]:
        assert text.count(old) == 1, (name, old, text.count(old))
        text = text.replace(old, new)
    return text
