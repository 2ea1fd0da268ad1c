"""The answer key of the forty-seventh round, written and committed before qdiff had judged any of the bugs.

Of each bug: the first wrong stage and layer, what the engine does instead, when it does, the report it is after. T is the length of the
prompt, n a key, t a row of a pass, d the width of a head, m the rows of a matrix. All indices count from 0."""

KEY = {
    # Always.
    "v01": ("embed", "the two high bits of the 6-bit scales and minima of the groups 4 to 7 of a Q4_K block are exchanged: the scale of group j has "
            "the high bits of byte j (which keeps those of the minimum), the minimum those of byte j - 4. All matrices, the embedding too",
            "always, in columns 128..255 of each 256 where the two pairs of bits differ", "trueno 182, aprender 2141 (scales of sub-blocks 4 to 7)"),
    "v02": ("L00.q_normed", "the mean square of the norm of q and k is that of all 4 heads together (256 elements) for that of each head (64); the "
            "weight is the head's, as before. q_normed and k_normed of all layers", "always", "gpt-neox 1367 (norm over [heads, width]), vllm 16311"),
    "v03": ("L00.q_rope", "YaRN's magnitude m = 1 + 0.1 ln(4) = 1.1386 goes through the formula a second time: 1 + 0.1 m ln(4) = 1 + m (m - 1) = 1.1579 "
            "multiplies sine and cosine. q_rope and k_rope", "always", "TensorRT-LLM 16379 (the log is applied twice), sglang 33558"),
    "v04": ("L00.attn_weights", "a sink of score 0 that the model has not: the sum of the softmax is e^-max + sum e^(s - max), so that the weights of a row "
            "add up to less than 1", "always", "attention sinks that are made as zeros where a checkpoint has none (mojo_opset 262), softmax1"),
    "v05": ("L00.attn_scores", "queries and keys are truncated to TF32 (the low 13 bits of the mantissa are cut, not rounded) before they are multiplied; "
            "sums in f32", "always", "triton 1671, 4574 (allow_tf32, truncation)"),
    "v06": ("L00.attn_context", "the attention weights (already divided by their sum) are rounded to f8_e4m3, without a scale, before they are multiplied "
            "with the values", "always (a weight of exactly 1, or 0, is right: position 0)", "aiter 5642, FlyDSL 1020"),
    "v07": ("L00.ffn_act", "the activation of gpt-oss: g sigmoid(1.702 g) (u + 1) for g sigmoid(g) u", "always", "vllm 26347, TransformerEngine 2161"),
    "v08": ("L00.router_probs", "the router has the sigmoid of each score for the softmax of all; choice and shares (divided by the sum of the chosen) follow",
            "always", "vllm 30623, Megatron-LM 1438 (scoring function)"),
    "v09": ("L00.delta_state (or delta_out)", "the error is made with the state before its decay: delta = beta (v - M k), M' = e^g M + delta k; right is "
            "delta = beta (v - e^g M k)", "always (the first token is right: the state is zero)", "flash-linear-attention 885 (forget before error)"),
    "v10": ("L00.k_cache", "the codes of a q8_0 cache are truncated toward zero instead of rounded; scale and reading as before. The same in v_cache",
            "always", "vllm 45361, sglang-jax 1598"),
    "v11": ("L00.q_biased", "every head gets the bias of head 0: element i of q, k, v gets b[i mod 64]. Head 0 is right", "always, in the heads from 1 on",
            "biases that are not replicated as the heads are (quic efficient-transformers 328, Torch-TRTLLM 39)"),
    "v12": ("logits", "the logits are soft-capped, 30 tanh(x / 30), which the model does not ask for", "always",
            "TransformerLens 1491 (the sentinel of 'no cap' taken for one), Megatron-Bridge 4645 (two paths, one capped)"),
    # Only under a condition.
    "v13": ("L00.attn_weights, in the second and third pass", "the causal mask is aligned top left: row t of a later pass sees the keys 0..t for 0..first + t "
            "(scores are right)", "in later passes of more than one token; decode steps are right", "sparkinfer 3, flash-attention 282 and 436"),
    "v14": ("L00.expert_gate", "of the lines (token by token, choice by choice) that go to one expert only the first 16 of a pass are computed; the product of "
            "the 17th and later ones is 0. expert_gate, expert_up, and expert_down (whose inputs are 0 there too)",
            "in passes where an expert has more than 16 lines: in L00 the experts 1, 3, 4, 6, 7", "vllm-xpu-kernels 453, capacity of an expert"),
    "v15": ("L00.k_cache, in the second pass", "rows are written to slot (position mod 128) and read at slot (position): positions 128.. overwrite the slots "
            "0.., the slots 128.. were never written (zeros). The same in v_cache, all layers", "from position 128 on", "tt-metal 45193, transformers 37574"),
    "v16": ("L00.attn_context of decode step 1", "groups of 3 query heads: head h of a group is summed with the weights of head h & 2 (h & (3 - 1)), before they "
            "are divided by the sum of head h itself: heads 1 and 4 have the context of heads 0 and 3 times (sum of e^(s - max) of head 0 or 3 / of head 1 or 4). "
            "The weights that are captured are right", "in decode steps (the fused kernel), in heads 1 and 4", "mlc-llm 2543 (a group of 6), pytorch 160904"),
    "v17": ("L00.attn_weights of decode step 1 (or attn_context)", "where the shares of the keys are put together, the sums of their weights are added as they "
            "are, not times e^(max of the share - max of all): the total is too large, weights and context of a head too small by one factor",
            "in decode steps of more than 64 keys (two shares of 76 keys here); one share is right", "vllm-xpu-kernels 556, attention-gym 205"),
    "v18": ("L00.conv_out of decode step 1", "the taps of the 3 past rows are in reverse order: sum_j w[2 - j] x[t - 3 + j] + w[3] x[t] for "
            "sum_j w[j] x[t - 3 + j] + w[3] x[t]. The window is kept right", "in decode steps (the fused kernel)", "vllm-ascend 8544 (order of conv_state)"),
    "v19": ("L00.attn_out", "where the inner size (384) is no multiple of 256, the last partial tile of 8 rows reads the rows of the last full 8 of the pass, "
            "T - 8 + t, and writes them to its own, 24 + t: rows 24, 25, 26 of 27 are the products of rows 19, 20, 21. All other matrices have 256 or 512",
            "in passes of more than 8 tokens, not a multiple of 8, in the last T mod 8 rows", "tilelang 2522, buddy-mlir 932 (rows of the last tile)"),
    "v20": ("L00.delta_state of the prompt", "at the end of a pass the decay of the last partial chunk of 16 tokens is taken back: the state that is kept is "
            "e^-(sum of g over the tokens 32..36) times the right one; outputs of the pass are right, decode steps go on from it. Layers L00 and L02",
            "in passes of more than one token whose length is no multiple of 16", "tilelang-ascend 855 (g_last of a partial chunk read at its padding)"),
}
