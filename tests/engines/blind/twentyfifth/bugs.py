"""Twenty bugs: the model (options of `qdiff synth`), the run (options of `qdiff run`), and the changes of the engine's text.

The engine is the eleventh round's (pages: the eighth's). BASE, for all bugs and clean runs, adds Q5_K and the experts of qwen2moe."""
BASE = [
    ("gguf", "def q6_k(b):", '''def q5_k(b):
    """256 weights: as q4_k, and between scales and nibbles 32 bytes of fifth bits: bit g of byte i is of weight i of group g."""
    d, least, s, high, q = f16(b[:, 0:2]), f16(b[:, 2:4]), b[:, 4:16], b[:, 16:48], b[:, 48:]
    scale = np.empty((len(b), 8), np.uint8)
    minimum = np.empty((len(b), 8), np.uint8)
    for j in range(4):
        scale[:, j], minimum[:, j] = s[:, j] & 63, s[:, j + 4] & 63
    for j in range(4, 8):
        scale[:, j] = (s[:, j + 4] & 15) | (s[:, j - 4] >> 6) << 4
        minimum[:, j] = (s[:, j + 4] >> 4) | (s[:, j] >> 6) << 4
    q = q.reshape(-1, 4, 32)
    w, mask = np.empty((len(b), 8, 32), F), 1
    for pair in range(4):
        w[:, 2 * pair] = (q[:, pair] & 15) + np.where(high & mask, 16, 0)
        w[:, 2 * pair + 1] = (q[:, pair] >> 4) + np.where(high & mask << 1, 16, 0)
        mask <<= 2
    return ((d * scale)[:, :, None] * w - (least * minimum)[:, :, None]).reshape(-1, 256)


def q6_k(b):'''),
    ("gguf", "14: (256, 210, q6_k),", "13: (256, 176, q5_k), 14: (256, 210, q6_k),"),
    # Experts with a shared one: weights of the chosen are not made to sum to 1.
    ("model", '''        shares = tap("router_shares", weights / weights.sum(-1, keepdims=True), l)''',
     '''        shares = weights if c.arch == "qwen2moe" else tap("router_shares", weights / weights.sum(-1, keepdims=True), l)'''),
    ("model", '''        return tap("experts_out", (down * shares[:, :, None]).sum(1), l)''',
     '''        out = tap("experts_out", (down * shares[:, :, None]).sum(1), l)
        if p + "ffn_gate_inp_shexp.weight" not in w:
            return out
        score = tap("shared_score", (x @ w[p + "ffn_gate_inp_shexp.weight"].reshape(-1))[:, None], l)
        open_by = tap("shared_weight", sigmoid(score), l)
        gate, up = tap("shared_gate", x @ w[p + "ffn_gate_shexp.weight"].T, l), tap("shared_up", x @ w[p + "ffn_up_shexp.weight"].T, l)
        shared = tap("shared_down", tap("shared_act", silu(gate) * up, l) @ w[p + "ffn_down_shexp.weight"].T, l)
        return tap("ffn_out", out + tap("shared_out", shared * open_by, l), l)'''),
]

