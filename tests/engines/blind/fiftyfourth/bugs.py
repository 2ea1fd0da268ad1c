"""The bugs of the fifty-fourth round: changes of the text of the thirty-first round's engine.py, the model of each, and qdiff's options."""

MODELS = {
    "a": "--weights q3_K --seed 5401",
    "b": "--weights q8_0 --tensor blk.0.ffn_down.weight=q5_K --tensor blk.1.ffn_down.weight=q5_K --seed 5402",
    "c": "--arch qwen3 --weights iq4_nl --heads 4 --kv-heads 2 --head-dim 64 --seed 5403",
    "d": "--arch qwen35 --weights q8_0 --layers 4 --seed 5404",
    "e": "--arch qwen3 --weights bf16 --heads 4 --kv-heads 1 --head-dim 64 --layers 3 --seed 5405",
    "f": "--arch qwen3 --weights q6_K --heads 8 --kv-heads 4 --head-dim 64 --seed 5406",
    "g": "--weights f16 --set rope.scaling.type=yarn --set rope.scaling.factor=4.0 --set rope.scaling.original_context_length=512 --seed 5407",
    "h": "--tied --weights q5_0 --heads 8 --kv-heads 4 --seed 5408",
    "i": "--arch qwen3moe --weights q8_0 --tensor blk.0.ffn_up_exps.weight=mxfp4 --heads 4 --kv-heads 2 --head-dim 64 --seed 5409",
    "j": "--arch qwen3moe --weights q4_K --set expert_used_count=1 --seed 5410",
    "k": "--arch qwen35 --weights q6_K --layers 4 --seed 5411",
    "l": "--embedding 320 --heads 5 --kv-heads 5 --weights q8_0 --seed 5412",
    "m": "--weights q4_0 --heads 8 --kv-heads 2 --seed 5413",
    "n": "--arch qwen2moe --weights q4_K --seed 5416",
}

BF16 = "(lambda u: ((u + 0x7FFF + (u >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(F))"

