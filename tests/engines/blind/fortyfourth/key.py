"""What was planted: for each bug the first wrong stage and layer, the law, when it acts, and the report that it is after. z01 to z12 act always."""

KEY = {
    "z01": ("embed, then each product with a q3_K matrix, every layer",
            "q3_K: the sixteen scales of a block of 256 are taken as four-bit numbers minus 8 (the low four bits alone, without the two high bits in bytes 8 to 11) "
            "instead of six-bit numbers minus 32", "always", "aprender 2115 (Q3_K: 6-bit scales unpacked as 4-bit, offset -8)"),
    "z02": ("expert_up, L01 (its experts' up matrix is mxfp4)",
            "mxfp4: the four codes with exponent field 0 are decoded as normal numbers: 0 as 0.5, 1 as 0.75, 8 as -0.5, 9 as -0.75 (times the block's scale) instead of 0, 0.5, -0, -0.5",
            "always, layer 1", "tilelang 2704 (E2M1: zero and subnormal encodings)"),
    "z03": ("attn_norm, L00", "RMS norm divides by the reciprocal root: x / rsqrt(mean(x^2) + eps) * w, so x * sqrt(mean(x^2) + eps) * w, instead of x * rsqrt(...) * w",
            "always, all norms", "llm-foundry 371, 372"),
    "z04": ("q_biased, k_biased and v_biased, L00",
            "the fused bias [q|k|v] is cut into two contiguous halves for two ranks, and each rank reads its half as [q_r|k_r|v_r]: q heads 2 and 3 get the bias of keys, "
            "keys of head 0 get the bias of q head 2, keys of head 1 the bias of v head 0, values of head 0 the bias of q head 3; q heads 0, 1 and v head 1 are right",
            "always", "tt-metal 52818 and 6243 (fused QKV in the order q, k, v, sharded contiguously, read per shard)"),
    "z05": ("q_rope and k_rope, L00",
            "the sine of pair i is read from the flat table of rows [cos 48 | sin 48] at 64 + i (half of the rotary width padded to a power of 2) instead of 48 + i: "
            "pair i below 32 gets the sine of pair i + 16, pair i from 32 on gets the cosine of pair i - 32 of the next position", "always (head width 96)", "vllm-ascend 12723"),
    "z06": ("q_rope and k_rope, L00", "YaRN: the bounds of the ramp are computed from the model's context length (2048) instead of the original context length (512)",
            "always, frequencies whose ramp differs", "Megatron-LM 1418, candle-vllm 284 (original_max_position_embeddings)"),
    "z07": ("k_cache and v_cache, L00", "q8_0 cache: codes are truncated toward zero instead of rounded to the nearest", "always, with a q8_0 cache", "vllm 45361, sglang-jax 1598, aiter 4637"),
    "z08": ("attn_scores, L00 (and the values in attn_context)",
            "query head h reads the key and value head h // (number of key and value heads) = h // 4 instead of h // (heads per group) = h // 2: heads 0 to 3 read head 0, heads 4 to 7 head 1; "
            "heads 2 and 3 of keys and values are never read", "always, query heads 2 to 7", "ONNXim 34"),
    "z09": ("ffn_up, L00", "the fused [gate|up] of 2 x 544 rows is padded at its end to 2 x 576 and split at 576: up column i is column i + 32, the last 32 columns are 0; gate is right", "always",
            "vllm 55649 (gate and up end-padded as one, fixed by 48624: split-padded)"),
    "z10": ("router_weights, L00", "the weights of the chosen experts are a softmax over the chosen logits alone (so the probabilities renormalised to the sum 1) although the model does not renormalise",
            "always", "QwenLM/Qwen3 687 (top-k before softmax, norm_topk_prob false), mlxcel 391"),
    "z11": ("delta_gated, L00", "the delta net's output is gated with sigmoid(z) instead of silu(z)", "always", "atlas 754 (gated norm with the other activation; there the other way round), sglang 25401"),
    "z12": ("logits", "the vocabulary of 359 is cut over two ranks of 180 and 179 rows; the second rank's first id is taken as rank * its own width = 179 instead of 180: logit i from 179 to 357 is that of id i + 1 "
            "(179 is overwritten), the last logit, 358, stays 0", "always, logits 179 to 358", "TensorRT-LLM 18836 (uneven shards: tp_rank * local width)"),
    "z13": ("attn_weights, L00 (context by the same factor)",
            "passes of several tokens: in the last tile of 8 keys the softmax's sum takes exp(s) instead of exp(s - max): the denominator is the sum over earlier tiles of exp(s - max) plus the sum over the last tile of exp(s)",
            "passes of several tokens, rows that see a key of the last tile of 8 keys", "tt-metal 51278 (last tile exponentiates the raw input, the other tiles x - max)"),
    "z14": ("attn_weights, L00",
            "passes of several tokens: key tiles of 8 with a number above the number of the query's tile of 16 are skipped: the query at position p sees only keys below 8 * (p // 16 + 1)",
            "passes of several tokens, queries from position 8 on", "future key blocks skipped by comparing block indices (mlir-air 1749: kv_block > q_block) with tiles of unequal size; cf. flashinfer 3655"),
    "z15": ("attn_context, L00",
            "split keys at a decode step (parts of 16): the parts' log-sum-exps are in base 2 and merged as natural ones: weights exp(log2(sum) + max * log2(e)), so each part's share to the power 1 / ln 2 = 1.4427, normalised",
            "decode steps (more than 16 keys)", "sglang 40903 and 35045, vllm 52796, flashinfer 2113"),
    "z16": ("k_cache and v_cache, L00",
            "decode: the slot is last page * 16 + (tokens in the last page) - 1 with tokens % 16 as the count, which is 0 at a full page: position 31 or 47 is written to the slot before the page (in another page), "
            "its own slot stays zero", "decode steps that fill a page of 16: positions 31 and 47 (seen from then on)", "MinivLLM 76, 83"),
    "z17": ("attn_out, L01 at the first decode step, L00 from the second on",
            "decode: the output projection is accumulated into a buffer that all layers share and nobody sets to zero: attn_out is the right product plus the (wrong) attn_out of the layer before, "
            "in layer 0 of the last layer of the decode step before", "decode steps", "split-K with atomic adds and zero_init off: aiter 4023, 3457, ATOM 1421; TensorRT-LLM 18369 (stale values added to C)"),
    "z18": ("experts_out, L01 in the prompt (in L00 from the first decode step on)",
            "two ranks of experts: each writes weight * down of its own experts to a workspace that is used again, and sums all slots of its workspace: a slot that belongs to the other rank's expert adds what "
            "the last layer or pass left in that slot of this rank", "from the second call on: layers 1 and 2 in the prompt, all layers later", "vllm 54083 (moe_sum reduces unwritten rows of a reused workspace)"),
    "z19": ("delta_state and delta_out, L00",
            "chunk form: the part of what tokens write that comes from the old state (W) is solved with the decayed Gram matrix and multiplied by the decay again: "
            "told = A^-1 (beta v) - exp(g) * A^-1 (beta k m) instead of A^-1 beta (v - exp(g) k m), A with the decays",
            "passes of several tokens, chunks of 16 that begin with a state: tokens 16 to 24 of the first part and all of the second", "shainet 170 (U and W need different coefficients; the draft weighted both)"),
    "z20": ("conv_state and conv_out, L00",
            "the window of the convolution is written channel-major [channel * 3 + slot] by passes of several tokens and read time-major [slot * channels + channel] by decode steps: "
            "the first decode step reads a scrambled window, the next two what is left of it", "the first three decode steps after a prefill", "Arcaine 10 (two layouts of one conv state)"),
}
