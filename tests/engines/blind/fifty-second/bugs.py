"""The bugs of the fifty-second round: changes of the text of the thirty-first round's engine.py, the model of each, and qdiff's options."""

MODELS = {
    "a": "--weights q3_K --layers 2 --seed 5201",
    "b": "--weights q8_0 --tensor token_embd.weight=f16 --heads 4 --kv-heads 2 --seed 5202",
    "c": "--weights bf16 --heads 4 --kv-heads 2 --set rope.scaling.type=yarn --set rope.scaling.factor=8.0 --set rope.scaling.original_context_length=256 --seed 5203",
    "d": "--arch qwen35 --weights q8_0 --layers 4 --seed 5204",
    "e": "--weights q5_0 --heads 4 --kv-heads 2 --layers 2 --seed 5205",
    "f": "--arch qwen3 --weights q4_K --heads 4 --kv-heads 2 --head-dim 64 --seed 5206",
    "g": "--arch qwen2moe --weights q8_0 --seed 5207",
    "h": "--arch qwen3 --weights f16 --heads 4 --kv-heads 2 --head-dim 64 --layers 2 --seed 5208",
    "i": "--arch qwen35 --weights q4_K --layers 4 --seed 5209",
    "j": "--arch qwen3moe --weights mxfp4 --heads 4 --kv-heads 2 --head-dim 64 --seed 5210",
    "k": "--weights q6_K --layers 3 --seed 5211",
}

BF16 = "(lambda y: (lambda u: ((u + 0x7FFF + (u >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(F))(np.ascontiguousarray(y).view(np.uint32).astype(np.uint64)))"

