"""The bugs of the fifty-eighth round: changes of the text of the thirty-first round's engine.py, the model of each, and qdiff's options."""

YARN = "--set rope.scaling.type=yarn --set rope.scaling.original_context_length=512"

MODELS = {
    "a": "--weights q3_K --layers 2 --seed 5811",
    "b": "--weights q5_0 --heads 8 --kv-heads 4 --layers 2 --seed 5812",
    "c": f"--arch qwen3 --weights f16 --heads 4 --kv-heads 2 --head-dim 64 {YARN} --set rope.scaling.factor=8.0 --seed 5813",
    "d": "--massive --weights bf16 --eps 0.00001 --layers 2 --seed 5814",
    "e": "--weights q8_0 --embedding 320 --heads 10 --kv-heads 2 --seed 5815",
    "f": "--arch qwen3 --weights q4_0 --embedding 320 --heads 6 --kv-heads 2 --head-dim 64 --seed 5816",
    "g": "--tied --weights q6_K --layers 3 --seed 5817",
    "h": f"--weights bf16 --heads 4 --kv-heads 1 {YARN} --set rope.scaling.factor=4.0 --seed 5818",
    "i": "--arch qwen3moe --weights q8_0 --tensor blk.0.ffn_up_exps.weight=mxfp4 --heads 4 --kv-heads 2 --head-dim 64 --seed 5819",
    "j": "--arch qwen3 --weights iq4_nl --heads 4 --kv-heads 1 --head-dim 64 --seed 5820",
    "k": "--arch qwen35 --weights q8_0 --layers 4 --seed 5821",
    "l": "--arch qwen35 --weights q5_K --layers 4 --seed 5822",
    "m": "--weights q4_K --layers 2 --seed 5823",
    "n": "--arch qwen3 --weights q8_0 --heads 12 --kv-heads 2 --head-dim 64 --seed 5824",
    "o": "--arch qwen2moe --weights q4_K --seed 5825",
}

