"""The bugs: for each name the changes of engine.py, as pairs of the old text and the new one."""

BUGS = {
    # ---------------------------------------------------------------- always
    "q4k-min-high-bits": [("        minimum[:, j] = (s[:, j + 4] >> 4) | (s[:, j] >> 6) << 4\n    q = q.reshape(-1, 4, 32)",
                           "        minimum[:, j] = (s[:, j + 4] >> 4) | (s[:, j - 4] >> 6) << 4\n    q = q.reshape(-1, 4, 32)")],
    "partial-rope-pairs": [("        a, b = x[..., :half], x[..., half:2 * half]\n"
                            "        return np.concatenate([a * cos - b * sin, a * sin + b * cos, x[..., 2 * half:]], -1)",
                            "        mid, y = self.c.dim // 2, x.copy()\n"
                            "        a, b = x[..., :half], x[..., mid:mid + half]\n"
                            "        y[..., :half], y[..., mid:mid + half] = a * cos - b * sin, a * sin + b * cos\n"
                            "        return y")],
    "router-raw-logits": [("np.take_along_axis(probs, chosen, -1), l)", "np.take_along_axis(logits, chosen, -1), l)")],
    "yarn-mscale-squared": [("self.grown = 1 + 0.1 * np.log(c.yarn)", "self.grown = (1 + 0.1 * np.log(c.yarn)) ** 2")],
    "shared-gate-after-sum": [('        shared = tap("shared_out", shared * weight, l)\n        return tap("ffn_out", out + shared, l)',
                               '        return tap("ffn_out", (out + shared) * weight, l)')],
    "norm-after-rope": [('            q, k = norm(q, w[p + "attn_q_norm.weight"], c.eps), norm(k, w[p + "attn_k_norm.weight"], c.eps)\n'
                         '            tap("q_normed", q.reshape(n, -1), l)\n'
                         '            tap("k_normed", k.reshape(n, -1), l)\n'
                         '        q, k = tap("q_rope", self.rope(q, positions), l), tap("k_rope", self.rope(k, positions), l)',
                         '            q, k = tap("q_rope", self.rope(q, positions), l), tap("k_rope", self.rope(k, positions), l)\n'
                         '            q, k = norm(q, w[p + "attn_q_norm.weight"], c.eps), norm(k, w[p + "attn_k_norm.weight"], c.eps)\n'
                         '            tap("q_normed", q.reshape(n, -1), l)\n'
                         '            tap("k_normed", k.reshape(n, -1), l)\n'
                         '        else:\n'
                         '            q, k = tap("q_rope", self.rope(q, positions), l), tap("k_rope", self.rope(k, positions), l)')],
    "gate-before-norm": [('        out = tap("delta_normed", norm(out, w[p + "ssm_norm.weight"], c.eps).reshape(n, -1), l)\n'
                          '        return tap("delta_proj", matmul(tap("delta_gated", silu(z) * out, l)',
                          '        out = norm(out * silu(z).reshape(out.shape), w[p + "ssm_norm.weight"], c.eps).reshape(n, -1)\n'
                          '        return tap("delta_proj", matmul(tap("delta_gated", out, l)')],
    "tied-head-requantised": [('        self.head = w.get("output.weight", w["token_embd.weight"])',
                               '        self.head = w["output.weight"] if "output.weight" in w else self.four_bits(w["token_embd.weight"])\n\n'
                               '    def four_bits(self, table):\n'
                               '        blocks = table.reshape(-1, 32)\n'
                               '        most = np.take_along_axis(blocks, np.abs(blocks).argmax(-1)[:, None], -1)\n'
                               '        d = most / F(-8)\n'
                               '        codes = np.clip(np.floor(np.divide(blocks, d, out=np.zeros_like(blocks), where=d != 0) + F(8.5)), 0, 15)\n'
                               '        return ((codes - 8) * d.astype(np.float16).astype(F)).astype(F).reshape(table.shape)')],
    "bias-order": [('                w[p + "qkv.bias"] = np.concatenate([w.pop(p + f"attn_{s}.bias") for s in "qkv"])',
                    '                w[p + "qkv.bias"] = np.concatenate([w.pop(p + f"attn_{s}.bias") for s in "qvk"])')],
    "flat-gate-split": [("q, gate = (part.reshape(n, -1) for part in np.split(q.reshape(n, c.heads, 2 * c.dim), 2, -1))", "q, gate = np.split(q, 2, -1)")],
    "scale-of-width": [("def attend(q, k, v, first):", "def attend(q, k, v, first, size):"), ("scale = F(1 / np.sqrt(dim))", "scale = F(1 / np.sqrt(size))"),
                       ("attend(q, keys, values, first)", "attend(q, keys, values, first, c.width // c.heads)")],
    "head-floor-grid": [("    y = np.empty((len(x), len(w)), F)\n    for r in range(0, whole, HEAD_ROWS):", "    y = np.zeros((len(x), len(w)), F)\n    for r in range(0, whole, HEAD_ROWS):"),
                        ("    for r in range(len(w) - whole):\n        y[:, whole + r] = x @ w[whole + r]\n", "")],
    # ---------------------------------------------------------------- under a condition
    "fresh-keys-unrotated": [('        q, k = tap("q_rope", self.rope(q, positions), l)', '        fresh = k\n        q, k = tap("q_rope", self.rope(q, positions), l)'),
                             ("        scores, weights, context = attend(", "        if n > 1:\n            keys = np.concatenate([keys[:first], fresh])\n        scores, weights, context = attend(")],
    "mask-top-left": [("    hidden = np.arange(k.shape[1])[None] > first + np.arange(tokens)[:, None]",
                       "    hidden = np.arange(k.shape[1])[None] > (first if tokens == 1 else 0) + np.arange(tokens)[:, None]")],
    "decode-tail-zeros": [("    most, sums, parts = [], [], []\n",
                           "    most, sums, parts, rest = [], [], [], -s.shape[1] % SPLIT\n"
                           "    s, v = np.pad(s, ((0, 0), (0, rest))), np.pad(v, ((0, 0), (0, rest), (0, 0)))\n")],
    "rope-table-64": [("        angle = positions[:, None].astype(np.float64)", "        angle = np.minimum(positions, 63)[:, None].astype(np.float64)")],
    "conv-window-zeroed": [("        line = np.concatenate([self.window[l], qkv])", "        line = np.concatenate([self.window[l] if n == 1 else np.zeros_like(self.window[l]), qkv])")],
    "state-bf16": [("        self.memory[l] = m\n",
                    "        bits = np.ascontiguousarray(m, F).view(np.uint32)\n"
                    "        m = self.memory[l] = (bits + 0x7fff + (bits >> 16 & 1) >> 16 << 16).astype(np.uint32).view(F)\n")],
    "slots-from-part": [("        slots = self.pages.slots(first + np.arange(n))\n",
                         "        at = np.arange(n) if n > 1 else np.array([first])\n"
                         "        slots = self.pages.table[(first + np.arange(n)) // PAGE] * PAGE + at % PAGE\n")],
    "expert-index-of-group": [('weight[np.searchsorted(ends, line, "right")]', 'weight[np.searchsorted(ends[counts > 0], line, "right")]')],
}


def changed(text, name):
    for old, new in BUGS[name]:
        assert text.count(old) == 1, (name, old, text.count(old))
        text = text.replace(old, new)
    return text


if __name__ == "__main__":
    from engine import BASE

    for name in BUGS:
        compile(changed(BASE.read_text(), name), name, "exec")
    print(len(BUGS))
