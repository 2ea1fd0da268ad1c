"""The bugs of the twenty-ninth round: changes of engine.py's text, the model of each (options of `qdiff synth`), and its run."""

RUN = "--prompt long --length 21 -n 3"

BUGS = {
    # Always.
    "n01": {"model": "--arch qwen2 --weights Q3_K", "run": RUN, "changes": [
        ("        two = s[:, 8 + j % 4] >> 2 * (j // 4) & 3\n        scale[:, j] = (four | two << 4).astype(F) - 32\n",
         "        scale[:, j] = four.astype(F) - 8\n")]},
    "n02": {"model": " ".join(["--arch qwen3moe --weights Q8_0"] + [f"--tensor blk.{l}.ffn_{m}_exps.weight=MXFP4" for l in (0, 1) for m in ("gate", "up", "down")]), "run": RUN, "changes": [
        ("b[:, :1].astype(np.int32) - 128)", "b[:, :1].astype(np.int32) - 127)")]},
    "n03": {"model": "--arch qwen3 --weights Q8_0", "run": RUN, "changes": [
        ('            q, k = norm(q, w[p + "attn_q_norm.weight"], c.eps), norm(k, w[p + "attn_k_norm.weight"], c.eps)\n',
         '            whole = lambda x, weight: norm(x.reshape(n, -1), np.tile(weight, x.shape[1]), c.eps).reshape(x.shape)\n'
         '            q, k = whole(q, w[p + "attn_q_norm.weight"]), whole(k, w[p + "attn_k_norm.weight"])\n')]},
    "n04": {"model": "--arch qwen2 --weights Q4_0", "run": RUN, "changes": [
        ('[w.pop(p + f"attn_{s}.bias") for s in "qkv"]', '[w.pop(p + f"attn_{s}.bias") for s in "qvk"]')]},
    "n05": {"model": "--arch qwen35 --layers 4 --weights Q8_0", "run": RUN, "changes": [
        ("np.arange(0, c.rotated, 2) / c.rotated)", "np.arange(0, c.rotated, 2) / c.dim)")]},
    "n06": {"model": "--arch qwen3 --weights F16", "run": RUN, "engine": "--kv q8_0", "changes": [
        ("np.trunc(v + np.copysign(F(0.5), v)).astype(np.int8)", "v.astype(np.int8)")]},
    "n07": {"model": "--arch qwen3 --weights Q4_0", "run": RUN, "changes": [
        ("    return scores, weights / total", "    total = total + np.exp(-most)  # the sink of each head, whose logit is 0\n    return scores, weights / total")]},
    "n08": {"model": "--arch qwen35 --layers 4 --weights F16", "run": RUN, "changes": [
        ("(part.reshape(n, -1) for part in np.split(q.reshape(n, c.heads, 2 * c.dim), 2, -1))", "np.split(q, 2, -1)")]},
    "n09": {"model": "--arch qwen2 --weights Q8_0", "run": RUN, "changes": [
        ('            [matmul(x, self.w[f"blk.{l}.ffn_gate.weight"]), matmul(x, self.w[f"blk.{l}.ffn_up.weight"])], -1), 2, -1)\n',
         '            [matmul(x, self.w[f"blk.{l}.ffn_gate.weight"]), matmul(x, self.w[f"blk.{l}.ffn_up.weight"])], -1), 2, -1)\n'
         '        both = np.concatenate([gate, up], -1)\n'
         '        gate, up = both[:, ::2], both[:, 1::2]\n')]},
    "n10": {"model": "--arch qwen2moe --weights Q8_0", "run": RUN, "changes": [
        ('        shared = tap("shared_out", shared * weight, l)\n        return tap("ffn_out", out + shared, l)\n',
         '        return tap("ffn_out", (out + shared) * weight, l)\n')]},
    "n11": {"model": "--arch qwen35 --weights Q4_0", "run": RUN, "changes": [
        ("                m = m * np.exp(decay[t])[:, None, None]\n                told = (v[t] - (m @ key)[:, :, 0]) * beta[t][:, None]\n"
         "                m = m + told",
         "                told = (v[t] - (m @ key)[:, :, 0]) * beta[t][:, None]\n                m = m * np.exp(decay[t])[:, None, None] + told")]},
    "n12": {"model": "--arch qwen3 --weights F16", "run": RUN, "changes": [
        ("        logits = np.concatenate([matmul(x, full)[:, :rows] for full, rows in self.head], -1)\n",
         "        logits = np.concatenate([matmul(x, full) for full, _ in self.head], -1)[:, :sum(rows for _, rows in self.head)]\n")]},
    # Under a condition.
    "n13": {"model": "--arch qwen2 --weights Q8_0 --vocab 152064 --tied",
            "run": "--tokens 151644,872,198,7985,264,6386,38242,65535,911,65536,99519,107520,13,151645,198,151644,77091,198 -n 2", "changes": [
        ('w["token_embd.weight"][np.array(tokens)]', 'w["token_embd.weight"][np.array(tokens).astype(np.uint16)]')]},
    "n14": {"model": "--arch qwen2 --weights F16", "run": "--prompt long --length 15 -n 6", "changes": [
        ("    r = F(1) / np.sqrt((total * total).mean", "    r = F(1) / np.sqrt((x * x).mean")]},
    "n15": {"model": "--arch qwen3 --weights Q8_0", "run": "--prompt long --length 36 --passes 12,12,7,5 -n 2", "changes": [
        ("        positions = first + np.arange(n)\n", "        positions = (first if part is None else part * n) + np.arange(n)\n")]},
    "n16": {"model": "--arch qwen2 --weights Q8_0", "run": "--prompt long --length 13 -n 23", "changes": [
        ("        self.length += count\n", "        self.length += count\n        if count == 1:\n            self.upload()\n"),
        ("            self.mine.append(self.free.pop())\n        self.upload()\n",
         "            self.mine.append(self.free.pop())\n        if count > 1:\n            self.upload()\n")]},
    "n17": {"model": "--arch qwen2 --weights F16 --embedding 896 --heads 14 --kv-heads 2", "run": RUN, "changes": [
        ("    return np.arange(heads) // (heads // groups)\n",
         "    return np.minimum(np.arange(heads) >> (heads // groups).bit_length() - 1, groups - 1)\n")]},
    "n18": {"model": "--arch qwen3 --weights F16 --ffn 352", "run": RUN, "changes": [
        ("        y[m:m + TILE_M] += tile[:, k:] @ w[:, k:].T\n",
         "        if len(tile) == TILE_M:\n            y[m:m + TILE_M] += tile[:, k:] @ w[:, k:].T\n")]},
    "n19": {"model": "--arch qwen3moe --weights Q8_0", "run": "--prompt long --length 45 -n 2", "changes": [
        ("        room = counts.max()\n", "        room = max(4, -(-5 * n * c.taken // (4 * c.experts)))  # a quarter more than an even share\n")]},
    "n20": {"model": "--arch qwen35 --weights Q8_0", "run": "--prompt long --length 37 --passes 16,21 -n 2", "changes": [
        ("            q, k, v, beta, decay = pad(q), pad(k), pad(v), pad(beta), pad(decay)\n",
         '            q, k, v, beta = pad(q), pad(k), pad(v), pad(beta)\n'
         '            decay = np.logaddexp(F(0), pad(a) + w[p + "ssm_dt.bias"]) * w[p + "ssm_a"]\n')]},
}


def changed(text, name):
    for old, new in BUGS[name]["changes"]:
        assert text.count(old) == 1, (name, old, text.count(old))
        text = text.replace(old, new)
    return text
