"""What was planted: the first wrong stage (of the first pass and layer that has it), the law, and when it holds. Written before any answer."""
KEY = {
    "shares": ("L00.router_weights", "weights of the chosen experts are divided by their sum (as router_shares of qwen3moe are): p_i / sum of the K chosen p", "every layer, pass and token"),
    "flatsplit": ("L01.q_half and L01.gate_half", "queries and gate are split flat: the queries are columns 0..H*D-1 of q_gate_proj, the gate columns H*D..2*H*D-1, "
                  "in place of D and D alternating head by head", "every attention layer (L01, L03), every token; the first D columns of q_half and the last D of gate_half are right by that"),
    "headmap": ("L00.delta_state, and L00.delta_out", "value head h takes key head (and query head) h // 3 (3 = value heads / key heads) in place of h % 2 (2 = key heads)",
                "both key and query; every recurrent layer and token; both maps agree for heads 0, 2, 3 and 5, so that only heads 1 and 4 are wrong here"),
    "mxpack": ("L00.expert_gate and L00.expert_up (and expert_down)", "weights in MXFP4: nibbles of byte i are taken as weights 2i and 2i+1 of the block of 32, in place of i and i+16",
               "every MXFP4 tensor: the three of the experts in both layers; nothing else"),
    "fp8read": ("L00.v_cache", "values are divided by the scale of the values and multiplied by the scale of the keys of the layer: v * k_scale / v_scale (0.02/0.011, 0.017/0.013, 0.015/0.009)",
                "every layer and row; the keys are right"),
    "window": ("L02.attn_weights", "a sliding window of 16 keys: token t sees keys t-15..t alone", "layers 2 and 3 (the upper half), prefill and decode, tokens from position 16"),
    "topleft": ("L00.attn_weights at pass 1", "the causal mask begins at the upper left: row i of a pass sees keys 0..i in place of 0..first+i",
                "passes of several tokens that do not begin at 0 (passes 1 and 2); the first pass and decode steps are right"),
    "wholenorm": ("L00.q_normed and L00.k_normed", "RMS over all heads of the row together (mean square of all H*D, or G*D, elements) in place of each head's own; the weight is right",
                  "every layer and token, queries and keys"),
    "gatesum": ("L00.ffn_out", "the shared expert's weight is applied to the sum: w * (experts_out + shared_down) = w * experts_out + shared_out", "every layer and token"),
    "halfpos": ("L00.q_rope and L00.k_rope", "RoPE takes positions rounded to bf16 (8 bits, halves to even)", "positions above 256 that are odd (in this run 257..286); even ones and those up to 256 are exact"),
    "unitroot": ("L00.delta_q_normed and L00.delta_k_normed", "the L2 norm takes eps times the head's width: y / sqrt(sum of squares + 64 * eps), eps 1e-5, in place of + eps", "every recurrent layer and token, q and k"),
    "typo": ("L00.ffn_up", "the table of IQ4_NL has -81 in place of -83 as its entry 2: weights with code 2 are -81 d", "the IQ4_NL tensors: ffn_up of both layers"),
    "bucketpos": ("L00.q_rope and L00.k_rope at pass 1", "decode steps are rotated at position + (-prompt length mod 8): +3 here, as if the prompt were filled up to a multiple of 8",
                  "decode steps alone, after a prompt whose length 8 does not divide; q and k"),
    "lazymax": ("L00.attn_context", "online softmax in tiles of 8 keys: where a tile raises a row's maximum by less than 1 (scaled scores), the sums and the total so far are not multiplied by exp(old - new): "
                "the earlier keys' weights count exp(new - old) times too much", "prefill, rows with such a tile (a head's row by itself); decode is right; attn_weights are right"),
    "capacity": ("L00.expert_gate and L00.expert_up", "an expert takes ceil(1.25 * T * K / X) lines of a pass (9 here) in the order of the tokens; lines beyond get 0 (gate, up, act and down are 0)",
                 "passes where an expert is chosen by more tokens: the prompt; decode steps are right"),
    "shortturn": ("L00.conv_state at pass 1", "after a pass of fewer than 3 tokens (not a decode step) the convolution's window is 0 before that pass's own tokens: the older inputs are lost "
                  "(here row 0 of 3 is 0); the next pass's conv_out uses it", "passes of 2 tokens; recurrent layers"),
    "coarse": ("L00.v_cache", "Q4_1 values: minimum and step of the whole head (128 elements), in place of each block of 32", "every layer and row; values alone"),
    "lasttile": ("logits", "ids from 512 (the last, partial tile of 256) get the logits of id - 68: the tile's rows begin at 700 - 256 = 444, its columns at 512", "every token"),
    "ramp": ("L00.q_rope and L00.k_rope", "YaRN's range of pairs is not rounded: low and high are taken without floor and ceil", "every layer, tokens from position 1, the pairs between; q and k"),
    "tableend": ("L00.k_cache and L00.v_cache", "the block table is read no further than its entry 7: rows from 64 are read from page 7, row n is row 56 + n % 8", "positions from 64; every layer, keys and values; writes are right"),
}
