"""The bugs of the forty-second round: changes of the text of the thirty-first round's engine.py, the model of each, and qdiff's options."""

MODELS = {
    "a": "--weights q5_K --layers 3 --seed 4201",
    "b": "--weights f16 --set rope.scaling.type=yarn --set rope.scaling.factor=4.0 --set rope.scaling.original_context_length=512 --seed 4202",
    "c": "--arch qwen3 --weights iq4_nl --heads 4 --kv-heads 2 --head-dim 64 --layers 2 --seed 4203",
    "d": "--arch qwen3 --weights bf16 --heads 4 --kv-heads 1 --head-dim 64 --layers 2 --seed 4204",
    "e": "--arch qwen2moe --weights q4_K --seed 4205",
    "f": "--arch qwen3moe --weights q8_0 --tensor blk.0.ffn_up_exps.weight=mxfp4 --heads 4 --kv-heads 2 --head-dim 64 --seed 4206",
    "g": "--arch qwen35 --weights q8_0 --layers 4 --seed 4207",
    "h": "--arch qwen35 --weights q6_K --layers 4 --seed 4208",
    "i": "--weights q4_0 --embedding 320 --heads 5 --kv-heads 5 --seed 4209",
    "j": "--weights q8_0 --embedding 320 --ffn 544 --heads 8 --kv-heads 2 --seed 4210",
    "k": "--tied --weights q5_0 --heads 8 --kv-heads 4 --layers 2 --seed 4211",
}

BF16 = "(lambda u: ((u + 0x7FFF + (u >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(F))"

