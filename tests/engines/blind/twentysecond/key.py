"""The answer key: of each bug the first wrong stage, what the changed kernel computes instead, and when. Frozen before qdiff judged any
bug. `common` is the half of bugs as engineers report them; the others are rare, subtle or conditional."""

KEY = {
    # The tapped path, common bugs.
    "e01": dict(
        common=True, stage="prefill L00.attn_scores",
        law="q . k sums the first 64 of the 80 elements of a head: the last 16, which are no whole 32, are left out.",
        when="Every score, prefill and decode, all layers. (Head width no multiple of 32.)"),
    "e02": dict(
        common=True, stage="prefill L00.attn_weights",
        law="The softmax sums over all keys of the pass, and the mask follows it: a key behind the row's position counts with exp of "
            "score 0 in the sum that the weights are divided by; its own weight is 0. Weights of a row add up to less than 1.",
        when="Rows that have keys behind them: all rows of a pass of several tokens but its last. Decode steps are right."),
    "e03": dict(
        common=True, stage="prefill@16 L00.q_rope and k_rope (--ubatch 16)",
        law="RoPE turns by the row's index in its pass instead of its position: positions begin at 0 again in each pass, and a decode "
            "step has position 0.",
        when="All passes but the first; q and k, all layers."),
    "e04": dict(
        common=True, stage="prefill L00.q_proj, k_proj, v_proj (every Q4_K matrix)",
        law="Q4_K: the upper two of the six bits of the minimum of groups 4 to 7 of a block of 256 are taken from the byte of the scale "
            "of group j - 4 (bits 6 and 7 of byte j & 3 of the 12) instead of that of its minimum (byte 4 + (j & 3)).",
        when="Every linear layer in Q4_K, prefill and decode; blocks where both pairs of bits differ. The embedding is F16 and right."),
    "e05": dict(
        common=True, stage="prefill L00.expert_gate and expert_up",
        law="Line l = 3 t + r (token t, r-th chosen expert) reads the input row l mod T of the T tokens of the pass, instead of row "
            "l // 3 = t: the right expert's weights with another token's row.",
        when="Passes of several tokens; expert_gate and expert_up (expert_down has a row for each line and is right). Decode is right."),
    "e06": dict(
        common=True, stage="step1 L00.conv_state (the window after the first decode step); conv_out from step2 on",
        law="The window of the convolution is not shifted where the pass is shorter than the window: its older rows stay (row r is the "
            "old row r instead of old row r + 1), and only the last row becomes the new one. From the second decode step on the "
            "convolution misses the rows between.",
        when="Passes of 1 or 2 tokens (window of 3 rows): decode steps. Prefill is right. Layers with a delta net."),
    # The fast path, common bugs.
    "e07": dict(
        common=True, stage="step1 L00.attn_context",
        law="Online softmax: what was summed of values is not rescaled when a later tile of 64 keys raises the maximum. The values of "
            "earlier tiles of a share count with weights relative to the maximum of then: exp(m_new - m_old) times too much; the "
            "sum of weights is rescaled, and so are the weights that are tapped.",
        when="Decode steps; shares of more than 64 keys (here 191 keys in two shares of 96), in heads whose maximum of the share is "
             "in its second tile. Prefill is right."),
    "e08": dict(
        common=True, stage="step1 L00.attn_weights",
        law="Split keys: the sums of exp of the shares are added without being rescaled to the common maximum: total = sum of l_s "
            "instead of sum of l_s exp(m_s - m). Weights and context of a head are so much too small, by one factor a head.",
        when="Decode steps with more than 64 keys (two shares or more). Prefill is right."),
    "e09": dict(
        common=True, stage="prefill L00.q_proj, k_proj, v_proj",
        law="A product leaves out the last 32 of 288 columns: an odd group of 32 at the end of a row is not multiplied.",
        when="Passes of several tokens; matrices whose rows have an odd number of groups of 32: q_proj, k_proj, v_proj, ffn_gate, "
             "ffn_up, logits. attn_out (256) and ffn_down (320) are right, and decode is."),
    "e10": dict(
        common=True, stage="step1 L00.q_proj, k_proj, v_proj",
        law="Q5_1: the fifth bit of weight i of a block, 16 <= i < 32, is that of weight i - 16 (bit i - 16 of the 32 upper bits).",
        when="Decode steps, every linear layer in Q5_1 (the embedding has another reader and is right). Prefill is right."),
    # The tapped path, rare bugs.
    "e11": dict(
        common=False, stage="prefill L00.k_cache and v_cache",
        law="f8_e4m3 without subnormal numbers: what is smaller in magnitude than 2^-6 is stored as 0 (with its sign).",
        when="Every element below 2^-6 that would not round to 0 anyway (from 2^-10 up), keys and values, all passes."),
    "e12": dict(
        common=False, stage="prefill L00.attn_context of sequences 1 and 2",
        law="Values are read through the block table of the pass's first row: position n of sequence 0 instead of position n of the "
            "row's own sequence. Keys are right.",
        when="Rows of other sequences than that of the pass's first row, which is sequence 0. Sequence 0 is right."),
    "e13": dict(
        common=False, stage="prefill L00.q_rope and k_rope, positions from 257 on",
        law="RoPE's position is rounded to bfloat16 (8 bits): from 256 to 512 an odd position becomes the neighbour that is a multiple "
            "of 4 (257 -> 256, 259 -> 260).",
        when="Odd positions above 256; all up to 256, and even ones up to 512, are right. Prefill and decode, all layers."),
    "e14": dict(
        common=False, stage="prefill L00.attn_norm",
        law="The squares of RMSNorm are halves: the square of an element from 256 on (|x| >= 255.97) is infinite, so that the scale of "
            "its row is 0, and the whole row of the norm is 0.",
        when="Rows of the stream with a massive activation (the tokens that have 7296 in the embedding); attn_norm, ffn_norm, "
             "final_norm, all layers. All other rows are right."),
    # The fast path, rare bugs.
    "e15": dict(
        common=False, stage="prefill L00.attn_weights",
        law="Rows g + 8 of each 16 of the tensor cores are masked by the position of row g: a query at t with t % 8 >= 4 (four query heads "
            "on two of the cache: two rows a token) sees keys up to t - 4 alone. The last four keys, its own among them, have weight 0, "
            "and the others the whole. Scores are right.",
        when="Passes of several tokens, tokens with t % 8 in 4..7 (index in the pass). Decode is right."),
    "e16": dict(
        common=False, stage="prefill L00.attn_weights, rows from 128 on",
        law="Online softmax: where a later tile raises the maximum from m_old to m_new, what came before is rescaled by 2^(m_old - m_new) "
            "instead of e^(m_old - m_new): weights, sum of weights, and values alike. Keys of earlier tiles weigh too much. "
            "A set of keys that is walked alone is those n with the same (n // 32) % 4.",
        when="Passes of several tokens, rows that see more than 128 keys, and a set whose maximum is not among its first 32 keys."),
    "e17": dict(
        common=False, stage="prefill L00.attn_scores",
        law="Keys as two halves are scaled by a power of two of the largest magnitude of 16 lanes, half a head of 128, but their sums are "
            "scaled back by that of the first half for all: elements 64..127 of a key count with 2^(e1 - e2), where 2^e1 and 2^e2 are the "
            "powers of two at or below the largest magnitude of elements 0..63 and of 64..127.",
        when="Passes of several tokens, keys (and heads) whose two halves have largest magnitudes of different exponents. Decode is right."),
    "e18": dict(
        common=False, stage="step1 L01.attn_residual",
        law="The stream that attn_residual adds to lacks the second half of the sum of ffn_down of the layer before: attn_residual = "
            "attn_out + (residual of the layer before + ffn_down over its first 192 of 384 columns). layer_out as tapped, and the norm "
            "and q, k, v made of it, are right.",
        when="Decode steps, layers from 1 on. Layer 0 and prefill are right."),
    "e19": dict(
        common=False, stage="prefill L00.ffn_down",
        law="ffn_down is made in four shares of its 1024 columns, of which the reader adds three: columns 768..1023 are left out.",
        when="Passes of 2 to 64 tokens (longer ones have fewer shares); ffn_down only. Decode is right."),
    "e20": dict(
        common=False, stage="step1 L00.experts_out",
        law="The weights of the chosen experts are cut to bfloat16 (the lower 16 bits dropped, towards zero) where experts are summed; "
            "router_shares as tapped is right.",
        when="Decode steps, all layers. Prefill is right."),
}
