"""The bugs of the sixtieth round: changes of the text of the thirty-first round's engine.py, the model of each, and qdiff's options."""

MODELS = {
    "a": "--weights q3_K --layers 2 --seed 6001",
    "b": "--weights f16 --set rope.scaling.type=yarn --set rope.scaling.factor=4.0 --set rope.scaling.original_context_length=512 --seed 6002",
    "c": "--weights q8_0 --ffn 544 --heads 8 --kv-heads 2 --seed 6003",
    "d": "--arch qwen3 --weights bf16 --heads 12 --kv-heads 2 --head-dim 32 --seed 6004",
    "e": "--arch qwen2moe --weights q4_K --seed 6005",
    "f": "--arch qwen3moe --weights q8_0 --tensor blk.0.ffn_gate_exps.weight=mxfp4 --tensor blk.1.ffn_down_exps.weight=mxfp4 --heads 4 --kv-heads 2 --head-dim 64 --seed 6006",
    "g": "--arch qwen35 --weights q8_0 --layers 4 --seed 6007",
    "h": "--arch qwen35 --weights q6_K --layers 4 --seed 6008",
    "i": "--arch qwen3 --weights iq4_nl --heads 4 --kv-heads 2 --head-dim 64 --seed 6009",
    "j": "--tied --weights q5_0 --heads 8 --kv-heads 4 --seed 6010",
}

HAIKU, LONG = "--prompt haiku -n 3", "--prompt long --length 70 -n 3"
BF16 = ("(lambda a: (lambda u: ((u + 0x7FFF + (u >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(F))"
        "(np.ascontiguousarray(a, F).view(np.uint32).astype(np.uint64)))")

