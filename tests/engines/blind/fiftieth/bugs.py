"""The bugs of the fiftieth round: changes of the text of the thirty-first round's engine.py, the model of each, and qdiff's options."""

MODELS = {
    "a": "--weights q3_K --layers 2 --seed 5001",
    "b": "--arch qwen3 --weights f16 --heads 4 --kv-heads 2 --head-dim 64 --layers 2 --seed 5002",
    "c": "--weights q8_0 --set rope.scaling.type=yarn --set rope.scaling.factor=4.0 --set rope.scaling.original_context_length=512 --seed 5003",
    "d": "--arch qwen35 --weights q8_0 --layers 4 --seed 5004",
    "e": "--arch qwen3 --weights q5_0 --heads 8 --kv-heads 2 --head-dim 64 --layers 2 --seed 5005",
    "f": "--weights bf16 --heads 4 --kv-heads 2 --ffn 544 --layers 3 --seed 5006",
    "g": "--arch qwen2moe --weights q4_K --seed 5007",
    "h": "--arch qwen3moe --weights q8_0 --heads 4 --kv-heads 1 --head-dim 64 --seed 5008",
    "i": "--arch qwen35 --weights q5_K --layers 4 --seed 5009",
    "j": "--tied --weights q4_0 --heads 8 --kv-heads 4 --layers 2 --seed 5010",
    "k": "--weights iq4_nl --embedding 320 --heads 5 --kv-heads 1 --layers 2 --seed 5011",
}

BF16 = "(lambda y: (lambda u: ((u + 0x7FFF + (u >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(F))(np.ascontiguousarray(y).view(np.uint32).astype(np.uint64)))"

