"""The answer key of the forty-fifth round, written and committed before qdiff had judged any of the bugs.

Of each bug: the first wrong stage and layer, what the engine does instead, when it does, the report it is after. T is the length of the
prompt, n a key, t a row of a pass, i an element. All indices count from 0."""

KEY = {
    # Always.
    "u01": ("embed", "Q5_0 nibbles are taken in pairs: element i of a block of 32 is the low (i even) or high (i odd) nibble of byte i / 2, for "
            "the low nibbles of all 16 bytes first and then the high ones; the fifth bit is right, bit i. Every matrix, the embedding too",
            "always (elements 0 and 31 of a block are right)", "aprender 1621, 1656; imp 722 and 1bit-MONSTER 572 have the same of Q4_0"),
    "u02": ("L00.attn_norm", "the scale of an RMS norm, 1 / sqrt(mean + eps), is rounded to bf16 (nearest even) before it is multiplied with x and "
            "the weight, which stay f32. All norms: attn_norm, ffn_norm, final_norm", "always", "amd/IRON 139 (inv_rms cast to bf16)"),
    "u03": ("L00.q_rope", "YaRN's magnitude (attention factor, 1 + 0.1 ln 4 = 1.1386) is squared in cos and sin: rotated queries and keys are too "
            "large by 1.1386. q_rope and k_rope of all layers", "always (position 0 too)", "sglang 33558 (mscale applied twice in rope)"),
    "u04": ("L00.k_cache", "q4_1 rows have an integer zero point: z = round(low / scale), code = clamp(round(x / scale) - z, 0, 15), and the offset "
            "that is stored is scale z for low; the scale is (high - low) / 15 as it should be. Ties to even. k_cache and v_cache",
            "always", "DeepSpeed 3190 (offset of int4), lmdeploy 2644 (kv/s - amin/s for (kv - amin)/s), integer zero points of AWQ and KIVI"),
    "u05": ("L00.attn_scores", "heads of 80: the scores sum over the first 64 elements alone (whole 32s), elements 64..79 of query and key are left out",
            "always", "FasterTransformer 89 (size_per_head 80), mlc-llm 1889, triton 621"),
    "u06": ("L00.attn_weights", "the softmax has an attention sink of logit 0: weights are e^s / (1 + sum e^s) with s the scaled scores: the sum has one "
            "more term e^0", "always", "flash-attention 2752, sgl-kernel-npu 216: sinks that the model does not have (softmax off by one)"),
    "u07": ("L01.q_half", "the product of queries and gates is split flat: the first 256 of the 512 columns are the queries of the 4 heads, the last 256 "
            "the gates, for 64 of query and 64 of gate head by head. q_half and gate_half of L01 and L03: heads 1 to 3 of the queries and 0 to 2 of "
            "the gates are wrong", "always (query head 0 and gate head 3 are right)", "llmman 16, FIELD section 1"),
    "u08": ("L00.ffn_act", "gate and up are read as interleaved: of the 1024 values gate | up of a row, element i is silu(value 2i) times value 2i + 1: "
            "below 256 both are gates, from 256 on both are ups", "always", "vllm 22951, ROCm/ATOM 1410, sonic-moe 45"),
    "u09": ("L00.router_weights", "weights stand in the order of the experts' indices, the experts in the order of their probabilities: the j-th weight is "
            "the probability of the chosen expert with the j-th smallest index. router_experts is right", "always (tokens whose experts happen to be "
            "in the order of their indices are right)", "leetgpu-challenges 255, sglang 8125 (sorted=False)"),
    "u10": ("L00.conv_out", "the kernel of the convolution is read as [taps, channels]: tap j of channel c is place 512 j + c of the flat table, for 4 c + j",
            "always", "1bit-MONSTER 572 (reshape for transpose of conv1d's weight)"),
    "u11": ("L00.delta_out", "the delta net's output is not divided by sqrt(64): 8 times too large; the state is right", "always", "mlx-lm 1798"),
    "u12": ("L00.delta_gated", "the gate's activation is the sigmoid for SiLU: sigmoid(z) times the normed output; the same function in ffn_act: "
            "sigmoid(gate) times up", "always", "atlas 754 (there the other way round), vllm 40245, flash-linear-attention 1182"),
    # Only under a condition.
    "u13": ("embed", "the embedding of token 198 (taken for the padding token) is zeros", "rows of token 198: positions 2, 31 and 34 of this prompt",
            "Paddle 62301 (the kernel zeroes padding_idx), bert 358"),
    "u14": ("L00.attn_weights", "the keys are padded with scores of 0 to a multiple of 16, and the padding is not masked: the sum of the softmax has "
            "(-(p + 1) mod 16) terms e^0 more, p the position; weights are too small", "rows whose number of keys is no multiple of 16 (rows 15 and "
            "31 are right, "
            "and decode step 1, with 38 keys, is wrong)", "hw-native-sys/simpler 72 (garbage of the last partial block in the softmax)"),
    "u15": ("L00.attn_out", "the rows of a product's input are taken to stand 256 (the hidden size) apart: row t of attn_out reads elements 256 t .. "
            "256 t + 383 of the "
            "flat context [T, 384], for 384 t on; of ffn_down 256 t .. 256 t + 511 of [T, 512]. Products of 256 inputs are right",
            "rows from 1 on of passes of several tokens; row 0 and decode are right", "gpt-neox 1434, transformers 38373 (heads x head_dim taken for "
            "hidden_size)"),
    "u16": ("L00.expert_gate", "an expert takes its first 8 lines of a pass (in the order of tokens); later lines of it are zeros, in gate, up and down; "
            "the weights are not normalised again", "lines from the ninth of an expert on, in passes of many tokens; decode is right",
            "fastmoe 34, DeepSeek-V2 48 (capacity of an expert, tokens dropped)"),
    "u17": ("L00.k_biased at decode step 1 (and v_biased)", "keys get the bias of the values and values that of the keys; q is right",
            "in decode steps (the fused kernel)", "tt-mlir 8958 (key and value swapped in the fused decode), FasterTransformer's add_QKV_bias (664)"),
    "u18": ("L00.attn_context of the second pass (prefill@18)", "the cached prefix and the pass's own keys are attended to apart and merged by "
            "2-based log-sum-exps "
            "as if they were natural: with P the sum of the weights of keys n < first and S that of the others, and a = log2(e) = 1.4427, the two "
            "parts have the weights P^a / (P^a + S^a) and S^a / (P^a + S^a) for P and S. attn_weights is right",
            "passes of several tokens after others; the first pass and decode are right", "sglang 40903 and 35045, vllm 52796"),
    "u19": ("logits", "359 rows in tiles of 64: the last tile begins at row 359 - 64 = 295, so that its rows fit, but is written from 320 on: logit o "
            "is that of "
            "row o - 25 for o from 320 to 358", "logits 320 to 358", "last ragged tiles: hw-native-sys/pypto-lib 970, tile starts clamped to M - "
            "BLOCK in GEMM kernels"),
    "u20": ("L00.q_rope at decode step 1", "only head 0 is rotated, of queries and of keys; the other heads are copied as they are", "passes of one "
            "token (decode)",
            "mlx-rs 359 (MLX's rope for T = 1 without the heads in its grid)"),
}
