"""The bugs of the thirty-second round: for each, the places of engine.py that change. key.py says what each is."""

BUGS = {
    "eps": [("eps=F(get(\"attention.layer_norm_rms_epsilon\"))", "eps=F(1e-6)")],
    "norm-in-place": [(
        """            h = tap("attn_norm", norm(x, w[p + "attn_norm.weight"], c.eps), l)
""", """            h = tap("attn_norm", norm(x, w[p + "attn_norm.weight"], c.eps), l)
            if l == 0:
                x = x * (F(1) / np.sqrt(block_sum(x * x) / F(x.shape[-1]) + c.eps))
""")],
    "kv-tile": [("np.arange(heads) // (heads // groups)", "np.arange(heads) % groups")],
    "head-tail": [(
        """    y = np.empty((len(x), len(w)), F)
    for r in range(0, whole, HEAD_ROWS):""", """    y = np.zeros((len(x), len(w)), F)
    for r in range(0, whole, HEAD_ROWS):"""),
        ("""    for r in range(len(w) - whole):
        y[:, whole + r] = x @ w[whole + r]
""", "")],
    "q3k-scales": [(
        """        four = s[:, j % 8] >> 4 * (j // 8) & 15
        two = s[:, 8 + j % 4] >> 2 * (j // 4) & 3
        scale[:, j] = (four | two << 4).astype(F) - 32
""", """        scale[:, j] = (s[:, j % 8] >> 4 * (j // 8) & 15).astype(F) - 8
""")],
    "tied-head": [("w.get(\"output.weight\", w[\"token_embd.weight\"])", "w[\"token_embd.weight\"]")],
    "topk-norm": [(
        """        weights = tap("router_weights", np.take_along_axis(probs, chosen, -1), l)
""", """        weights = np.take_along_axis(probs, chosen, -1)
        if c.arch != "qwen3moe":
            weights = weights / weights.sum(-1, keepdims=True)
        weights = tap("router_weights", weights, l)
""")],
    "head-dim": [("F(1 / np.sqrt(c.dim))", "F(1 / np.sqrt(c.width // c.heads))")],
    "inv-freq": [(
        """        if any(c.recurrent):
            channels""", """        bits = self.frequency.astype(F).view(np.uint32)
        self.frequency = ((bits + 0x7fff + (bits >> 16 & 1) & 0xffff0000).astype(np.uint32)).view(F).astype(np.float64)
        if any(c.recurrent):
            channels""")],
    "gate-flat": [("(part.reshape(n, -1) for part in np.split(q.reshape(n, c.heads, 2 * c.dim), 2, -1))", "np.split(q, 2, -1)")],
    "odd-sum": [(
        """        half = (n + 1) // 2
        x[..., :n - half] += x[..., half:n]
""", """        half = n // 2
        x[..., :half] += x[..., half:2 * half]
""")],
    "delta-heads": [("np.arange(c.value_heads) % c.key_heads", "np.arange(c.value_heads) // (c.value_heads // c.key_heads)")],
    "mask-offset": [("> first + np.arange(tokens)[:, None]", "> (first if tokens == 1 else 0) + np.arange(tokens)[:, None]")],
    "k-tail": [(
        """        k = columns - columns % TILE_K
        y[m:m + TILE_M] += tile[:, k:] @ w[:, k:].T
""", "")],
    "short-part": [("        self.window[l] = line[n:]\n", """        self.window[l] = line[n:]
        if 1 < n < c.taps - 1:
            self.window[l] = np.concatenate([np.zeros((c.taps - 1 - n, qkv.shape[1]), F), qkv])
""")],
    "stale-table": [
        ("    def grow(self, count):\n", "    def grow(self, count, replayed):\n        if replayed:\n            self.upload()\n"),
        ("            self.mine.append(self.free.pop())\n        self.upload()\n", "            self.mine.append(self.free.pop())\n        if not replayed:\n            self.upload()\n"),
        ("self.pages.grow(n)", "self.pages.grow(n, part is None)")],
    "first-scale": [
        ("""    def get(self, slots):
        x = self.codes[slots].astype(F) * self.scale[slots].astype(F)
""", """    def get(self, slots, one):
        scale = self.scale[slots].astype(F)
        x = self.codes[slots].astype(F) * (scale[:, :, :1] if one else scale)
"""),
        ("    def get(self, slots):\n        return self.rows", "    def get(self, slots, one):\n        return self.rows"),
        ("self.k[l].get(slots)", "self.k[l].get(slots, n == 1)"),
        ("self.v[l].get(slots)", "self.v[l].get(slots, n == 1)")],
    "half-variance": [(
        """    total = x + y
    r = F(1) / np.sqrt(block_sum(total * total)""", """    total = x + y
    bits = total.view(np.uint32)
    stored = (bits + 0x7fff + (bits >> 16 & 1) & 0xffff0000).astype(np.uint32).view(F)
    r = F(1) / np.sqrt(block_sum(stored * stored)""")],
    "rope-table": [("angle = positions[:, None]", "angle = np.minimum(positions, self.c.trained - 1)[:, None]")],
    "moe-grid": [("            for line in range(0, len(y), LINES):\n", "            for line in range(0, len(expert), LINES):\n")],
}


def changed(text, name):
    for old, new in BUGS[name]:
        assert text.count(old) == 1, (name, text.count(old), old)
        text = text.replace(old, new)
    return text
