"""Twenty bugs: the model (options of `qdiff synth`), the run (options of `qdiff run`), and the changes of the engine's text. The engine is the eleventh round's."""
BASE = []

BUGS = {
    # Common ones, as people make and report them.
    "w01": dict(
        model="--arch qwen3moe --layers 2 --weights q8_0 --seed 2301",
        run="-p haiku -n 3",
        changes=[("model", "weights / weights.sum(-1, keepdims=True)", "weights")]),
    "w02": dict(
        model="--arch qwen2 --heads 8 --kv-heads 4 --weights q5_0 --seed 2302",
        run="-p emoji -n 4",
        changes=[("attend", "np.repeat(x.transpose(1, 0, 2), heads // x.shape[1], 0)", "np.tile(x.transpose(1, 0, 2), (heads // x.shape[1], 1, 1))")]),
    "w03": dict(
        model="--arch qwen3 --head-dim 96 --heads 3 --kv-heads 1 --embedding 288 --weights f16 --seed 2303",
        run="-p chinese --length 23 --passes 20,3x1 -n 3",
        changes=[
            ("model", 'q = norm(q, w[p + "attn_q_norm.weight"], c.eps)', 'q = norm(self.rope(q, run.positions), w[p + "attn_q_norm.weight"], c.eps)'),
            ("model", 'k = norm(k, w[p + "attn_k_norm.weight"], c.eps)', 'k = norm(self.rope(k, run.positions), w[p + "attn_k_norm.weight"], c.eps)'),
            ("model", 'tap("q_rope", self.rope(q, run.positions), l), tap("k_rope", self.rope(k, run.positions), l)', 'tap("q_rope", q, l), tap("k_rope", k, l)')]),
    "w04": dict(
        model="--arch qwen3 --head-dim 64 --context 8192 --set rope.scaling.type=yarn --set rope.scaling.factor=4.0 "
              "--set rope.scaling.original_context_length=2048 --weights q8_0 --seed 2304",
        run="-p code -n 5",
        changes=[("model", "frequency * (1 - ramp), 1 + 0.1 * np.log(c.yarn)", "frequency * (1 - ramp), 1.0")]),
    "w05": dict(
        model="--arch qwen35 --layers 4 --weights bf16 --seed 2305",
        run="-p haiku -n 2",
        changes=[
            ("model", ".reshape(n, c.heads, 2, c.dim)", ".reshape(n, 2, c.heads, c.dim)"),
            ("model", 'tap("q_half", both[:, :, 0].reshape(n, -1), l), tap("gate_half", both[:, :, 1].reshape(n, -1), l)',
             'tap("q_half", both[:, 0].reshape(n, -1), l), tap("gate_half", both[:, 1].reshape(n, -1), l)')]),
    "w06": dict(
        model="--arch qwen3 --layers 3 --weights q4_K --tensor blk.1.ffn_down.weight=q6_K --tensor output.weight=q6_K --seed 2306",
        run="-p repetition --length 21 -n 2",
        changes=[("gguf", "scale[:, j] = (s[:, j + 4] & 15) | (s[:, j - 4] >> 6) << 4", "scale[:, j] = s[:, j + 4] & 15")]),
    "w07": dict(
        model="--arch qwen2 --layers 3 --heads 4 --kv-heads 1 --weights q8_0 --seed 2307",
        run="-p emoji --kv-type f8_e4m3 --reference none -n 4", engine="--kv f8_e4m3",
        changes=[
            ("store", "        self.scale = F(SCALES[which, layer])", '        self.scale, self.read = F(SCALES[which, layer]), F(SCALES["k", layer])'),
            ("store", "return self.rows[slots] * self.scale", "return self.rows[slots] * self.read")]),
    "w08": dict(
        model="--arch qwen35 --layers 3 --embedding 320 --heads 5 --kv-heads 1 --head-dim 64 --weights q8_0 --seed 2308",
        run="-p chinese --length 29 --passes 9,2x1,7,11 -n 3",
        changes=[("model", "m = memory[marks[0]].copy()  # [heads, value, key]", "m = memory[marks[0]].copy() if run.decode else np.zeros_like(memory[marks[0]])")]),
    "w09": dict(
        model="--arch qwen2 --heads 4 --kv-heads 4 --weights bf16 --seed 2309",
        run="-p code -n 6",
        changes=[
            ("attend", "hidden = np.arange(k0, k1)[None] > first + np.arange(q0, q1)[:, None]",
             "hidden = np.arange(k0, k1)[None] - first - np.arange(q0, q1)[:, None]\n            hidden = (hidden > 0) | (hidden <= -20)"),
            ("attend", "seen = looked & (np.arange(keys)[None] <= first + np.arange(tokens)[:, None])",
             "far = first + np.arange(tokens)[:, None] - np.arange(keys)[None]\n    seen = looked & (far >= 0) & (far < 20)"),
            ("attend", "s = scores[:, :, k0:k0 + SPLIT] * scale", "s = scores[:, :, k0:k0 + SPLIT] * scale\n        s[:, :, :max(0, keys - 20 - k0)] = F(-1e30)")]),
    "w10": dict(
        model="--arch qwen2 --vocab 700 --heads 8 --kv-heads 2 --weights f16 --seed 2310",
        run="-p haiku -n 4",
        changes=[("model", 'w.get("output.weight", w["token_embd.weight"])', 'w["token_embd.weight"]')]),
    # Rare, subtle or conditional ones.
    "w11": dict(  # Qwen of 2023: use_logn_attn
        model="--arch qwen2 --heads 12 --kv-heads 2 --embedding 384 --head-dim 32 --weights q8_0 --seed 2311",
        run="-p code --length 37 --passes 21,15,1 -n 6",
        changes=[("model", "query = q[rows].transpose(1, 0, 2)",
                  "query = q[rows].transpose(1, 0, 2) * np.maximum(1, np.log(run.positions[rows] + 1) / np.log(24)).astype(F)[None, :, None]")]),
    "w12": dict(  # the rescaling of the sums is left out from the third split on
        model="--arch qwen3 --head-dim 128 --heads 4 --kv-heads 2 --weights q4_0 --seed 2312",
        run="-p code -n 12",
        changes=[("attend", "sums = sums * less[:, :, None] + e @ v[:, k0:k0 + SPLIT]", "sums = (sums if k0 >= 2 * SPLIT else sums * less[:, :, None]) + e @ v[:, k0:k0 + SPLIT]")]),
    "w13": dict(  # an expert takes no more than its capacity
        model="--arch qwen3moe --heads 6 --kv-heads 3 --embedding 192 --head-dim 64 --weights f16 --set expert_count=12 --set expert_used_count=3 --seed 2313",
        run="-p chinese --length 27 --passes 17,10 -n 3",
        changes=[("model", "(down * shares[:, :, None]).sum(1)", "(down * (shares * (place - starts[expert] < 5).reshape(n, c.taken))[:, :, None]).sum(1)")]),
    "w14": dict(  # the step kernel reads the state before it decays it
        model="--arch qwen35 --layers 4 --weights q5_0 --seed 2314",
        run="-p haiku --length 23 --passes 11,4x1,8 -n 5",
        changes=[("model", "                m = m * np.exp(decay[t])[:, None, None]\n                delta = (v[t] - (m @ key[:, :, None])[:, :, 0])",
                  "                held, m = m, m * np.exp(decay[t])[:, None, None]\n                delta = (v[t] - ((held if run.decode else m) @ key[:, :, None])[:, :, 0])")]),
    "w15": dict(  # a scale for two blocks of keys
        model="--arch qwen3 --head-dim 128 --heads 4 --kv-heads 2 --weights q8_0 --seed 2315",
        run="-p emoji --kv-type q8_0/f16 -n 4", engine="--kv q8_0/f16",
        changes=[("store", "            largest = np.abs(b).max(-1, keepdims=True)\n",
                  "            largest = np.abs(b).max(-1, keepdims=True)\n            largest = np.repeat(np.maximum(largest[..., ::2, :], largest[..., 1::2, :]), 2, -2)\n")]),
    "w16": dict(  # the frequencies went to bf16 with the model's weights
        model="--arch qwen2 --head-dim 64 --layers 3 --rope-base 10000 --weights f32 --seed 2316",
        run="-p chinese -n 4",
        changes=[("model", "        angle = at * frequency\n",
                  "        bits = np.asarray(frequency, F).view(np.uint32)\n        frequency = ((bits + (0x7fff + (bits >> 16 & 1)) & 0xffff0000).astype(np.uint32).view(F)).astype(float)\n"
                  "        angle = at * frequency\n")]),
    "w17": dict(  # the head of a decode step norms what is normed already
        model="--arch qwen2 --tied --ffn 544 --weights q8_0 --seed 2317",
        run="-p haiku --passes 18,3x1,14 -n 4",
        changes=[("model", 'return tap("logits", x @ w.get(', 'return tap("logits", (norm(x, w["output_norm.weight"], c.eps) if run.decode else x) @ w.get(')]),
    "w18": dict(  # "softmax off by one", with the one added after the largest score was taken off
        model="--arch qwen3 --layers 2 --heads 6 --kv-heads 2 --embedding 384 --head-dim 64 --weights bf16 --seed 2318",
        run="-p emoji --length 26 --passes 15,2x1,9 -n 3",
        changes=[
            ("attend", "    return sums, most, total\n", "    return sums, most, total + F(1)\n"),
            ("attend", "return scores, e / e.sum(-1, keepdims=True), context", "return scores, e / (F(1) + e.sum(-1, keepdims=True)), context"),
            ("attend", "return scores, weights / total[:, :, None], sums / total[:, :, None]",
             "return scores, weights / (total + F(1))[:, :, None], sums / (total + F(1))[:, :, None]")]),
    "w19": dict(  # routing limited to two of four groups
        model="--arch qwen3moe --layers 3 --weights q4_0 --set expert_count=12 --set expert_used_count=4 --seed 2319",
        run="-p code --length 36 --passes 30,6 -n 4",
        changes=[("model", "chosen = np.argsort(-probs, -1, kind=\"stable\")[:, :c.taken]",
                  "groups = probs.reshape(n, 4, -1).max(-1)\n"
                  "        open_ = np.repeat(groups >= np.sort(groups, -1)[:, -2:-1], c.experts // 4, -1)\n"
                  "        chosen = np.argsort(-np.where(open_, probs, F(-1)), -1, kind=\"stable\")[:, :c.taken]")]),
    "w20": dict(  # the clamped SwiGLU of gpt-oss
        model="--arch qwen35 --layers 4 --ffn 608 --weights q8_0 --seed 2320",
        run="-p repetition --length 31 --passes 16,15 -n 5",
        changes=[("model", 'tap("ffn_act", silu(gate) * up, l)', 'tap("ffn_act", silu(np.minimum(gate, F(3))) * np.clip(up, F(-3), F(3)), l)')]),
}
