"""The answer key of the fifty-first round, written and committed before qdiff had judged any of the bugs.

Of each bug: the first wrong stage and layer, what the engine does instead, when it does, the report it is after. T is the length of the
prompt, n a key, t a row of a pass, g a group of 32 elements. All indices count from 0. The effect of each was checked with --taps."""

KEY = {
    # Always.
    "y01": ("L00.attn_out", "the fifth bit of value i of group g of a Q5_K block is read from a bitmask in the order of the values: byte "
            "4 g + i / 8, bit i mod 8, for byte i, bit g. attn_output alone is q5_K, in both layers; everything else is q8_0 and right",
            "always", "aprender 3111 and 3113 (CUDA Q5_K GEMV reads the fifth bit from a sequential bitmask)"),
    "y02": ("L00.attn_norm", "the factor 1 / sqrt(mean(x^2) + eps) of every RMS norm is rounded to bf16 (nearest even) before it is multiplied "
            "with x and the weight in f32. Also q_normed, k_normed, ffn_norm, final_norm", "always",
            "amd IRON 139 (inv_rms cast to bf16: a whole row is scaled by one imprecise scalar)"),
    "y03": ("L00.q_biased", "the bias is added twice: x + 2 b, in q, k and v", "always",
            "the kind: bias added by both halves of a split K (composable_kernel 430, tritonBLAS 67, the opposite: none adds it)"),
    "y04": ("L00.q_rope", "YaRN's magnitude m = 1 + 0.1 ln 4 = 1.1386 is squared: rotated elements are multiplied by m^2 for m. q_rope and "
            "k_rope", "always", "FIELD: mscale squared; xinfer 329 (mscale * mscale)"),
    "y05": ("L00.attn_scores", "heads have 80 elements; the score sums the first 64, whole runs of 32, and drops elements 64..79 of q and k. "
            "The scale is still 1 / sqrt(80)", "always, with heads that are no multiple of 32",
            "mlc-llm 1889 (head dim not divisible by 32), triton 621 (first 64 of the head alone), FasterTransformer 89"),
    "y06": ("L00.k_cache", "codes of a q8_0 cache are truncated towards zero for rounded to nearest: trunc(127 x / amax). The scale is right. "
            "The same in v_cache", "always", "vllm 45361 (INT8 KV: the store truncates towards zero)"),
    "y07": ("L01.q_half (and gate_half)", "the product of queries and gate is split flat: queries are the first H d columns, gates the last, for "
            "[q, gate] head by head. Head 0 of q_half and the last head of gate_half are right. Attention layers L01 and L03",
            "always", "llmman 16, hyprstream 1547, kekzl imp 1279; FIELD: query and gate split flat"),
    "y08": ("L00.delta_state (the state is written with delta_out)", "the delta rule takes the error from the state before its decay: "
            "delta = beta (v - M k), then M <- e^g M + delta k, for delta = beta (v - e^g M k)",
            "always (the first token is right: the state is zero)", "flash-linear-attention 885 (the order that is asked for there)"),
    "y09": ("L00.delta_q_normed and L00.delta_k_normed", "q and k of the delta net are divided by sqrt(mean(x^2) + eps) for sqrt(sum(x^2) + "
            "eps): 8 times too large, heads having 64 elements; the state then grows to 1e22", "always",
            "1bit-MONSTER 2134 (RMS form leaves |k| = sqrt(128), state inf at token 23-25)"),
    "y10": ("L00.experts_out", "the shares of token t are read from place t of the flat array [T, k] on, for t k: 2 chosen experts; token t "
            "has weights flat[t], flat[t + 1]. Token 0 is right (a decode step has one token and is right)",
            "always, from the second row of a pass on", "vllm-xpu-kernels 66 (expert weight apply was wrong when topK is greater than 1)"),
    "y11": ("L00.shared_weight", "the shared expert's weight is its score, without the sigmoid", "always",
            "vllm-ascend 15953, torchtitan (NousResearch) 36, lmdeploy 3491 (the shared expert's gate)"),
    "y12": ("L00.ffn_act", "silu(g) (u + 1) for silu(g) u, as gpt-oss has it", "always", "vllm 42578 (s * linear + s)"),
    # Only under a condition.
    "y13": ("embed", "scales and minima of groups 4..7 of a Q4_K block lack their two upper bits: 4 bits for 6. All q4_K matrices, the embedding "
            "first", "in columns 128..255 of each 256 of a row", "trueno 182 (sub-blocks 4-7), aprender 2115 (6-bit scales as 4-bit), 2141"),
    "y14": ("L00.conv_out of decode step 1", "in a decode step the kernel's taps are turned by one: x(t) has tap 0 and the row of the state that "
            "is j-th oldest tap j + 1, for tap j and x(t) the last. The state itself is right. L00 and L02",
            "in decode steps (passes of one token)", "vllm-ascend 8544 (x * weight[:, 0] + state[i] * weight[:, i + 1])"),
    "y15": ("L00.attn_weights of the second pass", "the causal mask is aligned at the top left: row t of a pass sees keys 0..t for 0..first + t, "
            "the softmax is over these; the other weights are 0. Decode is right",
            "in later passes of several tokens (17..28 and 29..35)", "sparkinfer 3, cutlass 2336, onnx 8068"),
    "y16": ("L00.k_cache", "what rounds to 256 or more in f8_e4m3 (top exponent: 256, 288, ..., 448) is stored as 448 with its sign: 5 elements of "
            "L00 (positions 88, 122, 132, 136 of head 1, 155 of head 0). L01 has inherited values only below",
            "in elements of 248 and more", "sglang 37140 (exp8 >= kMaxExp: everything from 256 to 448 is written as 448)"),
    "y17": ("logits", "the last partial tile of 32 rows of the head is not made: ids 352..358 of 359 have logit 0. All other matrices have "
            "whole tiles", "in ids 352..358", "vllm 49087 (floor-division grid drops the tail, returned as 0), pypto-lib 970 (ragged vocab tile)"),
    "y18": ("L00.attn_weights of decode step 1 (or attn_context)", "where shares of the keys are put together the sum of each share is not brought "
            "to the common maximum: total = sum_k l_k for sum_k l_k e^(m_k - m); the numerators are. Weights and context of a head are "
            "too small by one factor", "in decode steps with more than one share of keys (here 2)",
            "flashinfer 58 (lse is wrong if the KV is split), FlagGems 5235 (split-KV combine)"),
    "y19": ("L00.delta_state of decode step 1", "the fused decode kernel writes the state rounded to bf16 (nearest even); delta_out of the same "
            "step has the state before rounding. L00 and L02; prefill is right", "in decode steps", "FIELD: state written as bf16; imp 28 (h_state dtype)"),
    "y20": ("L01.q_rope of decode step 1", "partial rotation of heads of 64: in odd heads (1 and 3 of q, 1 of k) the partner of element i < rotated "
            "is element (i + 32) mod 64, half a head away, for the one rotated / 2 away; sign and angle as before. L01 and L03",
            "in decode steps (the fused kernel), in odd heads", "vllm 51049 (fused_qk_norm_rope, rotary_dim < head_dim: all heads but the first of a warp)"),
}
