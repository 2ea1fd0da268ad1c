"""The bugs of the thirty-fourth round: changes of the text of engine.py."""

CHANGES = {
    # always
    "x01": [('logits = tap("router", matmul(x, w[p + "ffn_gate_inp.weight"]), l)',
             'logits = tap("router", matmul(norm(x, w[p + "ffn_norm.weight"], c.eps), w[p + "ffn_gate_inp.weight"]), l)')],
    "x02": [('x = tap("final_norm", norm(x, w["output_norm.weight"], c.eps))', 'x = tap("final_norm", norm(x, F(1) + w["output_norm.weight"], c.eps))')],
    "x03": [('bits = np.ascontiguousarray(b[:, 2:6]).view("<u4") >> np.arange(32, dtype=np.uint32) & 1',
             'bits = np.ascontiguousarray(b[:, 2:6]).view("<u4") >> (np.arange(32, dtype=np.uint32) % 16) & 1')],
    "x04": [("unit = lambda y: y / np.sqrt((y * y).sum(-1, keepdims=True) + c.eps)", "unit = lambda y: y / np.sqrt((y * y).mean(-1, keepdims=True) + c.eps)")],
    "x05": [('shared = tap("shared_out", shared * weight, l)\n        return tap("ffn_out", out + shared, l)',
             'shared = tap("shared_out", shared, l)\n        return tap("ffn_out", (out + shared) * weight, l)')],
    "x06": [("def attend(q, k, v, first):", "def attend(q, k, v, first, grown=1.0):"), ("scale = F(1 / np.sqrt(dim))", "scale = F(grown ** 2 / np.sqrt(dim))"),
            ("attend(q, keys, values, first)", "attend(q, keys, values, first, self.grown)")],
    "x07": [('weights = tap("router_weights", np.take_along_axis(probs, chosen, -1), l)',
             'top = np.take_along_axis(logits, chosen, -1)\n        top = np.exp(top - top.max(-1, keepdims=True))\n'
             '        weights = tap("router_weights", top / top.sum(-1, keepdims=True), l)')],
    "x08": [('return tap("ffn_down", tiled(tap("ffn_act", silu(gate) * up, l), self.w[f"blk.{l}.ffn_down.weight"]), l)',
             'act, down = tap("ffn_act", silu(gate) * up, l), self.w[f"blk.{l}.ffn_down.weight"]\n        whole = act.shape[1] // 128 * 128\n'
             '        return tap("ffn_down", tiled(act[:, :whole], down[:, :whole]), l)')],
    "x09": [('self.head = w.get("output.weight", w["token_embd.weight"])', 'self.head = w["token_embd.weight"]')],
    "x10": [("q, gate = (part.reshape(n, -1) for part in np.split(q.reshape(n, c.heads, 2 * c.dim), 2, -1))", "q, gate = np.split(q, 2, -1)")],
    "x11": [("        minimum[:, j] = (s[:, j + 4] >> 4) | (s[:, j] >> 6) << 4\n    q = q.reshape(-1, 4, 32)",
             "        minimum[:, j] = (s[:, j + 4] >> 4) | (s[:, j - 4] >> 6) << 4\n    q = q.reshape(-1, 4, 32)")],
    "x12": [("self.codes[slots] = np.trunc(v + np.copysign(F(0.5), v)).astype(np.int8)", "self.codes[slots] = np.trunc(v).astype(np.int8)")],
    # under a condition
    "x13": [("        less = np.exp(most - now)\n", "        less = np.exp(most - now) if tokens == 1 else np.ones_like(now)\n")],
    "x14": [("        return np.concatenate([a * cos - b * sin, a * sin + b * cos, x[..., 2 * half:]], -1)",
             "        out = np.concatenate([a * cos - b * sin, a * sin + b * cos, x[..., 2 * half:]], -1)\n        if len(x) == 1:\n            out[:, 1:] = 0\n        return out")],
    "x15": [("        slots = self.pages.slots(first + np.arange(n))\n", "        slots = self.pages.slots((first if self.prefill else self.written) + np.arange(n))\n"),
            ("        self.pages.grow(n)\n", "        self.pages.grow(n)\n        self.prefill = part is not None or first == 0\n        if self.prefill:\n            self.written = first + n\n")],
    "x16": [("    hidden = np.arange(k.shape[1])[None] > first + np.arange(tokens)[:, None]\n",
             "    hidden = np.arange(k.shape[1])[None] > first + np.arange(tokens)[:, None]\n    if first >= 64:\n        hidden[:] = False\n")],
    "x17": [("parts.append((e[:, None] @ v[:, k:k + SPLIT])[:, 0] / sums[-1])", "parts.append((e[:, None] @ v[:, k // 2:k // 2 + e.shape[1]])[:, 0] / sums[-1])")],
    "x18": [("    scores = q @ k.transpose(0, 2, 1)\n",
             "    if tokens == 1:\n        e = np.arange(dim)\n        s, t = e // 16, e % 16 // 2\n        q = q[..., 64 * (s // 4) + 8 * t + 2 * (s % 4) + e % 2]\n    scores = q @ k.transpose(0, 2, 1)\n")],
    "x19": [("    left = np.exp(g[:, -1:] - g).astype(F)[:, :, None]\n    m = m * since[:, -1:] +",
             "    last = g[:, -1:] if n == CHUNK else 0 * g[:, -1:]\n    left = np.exp(last - g).astype(F)[:, :, None]\n    m = m * np.exp(last).astype(F)[:, :, None] +")],
    "x20": [("        positions = first + np.arange(n)\n", "        positions = (2 * first if part is not None else first) + np.arange(n)\n")],
}


def changed(text, name):
    for old, new in CHANGES[name]:
        assert text.count(old) == 1, (name, text.count(old), old)
        text = text.replace(old, new)
    return text
