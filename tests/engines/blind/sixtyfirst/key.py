"""The answer key of the sixty-first round, written and committed before qdiff had judged any of the bugs.

Of each bug: the first wrong stage and layer, what the engine does instead, when it does, the report it is after. n is a key, t a row of
a pass, i an element of a row. All indices count from 0."""

KEY = {
    # Always.
    "y01": ("embed", "a Q5_0 block is unpacked in neighbours: element 2j has the low nibble of byte j, element 2j + 1 its high nibble, for "
            "elements j and j + 16; the fifth bits stay those of the elements (bits 2j and 2j + 1). Only the embedding is Q5_0",
            "always", "aprender 1623, 1656 (Q5_0 and Q5_1: interleaved order, high bits at 2i and 2i + 1)"),
    "y02": ("L00.attn_norm", "RMSNorm rounds x / sqrt(mean(x^2) + eps) to bf16 (nearest even) before it multiplies with the weight, in f32",
            "always, in attn_norm, ffn_norm and final_norm", "vllm-xpu-kernels 536, TransformerEngine 1132 (a rounding before the weight)"),
    "y03": ("L01.q_half, the first attention layer", "queries and gates are split flat: the first half of the product's row is the query "
            "of all heads, the second half the gate, where each head has its query and then its gate",
            "always (layers of attention)", "llmman 16, FIELD (split flat)"),
    "y04": ("L00.q_rope", "YaRN's attention factor 1 + 0.1 ln 4 multiplies cos and sin twice: q_rope and k_rope are too large by 1.1386",
            "always", "sglang 33558 (mscale squared), TensorRT-LLM 16379"),
    "y05": ("L00.k_cache", "codes of a q8_0 cache are truncated toward zero, of x 127 / max|x|, for rounded to the nearest; the scale is right. "
            "The same in v_cache", "always", "pypto-lib 279 (modes of casts to INT8), the kind static_cast<int8_t>"),
    "y06": ("L00.attn_weights", "the softmax is that of tanh(scale s): a soft cap c tanh(x / c) with the sentinel c = -1 of \"no cap\"",
            "always", "TransformerLens 1489, 1491 (-1.0 that is taken for a cap), Megatron-LM 6590"),
    "y07": ("L00.attn_residual", "the sum of a residual addition is cut to bf16 (toward zero): attn_residual and layer_out of all layers",
            "always", "aiter 5151 (residual_out truncated to bf16)"),
    "y08": ("L00.ffn_act", "the activation of gpt-oss without its clamp and alpha: silu(gate) (up + 1) for silu(gate) up",
            "always", "tt-metal 41818, 42104 (GPT-OSS's SwiGLU in a common op), a kind that kernels ship with"),
    "y09": ("L00.attn_scores", "heads have 80 elements; the scores' products go by whole 32 and leave out the last 16 elements of a head "
            "(64..79): s = sum over i < 64 of q_i k_i", "always (heads of 80)", "mlc-llm 1826, 1889 (head dim no multiple of 32)"),
    "y10": ("L00.router_experts", "experts are chosen as DeepSeek's groups limit them: of 4 groups of 2 neighbours the 2 with the largest "
            "probability (their best expert's), others count 0; then the 3 most probable of these 4 experts", "always, for tokens whose "
            "3 best experts are in 3 groups, or whose choice the groups change", "sglang 3705, vllm 29439 (grouped_topk)"),
    "y11": ("L00.delta_decay", "the decay's rate is exponentiated again: -exp(ssm_a) softplus(..) for ssm_a softplus(..), where ssm_a is "
            "-exp(A_log) already", "always", "Crane 88, 99 (-exp(-exp(A_log)))"),
    "y12": ("logits", "logits are rounded to bf16 (nearest even)", "always", "sglang 33627, prime-rl 2438, Megatron-LM 6252"),
    # Only under a condition.
    "y13": ("L00.router_shares of decode step 1", "the fused kernel ignores that shares are normalised: the share of a chosen expert "
            "is its probability, not divided by the sum of the chosen ones", "in decode steps", "flashinfer 2889, vllm 31246 (renormalize ignored)"),
    "y14": ("L00.q_proj", "products with weights are of TF32: weight and input lose their 13 last bits (truncated), sums are f32. Every matrix; "
            "products of one row (decode steps) are exact", "in products of more than one row",
            "mlx 3860 (M = 1 stays exact), tilelang 493 (no cvt.rna), FastNN 10"),
    "y15": ("L00.attn_weights of the second pass", "the mask is aligned at the top left: row t of a pass of several tokens "
            "sees the keys 0..t, not 0..first + t; so "
            "position 23 sees key 0 alone, position 39 keys 0..16. Decode steps are right", "in later passes of several tokens",
            "executorch 21749, onnx 8054, sparkinfer 3"),
    "y16": ("L00.q_biased", "the bias is added to the first row of a pass only: positions 0 and 13 are right, and decode steps; q, k and v",
            "in all rows of a pass but its first", "mirage 397 (only row 0 of the output has the bias)"),
    "y17": ("L00.q_rope, from position 40 on", "positions from 40 on are beyond the table and their rows stay as they are, unrotated; q and k",
            "from position 40 on", "onnxruntime 28205 (RotaryEmbedding returns where position_ids are out of boundary)"),
    "y18": ("L00.delta_state of the second pass (or delta_out)", "a pass of several tokens starts the recurrence from a state of zeros, not from "
            "the state that the pass before left; in the first pass it is zero, and decode steps carry it", "in later passes of several tokens",
            "sparkinfer 1071 (state of a prefill that does not start at 0), FIELD: state zeroed at later prefill windows"),
    "y19": ("L00.delta_state of decode step 1 (or delta_out)", "the decode kernel takes the error with the state before its decay: "
            "delta = beta (v - M k), then "
            "M = e^g M + delta k, for beta (v - e^g M k)", "in decode steps", "fla 885 (forget before error)"),
    "y20": ("L00.attn_weights of decode step 1 (or attn_context)", "the shares of a split context are put together without "
            "e^(m_share - m): all have the weight 1, so that "
            "weights are e^(scale s - m_share) over the sum of the shares' sums", "in decode steps whose keys go to more than one share",
            "flashinfer 58, flash-attention 949 (the shares' rescaling)"),
}
