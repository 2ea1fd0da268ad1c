"""The bugs of the forty-eighth round: changes of the text of the thirty-first round's engine.py, the model of each, and qdiff's options."""

MODELS = {
    "a": "--tied --weights q5_0 --heads 8 --kv-heads 4 --layers 2 --seed 4801",
    "b": "--weights f16 --set rope.scaling.type=yarn --set rope.scaling.factor=4.0 --set rope.scaling.original_context_length=512 --seed 4802",
    "c": "--arch qwen3 --weights iq4_nl --heads 4 --kv-heads 2 --head-dim 128 --layers 2 --seed 4803",
    "d": "--arch qwen3 --weights bf16 --heads 4 --kv-heads 1 --head-dim 64 --layers 2 --seed 4804",
    "e": "--arch qwen2moe --weights q4_K --seed 4805",
    "f": "--arch qwen3moe --weights q8_0 --tensor blk.0.ffn_down_exps.weight=mxfp4 --heads 4 --kv-heads 2 --head-dim 64 --seed 4806",
    "g": "--arch qwen35 --weights q8_0 --layers 4 --seed 4807",
    "h": "--arch qwen35 --weights q6_K --layers 4 --seed 4808",
    "i": "--weights q4_0 --embedding 384 --heads 6 --kv-heads 2 --seed 4809",
    "j": "--weights q8_0 --embedding 320 --ffn 544 --heads 8 --kv-heads 2 --seed 4810",
    "k": "--weights q3_K --layers 3 --seed 4811",
}

BF16 = "(lambda u: ((u + 0x7FFF + (u >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(F))(np.ascontiguousarray({}).view(np.uint32).astype(np.uint64))"