BUGS = {
    "w01": {"model": "a", "run": "--prompt haiku -n 2", "changes": [
        ("scale[:, j] = (four | two << 4).astype(F) - 32", "scale[:, j] = four.astype(F) - 8")]},
    "w02": {"model": "b", "run": "--prompt long --length 44 -n 3", "changes": [
        ("    def slots(self, at):\n",
         "    def pairs(self, at):\n        \"\"\"The read of two pages at once.\"\"\"\n"
         "        return self.table[at // (2 * PAGE) * 2] * PAGE + at % (2 * PAGE)\n\n    def slots(self, at):\n"),
        ("slots = self.pages.slots(np.arange(first + n))", "slots = self.pages.pairs(np.arange(first + n))")]},
    "w03": {"model": "c", "run": "--prompt haiku -n 3", "changes": [
        ("self.grown = 1 + 0.1 * np.log(c.yarn)", "self.grown = (1 + 0.1 * np.log(c.yarn)) ** 2")]},
    "w04": {"model": "d", "run": "--prompt haiku -n 2", "changes": [
        ("    return x * (F(1) / np.sqrt(block_sum(x * x) / F(x.shape[-1]) + eps)) * w",
         "    x = x / np.abs(x).max(-1, keepdims=True)\n    return x * (F(1) / np.sqrt(block_sum(x * x) / F(x.shape[-1]) + eps)) * w"),
        ("    total = x + y\n    r = F(1) / np.sqrt(block_sum(total * total) / F(x.shape[-1]) + eps)\n    return total, total * r * w",
         "    total = x + y\n    z = total / np.abs(total).max(-1, keepdims=True)\n"
         "    r = F(1) / np.sqrt(block_sum(z * z) / F(x.shape[-1]) + eps)\n    return total, z * r * w")]},
    "w05": {"model": "e", "run": "--prompt haiku -n 2", "changes": [
        ('np.split(qkv + w[p + "qkv.bias"], cut, -1)', 'np.split(qkv + self.by_group(w[p + "qkv.bias"]), cut, -1)'),
        ("    def attention(self, tap, l, x, positions, first):\n",
         "    def by_group(self, b):\n        \"\"\"Queries, keys and values of a bias that lies group by group.\"\"\"\n"
         "        b = b.reshape(self.c.groups, -1, self.c.dim)\n"
         "        return np.concatenate([b[:, :-2].reshape(-1), b[:, -2].reshape(-1), b[:, -1].reshape(-1)])\n\n"
         "    def attention(self, tap, l, x, positions, first):\n")]},
    "w06": {"model": "f", "run": "--prompt haiku -n 2", "changes": [
        ("TILE_M, TILE_K = 8, 64\n",
         "def stream_k(x, w, blocks=4, tile=64):\n"
         "    \"\"\"All steps of all tiles of columns, shared out evenly over blocks.\"\"\"\n"
         "    y, steps = np.zeros((len(x), len(w)), F), x.shape[1] // tile\n"
         "    units = len(w) // tile * steps\n"
         "    for b in range(blocks):\n"
         "        u, end = units * b // blocks, units * (b + 1) // blocks\n"
         "        while u < end:\n"
         "            t, k = u // steps * tile, u % steps\n"
         "            stop = min(steps, k + end - u)\n"
         "            y[:, t:t + tile] = x[:, k * tile:stop * tile] @ w[t:t + tile, k * tile:stop * tile].T\n"
         "            u += stop - k\n"
         "    return y\n\n\n"
         "TILE_M, TILE_K = 8, 64\n"),
        ('tap("attn_out", matmul(context, w[p + "attn_output.weight"]), l)', 'tap("attn_out", stream_k(context, w[p + "attn_output.weight"]), l)')]},
    "w07": {"model": "g", "run": "--prompt haiku -n 2", "changes": [
        ('tiled(tap("ffn_act", silu(gate) * up, l)', 'tiled(tap("ffn_act", fast_silu(gate) * up, l)'),
        ("def block_sum(x):\n",
         "def fast_silu(x):\n    y = x / 2\n    return x * (F(0.5) + F(0.5) * np.clip(y * (1 + F(0.1834) * y * y), -1, 1))\n\n\ndef block_sum(x):\n")]},
    "w08": {"model": "h", "run": "--prompt haiku -n 3", "changes": [
        ("def attend(q, k, v, first):", "def attend(q, k, v, first, more):"),
        ("scale = F(1 / np.sqrt(dim))", "scale = F(more / np.sqrt(dim))"),
        ("attend(q, keys, values, first)", "attend(q, keys, values, first, self.grown ** 2)")]},
    "w09": {"model": "i", "run": "--prompt haiku -n 2", "changes": [
        ("np.take_along_axis(probs, chosen, -1)", "sigmoid(np.take_along_axis(logits, chosen, -1))")]},
    "w10": {"model": "j", "run": "--prompt haiku -n 3 --kv-type q8_0", "changes": [
        ("np.trunc(v + np.copysign(F(0.5), v))", "np.trunc(v)")]},
    "w11": {"model": "k", "run": "--prompt haiku -n 3", "changes": [
        ('np.logaddexp(F(0), a + w[p + "ssm_dt.bias"])', 'np.logaddexp(F(0), a) + w[p + "ssm_dt.bias"]')]},
    "w12": {"model": "l", "run": "--prompt long --length 40 -n 2", "changes": [
        ("self.frequency, self.grown = float(c.base) ** (-np.arange(0, c.rotated, 2) / c.rotated), 1.0",
         "self.frequency, self.grown = float(c.base) ** (-np.arange(0, c.rotated, 2) / c.dim), 1.0"),
        ("        a, b = x[..., :half], x[..., half:2 * half]\n"
         "        return np.concatenate([a * cos - b * sin, a * sin + b * cos, x[..., 2 * half:]], -1)",
         "        far = self.c.dim // 2\n        a, b, out = x[..., :half], x[..., far:far + half], x.copy()\n"
         "        out[..., :half], out[..., far:far + half] = a * cos - b * sin, a * sin + b * cos\n        return out")]},
    "w13": {"model": "m", "run": "--prompt haiku -n 4", "changes": [
        ("    for low, high in zip(cut, cut[1:]):\n        mine = (ids >= low) & (ids < high)\n"
         "        rows = table[low:high][np.where(mine, ids - low, 0)]\n",
         "    share = -(-len(table) // 64) * 64 // VOCAB_PARTS  # of the ids, whose number is filled up to a multiple of 64\n"
         "    for rank, (low, high) in enumerate(zip(cut, cut[1:])):\n"
         "        row = ids - rank * share\n"
         "        mine = (row >= 0) & (row < min(share, high - low))\n"
         "        rows = table[low:high][np.where(mine, row, 0)]\n")]},
    "w14": {"model": "n", "run": "--prompt haiku -n 2", "changes": [
        ("y[:, whole + r] = x @ w[whole + r]", "y[:, whole + r] = x @ w[len(w) - HEAD_ROWS + r]")]},
    "w15": {"model": "k", "run": "--prompt haiku -n 5", "changes": [
        ('silu(tap("conv_out", conv, l))', '(silu if n > 1 else lambda y: y)(tap("conv_out", conv, l))')]},
    "w16": {"model": "l", "run": "--prompt long --length 40 -n 3", "changes": [
        ("read = np.tril(q @ k.transpose(0, 2, 1) * fade)", "read = np.tril(q @ k.transpose(0, 2, 1))")]},
    "w17": {"model": "n", "run": "--prompt long --length 30 -n 6", "changes": [
        ("    of = kv_head(heads, k.shape[1])\n",
         "    of = kv_head(heads, k.shape[1])\n    if tokens == 1:\n"
         "        of = np.arange(heads) // HEADS // -(-(heads // k.shape[1]) // HEADS)\n"),
        ("KEYS = 8  # of a tile\n", "KEYS = 8  # of a tile\nHEADS = 4  # of a tile at a decode step\n")]},
    "w18": {"model": "f", "run": "--prompt long --length 29 -n 8", "changes": [
        ("    most, sums, parts = [], [], []\n",
         "    most, sums, parts = [], [], []\n    more = -s.shape[1] % SPLIT\n"
         "    s, v = np.pad(s, ((0, 0), (0, more))), np.pad(v, ((0, 0), (0, more), (0, 0)))\n")]},
    "w19": {"model": "o", "run": "--prompt long --length 33 --passes 28,2,3 -n 3", "changes": [
        ('weight[np.searchsorted(ends, line, "right")]', 'weight[np.searchsorted(ends[counts > 0], line, "right")]')]},
    "w20": {"model": "e", "run": "--prompt long --length 61 --passes 21,16,24 -n 2", "changes": [
        ("np.arange(k.shape[1])[None] > first + np.arange(tokens)[:, None]",
         "np.arange(k.shape[1])[None] > (first if tokens == 1 else first // KEYS * KEYS) + np.arange(tokens)[:, None]")]},
}


def changed(text, name):
    for old, new in BUGS[name]["changes"]:
        assert text.count(old) == 1, (name, old, text.count(old))
        text = text.replace(old, new)
    return text
