"""The bugs of the forty-sixth round: changes of the text of the thirty-first round's engine.py, the model of each, and qdiff's options."""

MODELS = {
    "a": "--weights q3_K --layers 3 --seed 4601",
    "b": "--weights f16 --set rope.scaling.type=yarn --set rope.scaling.factor=4.0 --set rope.scaling.original_context_length=512 --seed 4602",
    "c": "--arch qwen3 --weights iq4_nl --heads 4 --kv-heads 2 --head-dim 64 --layers 2 --seed 4603",
    "d": "--arch qwen3 --weights bf16 --heads 4 --kv-heads 1 --head-dim 128 --layers 2 --seed 4604",
    "e": "--arch qwen2moe --weights q4_K --seed 4605",
    "f": "--arch qwen3moe --weights q8_0 --tensor blk.1.ffn_gate_exps.weight=mxfp4 --heads 4 --kv-heads 2 --head-dim 64 --seed 4606",
    "g": "--arch qwen35 --weights q8_0 --layers 4 --seed 4607",
    "h": "--arch qwen35 --weights q6_K --layers 4 --seed 4608",
    "i": "--weights q4_0 --embedding 320 --heads 5 --kv-heads 5 --seed 4609",
    "j": "--weights q8_0 --ffn 544 --heads 8 --kv-heads 2 --layers 3 --seed 4610",
    "k": "--tied --weights q5_0 --heads 8 --kv-heads 4 --layers 2 --seed 4611",
    "l": "--arch qwen2moe --weights q5_K --set expert_count=10 --seed 4612",
}

BF16 = "(lambda u: ((u + 0x7FFF + (u >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(F))"

