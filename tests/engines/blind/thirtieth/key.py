"""The answer key of bugs.py: for each bug what is planted, the stage where it first shows, the condition, and the true rule. Frozen
before qdiff had judged any bug."""

KEY = {
    "o01": dict(
        planted="The sum over a block of threads adds up the results of four warps at most; a norm is made by eight (256 threads).",
        stage="attn_norm of each layer, and with it ffn_norm and final_norm (all norms of width 320; not q_normed, k_normed)",
        condition="always, in norms of more than 128 elements",
        rule="The mean of squares lacks the elements i with i mod 256 >= 128: of 320, elements 128 to 255. It is still divided by 320. "
        "So a row is y = w x / sqrt(sum of the other 192 squares / 320 + eps): each row is larger by a factor of its own."),
    "o02": dict(
        planted="Q4_K: the upper two bits of the 6-bit minima of groups 4 to 7 of a block are taken from the byte of the scales "
        "(byte j - 4) and not from the byte of the minima (byte j).",
        stage="embed, if it is Q4_K, and each product with a Q4_K weight (q_proj first in the layer)",
        condition="always, for Q4_K",
        rule="In elements 128 to 255 of a block of 256 the minimum of a group is dmin (low four bits of the minimum + 16 * upper two bits of "
        "the scale of group j - 4), in place of the minimum's own upper two bits, which stand with the minimum of group j - 4."),
    "o03": dict(
        planted="Q6_K, fused decode kernels: the 8-bit scales of 16 weights are read without a sign.",
        stage="logits (the only Q6_K matrix)",
        condition="decode steps only",
        rule="A sub-block of 16 weights with a negative scale s has the scale s + 256: its weights are d (s + 256) (q - 32)."),
    "o04": dict(
        planted="Weights as BF16 (MXFP4 is read as BF16): the activation keeps only the first of its three bfloat16 parts, which is cut off and "
        "not rounded.",
        stage="q_proj (each product with a weight)",
        condition="always: prefill and decode",
        rule="The activations of a product are truncated to bfloat16 (towards zero), in all products."),
    "o05": dict(
        planted="The products of experts: the scales of Q8_0 blocks are read without the offset of the expert.",
        stage="expert_gate, expert_up, expert_down",
        condition="always, wherever an expert other than 0 is chosen",
        rule="Weights of expert e are the integers of expert e times the block scales of expert 0 (the same row and block)."),
    "o06": dict(
        planted="The bias is read once for four neighbouring elements.",
        stage="q_biased, k_biased, v_biased",
        condition="always",
        rule="Element i has the bias b[4 floor(i / 4)]: that of the first of its four."),
    "o07": dict(
        planted="RoPE rounds positions to bfloat16.",
        stage="q_rope, k_rope",
        condition="positions above 256 that bfloat16 does not have: odd ones from 257 to 511",
        rule="The position is rounded to bfloat16 (8 bits, ties to even): 257 is 256, 259 is 260, 261 is 260 ..."),
    "o08": dict(
        planted="Partial RoPE computes the exponent of the frequencies with the length of the head, not with the number of rotated elements.",
        stage="q_rope, k_rope of the layers of attention",
        condition="always",
        rule="Frequency of plane i is base^(-2i/D), D the length of a head, in place of base^(-2i/rotated). As rotated is D / 2 here, it is the "
        "same as a base that is the square root of the model's."),
    "o09": dict(
        planted="YaRN: the magnitude is multiplied with the cosine only.",
        stage="q_rope, k_rope",
        condition="always (at position 0 the sine is 0, so nothing shows there)",
        rule="y0 = m cos x0 - sin x1, y1 = sin x0 + m cos x1, with m = 1 + 0.1 ln 4: the sines lack the magnitude."),
    "o10": dict(
        planted="The q4_0 cache is written with codes 2i and 2i + 1 in byte i; readers take codes i and i + 16.",
        stage="k_cache, v_cache",
        condition="always, with --kv-type q4_0",
        rule="In each block of 32 element i < 16 is the value of element 2i and element 16 + i that of element 2i + 1 (a permutation of what is "
        "quantised: scale and codes are right)."),
    "o11": dict(
        planted="The q8_0 cache has a scale of at least 1.",
        stage="k_cache, v_cache",
        condition="always, with --kv-type q8_0 (blocks whose largest magnitude is below 127)",
        rule="The scale of a block is max(largest / 127, 1): with these values 1, so each element is rounded to the nearest integer."),
    "o12": dict(
        planted="attn_context finds values through the block table of the first row of four rows.",
        stage="attn_context",
        condition="several sequences in a pass; rows of which the first of their four (row / 4 * 4 of the pass) is of another sequence",
        rule="Such a row's weights meet the values of the other sequence: key n is row n of the sequence of the first of the four rows."),
    "o13": dict(
        planted="The causal mask is applied only in the last tile of 32 keys that a block of rows walks; tiles before are taken as seen whole.",
        stage="attn_weights (scores beyond the token do not count), then attn_context",
        condition="later parts of the prompt whose first position is no multiple of 32 (here the part from 40 on); the first part is right, and "
        "decode steps",
        rule="Queries of the part from position 40 on also attend to all keys up to 63: positions 40 to 62 see keys after themselves. "
        "Queries from 63 on are right. (In general: a block of 32 tokens sees all keys of every tile of 32 but the last tile it reaches.)"),
    "o14": dict(
        planted="The shares of a token's attention are put together with 2^(m - M) in place of e^(m - M).",
        stage="attn_weights, attn_context",
        condition="decode steps with more than 64 keys (two shares: 64 keys and the rest)",
        rule="Weights of a share whose largest scaled score m is below the largest M of both are too large: by e^((1 - ln 2)(M - m)) before the "
        "normalisation, whose total has the same factors."),
    "o15": dict(
        planted="Two query heads are taken together, with the keys and values of the first of the two, though three heads share a key head.",
        stage="attn_scores (then attn_context)",
        condition="always, head 3 of 6",
        rule="Query head h uses key head floor((h - h mod 2) / 3): head 3 uses key head 0 in place of 1. The same of values in attn_context."),
    "o16": dict(
        planted="ffn_down is made in two halves along the sum; the first has 6 of 11 groups of 32, the second begins with group 5.",
        stage="ffn_down",
        condition="decode steps only (the length of the sum is an odd number of groups: 352)",
        rule="The products of inputs 160 to 191 of ffn_act are counted twice."),
    "o17": dict(
        planted="A lane has 40 / 32 = 1 expert: only experts 0 to 31 take part in the choice.",
        stage="router_experts",
        condition="always, in rows where an expert from 32 to 39 is among the six best",
        rule="The experts are the six best of experts 0 to 31; experts from 32 on are never chosen."),
    "o18": dict(
        planted="The window of the convolution is not moved on in a step of fewer tokens than it has rows (3).",
        stage="conv_state",
        condition="decode steps (steps of one or two tokens)",
        rule="In a step of one token the two oldest rows stay what they were and only the newest row is written (it should be: each row "
        "moves on by one)."),
    "o19": dict(
        planted="The decays are read as [heads, tokens] though they stand as [tokens, heads].",
        stage="delta_state (and delta_out)",
        condition="prefill only (steps of more than one token)",
        rule="Head h of token t decays by the number at place h T + t of the flat array [T, H]: that of token (h T + t) / H, head (h T + t) mod H."),
    "o20": dict(
        planted="The gate's half of the product of queries and gate is read with half the stride from token to token.",
        stage="gate_half",
        condition="prefill rows after the first of a pass; decode is right",
        rule="gate_half[t, i] is the flat element t H D + D + floor(i / D) 2 D + i mod D of q_gate_proj, whose rows have 2 H D elements: token t reads "
        "at half its own offset (even tokens: the gate of token t / 2; odd ones: the second half of heads of token (t - 1) / 2, then the first half "
        "of the next token)."),
}
