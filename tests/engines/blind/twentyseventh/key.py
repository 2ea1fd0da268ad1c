"""The key, frozen before qdiff ran on any bug. By bug: the stage and layer where it first shows; the law; the condition."""
KEY = {
    "z01": ("embed (weights)", "of a q4_K block the two high bits of the minima of groups 4-7 come from the bytes of the scales (bytes 0-3 of the twelve) in the place of those "
            "of the minima (bytes 4-7).", "always: all q4_K matrices; groups 4-7 (weights 128-255) of a block whose two pairs of bits differ; off by 16 steps of dmin"),
    "z02": ("L00.ffn_down", "the sum over the inner dimension stops at the last multiple of 128: of 544 columns of ffn_act the last 32 (512-543) are left out.",
            "always: ffn_down of all layers, the only product whose inner dimension is no multiple of 128"),
    "z03": ("L00.q_rope and L00.k_rope", "YaRN's ramp is computed from the context length (2048) in the place of rope.scaling.original_context_length (512).",
            "always: queries and keys of all layers, positions from 1 on, the pairs on the ramp (from about pair 3 to 13)"),
    "z04": ("L00.q_rope and L00.k_rope", "neighbours (2i, 2i+1) are rotated as pairs in the place of (i, i + 32): NORM for NEOX.", "always: queries and keys, all layers; position 0 is right"),
    "z05": ("logits", "the logits are made with token_embd.weight, though the file has output.weight.", "always, all rows"),
    "z06": ("L00.attn_norm", "the RMS norms multiply by 1 + w in the place of w.", "always: attn_norm, post-attention norm (ffn_norm), norms of queries and keys, final norm; the delta net's "
            "norm behind its state (delta_normed) is right"),
    "z07": ("L00.layer_out", "the second residual adds the FFN's output to the normed input (ffn_norm) in the place of the input before the norm (attn_residual).", "always, all layers"),
    "z08": ("L00.attn_weights", "the scores are multiplied by 1 / sqrt(embedding / heads) = 1 / sqrt(64) in the place of 1 / sqrt(head dimension) = 1 / sqrt(128): too large by sqrt(2).",
            "always: all layers, heads; a row with one key is right"),
    "z09": ("L00.attn_context", "in the tiled softmax the sums of values are not scaled down by exp(old - new maximum) when a later tile of 8 keys raises the maximum; the total is.",
            "passes with several tokens (the prompt): positions from 8 on where a later tile raises the maximum; decode steps and what is written of the weights are right"),
    "z10": ("L00.attn_weights and L00.attn_context", "the keys that fill up the last split of 16 are counted in the softmax's denominator with score 0: "
            "16 - keys % 16 times exp(0) more.", "decode steps where the number of keys is no multiple of 16 (here all of them: 22-27 keys); the prompt is right"),
    "z11": ("L00.attn_weights (second pass)", "the causal mask is aligned at the upper left: query t of a pass sees keys 0..t in the place of 0..first + t.",
            "passes of several tokens behind cached ones (the second pass, 14 queries with 33 keys); the first pass and decode steps are right"),
    "z12": ("L00.attn_scores", "the products of queries and keys are rounded to f16 before scale and softmax, which the engine does not declare.", "always, all layers; all passes"),
    "z13": ("L00.v_cache", "the cache of values (fp8) is written with the scale of the values and read with the scale of the keys of its layer: values are larger by k_scale / v_scale "
            "(0.02 / 0.011, 0.017 / 0.013, 0.015 / 0.009).", "always, all layers, all positions; keys are right"),
    "z14": ("L00.k_cache and L00.v_cache", "the block table read by attention has the pages of the first decode step only; the entry of a page that the sequence gets later is 0: "
            "its positions are read from page 0, which holds positions 0-7 (position p reads what p mod 8 has).",
            "decode steps whose sequence has a page (8 tokens) more than at the first decode step: from position 24 on, positions 24 and more"),
    "z15": ("L00.delta_state and L00.delta_out (second pass)", "the delta net's state begins at zero in each pass of several tokens, in the place of what the pass before left.",
            "passes of several tokens behind the first; recurrent layers; decode steps and the convolution's window are right"),
    "z16": ("L00.conv_state (second pass)", "after a pass of several tokens, but fewer than the window's 3, the window is the pass's inputs behind zeros: what older inputs it should keep is zero.",
            "passes of 2 tokens (the second): row 0 of the window, all recurrent layers; decode steps are right"),
    "z17": ("L00.delta_state", "the tokens that fill up the last chunk of 64 decay the state: it is multiplied by exp(softplus(dt_bias) * A) to the power of -length mod 64 (here 5) "
            "more at the end of the pass, per head.", "passes of several tokens whose length is no multiple of 64 (the prompt of 59); recurrent layers; the pass's own delta_out and decode steps are right"),
    "z18": ("L00.router_experts", "the search of the top 4 begins with value 0 and expert 0: an expert with a logit of 0 or less is never chosen, and a place without a positive logit left "
            "gets expert 0.", "always: rows with fewer than 4 positive logits (expert 0 may then stand more than once); other rows are right"),
    "z19": ("L00.ffn_out (shared_out is not dumped)", "the sigmoid gate of the shared expert multiplies the sum of routed and shared experts: (experts_out + shared_down) * gate in the place of "
            "experts_out + shared_down * gate.", "always, all layers"),
    "z20": ("L00.q_biased, L00.k_biased, L00.v_biased (first decode step)", "no bias is added.", "passes of one row (decode steps): queries, keys, values of all layers; the prompt is right"),
}