BUGS = {
    "y01": {"model": "a", "run": "--prompt haiku -n 2", "changes": [
        ("        scale[:, j] = (s[:, j + 4] & 15) | (s[:, j - 4] >> 6) << 4\n"
         "        minimum[:, j] = (s[:, j + 4] >> 4) | (s[:, j] >> 6) << 4\n"
         "    w, first, second",
         "        scale[:, j] = (s[:, j + 4] & 15) | (s[:, j - 4] >> 6) << 4\n"
         "        minimum[:, j] = (s[:, j + 4] >> 4) | (s[:, j - 4] >> 6) << 4\n"
         "    w, first, second")]},
    "y02": {"model": "b", "run": "--prompt long --length 60 -n 3", "changes": [
        ("low, high = max(np.floor(edge(32)), 0), min(np.ceil(edge(1)), c.rotated - 1)", "low, high = max(edge(32), 0), min(edge(1), c.rotated - 1)")]},
    "y03": {"model": "c", "run": "--prompt haiku -n 2", "changes": [
        ('q, k = norm(q, w[p + "attn_q_norm.weight"], c.eps), norm(k, w[p + "attn_k_norm.weight"], c.eps)',
         'q, k = np.split(norm(np.concatenate([q, k], 1), w[p + "attn_q_norm.weight"], c.eps), [c.heads], 1)')]},
    "y04": {"model": "g", "run": "--prompt haiku -n 3", "changes": [
        ("of = np.arange(c.value_heads) % c.key_heads", "of = np.repeat(np.arange(c.key_heads), c.value_heads // c.key_heads)")]},
    "y05": {"model": "h", "run": "--prompt long --length 40 --passes 24,16 -n 2", "changes": [
        ('        out = tap("delta_normed", norm(out, w[p + "ssm_norm.weight"], c.eps).reshape(n, -1), l)\n'
         '        return tap("delta_proj", matmul(tap("delta_gated", silu(z) * out, l), w[p + "ssm_out.weight"]), l)',
         '        out = norm(out * silu(z).reshape(out.shape), w[p + "ssm_norm.weight"], c.eps).reshape(n, -1)\n'
         '        return tap("delta_proj", matmul(tap("delta_gated", out, l), w[p + "ssm_out.weight"]), l)')]},
    "y06": {"model": "e", "run": "--prompt haiku -n 2", "changes": [
        ("np.take_along_axis(probs, chosen, -1)", "np.take_along_axis(logits, chosen, -1)")]},
    "y07": {"model": "f", "run": "--prompt long --length 50 --passes 30,20 -n 2", "changes": [
        ("            for line in range(0, len(y), LINES):", "            for line in range(0, min(len(y), -(-len(expert) // LINES) * LINES), LINES):")]},
    "y08": {"model": "d", "run": "--prompt haiku -n 3 --kv-type q8_0", "changes": [
        ("x = self.codes[slots].astype(F) * self.scale[slots].astype(F)", "x = self.codes[slots].astype(F) * self.scale[slots][:, :, :1].astype(F)")]},
    "y09": {"model": "i", "run": "--prompt haiku -n 2", "changes": [
        ("        half = (n + 1) // 2\n        x[..., :n - half] += x[..., half:n]", "        half = n // 2\n        x[..., :half] += x[..., half:2 * half]")]},
    "y10": {"model": "f", "run": "--prompt haiku -n 3", "changes": [
        ('out = tap("experts_out", (down * weights[:, :, None]).sum(1), l)',
         'out = np.zeros_like(x)\n        for j in range(c.taken):\n'
         '            out = ' + BF16 + '(np.ascontiguousarray(out + down[:, j] * weights[:, j, None]).view(np.uint32).astype(np.uint64))\n'
         '        tap("experts_out", out, l)')]},
    "y11": {"model": "j", "run": "--prompt haiku -n 3", "changes": [
        ('np.split(qkv + w[p + "qkv.bias"], cut, -1)',
         'np.split(qkv + w[p + "qkv.bias"] * (np.arange(qkv.shape[1]) < qkv.shape[1] // 64 * 64), cut, -1)')]},
    "y12": {"model": "c", "run": "--prompt long --length 24 -n 2", "changes": [
        ('self.head = w.get("output.weight", w["token_embd.weight"])', 'self.head = w["token_embd.weight"]')]},
    "y13": {"model": "k", "run": "--prompt long --length 300 --passes 200,100 -n 3", "changes": [
        ("angle = positions[:, None].astype(np.float64)", "angle = " + BF16 + "(positions[:, None].astype(F).view(np.uint32).astype(np.uint64)).astype(np.float64)")]},
    "y14": {"model": "j", "run": "--prompt long --length 40 --passes 14,6x1,20 -n 2", "changes": [
        ("        self.upload()\n", "        if count > 1:\n            self.upload()\n")]},
    "y15": {"model": "h", "run": "--prompt long --length 42 --passes 20,2,20 -n 2", "changes": [
        ("        self.window[l] = line[n:]\n",
         "        self.window[l] = line[n:]\n        if 1 < n < c.taps - 1:\n            self.window[l] = np.concatenate([np.zeros((c.taps - 1 - n, qkv.shape[1]), F), qkv])\n")]},
    "y16": {"model": "g", "run": "--prompt long --length 41 -n 4", "changes": [
        ("    left = np.exp(g[:, -1:] - g).astype(F)[:, :, None]\n    m = m * since[:, -1:] + (told",
         "    last = g[:, -1:] if n == CHUNK else np.zeros_like(g[:, -1:])\n"
         "    left = np.exp(last - g).astype(F)[:, :, None]\n    m = m * np.exp(last).astype(F)[:, :, None] + (told")]},
    "y17": {"model": "k", "run": "--prompt long --length 30 -n 8 --kv-type q8_0", "changes": [
        ("shares = [np.exp(m - top) * total for m, total in zip(most, sums)]", "shares = [np.exp(m - top) for m in most]")]},
    "y18": {"model": "j", "run": "--prompt long --length 33 --passes 17,16 -n 2", "changes": [
        ("        k = columns - columns % TILE_K\n        y[m:m", "        k = columns - (TILE_K if columns % TILE_K else 0)\n        y[m:m")]},
    "y19": {"model": "c", "run": "--prompt long --length 60 --passes 32,28 -n 2", "changes": [
        ("np.arange(k.shape[1])[None] > first + np.arange(tokens)[:, None]",
         "np.arange(k.shape[1])[None] > (first if tokens == 1 else 0) + np.arange(tokens)[:, None]")]},
    "y20": {"model": "h", "run": "--prompt haiku -n 6", "changes": [
        ("            m = m * np.exp(decay[0])[:, None, None]\n            told = (v[0] - (m @ key)[:, :, 0]) * beta[0][:, None]\n            m = m + told",
         "            told = (v[0] - (m @ key)[:, :, 0]) * beta[0][:, None]\n            m = m * np.exp(decay[0])[:, None, None] + told")]},
}


def changed(text, name):
    for old, new in BUGS[name]["changes"]:
        assert text.count(old) == 1, (name, old, text.count(old))
        text = text.replace(old, new)
    return text
