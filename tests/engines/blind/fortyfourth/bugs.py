"""The bugs of the forty-fourth round: changes of the text of the thirty-first round's engine.py, the model of each, and qdiff's options."""

MODELS = {
    "a": "--weights q3_K --layers 2 --seed 4401",
    "b": "--arch qwen3moe --weights q8_0 --tensor blk.1.ffn_up_exps.weight=mxfp4 --heads 4 --kv-heads 2 --head-dim 64 --seed 4402",
    "c": "--weights q4_0 --heads 4 --kv-heads 2 --layers 2 --seed 4403",
    "d": "--arch qwen3 --weights iq4_nl --heads 4 --kv-heads 2 --head-dim 96 --layers 2 --seed 4404",
    "e": "--weights f16 --set rope.scaling.type=yarn --set rope.scaling.factor=4.0 --set rope.scaling.original_context_length=512 --seed 4405",
    "f": "--arch qwen3 --weights bf16 --heads 4 --kv-heads 1 --head-dim 64 --layers 3 --seed 4406",
    "g": "--tied --weights q8_0 --heads 8 --kv-heads 4 --layers 2 --seed 4407",
    "h": "--weights q5_0 --embedding 320 --ffn 544 --heads 5 --kv-heads 1 --seed 4408",
    "i": "--arch qwen2moe --weights q4_K --seed 4409",
    "j": "--arch qwen35 --weights q8_0 --layers 4 --seed 4410",
    "k": "--weights q6_K --layers 2 --seed 4411",
    "l": "--arch qwen3moe --weights q4_K --heads 4 --kv-heads 2 --head-dim 64 --layers 3 --seed 4412",
    "m": "--arch qwen35 --weights q5_K --layers 4 --seed 4413",
}