BUGS = {
    "z01": {"model": "a", "run": "--prompt haiku -n 2", "changes": [
        ("        scale[:, j] = (four | two << 4).astype(F) - 32\n", "        scale[:, j] = four.astype(F) - 8\n")]},
    "z02": {"model": "b", "run": "--prompt long --length 60 -n 3", "changes": [
        ("            self.frequency = self.frequency * (kept + (1 - kept) / c.yarn)\n",
         "            inner = float(c.base * c.yarn) ** (-np.arange(0, c.rotated, 2) / c.rotated)\n"
         "            self.frequency = self.frequency * kept + inner * (1 - kept)\n")]},
    "z03": {"model": "g", "run": "--prompt haiku -n 3", "changes": [
        ("(-np.arange(0, c.rotated, 2) / c.rotated), 1.0", "(-np.arange(0, c.rotated, 2) / c.dim), 1.0"),
        ("        a, b = x[..., :half], x[..., half:2 * half]\n"
         "        return np.concatenate([a * cos - b * sin, a * sin + b * cos, x[..., 2 * half:]], -1)",
         "        middle = self.c.dim // 2\n"
         "        a, b = x[..., :half], x[..., middle:middle + half]\n"
         "        return np.concatenate([a * cos - b * sin, x[..., half:middle], a * sin + b * cos, x[..., middle + half:]], -1)")]},
    "z04": {"model": "i", "run": "--prompt haiku -n 2", "changes": [
        ("np.sqrt(block_sum(x * x) / F(x.shape[-1]) + eps)", "np.sqrt(block_sum(x * x) / F(1 << (x.shape[-1] - 1).bit_length()) + eps)"),
        ("np.sqrt(block_sum(total * total) / F(x.shape[-1]) + eps)", "np.sqrt(block_sum(total * total) / F(1 << (x.shape[-1] - 1).bit_length()) + eps)")]},
    "z05": {"model": "j", "run": "--prompt haiku -n 2", "changes": [
        ('                w[p + "qkv.bias"] = np.concatenate([w.pop(p + f"attn_{s}.bias") for s in "qkv"])\n',
         '                w[p + "qkv.bias"] = np.concatenate([w.pop(p + f"attn_{s}.bias") for s in "qkv"])\n'
         '                each = c.heads // c.groups\n'
         '                heads = np.concatenate([np.r_[g * each:(g + 1) * each, c.heads + g, c.heads + c.groups + g] for g in range(c.groups)])\n'
         '                rows = (heads[:, None] * c.dim + np.arange(c.dim)).reshape(-1)\n'
         '                w[p + "qkv.weight"], w[p + "qkv.bias"] = w[p + "qkv.weight"][rows], w[p + "qkv.bias"][rows]\n')]},
    "z06": {"model": "d", "run": "--prompt haiku -n 3 --kv-type q8_0", "changes": [
        ("np.trunc(v + np.copysign(F(0.5), v)).astype(np.int8)", "np.trunc(v).astype(np.int8)")]},
    "z07": {"model": "d", "run": "--prompt haiku -n 3", "changes": [
        ("def attend(q, k, v, first):", "def attend(q, k, v, first, per):"),
        ("    scale = F(1 / np.sqrt(dim))\n", "    scale = F(1 / np.sqrt(per))\n"),
        ("attend(q, keys, values, first)", "attend(q, keys, values, first, c.width // c.heads)")]},
    "z08": {"model": "k", "run": "--prompt haiku -n 3", "changes": [
        ('        return tap("attn_out", matmul(context, w[p + "attn_output.weight"]), l)',
         '        half, whole = context.shape[1] // 2, w[p + "attn_output.weight"]\n'
         '        short = lambda y: ' + BF16 + '(np.ascontiguousarray(y).view(np.uint32).astype(np.uint64))\n'
         '        return tap("attn_out", short(matmul(context[:, :half], whole[:, :half])) + short(matmul(context[:, half:], whole[:, half:])), l)')]},
    "z09": {"model": "f", "run": "--prompt haiku -n 3", "changes": [
        ("        lines[place] = np.repeat(x, c.taken, 0)\n", "        lines[place] = np.repeat(x, c.taken, 0) * weights.reshape(-1, 1)\n")]},
    "z10": {"model": "e", "run": "--prompt haiku -n 2", "changes": [
        ('        shared = tap("shared_out", shared * weight, l)\n        return tap("ffn_out", out + shared, l)',
         '        return tap("ffn_out", (out + shared) * weight, l)')]},
    "z11": {"model": "g", "run": "--prompt haiku -n 2", "changes": [
        ('a + w[p + "ssm_dt.bias"])', 'a + w[p + "ssm_dt.bias"][np.arange(c.value_heads) // (c.value_heads // c.key_heads)])')]},
    "z12": {"model": "k", "run": "--prompt haiku -n 2", "changes": [
        ("def silu(x):\n    return x * sigmoid(x)\n",
         "def silu(x):\n    x = x.astype(np.float16).astype(F)\n    return (x * sigmoid(x)).astype(np.float16).astype(F)\n")]},
    "z13": {"model": "j", "run": "--prompt long --length 50 --passes 40,10 -n 3", "changes": [
        ("    most, total = np.full(", "    far = np.arange(k.shape[1])[None] <= first + np.arange(tokens)[:, None] - 32\n    most, total = np.full("),
        ("        s = np.where(hidden[None, :, k0:k0 + KEYS], F(-np.inf), scores[:, :, k0:k0 + KEYS] * scale)\n",
         "        s = np.where(hidden[None, :, k0:k0 + KEYS], F(-np.inf), scores[:, :, k0:k0 + KEYS] * scale)\n"
         "        s = np.where(far[None, :, k0:k0 + KEYS], F(-1e30), s)\n"),
        ("    if tokens == 1:\n        context = decode", "    if tokens == 1 and k.shape[1] <= 32:\n        context = decode")]},
    "z14": {"model": "c", "run": "--prompt long --length 80 -n 3", "changes": [
        ("angle = positions[:, None].astype(np.float64)", "angle = np.minimum(positions, 63)[:, None].astype(np.float64)")]},
    "z15": {"model": "h", "run": "--prompt long --length 46 --passes 30,16 -n 2", "changes": [
        ("        self.window[l] = line[n:]\n",
         "        full = np.concatenate([line, np.zeros((-n % CHUNK if n > 1 else 0, line.shape[1]), F)])\n"
         "        self.window[l] = full[len(full) - (c.taps - 1):]\n")]},
    "z16": {"model": "h", "run": "--prompt long --length 33 --passes 20,13 -n 3", "changes": [
        ("    read = np.tril(q @ k.transpose(0, 2, 1) * fade)\n", "    read = np.tril(q @ k.transpose(0, 2, 1))\n")]},
    "z17": {"model": "j", "run": "--prompt long --length 30 -n 6", "changes": [
        ("        while len(self.mine) * PAGE < self.length:\n", "        while len(self.mine) * PAGE < self.length - (count == 1):\n")]},
    "z18": {"model": "k", "run": "--prompt long --length 28 -n 8", "changes": [
        ("        sums.append(e.sum(-1, keepdims=True))\n", "        sums.append(e.sum(-1, keepdims=True) + (SPLIT - e.shape[1]) * np.exp(-m))\n")]},
    "z19": {"model": "l", "run": "--prompt long --length 40 --passes 25,15 -n 2", "changes": [
        ('chosen = np.argsort(-probs, -1, kind="stable")', 'chosen = np.argsort(-probs[:, :8], -1, kind="stable")')]},
    "z20": {"model": "d", "run": "--prompt long --length 24 -n 3", "changes": [
        ("    for r in range(len(w) - whole):\n        y[:, whole + r] = x @ w[whole + r]\n    return y\n",
         "    if whole < len(w):\n"
         "        flat = y.reshape(-1)\n"
         "        last = x @ w[np.minimum(whole + np.arange(HEAD_ROWS), len(w) - 1)].T\n"
         "        for t in range(len(x)):\n"
         "            room = flat[t * len(w) + whole:t * len(w) + whole + HEAD_ROWS]\n"
         "            room[:] = last[t, :len(room)]\n"
         "    return y\n")]},
}


def changed(text, name):
    for old, new in BUGS[name]["changes"]:
        assert text.count(old) == 1, (name, old, text.count(old))
        text = text.replace(old, new)
    return text
