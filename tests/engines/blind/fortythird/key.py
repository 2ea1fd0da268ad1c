"""The answer key of the forty-third round, written and committed before qdiff had judged any of the bugs.

Of each bug: the first wrong stage and layer, what the engine does instead, when it does, the report it is after. T is the length of the
prompt, n a key, t a row of a pass, g a group of 32 elements. All indices count from 0."""

KEY = {
    # Always.
    "z01": ("L00.q_proj", "the sixteen 8-bit scales of a Q6_K block are read without their sign: a scale s < 0 counts as s + 256. "
            "Every matrix that is q6_K, from L00.q_proj on; the embedding is q8_0 and right",
            "always", "int8_t scales of block_q6_K declared as bytes (nntrainer 3225's struct has them signed; aprender 2115 clipped Q3_K's)"),
    "z02": ("L00.attn_weights", "the softmax of attention has powers of 2 in the place of powers of e: 2^(scale s - max) over their sum, "
            "which is the softmax of scale ln(2) s: log2(e) is not multiplied into the scale",
            "always (rows of one key are right)", "segment-anything-fast 71 (no log2 scaling), triton 2700 (why the scale has 1.44269504)"),
    "z03": ("L00.attn_scores", "6 query heads share 2 key heads; the scores take key head h / 4 (the group of 3 rounded up to a power of "
            "two) for h / 3: query head 3 reads key head 0 for 1; the heads 0, 1, 2, 4, 5 are right. The context takes h / 3",
            "always, in query head 3", "FreeToken 177 (query heads 24-31 assigned to KV head 0 instead of 1), vllm 40792"),
    "z04": ("L00.delta_state (the state is written with delta_out; the one that qdiff has first)",
            "the gated delta rule multiplies beta into the value alone: delta = beta v - M k for beta (v - M k), M decayed before",
            "always (the first token is right: the state is zero)", "k_beta of the chunked form: transformers 47625, shainet 170"),
    "z05": ("L00.delta_state (or delta_out)", "4 value heads share 2 key heads; head h takes the key and query of key head h / 2 "
            "(repeat_interleave) for h mod 2 (tiles), as GGUF orders them: the heads 1 and 2 are wrong, 0 and 3 right",
            "always, in heads 1 and 2", "llama.cpp 19468 (order of V heads), sglang 36873 (tiled repeat, not repeat_interleave)"),
    "z06": ("L00.experts_out", "the sum over the chosen experts goes by twos and drops an odd last one: of 3 chosen experts the third, "
            "the least probable, is not added; the shares are not normalised again", "always", "candle-vllm 296 (topk other than 8), xpu-kernels 462"),
    "z07": ("L00.router_shares", "the shares of the chosen experts (probability / sum of the chosen) are rounded to bf16, nearest even",
            "always", "sglang 39351, vllm-ascend 14961 and 15234"),
    "z08": ("L00.k_cache", "rounding to f8_e4m3 makes 0 of every |x| < 2^-6 (subnormal numbers, and those that round up to 2^-6); with "
            "their sign, -0. The same in v_cache", "always, in elements below 2^-6", "tt-metal 29734 (flush to zero at exp <= -7), 1bit-MONSTER 300"),
    "z09": ("L00.k_cache", "the scale of a q4_0 block of the cache is the largest |x| / 7, positive, for (the value of the largest "
            "magnitude) / -8; codes are made with it, +8.5 and truncated, and read as before. The same in v_cache",
            "always", "llama.cpp 23044, 25391 (quantised KV), symmetric amax / 7 of int4 caches"),
    "z10": ("L00.attn_context", "each of the four partial sums of the context (keys n mod 4) is rounded to f16 after each key that is added; "
            "the last T mod 4 keys are added to the first, also rounded; the four are then added in f32",
            "always", "llama.cpp 28124, 13991 (FP16 VKQ accumulators)"),
    "z11": ("L01.q_rope", "frequencies have the head's width in the exponent for the rotated width: base^(-2i/d) for base^(-2i/rotated), "
            "of the same rotated elements and pairs. q_rope and k_rope of the attention layers, L01 and L03",
            "always (position 0 is right)", "pie 602, 603"),
    "z12": ("L00.delta_softplus", "dt_bias is added twice: softplus(a + 2 dt_bias)", "always", "modular 5748, MambaVision 32"),
    # Only under a condition.
    "z13": ("L00.q_proj", "the fifth bit of a Q5_K weight is that of the even group of its pair: groups 1, 3, 5, 7 of 32 columns in a "
            "block of 256 have the high bit of groups 0, 2, 4, 6 (the mask of the second half is not shifted). All q5_K matrices; the embedding is q8_0",
            "in columns 32-63, 96-127, 160-191, 224-255 of each 256 of the input", "meganeura 186 (the bit index is the sub-block), aprender 2127 (u2)"),
    "z14": ("L00.q_rope", "the position is rounded to bf16 (8 bits) before it is multiplied with the frequency: 257 counts as 256, 259 as 260 "
            "and so on; even positions are right", "at odd positions from 257 on", "gpt-neox 1016, UNI-D2 6, transformers 29285"),
    "z15": ("L00.conv_state of the pass of 2 tokens (positions 14 and 15), then L00.conv_act of the pass of 9", "after a pass of 2 tokens, fewer than "
            "the 3 rows of the convolution's state, the row that should stay from before (of token 13, the oldest of the 3) is zero; so "
            "the first row (position 16) of the next pass has a convolution without that tap. All recurrent layers; decode steps keep the state right",
            "in and after a pass of 2 tokens", "vllm 56196, fla 1141 and 546 (chunks shorter than W - 1)"),
    "z16": ("L00.ffn_down", "rows of 608 have 19 groups of 32; split in two halves of 9, the last group is dropped: columns 576..607 of "
            "ffn_act are not summed. All other matrices have 8 groups", "where the groups are odd: ffn_down", "tilelang-ascend 1341, aiter 2567 (floor division)"),
    "z17": ("L00.attn_weights, in the second and third pass", "a later pass of more than one token does not see the keys of the cached prefix's "
            "last partial tile of 16: the keys n with first / 16 * 16 <= n < first have weight 0, the others are a softmax without them (the "
            "maximum still with them): keys 16..20 in the pass 21..32, key 32 in the pass 33..39. Decode is right",
            "in later passes of several tokens whose first position is no multiple of 16", "FIELD: context over one chunk, vllm 52909; pegainfer 291, 350"),
    "z18": ("L00.k_cache at the decode step of position 32", "at a page edge (position a multiple of 16, one token) the row is written to the slot before: "
            "slot 31 has the row of token 32, slot 32 was never written. The same in v_cache, all layers; stays so in later steps",
            "decode step at position 32", "lightseek tokenspeed 506, kvcached 34, tt-metal 54742"),
    "z19": ("L00.attn_weights of decode step 1 (or attn_context)", "the online softmax of the decode kernel rescales by 2^(before - after) for "
            "e^(before - after) where a later tile of 64 keys of one share raises the maximum: weights, sum and context of the share's earlier "
            "tiles count too much, by (e / 2)^(after - before). Two shares of 76 keys here, tiles 0..63, 64..75, 76..139, 140..: in step 1 of "
            "L00 head 0 (keys 0..63 against the rest) and head 3 (keys 76..139 against the rest)",
            "in decode steps of more than 64 keys a share, in heads whose maximum rises in a share's second tile",
            "aprender 2753 (rescaling factor wrong), triton 2700"),
    "z20": ("L00.q_biased at decode step 1", "the biases of q and k stand in the interleaved order of RoPE, of the weights' half-split rows: element i of "
            "the first half of a head has bias 2i, element i + d/2 bias 2i + 1. v is right", "in decode steps (the fused kernel)",
            "mobius 396, AiDotNet 2074, vllm 55335 (permute the bias as well)"),
}