BUGS = {
    "z01": {"model": "a", "run": "--prompt haiku -n 2", "changes": [
        ("scale[:, j] = (four | two << 4).astype(F) - 32", "scale[:, j] = four.astype(F) - 8")]},
    "z02": {"model": "b", "run": "--prompt haiku -n 2", "changes": [
        ("E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2,", "E2M1 = np.array([1, 1.5, 2, 3, 4, 6, 8, 12, -1, -1.5, -2,")]},
    "z03": {"model": "c", "run": "--prompt haiku -n 3", "changes": [
        ("return x * (F(1) / np.sqrt(block_sum(x * x) / F(x.shape[-1]) + eps)) * w", "return x / (F(1) / np.sqrt(block_sum(x * x) / F(x.shape[-1]) + eps)) * w"),
        ("return total, total * r * w", "return total, total / r * w")]},
    "z04": {"model": "c", "run": "--prompt haiku -n 2", "changes": [
        ('w[p + "qkv.bias"] = np.concatenate([w.pop(p + f"attn_{s}.bias") for s in "qkv"])',
         'bias = np.concatenate([w.pop(p + f"attn_{s}.bias") for s in "qkv"])\n'
         '                cut = np.cumsum([c.heads * c.dim // 2, c.groups * c.dim // 2])\n'
         '                w[p + "qkv.bias"] = np.concatenate([np.concatenate(x) for x in zip(*(np.split(half, cut) for half in np.split(bias, 2)))])')]},
    "z05": {"model": "d", "run": "--prompt haiku -n 3", "changes": [
        ("        a, b = x[..., :half], x[..., half:2 * half]\n",
         "        off = (1 << (2 * half - 1).bit_length()) // 2 - half\n"
         "        after = np.cos((positions[:, None] + 1.0) * self.frequency).astype(F)[:, None]\n"
         "        sin = np.concatenate([sin[..., off:], after[..., :off]], -1)\n"
         "        a, b = x[..., :half], x[..., half:2 * half]\n")]},
    "z06": {"model": "e", "run": "--prompt long --length 60 -n 3", "changes": [
        ('c.trained = get("rope.scaling.original_context_length", c.context)', "c.trained = c.context")]},
    "z07": {"model": "f", "run": "--prompt haiku -n 3 --kv-type q8_0", "changes": [
        ("np.trunc(v + np.copysign(F(0.5), v)).astype(np.int8)", "np.trunc(v).astype(np.int8)")]},
    "z08": {"model": "g", "run": "--prompt haiku -n 3", "changes": [
        ("return np.arange(heads) // (heads // groups)", "return np.arange(heads) // groups")]},
    "z09": {"model": "h", "run": "--prompt haiku -n 2", "changes": [
        ('        tap("ffn_gate", gate, l)\n        tap("ffn_up", up, l)\n',
         '        whole, width = np.concatenate([gate, up], -1), gate.shape[1]\n'
         '        room = -(-width // 64) * 64\n'
         '        whole = np.pad(whole, ((0, 0), (0, 2 * (room - width))))\n'
         '        gate, up = whole[:, :width], whole[:, room:room + width]\n'
         '        tap("ffn_gate", gate, l)\n        tap("ffn_up", up, l)\n')]},
    "z10": {"model": "i", "run": "--prompt haiku -n 2", "changes": [
        ("np.take_along_axis(probs, chosen, -1)", "(lambda e: e / e.sum(-1, keepdims=True))(np.exp(np.take_along_axis(logits - logits.max(-1, keepdims=True), chosen, -1)))")]},
    "z11": {"model": "j", "run": "--prompt haiku -n 3", "changes": [
        ('tap("delta_gated", silu(z) * out, l)', 'tap("delta_gated", sigmoid(z) * out, l)')]},
    "z12": {"model": "a", "run": "--prompt long --length 24 -n 3", "changes": [
        ('        tap("logits", head(x, self.head))',
         '        y = head(x, self.head)\n'
         '        cut = -(-y.shape[1] // 2)\n'
         '        own, rest = y[:, :cut], y[:, cut:]\n'
         '        y = np.zeros_like(y)\n'
         '        y[:, :cut] = own\n'
         '        y[:, rest.shape[1]:2 * rest.shape[1]] = rest\n'
         '        tap("logits", y)')]},
    "z13": {"model": "f", "run": "--prompt long --length 41 --passes 21,20 -n 3", "changes": [
        ("total = total * less + e.sum(-1, keepdims=True)",
         "total = total * less + (np.exp(s) if tokens > 1 and k0 + KEYS >= k.shape[1] else e).sum(-1, keepdims=True)")]},
    "z14": {"model": "k", "run": "--prompt long --length 60 --passes 37,23 -n 2", "changes": [
        ("    hidden = np.arange(k.shape[1])[None] > first + np.arange(tokens)[:, None]\n",
         "    hidden = np.arange(k.shape[1])[None] > first + np.arange(tokens)[:, None]\n"
         "    if tokens > 1:\n"
         "        hidden = hidden | (np.arange(k.shape[1])[None] // KEYS > (first + np.arange(tokens)[:, None]) // 16)\n")]},
    "z15": {"model": "g", "run": "--prompt long --length 30 -n 6", "changes": [
        ("    top = np.max(most, 0)\n    shares = [np.exp(m - top) * total for m, total in zip(most, sums)]\n",
         "    lse = [np.log2(total) + m * F(np.log2(np.e)) for m, total in zip(most, sums)]\n"
         "    top = np.max(lse, 0)\n    shares = [np.exp(y - top) for y in lse]\n")]},
    "z16": {"model": "k", "run": "--prompt long --length 28 -n 22", "changes": [
        ("        slots = self.pages.slots(first + np.arange(n))\n",
         "        slots = self.pages.slots(first + np.arange(n))\n"
         "        if n == 1:\n"
         "            slots = np.array([self.pages.mine[-1] * PAGE + self.pages.length % PAGE - 1])\n")]},
    "z17": {"model": "f", "run": "--prompt haiku -n 5", "changes": [
        ('        return tap("attn_out", matmul(context, w[p + "attn_output.weight"]), l)',
         '        out = matmul(context, w[p + "attn_output.weight"])\n'
         '        if n == 1:\n'
         '            out = self.partial = getattr(self, "partial", F(0)) + out\n'
         '        return tap("attn_out", out.copy(), l)')]},
    "z18": {"model": "l", "run": "--prompt haiku -n 3", "changes": [
        ('out = tap("experts_out", (down * weights[:, :, None]).sum(1), l)',
         'work = self.__dict__.setdefault("work", np.zeros((2, 4096, x.shape[1]), F))[:, :n * c.taken]\n'
         '        mine = (chosen // -(-c.experts // 2)).reshape(-1)\n'
         '        for rank in range(2):\n'
         '            work[rank][mine == rank] = (down * weights[:, :, None]).reshape(n * c.taken, -1)[mine == rank]\n'
         '        out = tap("experts_out", work.sum(0).reshape(n, c.taken, -1).sum(1), l)')]},
    "z19": {"model": "j", "run": "--prompt long --length 45 --passes 25,20 -n 2", "changes": [
        ("    told = v - since * (k @ m.transpose(0, 2, 1))\n    for t in range(n):\n"
         "        told[:, t] = beta[:, t, None] * (told[:, t] - (among[:, t, None, :t] @ told[:, :t])[:, 0])\n",
         "    u, told = v.copy(), k @ m.transpose(0, 2, 1)\n    for y in u, told:\n        for t in range(n):\n"
         "            y[:, t] = beta[:, t, None] * (y[:, t] - (among[:, t, None, :t] @ y[:, :t])[:, 0])\n"
         "    told = u - since * told\n")]},
    "z20": {"model": "m", "run": "--prompt haiku -n 6", "changes": [
        ("        line = np.concatenate([self.window[l], qkv])\n",
         "        past, major = self.window[l], self.__dict__.setdefault('major', {})\n"
         "        if n == 1 and major.get(l, True):\n"
         "            past = past.T.reshape(past.shape)\n"
         "        elif n > 1 and not major.get(l, True):\n"
         "            past = past.reshape(past.shape[::-1]).T\n"
         "        major[l] = n > 1\n"
         "        line = np.concatenate([past, qkv])\n")]},
}


def changed(text, name):
    for old, new in BUGS[name]["changes"]:
        assert text.count(old) == 1, (name, old, text.count(old))
        text = text.replace(old, new)
    return text
