"""The answer key of the forty-ninth round, written and committed before qdiff had judged any of the bugs.

Of each bug: the first wrong stage and layer, what the engine does instead, when it does, the report it is after. T is the length of the
prompt, n a key, t a row of a pass, d the width of a head. All indices count from 0."""

KEY = {
    # Always.
    "s01": ("L00.q_proj", "the 12 bytes of scales of a Q4_K block are read as eight entries of 12 bits one after another: scale j is bits "
            "12j..12j+5, "
            "minimum j bits 12j+6..12j+11, for the split order of ggml (get_scale_min_k4). Scale 0 is right, all minima and the other "
            "scales are not. "
            "Every q4_K matrix; the embedding is q8_0 and right", "always", "trueno 182, aprender 2141"),
    "s02": ("embed", "the nibbles of a q4_1 block of the embedding are read as pairs: weight 2i is the low and weight 2i + 1 the high "
            "nibble of byte i, "
            "for i and i + 16. The embedding alone, in its own kernel", "always", "defenseclaw 679 (idx % 2), 1bit-MONSTER 153 (nibble index)"),
    "s03": ("L00.q_rope", "YaRN's magnitude (attention factor, 1 + 0.1 ln 4) multiplies cosine and sine twice: rotated values have its square. "
            "q_rope and k_rope", "always", "sglang 33558 (mscale squared), FIELD: RoPE"),
    "s04": ("L00.q_biased", "the product is rounded to f16 before the bias is added: f16(x) + b, the sum in f32. q, k and v",
            "always", "TensorRT-LLM 17505 (the product is rounded before the bias is added)"),
    "s05": ("L00.k_cache", "the codes of a q8_0 block of the cache are computed with the scale as it is stored, rounded to f16: "
            "round(x / f16(amax / 127)) for round(x 127 / amax); the scale stored is the same. The same in v_cache", "always, where the "
            "code changes by it",
            "ds4 844 (codes of the scale before or after it is stored)"),
    "s06": ("L00.attn_scores", "heads of 96 elements: the product of query and key takes whole tiles of 64 elements alone, so elements "
            "0..63; 64..95 are dropped",
            "always", "flash-attention 2896, stable-diffusion.cpp 736 (padded head widths)"),
    "s07": ("L00.attn_context", "the context is left as [H, T, d] and read as [T, H d] (no transposition before the reshape): what stands "
            "at row t, head h is "
            "the context of head (t H + h) div T, row (t H + h) mod T", "in passes of more than one token; the decode steps are right",
            "transformer-from-scratch 6, Transformer-Neural-Network 4"),
    "s08": ("L00.attn_out", "6 query heads in 2 groups of 3; the output projection takes the heads in the order [3, 2] for [2, 3]: columns "
            "of head h of the "
            "weight meet the context of head (h mod 3) 2 + h div 3: heads 1, 2, 3, 4 meet 2, 4, 1, 3; heads 0 and 5 are right", "always",
            "mojo_opset 395 (GQA_INTERLEAVE), sglang 36873"),
    "s09": ("L00.ffn_act", "the activation is gpt-oss' swigluoai: g sigmoid(1.702 g) (u + 1), with clamps at 7 that nothing here reaches, "
            "for silu(g) u", "always", "DeepGEMM 87, vllm-ascend 11916 (which of the two activations)"),
    "s10": ("L00.router_shares", "the weights of the chosen experts are divided by the root of the sum of their squares (norm of order 2), "
            "for their sum",
            "always", "megablocks 87 (moe_normalize_expert_weights is the order of a norm)"),
    "s11": ("L00.delta_state", "the state of the delta net is rounded to bf16 (nearest even) when it is written at the end of a pass; what "
            "is read in the pass "
            "is not rounded, the next pass begins with the rounded one", "always, once a pass", "tpu-inference 2482, imp 1776, FIELD: gated "
            "delta net"),
    "s12": ("logits", "the logits are rounded to bf16 (nearest even), after the sum in f32", "always", "sglang 33627, vllm 48390, prime-rl 2441"),
    # Only under a condition.
    "s13": ("L00.conv_out of decode step 1", "the rows of the convolution's window meet the taps in reverse: the newest of the 3 past rows "
            "has the oldest tap, "
            "the oldest the third one; the present row has its own. The window itself is right", "in passes of one token (decode steps)",
            "vllm-ascend 8544 (order of the convolution's state)"),
    "s14": ("L00.delta_normed of decode step 1", "the gate comes before the norm: delta_normed = w rms(x silu(z)), which goes on as "
            "delta_gated as it is, "
            "for w rms(x) silu(z). (As values: delta_normed is wrong, and delta_gated is delta_normed.)", "in decode steps (the fused kernel)",
            "transformers 32686, mlx 2602 (norm_before_gate)"),
    "s15": ("L00.attn_weights of the second pass (positions 21..32)", "the causal mask is aligned to the top left: row t of a later pass "
            "sees keys 0..t, for 0..first + t",
            "in later passes of more than one token: rows of 12 and of 7 here; decode steps are right", "sparkinfer 3, flash-attention 282"),
    "s16": ("L00.attn_weights", "a sliding window that the model does not use: a token sees the last 128 keys, its own among them: n > "
            "position - 128",
            "from position 128 on", "transformers 38002 (use_sliding_window), mistral.rs 2094"),
    "s17": ("L00.q_rope", "positions beyond the table of 256 rows take its last row: the position is min(position, 255). q_rope and k_rope",
            "from position 256 on", "pegainfer 220 and 253 (table of 4096 positions), vllm-ascend 1266"),
    "s18": ("L00.attn_weights of decode step 1 (and attn_context)", "the shares of a token's keys (split-K) are each normalised, and then "
            "put together by e^(largest score) "
            "alone: share s weighs e^(m_s - m) / sum e^(m_s' - m), without the share's sum of exponentials. Two shares at 151 and 152 keys",
            "in decode steps with more than one share of 64 keys and more", "vllm-xpu-kernels 556 (normalised partial outputs, one LSE a split)"),
    "s19": ("L00.expert_gate", "an expert takes 8 rows of a pass at most: its ninth line and later ones, in the order of tokens, are "
            "dropped: zero in expert_gate, "
            "expert_up and expert_down", "in passes in which an expert is chosen more than 8 times, for the later tokens", "fastmoe 34, "
            "maxtext 833 (expert capacity)"),
    "s20": ("L00.k_cache of decode step 1", "the fused kernel writes the keys to the cache before they are rotated (after the norm of "
            "heads); the rows of the prompt are "
            "rotated. k_rope as tapped is right", "in decode steps", "gpt-neox 363 (cache un-RoPE'd KVs), kvcache-ai/sglang 66"),
}
