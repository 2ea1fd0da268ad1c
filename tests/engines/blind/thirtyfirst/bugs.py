"""The bugs of the thirty-first round: changes of the text of engine.py, the model that each runs on, and qdiff's options."""

BUGS = {
    "p01": {"model": "--arch qwen2 --weights f32", "run": "--prompt haiku -n 2", "changes": [
        ("        rows[~mine] = 0\n", "")]},
    "p02": {"model": "--arch qwen3 --weights f32 --seed 2", "run": "--prompt haiku -n 2", "changes": [
        ("            q, k = norm(q, w[p + \"attn_q_norm.weight\"], c.eps), norm(k, w[p + \"attn_k_norm.weight\"], c.eps)\n",
         "            whole = lambda y, weight: norm(y.reshape(n, -1), np.tile(weight, y.shape[1]), c.eps).reshape(y.shape)\n"
         "            q, k = whole(q, w[p + \"attn_q_norm.weight\"]), whole(k, w[p + \"attn_k_norm.weight\"])\n")]},
    "p03": {"model": "--arch qwen2 --weights f32 --seed 3", "run": "--prompt haiku -n 2", "changes": [
        ("                w[p + \"qkv.bias\"] = np.concatenate([w.pop(p + f\"attn_{s}.bias\") for s in \"qkv\"])\n",
         "                permute = lambda b, heads: b.reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1)\n"
         "                q, k, v = (w.pop(p + f\"attn_{s}.bias\") for s in \"qkv\")\n"
         "                w[p + \"qkv.bias\"] = np.concatenate([permute(q, c.heads), permute(k, c.groups), v])\n")]},
    "p04": {"model": "--arch qwen2 --weights f32 --tensor blk.1.ffn_down.weight=q5_K --seed 4", "run": "--prompt haiku -n 2", "changes": [
        ("        first, second = first << 2, second << 2\n", "")]},
    "p05": {"model": "--arch qwen3 --weights f32 --tensor blk.0.attn_output.weight=iq4_nl --seed 5", "run": "--prompt haiku -n 2", "changes": [
        ("NL = np.array([-127, -104, -83, -65, -49,", "NL = np.array([-127, -104, -83, -56, -49,")]},
    "p06": {"model": "--arch qwen2 --weights f32 --seed 6 --set rope.scaling.type=yarn --set rope.scaling.factor=4.0 "
                     "--set rope.scaling.original_context_length=512", "run": "--prompt haiku -n 2", "changes": [
        ("np.log(c.trained / (turns", "np.log(c.context / (turns")]},
    "p07": {"model": "--arch qwen2 --weights f32 --seed 7 --embedding 192 --heads 3 --kv-heads 1 --head-dim 64", "run": "--prompt haiku -n 2", "changes": [
        ("        half = (n + 1) // 2\n        x[..., :n - half] += x[..., half:n]\n", "        half = n // 2\n        x[..., :half] += x[..., half:2 * half]\n")]},
    "p08": {"model": "--arch qwen3 --weights f32 --seed 8", "run": "--prompt long --length 45 --passes 20,25 -n 3", "changes": [
        ("tap(\"q_rope\", self.rope(q, positions), l)", "tap(\"q_rope\", self.rope(q, positions - first), l)")]},
    "p09": {"model": "--arch qwen2 --weights f32 --seed 9", "run": "--prompt long --length 56 --passes 13,40,3 -n 2", "changes": [
        ("        slots = self.pages.slots(first + np.arange(n))\n", "        slots = self.pages.slots(first) + np.arange(n)\n")]},
    "p10": {"model": "--arch qwen2 --weights f32 --seed 10", "run": "--prompt haiku -n 6 --kv-type q8_0", "engine": "--kv q8_0", "changes": [
        ("        self.codes[slots] = np.trunc(v + np.copysign(F(0.5), v)).astype(np.int8)\n",
         "        if len(x) == 1:  # the kernel of decode steps\n"
         "            self.codes[slots] = v.astype(np.int8)\n"
         "        else:\n"
         "            self.codes[slots] = np.trunc(v + np.copysign(F(0.5), v)).astype(np.int8)\n")]},
    "p11": {"model": "--arch qwen3 --weights f32 --head-dim 96 --seed 11", "run": "--prompt haiku -n 2", "changes": [
        ("attend(q, keys, values, first)", "attend(q, keys, values, first, c.width // c.heads)"),
        ("def attend(q, k, v, first):", "def attend(q, k, v, first, of_head):"),
        ("    scale = F(1 / np.sqrt(dim))\n", "    scale = F(1 / np.sqrt(of_head))\n")]},
    "p12": {"model": "--arch qwen2 --weights f32 --layers 4 --seed 12", "run": "--prompt long --length 50 -n 3", "changes": [
        ("attend(q, keys, values, first)", "attend(q, keys, values, first, WINDOW if l >= FULL else None)"),
        ("def attend(q, k, v, first):", "WINDOW, FULL = 32, 2  # sliding_window, max_window_layers\n\n\ndef attend(q, k, v, first, window=None):"),
        ("    most, total = np.full(", "    if window:\n        hidden |= np.arange(k.shape[1])[None] <= first + np.arange(tokens)[:, None] - window\n    most, total = np.full("),
        ("        less = np.exp(most - now)\n        e = np.exp(s - now)\n",
         "        safe = np.where(np.isinf(now), F(0), now)\n        less = np.exp(most - safe)\n        e = np.exp(s - safe)\n"),
        ("decode(scores[:, 0] * scale, v)", "decode(np.where(hidden[0], F(-1e9), scores[:, 0] * scale), v)")]},
    "p13": {"model": "--arch qwen3 --weights f32 --seed 13", "run": "--prompt haiku -n 6", "changes": [
        ("shares = [np.exp(m - top) * total for m, total in zip(most, sums)]", "shares = [np.exp(m - top) for m in most]")]},
    "p14": {"model": "--arch qwen3 --weights f32 --seed 14 --heads 6 --kv-heads 2 --head-dim 64", "run": "--prompt haiku -n 2", "changes": [
        ("    return np.arange(heads) // (heads // groups)\n",
         "    of_block = 2  # heads of a block, which share what they load\n    return np.arange(heads) // of_block * of_block // (heads // groups)\n")]},
    "p15": {"model": "--arch qwen2 --weights f32 --seed 15", "run": "--prompt haiku -n 2", "changes": [
        ("        gate, up = np.split(matmul(x, self.w[f\"blk.{l}.gate_up.weight\"])", "        both = (matmul(x, self.w[f\"blk.{l}.gate_up.weight\"])"),
        ("matmul(x, self.w[f\"blk.{l}.ffn_up.weight\"])], -1), 2, -1)\n",
         "matmul(x, self.w[f\"blk.{l}.ffn_up.weight\"])], -1))\n        gate, up = both[:, ::2], both[:, 1::2]\n")]},
    "p16": {"model": "--arch qwen3 --weights f32 --seed 16", "run": "--prompt long --length 45 -n 2", "changes": [
        ("        tile = x[m:m + TILE_M]\n", "        m = max(0, min(m, len(x) - TILE_M))  # the last tile is a whole one too\n        tile = x[m:m + TILE_M]\n")]},
    "p17": {"model": "--arch qwen2moe --weights f32 --seed 17", "run": "--prompt haiku -n 2", "changes": [
        ("        weights = tap(\"router_weights\", np.take_along_axis(probs, chosen, -1), l)\n",
         "        best = np.take_along_axis(logits, chosen, -1)\n"
         "        best = np.exp(best - best.max(-1, keepdims=True))\n"
         "        weights = tap(\"router_weights\", best / best.sum(-1, keepdims=True), l)\n")]},
    "p18": {"model": "--arch qwen3moe --weights f32 --seed 18", "run": "--prompt haiku -n 2", "changes": [
        ("        room = -(-counts // LINES) * LINES\n", "        room = counts\n")]},
    "p19": {"model": "--arch qwen35 --weights f32 --seed 19", "run": "--prompt haiku -n 2", "changes": [
        ("    read = np.tril(q @ k.transpose(0, 2, 1) * fade)\n", "    read = np.tril(q @ k.transpose(0, 2, 1))\n")]},
    "p20": {"model": "--arch qwen3 --weights f32 --seed 20", "run": "--prompt haiku -n 2", "changes": [
        ("        y[:, whole + r] = x @ w[whole + r]\n", "        y[:, whole + r] = x @ w[r]\n")]},
}


def changed(text, name):
    for old, new in BUGS[name]["changes"]:
        assert text.count(old) == 1, (name, old, text.count(old))
        text = text.replace(old, new)
    return text