BUGS = {
    "s01": {"model": "a", "run": "--prompt haiku -n 2", "changes": [
        ("scale[:, j] = (four | two << 4).astype(F) - 32", "scale[:, j] = four.astype(F) - 8")]},
    "s02": {"model": "b", "run": "--prompt haiku -n 2", "changes": [
        ("        rows[~mine] = 0\n", "")]},
    "s03": {"model": "c", "run": "--prompt long --length 40 -n 2", "changes": [
        ("scores, weights, context = attend(q, keys, values, first)", "scores, weights, context = attend(q, keys, values, first, self.grown)"),
        ("def attend(q, k, v, first):", "def attend(q, k, v, first, grown=1.0):"),
        ("scale = F(1 / np.sqrt(dim))", "scale = F(grown * grown / np.sqrt(dim))")]},
    "s04": {"model": "d", "run": "--prompt haiku -n 3", "changes": [
        ("float(c.base) ** (-np.arange(0, c.rotated, 2) / c.rotated)", "float(c.base) ** (-np.arange(0, c.rotated, 2) / c.dim)"),
        ("        a, b = x[..., :half], x[..., half:2 * half]\n"
         "        return np.concatenate([a * cos - b * sin, a * sin + b * cos, x[..., 2 * half:]], -1)",
         "        far = self.c.dim // 2\n"
         "        a, b = x[..., :half], x[..., far:far + half]\n"
         "        return np.concatenate([a * cos - b * sin, x[..., half:far], a * sin + b * cos, x[..., far + half:]], -1)")]},
    "s05": {"model": "e", "run": "--prompt haiku -n 2", "changes": [
        ('np.split(qkv, cut, -1)):\n                tap(f"{name}_proj", part, l)', 'self.groups_of(qkv)):\n                tap(f"{name}_proj", part, l)'),
        ('np.split(qkv + w[p + "qkv.bias"], cut, -1)', 'self.groups_of(qkv + w[p + "qkv.bias"])'),
        ("    def attention(self,",
         "    def groups_of(self, qkv):\n"
         "        c, n = self.c, len(qkv)\n"
         "        y = qkv.reshape(n, c.groups, c.heads // c.groups + 2, c.dim)\n"
         "        return y[:, :, :-2].reshape(n, -1), y[:, :, -2].reshape(n, -1), y[:, :, -1].reshape(n, -1)\n\n"
         "    def attention(self,")]},
    "s06": {"model": "f", "run": "--prompt haiku -n 2", "changes": [
        ('return tap("attn_out", matmul(context, w[p + "attn_output.weight"]), l)',
         'low, weight = ' + BF16 + ', w[p + "attn_output.weight"]\n'
         '        out, step = np.zeros((n, len(weight)), F), context.shape[1] // 4\n'
         '        for k in range(0, context.shape[1], step):\n'
         '            out = low(out + low(matmul(context[:, k:k + step], weight[:, k:k + step])))\n'
         '        return tap("attn_out", out, l)')]},
    "s07": {"model": "k", "run": "--prompt haiku -n 2", "changes": [
        ('        tap("ffn_gate", gate, l)\n', '        gate, up = (np.concatenate([gate, up], -1)[:, j::2] for j in (0, 1))\n        tap("ffn_gate", gate, l)\n')]},
    "s08": {"model": "g", "run": "--prompt haiku -n 2", "changes": [
        ('        score = tap("shared_score", matmul(x, w[p + "ffn_gate_inp_shexp.weight"].reshape(1, -1)), l)\n'
         '        weight = tap("shared_weight", sigmoid(score), l)\n', ''),
        ('shared = tap("shared_out", shared * weight, l)', 'shared = tap("shared_out", shared, l)')]},
    "s09": {"model": "h", "run": "--prompt haiku -n 3 --kv-type q8_0", "changes": [
        ("np.trunc(v + np.copysign(F(0.5), v)).astype(np.int8)", "np.trunc(v).astype(np.int8)")]},
    "s10": {"model": "i", "run": "--prompt haiku -n 3", "changes": [
        ('norm(out, w[p + "ssm_norm.weight"], c.eps)', 'norm(out, F(1) + w[p + "ssm_norm.weight"], c.eps)')]},
    "s11": {"model": "f", "run": "--prompt haiku -n 3", "changes": [
        ('            h = tap("attn_norm", norm(x, w[p + "attn_norm.weight"], c.eps), l)\n',
         '            h = tap("attn_norm", norm(x, w[p + "attn_norm.weight"], c.eps), l)\n            if l == 0:\n                x = h\n')]},
    "s12": {"model": "b", "run": "--prompt haiku -n 3", "changes": [
        ('tap("logits", head(x, self.head))',
         'shards = np.array_split(self.head, 2)\n'
         '        logits = np.zeros((n, len(self.head)), F)\n'
         '        for rank, shard in enumerate(shards):\n'
         '            logits[:, rank * len(shard):(rank + 1) * len(shard)] = head(x, shard)\n'
         '        tap("logits", logits)')]},
    "s13": {"model": "k", "run": "--prompt haiku -n 4", "changes": [
        ('tap("final_norm", norm(x, w["output_norm.weight"], c.eps))',
         'tap("final_norm", norm(x, w["output_norm.weight"], c.eps) if part is not None else add_norm(x, y, w["output_norm.weight"], c.eps)[1])')]},
    "s14": {"model": "h", "run": "--prompt haiku -n 4", "changes": [
        ("        first = self.pages.length\n        self.pages.grow(n)\n",
         "        if part is None and not getattr(self, \"decoding\", False):\n"
         "            self.decoding = True\n"
         "            self.pages.grow(1)\n"
         "        first = self.pages.length\n        self.pages.grow(n)\n")]},
    "s15": {"model": "e", "run": "--prompt long --length 29 -n 20", "changes": [
        ("        scores, weights, context = attend(q, keys, values, first)\n",
         "        over = PAGE if n == 1 and (first + n) % PAGE == 0 else 0\n"
         "        slots = self.pages.slots(np.arange(first + n + over))\n"
         "        scores, weights, context = attend(q, self.k[l].get(slots), self.v[l].get(slots), first + over)\n"
         "        scores, weights = scores[..., :first + n], weights[..., :first + n]\n")]},
    "s16": {"model": "c", "run": "--prompt long --length 45 --passes 25,20 -n 2", "changes": [
        ("        less = np.exp(most - now)\n        e = np.exp(s - now)\n",
         "        skip = (now - most <= F(8 * np.log(2))) & (tokens > 1)\n"
         "        less = np.where(skip, F(1), np.exp(most - now))\n        e = np.exp(s - now)\n"),
        ("        most = now\n    context = sums / total", "        most = np.where(skip, most, now)\n    context = sums / total")]},
    "s17": {"model": "j", "run": "--prompt long --length 50 -n 2", "changes": [
        ("            for line in range(0, len(y), LINES):\n",
         "            most = -(-len(expert) // (c.experts * LINES)) * LINES\n"
         "            for line in range(0, len(y), LINES):\n"
         "                owner = np.searchsorted(ends, line, \"right\")\n"
         "                if line - (ends - room)[owner] >= most:\n"
         "                    continue\n")]},
    "s18": {"model": "d", "run": "--prompt long --length 43 -n 3", "changes": [
        ("    m = m * since[:, -1:] + (told * left)",
         "    at = np.minimum(CHUNK - 7 + 2 * (np.arange(m.shape[2]) % 4), n - 1)\n"
         "    m = m * since[:, at, 0][:, None] + (told * left)")]},
    "s19": {"model": "i", "run": "--prompt long --length 40 --passes 22,18 -n 3", "changes": [
        ("        self.window[l] = line[n:]\n", "        self.window[l] = line[n:] if n == 1 else silu(conv)[1 - c.taps:]\n")]},
    "s20": {"model": "k", "run": "--prompt long --length 30 -n 5", "changes": [
        ("    return sum(share * part for share, part in zip(shares, parts)) / sum(shares)",
         "    out = sum(share * part for share, part in zip(shares, parts)) / sum(shares)\n"
         "    for h in range(BLOCKS, len(out)):\n"
         "        out[h] += out[h - BLOCKS]\n"
         "    return out"),
        ("SPLIT = 16  # keys", "BLOCKS = 2  # of threads that merge the parts of the heads, each every second head\nSPLIT = 16  # keys")]},
}


def changed(text, name):
    for old, new in BUGS[name]["changes"]:
        assert text.count(old) == 1, (name, old, text.count(old))
        text = text.replace(old, new)
    return text