BUGS = {
    "z01": {"model": "a", "run": "--prompt haiku -n 2", "changes": [
        ("return f16(b[:, :2]) * ((np.concatenate([b[:, 6:] & 15, b[:, 6:] >> 4], 1) | (bits << 4)).astype(F) - 16)",
         "return f16(b[:, :2]) * ((np.stack([b[:, 6:] & 15, b[:, 6:] >> 4], 2).reshape(-1, 32) | (bits << 4)).astype(F) - 16)")]},
    "z02": {"model": "f", "run": "--prompt haiku -n 2", "changes": [
        ("E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2,", "E2M1 = np.array([1, 1.5, 2, 3, 4, 6, 8, 12, -1, -1.5, -2,")]},
    "z03": {"model": "d", "run": "--prompt haiku -n 3", "changes": [
        ("    return x * (F(1) / np.sqrt(block_sum(x * x) / F(x.shape[-1]) + eps)) * w",
         "    r = F(1) / np.sqrt(block_sum(x * x) / F(x.shape[-1]) + eps)\n    return x * " + BF16.format("r") + " * w"),
        ("    return total, total * r * w", "    return total, total * " + BF16.format("r") + " * w")]},
    "z04": {"model": "k", "run": "--prompt haiku -n 2", "changes": [
        ('            h = tap("attn_norm", norm(x, w[p + "attn_norm.weight"], c.eps), l)\n',
         '            h = tap("attn_norm", norm(x, w[p + "attn_norm.weight"], c.eps), l)\n'
         '            x = x * (F(1) / np.sqrt(block_sum(x * x) / F(x.shape[-1]) + c.eps))\n'),
        ('            tap("ffn_norm", h, l)\n',
         '            tap("ffn_norm", h, l)\n            x = x * (F(1) / np.sqrt(block_sum(x * x) / F(x.shape[-1]) + c.eps))\n')]},
    "z05": {"model": "b", "run": "--prompt long --length 60 -n 3", "changes": [
        ("low, high = max(np.floor(edge(32)), 0), min(np.ceil(edge(1)), c.rotated - 1)", "low, high = max(np.floor(edge(1)), 0), min(np.ceil(edge(32)), c.rotated - 1)")]},
    "z06": {"model": "c", "run": "--prompt haiku -n 3 --kv-type q8_0", "changes": [
        ("self.codes[slots] = np.trunc(v + np.copysign(F(0.5), v)).astype(np.int8)", "self.codes[slots] = np.trunc(v).astype(np.int8)")]},
    "z07": {"model": "c", "run": "--prompt haiku -n 2", "changes": [
        ("def attend(q, k, v, first):", "def attend(q, k, v, first, width):"),
        ("    scale = F(1 / np.sqrt(dim))\n", "    scale = F(1 / np.sqrt(width // heads))\n"),
        ("attend(q, keys, values, first)", "attend(q, keys, values, first, c.width)")]},
    "z08": {"model": "j", "run": "--prompt haiku -n 2", "changes": [
        ('        return tap("attn_out", matmul(context, w[p + "attn_output.weight"]), l)\n',
         '        half, m = context.shape[1] // 2, w[p + "attn_output.weight"]\n'
         '        return tap("attn_out", ' + BF16.format("matmul(context[:, :half], m[:, :half])") + ' + '
         + BF16.format("matmul(context[:, half:], m[:, half:])") + ', l)\n')]},
    "z09": {"model": "j", "run": "--prompt haiku -n 3", "changes": [
        ('tiled(tap("ffn_act", silu(gate) * up, l)', 'tiled(tap("ffn_act", silu(gate) * up * (np.arange(up.shape[1]) < up.shape[1] // 256 * 256).astype(F), l)')]},
    "z10": {"model": "e", "run": "--prompt haiku -n 2", "changes": [
        ('        weights = tap("router_weights", np.take_along_axis(probs, chosen, -1), l)\n',
         '        weights = np.take_along_axis(probs, chosen, -1)\n        weights = tap("router_weights", weights / weights.sum(-1, keepdims=True), l)\n')]},
    "z11": {"model": "g", "run": "--prompt haiku -n 3", "changes": [('tap("delta_gated", silu(z) * out, l)', 'tap("delta_gated", sigmoid(z) * out, l)')]},
    "z12": {"model": "i", "run": "--prompt long --length 24 -n 2", "changes": [
        ("        y[:, whole + r] = x @ w[whole + r]\n", "        y[:, whole + r] = x @ w[len(w) - HEAD_ROWS + r]\n")]},
    "z13": {"model": "i", "run": "--prompt haiku -n 4", "changes": [
        ("    cut = np.linspace(0, len(table), VOCAB_PARTS + 1).astype(int)\n", "    cut = np.arange(VOCAB_PARTS + 1) * (len(table) // VOCAB_PARTS)\n")]},
    "z14": {"model": "j", "run": "--prompt long --length 30 --passes 18,12 -n 3", "changes": [
        ('np.split(qkv + w[p + "qkv.bias"], cut, -1)', 'np.split(qkv + w[p + "qkv.bias"] * (np.arange(n) == 0).astype(F)[:, None], cut, -1)')]},
    "z15": {"model": "i", "run": "--prompt haiku -n 5", "changes": [
        ("    of = kv_head(heads, k.shape[1])\n", "    of = kv_head(heads, k.shape[1]) if tokens > 1 else np.arange(heads) // 2 * 2 // (heads // k.shape[1])\n")]},
    "z16": {"model": "d", "run": "--prompt long --length 44 -n 2", "changes": [
        ("    hidden = np.arange(k.shape[1])[None] > first + np.arange(tokens)[:, None]\n",
         "    hidden = np.arange(k.shape[1])[None] > first + np.arange(tokens)[:, None]\n"
         "    hidden |= np.arange(k.shape[1])[None] >= ((first + np.arange(tokens) // 16 * 16) // KEYS + 1)[:, None] * KEYS\n")]},
    "z17": {"model": "a", "run": "--prompt long --length 28 -n 22", "changes": [
        ("        context = decode(scores[:, 0] * scale, v)[:, None]\n",
         "        more = PAGE if k.shape[1] % PAGE == 0 else 0\n"
         "        context = decode(np.pad(scores[:, 0] * scale, ((0, 0), (0, more))), np.pad(v, ((0, 0), (0, more), (0, 0))))[:, None]\n")]},
    "z18": {"model": "h", "run": "--prompt long --length 40 --passes 24,16 -n 2", "changes": [
        ("        if n > 1:\n            for t in range(0, n, CHUNK):\n", "        if n > 1:\n            m = np.zeros_like(m)\n            for t in range(0, n, CHUNK):\n")]},
    "z19": {"model": "g", "run": "--prompt haiku -n 6", "changes": [
        ("np.zeros((c.taps - 1, channels), F)", "np.zeros((c.taps, channels), F)"),
        ("        line = np.concatenate([self.window[l], qkv])\n",
         "        line = np.concatenate([self.window[l][1:] if n > 1 else self.window[l][:-1], qkv])\n"),
        ("        self.window[l] = line[n:]\n", "        self.window[l] = np.concatenate([self.window[l], qkv])[n:]\n"),
        ('tap("conv_state", self.window[l][None], l)', 'tap("conv_state", self.window[l][None, 1:], l)')]},
    "z20": {"model": "e", "run": "--prompt long --length 40 -n 3", "changes": [
        ('                out[line:line + LINES] = y[line:line + LINES] @ weight', '                out[line:line + LINES // 2] = y[line:line + LINES // 2] @ weight')]},
}


def changed(text, name):
    for old, new in BUGS[name]["changes"]:
        assert text.count(old) == 1, (name, old, text.count(old))
        text = text.replace(old, new)
    return text