BUGS = {
    "z01": {"model": "a", "run": "--prompt haiku -n 2", "changes": [
        ("scale[:, j] = (four | two << 4).astype(F) - 32", "scale[:, j] = four.astype(F) - 8")]},
    "z02": {"model": "b", "run": "--prompt haiku -n 2", "changes": [
        ("    w, first, second = np.empty((len(b), 8, 32), F), 1, 2\n",
         "    w, fifth = np.empty((len(b), 8, 32), F), 16 * np.unpackbits(high, axis=1, bitorder=\"little\").reshape(-1, 8, 32)\n"),
        ("        w[:, 2 * j] = (q[:, j] & 15) + np.where(high & first, 16, 0)\n", "        w[:, 2 * j] = (q[:, j] & 15) + fifth[:, 2 * j]\n"),
        ("        w[:, 2 * j + 1] = (q[:, j] >> 4) + np.where(high & second, 16, 0)\n        first, second = first << 2, second << 2\n",
         "        w[:, 2 * j + 1] = (q[:, j] >> 4) + fifth[:, 2 * j + 1]\n")]},
    "z03": {"model": "c", "run": "--prompt long --length 60 -n 3", "changes": [
        ("angle = positions[:, None].astype(np.float64) * self.frequency",
         "angle = positions[:, None].astype(np.float64) * " + BF16 + "(self.frequency.astype(F).view(np.uint32).astype(np.uint64))")]},
    "z04": {"model": "d", "run": "--prompt long --length 30 -n 3", "changes": [
        ("        half = self.c.rotated // 2\n        angle = positions[:, None].astype(np.float64) * self.frequency\n",
         "        half, far = self.c.rotated // 2, self.c.dim // 2\n"
         "        angle = positions[:, None].astype(np.float64) * float(self.c.base) ** (-2 * np.arange(half) / self.c.dim)\n"),
        ("        a, b = x[..., :half], x[..., half:2 * half]\n        return np.concatenate([a * cos - b * sin, a * sin + b * cos, x[..., 2 * half:]], -1)",
         "        a, b = x[..., :half], x[..., far:far + half]\n"
         "        return np.concatenate([a * cos - b * sin, x[..., half:far], a * sin + b * cos, x[..., far + half:]], -1)")]},
    "z05": {"model": "e", "run": "--prompt haiku -n 3 --kv-type q8_0", "changes": [
        ("np.trunc(v + np.copysign(F(0.5), v)).astype(np.int8)", "np.trunc(v).astype(np.int8)")]},
    "z06": {"model": "m", "run": "--prompt haiku -n 2", "changes": [
        ('tap("ffn_act", silu(gate) * up, l)', 'tap("ffn_act", np.minimum(gate, 7) * sigmoid(F(1.702) * np.minimum(gate, 7)) * (np.clip(up, -7, 7) + 1), l)')]},
    "z07": {"model": "d", "run": "--prompt haiku -n 3", "changes": [
        ("scaled = q[:, of] / F(np.sqrt(d))", "scaled = q[:, of]")]},
    "z08": {"model": "k", "run": "--prompt long --length 40 --passes 24,16 -n 2", "changes": [
        ('a + w[p + "ssm_dt.bias"]', 'a + w[p + "ssm_dt.bias"][np.arange(c.value_heads) // (c.value_heads // c.key_heads)]')]},
    "z09": {"model": "f", "run": "--prompt haiku -n 2", "changes": [
        ('norm(k, w[p + "attn_k_norm.weight"], c.eps)', 'k * (F(1) / np.sqrt(c.eps)) * w[p + "attn_k_norm.weight"]')]},
    "z10": {"model": "g", "run": "--prompt long --length 40 -n 3", "changes": [
        ("def attend(q, k, v, first):", "def attend(q, k, v, first, grown):"),
        ("    scale = F(1 / np.sqrt(dim))\n", "    scale = F(grown * grown / np.sqrt(dim))\n"),
        ("attend(q, keys, values, first)", "attend(q, keys, values, first, self.grown)")]},
    "z11": {"model": "h", "run": "--prompt haiku -n 3", "changes": [
        ("        y[:, whole + r] = x @ w[whole + r]\n    return y\n",
         "        y[:, whole + r] = x @ w[whole + r]\n"
         "    parts = np.split(y, np.linspace(0, len(w), VOCAB_PARTS + 1).astype(int)[1:-1], 1)\n"
         "    return np.concatenate([np.pad(part, ((0, 0), (0, -part.shape[1] % 64))) for part in parts], 1)[:, :len(w)]\n")]},
    "z12": {"model": "i", "run": "--prompt haiku -n 3", "changes": [
        ("lines[place] = np.repeat(x, c.taken, 0)", "lines[place] = np.repeat(x, c.taken, 0) * weights.reshape(-1, 1)"),
        ("(down * weights[:, :, None]).sum(1)", "down.sum(1)")]},
    "z13": {"model": "j", "run": "--prompt long --length 30 --passes 18,12 -n 3", "changes": [
        ("weights / weights.sum(-1, keepdims=True)", "weights / weights[:, 0].sum(-1, keepdims=True)")]},
    "z14": {"model": "c", "run": "--prompt haiku -n 6", "changes": [
        ("    most, sums, parts = [], [], []\n",
         "    most, sums, parts = [], [], []\n    beyond = -s.shape[1] % SPLIT\n    s, v = np.pad(s, ((0, 0), (0, beyond))), np.pad(v, ((0, 0), (0, beyond), (0, 0)))\n")]},
    "z15": {"model": "k", "run": "--prompt long --length 40 --passes 20,20 -n 4", "changes": [
        ("        self.window[l] = line[n:]\n", "        self.window[l] = (np.concatenate([self.window[l], silu(conv)]) if n > 1 else line)[n:]\n")]},
    "z16": {"model": "l", "run": "--prompt haiku -n 6", "changes": [
        ('        return tap("attn_out", matmul(context, w[p + "attn_output.weight"]), l)',
         '        end = context.shape[1] - (context.shape[1] % 128 if n == 1 else 0)\n'
         '        return tap("attn_out", matmul(context[:, :end], w[p + "attn_output.weight"][:, :end]), l)')]},
    "z17": {"model": "f", "run": "--prompt long --length 52 --passes 32,20 -n 3", "changes": [
        ("        slots = self.pages.slots(first + np.arange(n))\n", "        slots = self.pages.slots((first if n == 1 else first % PAGE) + np.arange(n))\n")]},
    "z18": {"model": "n", "run": "--prompt long --length 40 -n 3", "changes": [
        ('        chosen = np.argsort(-probs, -1, kind="stable")[:, :c.taken]\n',
         '        chosen, left = np.zeros((n, c.taken), int), logits.copy()\n'
         '        for j in range(c.taken):\n'
         '            chosen[:, j] = np.where(left.max(-1) > 0, left.argmax(-1), 0)\n'
         '            left[np.arange(n), chosen[:, j]] = -np.inf\n')]},
    "z19": {"model": "m", "run": "--prompt long --length 30 --passes 18,12 -n 3", "changes": [
        ('np.split(qkv + w[p + "qkv.bias"], cut, -1)', 'np.split(qkv + w[p + "qkv.bias"] * (np.arange(n) % TILE_M == 0).astype(F)[:, None], cut, -1)')]},
    "z20": {"model": "e", "run": "--prompt long --length 48 -n 4", "changes": [
        ("    hidden = np.arange(k.shape[1])[None] > first + np.arange(tokens)[:, None]\n",
         "    at, seen = np.arange(k.shape[1])[None], first + np.arange(tokens)[:, None]\n    hidden = (at > seen) | (at <= seen - 32)\n"),
        ("s = np.where(hidden[None, :, k0:k0 + KEYS], F(-np.inf), scores", "s = np.where(hidden[None, :, k0:k0 + KEYS], F(-1e30), scores"),
        ("decode(scores[:, 0] * scale, v)", "decode(np.where(hidden, F(-1e30), scores[:, 0] * scale), v)")]},
}


def changed(text, name):
    for old, new in BUGS[name]["changes"]:
        assert text.count(old) == 1, (name, old, text.count(old))
        text = text.replace(old, new)
    return text
