"""Twenty bugs: the model (options of `qdiff synth`), the run (options of `qdiff run`), and the changes of the engine's text.

The engine is the eleventh round's (pages: the eighth's). BASE, for all bugs and clean runs, adds the experts of qwen2moe.
Each bug has a model in public trackers or is a mistake that ports make often; `of` names it."""
BASE = [
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
        # What the shared expert adds.
        return tap("ffn_out", out + tap("shared_out", shared * open_by, l), l)'''),
]

BUGS = {
    # Formats and products.
    "z01": dict(
        of="get_scale_min_k4 in own kernels: the two high bits of the minimum from the byte of the scale",
        model="--arch qwen2 --weights q4_K --seed 2701",
        run="-p code -n 3",
        changes=[("gguf", "(s[:, j + 4] >> 4) | (s[:, j] >> 6) << 4", "(s[:, j + 4] >> 4) | (s[:, j - 4] >> 6) << 4")]),
    "z02": dict(
        of="llama.cpp 8311: ne00 % 128, the tail of the inner dimension is dropped",
        model="--arch qwen3 --ffn 544 --weights q8_0 --seed 2702",
        run="-p emoji -n 3",
        changes=[("model", '''tap("ffn_act", silu(gate) * up, l) @ w[p + "ffn_down.weight"].T''',
                  '''product128(tap("ffn_act", silu(gate) * up, l), w[p + "ffn_down.weight"])'''),
                 ("model", "def add_bias(x, b):", '''def product128(x, w):
    k = x.shape[-1] // 128 * 128
    return x[:, :k] @ w[:, :k].T


def add_bias(x, b):''')]),
    # RoPE.
    "z03": dict(
        of="YaRN with max_position_embeddings in the place of original_max_position_embeddings (transformers, vllm)",
        model="--arch qwen2 --weights f16 --set rope.scaling.type=yarn --set rope.scaling.factor=4.0 --set rope.scaling.original_context_length=512 --seed 2703",
        run="-p chinese -n 4",
        changes=[("gguf", 'c.trained = get("rope.scaling.original_context_length", c.context)', "c.trained = c.context")]),
    "z04": dict(
        of="ik_llama.cpp 2290: pairs of neighbours (NORM) in the place of halves (NEOX)",
        model="--arch qwen3 --heads 8 --kv-heads 4 --head-dim 64 --weights q4_0 --seed 2704",
        run="-p haiku -n 3",
        changes=[("model", "a, b = x[..., :half], x[..., half:2 * half]", "a, b = x[..., 0:2 * half:2], x[..., 1:2 * half:2]"),
                 ("model", "return np.concatenate([a * cos - b * sin, a * sin + b * cos, x[..., 2 * half:]], -1)",
                  "return np.concatenate([np.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(*x.shape[:-1], 2 * half), x[..., 2 * half:]], -1)")]),
    # Head.
    "z05": dict(
        of="tie_word_embeddings defaults to true (the tied head of four reports)",
        model="--arch qwen2 --layers 3 --weights q5_0 --seed 2705",
        run="-p emoji -n 3",
        changes=[("model", '''w.get("output.weight", w["token_embd.weight"]).T''', '''w["token_embd.weight"].T''')]),
    # Norms, residuals.
    "z06": dict(
        of="Qwen3-Next's norms multiply by 1 + w; GGUF has the 1 in w already",
        model="--arch qwen35 --layers 4 --weights bf16 --seed 2706",
        run="-p haiku -n 3",
        changes=[("model", "+ eps))[..., None] * w", "+ eps))[..., None] * (F(1) + w)"),
                 ("model", 'norm(out, w[p + "ssm_norm.weight"], c.eps)', 'norm(out, w[p + "ssm_norm.weight"] - F(1), c.eps)')]),
    "z07": dict(
        of="the fused add and norm gives back what is normed as the residual too",
        model="--arch qwen3 --heads 6 --kv-heads 2 --head-dim 64 --weights f16 --seed 2707",
        run="-p code -n 2",
        changes=[("model", 'x = tap("layer_out", x + out, l)', 'x = tap("layer_out", h + out, l)')]),
    # Attention.
    "z08": dict(
        of="Qwen3's head_dim is not hidden_size / heads: the scale of the scores takes the latter",
        model="--arch qwen3 --heads 4 --kv-heads 2 --head-dim 128 --weights q8_0 --seed 2708",
        run="-p chinese -n 3",
        changes=[("model", "scale = F(1 / np.sqrt(c.dim))", "scale = F(1 / np.sqrt(c.width // c.heads))")]),
    "z09": dict(
        of="own flash kernels: the sums are not scaled down when a later tile raises the maximum",
        model="--arch qwen2 --heads 4 --kv-heads 4 --weights bf16 --seed 2709",
        run="-p code --length 30 -n 3",
        changes=[("attend", "sums[:, q0:q1] = sums[:, q0:q1] * less[:, :, None] + e @ v[:, k0:k1]", "sums[:, q0:q1] += e @ v[:, k0:k1]")]),
    "z10": dict(
        of="own decode kernels: keys that fill up the last split have score 0 and are not masked",
        model="--arch qwen3 --heads 4 --kv-heads 1 --weights f16 --seed 2710",
        run="-p emoji --length 21 -n 6",
        changes=[("attend", "        total = total * less + e.sum(-1)\n        most = now\n    return scores, weights",
                  "        total = total * less + e.sum(-1) + (SPLIT - s.shape[-1]) * np.exp(-now)\n        most = now\n    return scores, weights"),
                 ("attend", "        now = np.maximum(most, s.max(-1))\n",
                  "        now = np.maximum(most, s.max(-1))\n        if s.shape[-1] < SPLIT:\n            now = np.maximum(now, F(0))\n")]),
    "z11": dict(
        of="is_causal with fewer queries than keys: the mask is aligned at the upper left (PyTorch's SDPA, candle, mlx)",
        model="--arch qwen2 --heads 4 --kv-heads 2 --weights q8_0 --seed 2711",
        run="-p code --length 33 --passes 19,14 -n 3",
        changes=[("attend", "hidden = np.arange(k0, k1)[None] > first + np.arange(q0, q1)[:, None]", "hidden = np.arange(k0, k1)[None] > np.arange(q0, q1)[:, None]"),
                 ("attend", "seen = looked & (np.arange(keys)[None] <= first + np.arange(tokens)[:, None])", "seen = looked & (np.arange(keys)[None] <= np.arange(tokens)[:, None])")]),
    "z12": dict(
        of="llama.cpp 7805: products of queries and keys as f16, without the precision that Qwen2 asks for",
        model="--arch qwen2 --massive --weights f16 --seed 2712",
        run="-p haiku -n 3",
        changes=[("attend", "s = q[:, q0:q1] @ k[:, k0:k1].transpose(0, 2, 1)", "s = (q[:, q0:q1] @ k[:, k0:k1].transpose(0, 2, 1)).astype(np.float16).astype(F)"),
                 ("attend", "bool), q @ k.transpose(0, 2, 1)", "bool), (q @ k.transpose(0, 2, 1)).astype(np.float16).astype(F)"),
                 ("attend", "    scores = q @ k.transpose(0, 2, 1)\n    weights", "    scores = (q @ k.transpose(0, 2, 1)).astype(np.float16).astype(F)\n    weights")]),
    # Caches.
    "z13": dict(
        of="fp8 caches: the kernel is passed the scale of the keys for the values too (vllm)",
        model="--arch qwen3 --heads 4 --kv-heads 2 --layers 3 --weights bf16 --seed 2713",
        run="-p haiku --kv-type f8_e4m3 --reference none -n 4",
        engine="--kv f8_e4m3",
        changes=[("store", "        return self.rows[slots] * self.scale", '        return self.rows[slots] * F(SCALES["k", self.layer])'),
                 ("store", "        self.scale = F(SCALES[which, layer])", "        self.scale, self.layer = F(SCALES[which, layer]), layer")]),
    "z14": dict(
        of="the block table of a captured graph is not renewed when a sequence gets a page (stale graph buffers)",
        model="--arch qwen2 --heads 4 --kv-heads 2 --weights q4_0 --seed 2714",
        run="-p code --length 20 -n 9",
        changes=[("ferry", "            own = pages.table[sequence]\n",
                  "            own = pages.table[sequence]\n            if self.decode:\n                own = own[:engine.captured.setdefault(sequence, len(own))]\n"),
                 ("ferry", "self.buffers, self.width = Buffers(), 1", "self.buffers, self.width, self.captured = Buffers(), 1, {}")]),
    # Delta net and convolution.
    "z15": dict(
        of="has_initial_state is false for every chunk of a prefill: the state begins at zero (vllm, sglang)",
        model="--arch qwen35 --layers 4 --weights q8_0 --seed 2715",
        run="-p code --length 35 --passes 16,19 -n 3",
        changes=[("model", "            m = memory[marks[0]].copy()  # [heads, value, key]\n",
                  "            m = memory[marks[0]].copy()  # [heads, value, key]\n            if not run.decode:\n                m[:] = 0\n")]),
    "z16": dict(
        of="the window after a prefill is its last inputs, filled up with zeros (transformers: F.pad of the convolution's input)",
        model="--arch qwen35 --layers 4 --weights f16 --seed 2716",
        run="-p chinese --length 27 --passes 14,2,11 -n 3",
        changes=[("model", "            ends.append(windows[marks[-1]])\n",
                  "            if not run.decode and len(rows) < past:\n                windows[marks[-1]][:past - len(rows)] = 0\n            ends.append(windows[marks[-1]])\n")]),
    "z17": dict(
        of="tokens that fill up the last chunk of 64 update the state (the chunked delta rule; lengths that are no multiple)",
        model="--arch qwen35 --layers 4 --weights bf16 --seed 2717",
        run="-p code --length 59 -n 3",
        changes=[("model", "            ends.append(m)\n", '''            if not run.decode:  # a token of zeros: no key, but a decay
                empty = np.logaddexp(F(0), w[p + "ssm_dt.bias"]) * w[p + "ssm_a"]
                m = m * np.exp(empty * F(-len(run.rows[sequence]) % 64))[:, None, None]
                memory[marks[-1]][:] = m
            ends.append(m)\n''')]),
    # Experts and routing.
    "z18": dict(
        of="vllm 37605: the search of the top k begins at 0, so that negative logits are never chosen",
        model="--arch qwen3moe --set expert_count=8 --set expert_used_count=4 --weights q8_0 --seed 2718",
        run="-p haiku -n 4",
        changes=[("model", '''        chosen = np.argsort(-probs, -1, kind="stable")[:, :c.taken]\n''', '''        left, chosen = logits.copy(), np.zeros((n, c.taken), int)
        for t in range(n):
            for i in range(c.taken):
                best, which = F(0), 0
                for expert in range(c.experts):
                    if left[t, expert] > best:
                        best, which = left[t, expert], expert
                chosen[t, i], left[t, which] = which, -np.inf\n''')]),
    "z19": dict(
        of="the gate of the shared expert is applied to the sum of shared and routed experts",
        model="--arch qwen2moe --weights f16 --seed 2719",
        run="-p emoji -n 3",
        changes=[("model", '''        return tap("ffn_out", out + tap("shared_out", shared * open_by, l), l)''', '''        return tap("ffn_out", (out + shared) * open_by, l)''')]),
    # Biases.
    "z20": dict(
        of="the product of a matrix and one row has no bias in its fused form",
        model="--arch qwen2 --heads 8 --kv-heads 2 --weights bf16 --seed 2720",
        run="-p chinese -n 4",
        changes=[("model", "    y = x.copy()\n    whole = len(x) - len(x) % ROWS\n", "    y = x.copy()\n    if len(x) == 1:\n        return y\n    whole = len(x) - len(x) % ROWS\n")]),
}