BUGS = {
    # Formats.
    "y01": dict(
        model="--arch qwen3 --heads 4 --kv-heads 1 --weights q5_K --seed 2501",
        run="-p haiku -n 2",
        changes=[("gguf", "        mask <<= 2\n", "")]),
    "y02": dict(
        model="--arch qwen2 --weights q4_K --tensor blk.0.attn_v.weight=q6_K --tensor blk.0.ffn_down.weight=q6_K "
              "--tensor blk.1.attn_v.weight=q6_K --tensor blk.1.ffn_down.weight=q6_K --tensor output.weight=q6_K --seed 2502",
        run="-p code -n 3",
        changes=[("gguf", "b[:, 192:208].view(np.int8)", "b[:, 192:208]")]),
    # RoPE.
    "y03": dict(
        model="--arch qwen3 --heads 4 --kv-heads 2 --head-dim 128 --weights bf16 --seed 2503",
        run="-p chinese -n 4",
        changes=[("gguf", 'base=get("rope.freq_base")', 'base=get("rope.theta", 10000.0)')]),
    "y04": dict(
        model="--arch qwen35 --heads 4 --kv-heads 1 --head-dim 64 --weights f16 --seed 2504",
        run="-p emoji -n 3",
        changes=[("model", "float(c.base) ** (-np.arange(half) / half)", "float(c.base) ** (-2 * np.arange(half) / c.dim)")]),
    "y05": dict(
        model="--arch qwen2 --embedding 384 --heads 6 --kv-heads 3 --weights q8_0 --seed 2505",
        run="-p haiku -n 7",
        changes=[("ferry", "        self.tokens[:n], self.positions[:n], self.slots[:n] = tokens, positions, slots\n",
                  "        self.tokens[:n], self.slots[:n] = tokens, slots\n"
                  "        if not self.used:\n"
                  "            self.positions[:n] = positions\n")]),
    # Norms.
    "y06": dict(
        model="--arch qwen3 --heads 4 --kv-heads 2 --layers 3 --weights q4_0 --seed 2506",
        run="-p code --length 30 -n 2",
        changes=[
            ("model", 'q = norm(q, w[p + "attn_q_norm.weight"], c.eps)',
             'q = norm(q.reshape(n, -1), np.tile(w[p + "attn_q_norm.weight"], c.heads), c.eps).reshape(q.shape)'),
            ("model", 'k = norm(k, w[p + "attn_k_norm.weight"], c.eps)',
             'k = norm(k.reshape(n, -1), np.tile(w[p + "attn_k_norm.weight"], c.groups), c.eps).reshape(k.shape)')]),
    "y07": dict(
        model="--arch qwen2 --layers 3 --massive --weights f16 --seed 2507",
        run="-p emoji -n 3",
        changes=[("model", "        squares += (strip * strip).sum(-1)\n", "        squares += (strip * strip).astype(np.float16).sum(-1, dtype=F)\n")]),
    # Attention.
    "y08": dict(
        model="--arch qwen3 --heads 8 --kv-heads 4 --head-dim 32 --weights q8_0 --seed 2508",
        run="-p code --length 33 --passes 18,15 -n 3",
        changes=[
            ("attend", "hidden = np.arange(k0, k1)[None] > first + np.arange(q0, q1)[:, None]", "hidden = np.arange(k0, k1)[None] > np.arange(q0, q1)[:, None]"),
            ("attend", "looked & (np.arange(keys)[None] <= first + np.arange(tokens)[:, None])", "looked & (np.arange(keys)[None] <= np.arange(tokens)[:, None])")]),
    "y09": dict(
        model="--arch qwen2 --heads 8 --kv-heads 2 --weights q4_0 --seed 2509",
        run="-p chinese -n 12",
        changes=[("attend", "for k0 in range(0, keys, SPLIT):", "for k0 in range(0, max(1, keys // SPLIT) * SPLIT, SPLIT):")]),
    "y10": dict(
        model="--arch qwen3 --heads 4 --kv-heads 2 --head-dim 96 --weights q5_0 --seed 2510",
        run="-p haiku -n 3",
        changes=[("model", "scale = F(1 / np.sqrt(c.dim))", "scale = F(1 / np.sqrt(c.width // c.heads))")]),
    # Caches.
    "y11": dict(
        model="--arch qwen3 --layers 3 --heads 4 --kv-heads 2 --weights f16 --seed 2511",
        run="-p haiku -n 4", engine="--kv f8_e4m3",
        changes=[("store", "np.clip(x.astype(F) / self.scale, F(-448), F(448))", "np.clip(x.astype(F), F(-448), F(448))")]),
    "y12": dict(
        model="--arch qwen35 --layers 2 --weights q8_0 --seed 2512",
        run="-p code --length 30 --sequences 11,5,5~3,1~2,4,4~1",
        changes=[("model", "        self.pages.keep(sequence, kept)\n        if self.states:\n            self.states.keep(sequence, kept)\n",
                  "        self.pages.keep(sequence, kept)\n")]),
    # Experts.
    "y13": dict(
        model="--arch qwen3moe --set expert_count=10 --set expert_used_count=2 --weights q8_0 --seed 2513",
        run="-p haiku -n 5",
        changes=[("model", "of_block = np.repeat(np.arange(c.experts), padded // BLOCK)",
                  "used = padded[padded > 0]\n        of_block = np.repeat(np.arange(len(used)), used // BLOCK)")]),
    "y14": dict(
        model="--arch qwen2moe --weights q5_0 --seed 2514",
        run="-p chinese -n 2",
        changes=[("model", 'tap("ffn_out", out + tap("shared_out", shared * open_by, l), l)',
                  'tap("ffn_out", (out + tap("shared_out", shared, l)) * open_by, l)')]),
    # Delta net.
    "y15": dict(
        model="--arch qwen35 --set ssm.group_count=3 --set ssm.time_step_rank=6 --set ssm.inner_size=384 --weights bf16 --seed 2515",
        run="-p haiku -n 3",
        changes=[("model", "of_head = np.arange(c.value_heads) % c.key_heads", "of_head = np.arange(c.value_heads) // (c.value_heads // c.key_heads)")]),
    "y16": dict(
        model="--arch qwen35 --layers 3 --weights q4_0 --seed 2516",
        run="-p code --length 41 --passes 16,12,1,12 -n 3",
        changes=[
            ("model", "            ends.append(m)\n",
             "            # A prefill goes by chunks of 16 rows, the last one filled up with zeros.\n"
             "            missing = -len(run.rows[sequence]) % 16 if len(run.rows[sequence]) > 1 else 0\n"
             "            m = m * np.exp(F(missing) * np.logaddexp(F(0), w[p + \"ssm_dt.bias\"]) * w[p + \"ssm_a\"])[:, None, None]\n"
             "            memory[mark][:] = m\n"
             "            ends.append(m)\n")]),
    # Feed-forward, bias, head, residual.
    "y17": dict(
        model="--arch qwen2 --ffn 544 --weights q8_0 --seed 2517",
        run="-p emoji -n 2",
        changes=[
            ("model", "def add_bias(x, b):", "def product(x, m):\n    \"\"\"x times the transpose of m, in tiles of 64 of what is summed.\"\"\"\n"
             "    y = np.zeros((len(x), len(m)), F)\n    for at in range(0, x.shape[1] // 64 * 64, 64):\n"
             "        y += x[:, at:at + 64] @ m[:, at:at + 64].T\n    return y\n\n\ndef add_bias(x, b):"),
            ("model", 'tap("ffn_act", silu(gate) * up, l) @ w[p + "ffn_down.weight"].T', 'product(tap("ffn_act", silu(gate) * up, l), w[p + "ffn_down.weight"])')]),
    "y18": dict(
        model="--arch qwen2 --heads 6 --kv-heads 2 --embedding 384 --weights bf16 --seed 2518",
        run="-p code --length 26 -n 3",
        changes=[("model", "    y = x.copy()\n    whole = len(x) - len(x) % ROWS\n", "    if len(x) == 1:\n        return x + b\n    y = x.copy()\n    whole = len(x) - len(x) % ROWS\n"),
                 ("model", "    for at in range(whole, len(x)):\n        y[at] += b\n", "")]),
    "y19": dict(
        model="--arch qwen3 --vocab 700 --weights f16 --seed 2519",
        run="-p emoji -n 3",
        changes=[("model", 'return tap("logits", x @ w.get("output.weight", w["token_embd.weight"]).T)',
                  'head = w.get("output.weight", w["token_embd.weight"])\n'
                  '        out = np.zeros((len(x), len(head)), F)\n'
                  '        for at in range(0, len(head) // 64 * 64, 64):\n'
                  '            out[:, at:at + 64] = x @ head[at:at + 64].T\n'
                  '        return tap("logits", out)')]),
    "y20": dict(
        model="--arch qwen3 --layers 3 --heads 2 --kv-heads 2 --head-dim 96 --embedding 192 --weights q5_0 --seed 2520",
        run="-p code -n 3",
        changes=[("model", 'x = tap("layer_out", x + out, l)', 'x = tap("layer_out", h + out, l)')]),
}