BUGS = {
    "z01": {"model": "a", "run": "--prompt haiku -n 2", "changes": [
        ("        scale[:, j] = (four | two << 4).astype(F) - 32", "        scale[:, j] = four.astype(F) - 8")]},
    "z02": {"model": "b", "run": "--prompt haiku -n 3", "changes": [
        ("        rows[~mine] = 0\n", "")]},
    "z03": {"model": "b", "run": "--prompt long --length 30 -n 2", "changes": [
        ('q, k = norm(q, w[p + "attn_q_norm.weight"], c.eps), norm(k, w[p + "attn_k_norm.weight"], c.eps)',
         'q, k = (norm(y.reshape(n, -1), np.tile(w[p + f"attn_{s}_norm.weight"], y.shape[1]), c.eps).reshape(y.shape) for s, y in (("q", q), ("k", k)))')]},
    "z04": {"model": "c", "run": "--prompt long --length 60 -n 3", "changes": [
        ('c.trained = get("rope.scaling.original_context_length", c.context)', "c.trained = c.context")]},
    "z05": {"model": "d", "run": "--prompt haiku -n 3", "changes": [
        ("np.arange(0, c.rotated, 2) / c.rotated), 1.0", "np.arange(0, c.rotated, 2) / c.dim), 1.0"),
        ("        a, b = x[..., :half], x[..., half:2 * half]\n"
         "        return np.concatenate([a * cos - b * sin, a * sin + b * cos, x[..., 2 * half:]], -1)",
         "        m = x.shape[-1] // 2\n"
         "        a, b = x[..., :half], x[..., m:m + half]\n"
         "        return np.concatenate([a * cos - b * sin, x[..., half:m], a * sin + b * cos, x[..., m + half:]], -1)")]},
    "z06": {"model": "e", "run": "--prompt haiku -n 3 --kv-type q8_0", "changes": [
        ("d = np.abs(x).max(-1, keepdims=True) / F(127)", "d = np.abs(x).max(-1, keepdims=True) / F(128)"),
        ("np.copysign(F(0.5), v)).astype(np.int8)", "np.copysign(F(0.5), v)).astype(np.int32).astype(np.int8)")]},
    "z07": {"model": "e", "run": "--prompt haiku -n 2", "changes": [
        ("scores, weights, context = attend(q, keys, values, first)", "scores, weights, context = attend(q, keys, values, first, c.width // c.heads)"),
        ("def attend(q, k, v, first):", "def attend(q, k, v, first, size):"),
        ("scale = F(1 / np.sqrt(dim))", "scale = F(1 / np.sqrt(size))")]},
    "z08": {"model": "f", "run": "--prompt haiku -n 2", "changes": [
        ('        tap("ffn_gate", gate, l)\n', '        both = np.concatenate([gate, up], -1)\n        gate, up = both[:, ::2], both[:, 1::2]\n        tap("ffn_gate", gate, l)\n')]},
    "z09": {"model": "g", "run": "--prompt haiku -n 2", "changes": [
        ('        shared = tap("shared_out", shared * weight, l)\n        return tap("ffn_out", out + shared, l)',
         '        return tap("ffn_out", (out + shared) * weight, l)')]},
    "z10": {"model": "h", "run": "--prompt long --length 40 --passes 22,18 -n 2", "changes": [
        ('np.searchsorted(ends, line, "right")', 'np.searchsorted(ends, line, "left")')]},
    "z11": {"model": "i", "run": "--prompt long --length 40 --passes 24,16 -n 4", "changes": [
        ("        self.memory[l] = m\n", "        m = " + BF16 + "(m)\n        self.memory[l] = m\n")]},
    "z12": {"model": "k", "run": "--prompt haiku -n 2", "changes": [
        ('np.split(qkv + w[p + "qkv.bias"], cut, -1)', 'np.split(qkv + w[p + "qkv.bias"] + w[p + "qkv.bias"], cut, -1)')]},
    "z13": {"model": "f", "run": "--prompt long --length 34 --passes 20,14 -n 3", "changes": [
        ('tap("attn_out", matmul(context, w', 'tap("attn_out", matmul(context.reshape(n, c.heads, c.dim).transpose(1, 0, 2).reshape(n, -1), w')]},
    "z14": {"model": "e", "run": "--prompt long --length 300 --passes 200,100 -n 3", "changes": [
        ("angle = positions[:, None].astype(np.float64)", "angle = np.minimum(positions, 255)[:, None].astype(np.float64)")]},
    "z15": {"model": "j", "run": "--prompt long --length 43 --passes 20,23 -n 3", "changes": [
        ("        slots = self.pages.slots(first + np.arange(n))\n", "        slots = self.pages.slots((first if n == 1 else first - first % PAGE) + np.arange(n))\n")]},
    "z16": {"model": "k", "run": "--prompt long --length 60 --passes 40,20 -n 3", "changes": [
        ("    hidden = np.arange(k.shape[1])[None] > first + np.arange(tokens)[:, None]\n",
         "    far = first + np.arange(tokens)[:, None] - np.arange(k.shape[1])[None]\n    hidden = (far < 0) | (far >= 32)\n"),
        ("s = np.where(hidden[None, :, k0:k0 + KEYS], F(-np.inf), scores", "s = np.where(hidden[None, :, k0:k0 + KEYS], F(-1e30), scores"),
        ("decode(scores[:, 0] * scale, v)", "decode(np.where(hidden, F(-1e30), scores[:, 0] * scale), v)")]},
    "z17": {"model": "f", "run": "--prompt haiku -n 2", "changes": [
        ("        y[:, whole + r] = x @ w[whole + r]", "        y[:, whole + r] = x[0] @ w[whole + r]")]},
    "z18": {"model": "c", "run": "--prompt long --length 30 --passes 18,12 -n 3", "changes": [
        ("        total = total * less + e.sum(-1, keepdims=True)", "        total = (total * less if tokens == 1 else total) + e.sum(-1, keepdims=True)")]},
    "z19": {"model": "f", "run": "--prompt long --length 37 --passes 21,16 -n 2", "changes": [
        ("        tile = x[m:m + TILE_M]\n", "        tile = x[m:m + TILE_M]\n        if m and len(tile) < TILE_M:\n            y[m:] = y[m - TILE_M:m][:len(tile)]\n")]},
    "z20": {"model": "d", "run": "--prompt long --length 41 -n 3", "changes": [
        ("    read = np.tril(q @ k.transpose(0, 2, 1) * fade)", "    read = np.tril(q @ k.transpose(0, 2, 1))")]},
}


def changed(text, name):
    for old, new in BUGS[name]["changes"]:
        assert text.count(old) == 1, (name, old, text.count(old))
        text = text.replace(old, new)
    return text