BUGS = {
    "z01": {"model": "f", "run": "--prompt long --length 40 -n 2", "changes": [
        ("E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2,", "E2M1 = np.array([1, 1.5, 2, 3, 4, 6, 8, 12, -1, -1.5, -2,")]},
    "z02": {"model": "a", "run": HAIKU, "changes": [
        ("scale[:, j] = (four | two << 4).astype(F) - 32", "scale[:, j] = four.astype(F) - 8")]},
    "z03": {"model": "b", "run": LONG, "changes": [
        ("scale = F(1 / np.sqrt(dim))", "scale = F((1 + 0.1 * np.log(4.0)) ** 2 / np.sqrt(dim))")]},
    "z04": {"model": "c", "run": HAIKU, "changes": [
        ("    return x * sigmoid(x)", "    y = x / 2\n    return x * (F(0.5) + F(0.5) * np.clip(y * (1 + F(0.1834) * y * y), -1, 1))")]},
    "z05": {"model": "d", "run": LONG, "changes": [
        ('        return tap("attn_out", matmul(context, w[p + "attn_output.weight"]), l)',
         '        bf16, o, out = ' + BF16 + ', w[p + "attn_output.weight"], None\n'
         '        for k in np.split(np.arange(o.shape[1]), 4):\n'
         '            part = bf16(context[:, k] @ o[:, k].T)\n'
         '            out = part if out is None else bf16(out + part)\n'
         '        return tap("attn_out", out, l)')]},
    "z06": {"model": "i", "run": HAIKU + " --kv-type q8_0", "changes": [
        ("np.trunc(v + np.copysign(F(0.5), v))", "np.trunc(v)")]},
    "z07": {"model": "e", "run": HAIKU, "changes": [
        ("np.take_along_axis(probs, chosen, -1)", "np.take_along_axis(probs, chosen, -1) / np.take_along_axis(probs, chosen, -1).sum(-1, keepdims=True)")]},
    "z08": {"model": "j", "run": HAIKU, "changes": [
        ("head(x, self.head)", "head(" + BF16 + "(x), self.head)")]},
    "z09": {"model": "g", "run": HAIKU, "changes": [
        ("float(c.base) ** (-np.arange(0, c.rotated, 2) / c.rotated)", "float(c.base) ** (-np.arange(0, c.rotated, 2) / c.dim)"),
        ("        a, b = x[..., :half], x[..., half:2 * half]\n        return np.concatenate([a * cos - b * sin, a * sin + b * cos, x[..., 2 * half:]], -1)",
         "        far = self.c.dim // 2\n        a, b = x[..., :half], x[..., far:far + half]\n"
         "        return np.concatenate([a * cos - b * sin, x[..., half:far], a * sin + b * cos, x[..., far + half:]], -1)")]},
    "z10": {"model": "c", "run": HAIKU, "changes": [
        ('np.concatenate([w.pop(p + f"attn_{s}.bias") for s in "qkv"])', 'np.concatenate([w.pop(p + f"attn_{s}.bias").reshape(c.groups, -1) for s in "qkv"], 1).reshape(-1)')]},
    "z11": {"model": "j", "run": HAIKU, "changes": [
        ("return x * (F(1) / np.sqrt(block_sum(x * x) / F(x.shape[-1]) + eps)) * w", "return x * " + BF16 + "(F(1) / np.sqrt(block_sum(x * x) / F(x.shape[-1]) + eps)) * w"),
        ("r = F(1) / np.sqrt(block_sum(total * total) / F(x.shape[-1]) + eps)", "r = " + BF16 + "(F(1) / np.sqrt(block_sum(total * total) / F(x.shape[-1]) + eps))")]},
    "z12": {"model": "g", "run": HAIKU, "changes": [
        ('soft * w[p + "ssm_a"]', 'soft * -np.exp(w[p + "ssm_a"])')]},
    "z13": {"model": "d", "run": LONG, "changes": [
        ("    of = kv_head(heads, k.shape[1])\n", "    of = kv_head(heads, k.shape[1]) if tokens > 1 else np.arange(heads) // 4 * 4 // (heads // k.shape[1])\n")]},
    "z14": {"model": "d", "run": LONG, "changes": [
        ("        slots = self.pages.slots(np.arange(first + n))\n",
         "        slots = np.arange(first + n)\n        slots = (self.pages.table[slots // PAGE] & 7) * PAGE + slots % PAGE\n")]},
    "z15": {"model": "c", "run": HAIKU, "changes": [
        ("cut = np.linspace(0, len(table), VOCAB_PARTS + 1).astype(int)", "cut = np.arange(VOCAB_PARTS + 1) * (len(table) // VOCAB_PARTS)")]},
    "z16": {"model": "f", "run": "--prompt long --length 40 -n 2", "changes": [
        ("        lines[place] = np.repeat(x, c.taken, 0)\n",
         "        lines[place] = np.repeat(x, c.taken, 0)\n        lines[place[~np.isin(place, ends - room)]] = 0\n")]},
    "z17": {"model": "h", "run": "--prompt long --length 56 --passes 40,16 -n 3", "changes": [
        ('        conv = sum(line[j:j + n] * w[p + "ssm_conv1d.weight"][:, j] for j in range(c.taps))\n',
         '        seen = line if n == 1 else np.concatenate([qkv, np.zeros((c.taps - 1, qkv.shape[1]), F)])\n'
         '        conv = sum(seen[j:j + n] * w[p + "ssm_conv1d.weight"][:, j] for j in range(c.taps))\n')]},
    "z18": {"model": "b", "run": LONG, "changes": [
        ("        s = np.where(hidden[None, :, k0:k0 + KEYS], F(-np.inf), scores[:, :, k0:k0 + KEYS] * scale)\n",
         "        s = np.where(hidden[None, :, k0:k0 + KEYS], F(-np.inf), scores[:, :, k0:k0 + KEYS] * scale)\n"
         "        s = np.where(past[None, :, k0:k0 + KEYS], F(-1e30), s)\n"),
        ("    most, total = np.full((heads, tokens, 1), -np.inf, F), np.zeros((heads, tokens, 1), F)\n",
         "    past = np.arange(k.shape[1])[None] <= first + np.arange(tokens)[:, None] - 32\n"
         "    most, total = np.full((heads, tokens, 1), -np.inf, F), np.zeros((heads, tokens, 1), F)\n"),
        ("        context = decode(scores[:, 0] * scale, v)[:, None]", "        context = decode(np.where(past, F(-1e30), scores[:, 0] * scale), v)[:, None]")]},
    "z19": {"model": "j", "run": HAIKU, "changes": [
        ("    shares = [np.exp(m - top) * total for m, total in zip(most, sums)]",
         "    logs = [m + np.log(total) for m, total in zip(most, sums)]\n    shares = [np.exp2(x - np.max(logs, 0)) for x in logs]")]},
    "z20": {"model": "h", "run": "--prompt long --length 56 --passes 40,16 -n 3", "changes": [
        ("    m = m * since[:, -1:] + (told", "    end = np.minimum(CHUNK - 7 + 2 * (np.arange(k.shape[2]) // 2 % 4), n - 1)\n    m = m * np.exp(g[:, end]).astype(F)[:, None] + (told")]},
}


def changed(text, name):
    for old, new in BUGS[name]["changes"]:
        assert text.count(old) == 1, (name, old, text.count(old))
        text = text.replace(old, new)
    return text
