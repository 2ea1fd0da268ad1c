"""The answer key of the fifty-ninth round, written and committed before qdiff had judged any of the bugs.

Of each bug: the first wrong stage and layer, what the engine does instead, when it does, the report it is after. T is the length of the
prompt, t a row of a pass, first the position of row 0 of a pass, d the width of a head. All indices count from 0."""

KEY = {
    # Always.
    "a01": ("L00.q_proj", "the fifth bit of weight i (0..31) of group j (0..7) of a Q5_K block is bit i of the j-th 32-bit word of its 32 bytes of "
            "high bits (a bit mask in the order of the weights: byte 4j + i/8, bit i mod 8), for bit j of byte i. All q5_K matrices; the "
            "embedding is q8_0 and right", "always", "aprender 3111 and 3113 (fifth bit read from a sequential bitmask)"),
    "a02": ("L00.q_biased", "the second half of the columns of q, k and v has the bias of the first half: b[i mod (n/2)]; so heads 2, 3 of q have "
            "the biases of heads 0, 1, head 1 of k and v those of head 0", "always, in the second half of the columns",
            "Torch-TRTLLM 39 (biases of Q, K, V not cut for tensor parallelism: every rank has the first slice)"),
    "a03": ("L00.attn_norm", "the norm's sum of squares leaves out the last n mod 128 elements (256..287 of 288), as if 4 elements a thread were summed "
            "by whole warps only; the mean is still over 288. attn_norm, ffn_norm, final_norm", "always",
            "flashinfer 3879 (floored count of warps: 2,560 of 2,880 elements), lightseq 166"),
    "a04": ("L00.q_normed", "the RMS of q and of k is taken over all 4 heads of a token (256 elements) for each head alone (64); the weight is "
            "still that of an element of a head. Other norms are right", "always", "1bit-MONSTER 1602, vllm 16311"),
    "a05": ("L01.q_rope", "partial rotation, 32 of 64 elements: the pairs are (i, i + d/2) = (i, i + 32), i < 16, for (i, i + 16), with the right "
            "frequencies; elements 16..31 stay as they are, 32..47 are rotated. q_rope and k_rope of the attention layers L01 and L03",
            "always (position 0 is right)", "cascadia 69, pie 602 (pair offset of the head's width)"),
    "a06": ("L00.attn_weights", "YaRN's magnitude m = 0.1 ln 4 + 1 = 1.13863 is in the softmax's scale as well, squared: scale m^2 = 0.125 * 1.29648 = "
            "0.16206, though q and k have been multiplied with m by RoPE already", "always (rows of one key are right)", "xinfer 329 (sm_scale *= mscale^2)"),
    "a07": ("L00.attn_out", "split-K in products of more than 256 inputs (attn_out: 384, ffn_down: 512): the sum over each 128 inputs is rounded to f16 "
            "and these partial sums are added pairwise, each sum rounded to f16: for 384, f16(f16(p0 + p1) + p2); for 512, f16(f16(p0 + p1) + f16(p2 + p3))",
            "always", "vllm 6795 (Marlin's global reduce in FP16), modular 7165"),
    "a08": ("L00.k_cache", "the scale of a q8_0 block of the cache is at least 1.0: d = max(amax / 127, 1), so that every element of this model is "
            "rounded to an integer. The same in v_cache", "always", "mlxcel 717 (maximum(scale, 1.0))"),
    "a09": ("L00.expert_gate", "the products of the experts write only the first half of their columns, o < 64 ceil(m / 128): columns 128..255 are 0. "
            "expert_gate, expert_up, expert_down", "always, in the upper half of the columns", "atlas 474 (tiles of 64 on a grid of 128)"),
    "a10": ("L00.delta_state (or delta_out)", "the gated delta rule takes its error from the state before the decay: M <- e^g M + beta (v - M k) k "
            "with the undecayed M in the bracket, for M <- e^g M + beta (v - e^g M k) k", "always (the first token is right: the state is zero)",
            "fla 885 (\"the traditional formulation\"), shainet 170"),
    "a11": ("L00.ffn_act", "SwiGLU of GPT-OSS for Qwen's: y = g / (1 + e^(-1.702 g)) (u + 1), with g at most 7 and u within +-7, which no value of this "
            "run reaches", "always", "tt-metal 43152 (constants of GPT-OSS whatever the model)"),
    "a12": ("L00.delta_q_normed (or delta_k_normed)", "the L2 norm of q and k adds d eps to the sum of squares (eps to their mean) for eps: "
            "x / sqrt(sum x^2 + 64 * 1e-4)", "always", "mlx-lm 1624 (eps of mean(x^2) for that of sum(x^2))"),
    # Only under a condition.
    "c01": ("embed", "the rows of the table behind its last whole tile of 32 rows (ids 352..358 of 359) are never copied: the embedding is zero",
            "for tokens with an id of 352 and more: positions 0, 30, 32 of the prompt", "tt-metal 51233 (floor for ceil of tiles), tt-mlir 9220"),
    "c02": ("L00.router_experts", "only the first 8 of 12 experts are ranked (the largest power of two): the 4 best of these are chosen",
            "for tokens of whose 4 most probable experts one is 8..11 (32 of 35 rows in L00)",
            "sglang 31768 (expert counts that are no power of two), vllm 42605"),
    "c03": ("L00.conv_out of the prompt", "the first three rows of a pass of three or more tokens see, for the three rows before the pass, the last three rows "
            "of the same pass (the window that the pass leaves): input row t + j - 3 < 0 is row T + t + j - 3. "
            "All recurrent layers; conv_state itself is right",
            "in rows 0, 1, 2 of a pass of several tokens; decode is right", "kekzl/imp 1976 (window written before rows 0..K-2 have read the old one)"),
    "c04": ("L00.k_cache", "an element is cut to f16 (towards zero) before it is rounded to the nearest f8_e4m3, ties to even: what is above the middle of two "
            "neighbours by less than a step of f16 goes to the even one. The same in v_cache", "in about 0.4 % of the elements",
            "FreeToken 103 (double rounding of fp32 -> float8e4nv)"),
    "c05": ("logits", "the last partial tile of 32 rows of the head is read from row m - 32 on, and written from row 352 on: logits 352..358 are those of "
            "the rows 327..333. Other matrices have whole tiles", "in ids 352..358",
            "pypto-lib 970 (ragged last tile of the vocabulary), clamped starts of tiles"),
    "c06": ("L00.delta_state of decode step 1", "the decode kernel reads and writes the state of a head transposed: it takes S[h, i, j] as M[j, i], so that it "
            "goes on from the transposed state of the prompt, and leaves M transposed. All recurrent layers (L00, L02)",
            "in decode steps (the fused kernel)", "sparkinfer 610 and 615 (prefill state handed to decode kernels transposed)"),
    "c07": ("L00.attn_weights of decode step 1 (or attn_context)", "the shares of a head are put together with the maximum and the total of head h mod 2 "
            "(the group's "
            "query head of key head 0): heads 2 and 3 are divided by the totals of heads 0 and 1, with one share by these alone, weights and context alike",
            "in decode steps, heads 2 and 3", "Tencent/hpc-ops 6 (no stride of the kv head for the lse)"),
    "c08": ("L00.attn_weights of the pass at position 70", "a pass that begins at position 64 or later has no causal mask: each of its rows sees all "
            "keys of the "
            "pass, also those after itself", "in passes of several tokens whose first position is 64 or more: positions 70..98 (99 is right)",
            "tt-metal 48899"),
}
