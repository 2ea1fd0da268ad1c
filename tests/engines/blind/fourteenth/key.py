"""The key, frozen before qdiff ran on any bug. By bug: the stage and layer where it first shows; the law; the condition."""
KEY = {
    "a01": ("embed", "Q5_K, token_embd alone: the fifth bit of a weight of sub-block j = 2p + h (p = 0..3, h = 0, 1; 32 weights each) is bit p + h of the byte of qh, "
            "in the place of bit 2p + h (the mask of a pair of sub-blocks moves by one bit, not by two): sub-blocks 0..7 read bits 0 1 1 2 2 3 3 4. "
            "So w = d * sc_j * (nibble + 16 * bit(qh, p + h)) - dmin * m_j.", "columns 64..255 of each 256 (sub-blocks 2..7), all tokens"),
    "a02": ("L00.attn_norm", "the sum of squares of each strip of 128 columns (128, 128, 64 of 320) is rounded to bf16 (nearest, halves up) before it is added in f32: "
            "y = x * w / sqrt(sum over strips of bf16(sum of x^2 in the strip) / 320 + eps).", "all norms over 320 columns (attn_norm, ffn_norm, final_norm), all rows; not the head norms (64)"),
    "a03": ("L00.q_rope (and k_rope)", "YaRN's ramp: the pairs low and high are computed with base 10000 in the place of the model's 1000000: "
            "low = floor(128 ln(2048 / (32 * 2pi)) / (2 ln 10000)) = 16, not 10, high = ceil(128 ln(2048 / 2pi) / (2 ln 10000)) = 41, not 27. "
            "The frequencies themselves have the right base, the factor of cosine and sine is right.", "all positions but 0, pairs 11..40, all layers"),
    "a04": ("L00.attn_weights (and attn_context)", "decode: where a split of 16 keys comes after others, what is summed so far is scaled by 2^(m_old - m_new) in the place of e^(m_old - m_new): "
            "weights (before division by the total), sums of values and total.", "decode steps with more than 16 keys, where the maximum rises in a later split of 16; all layers"),
    "a05": ("L00.attn_context", "prefill: the causal mask is left out in a tile (4 queries, 8 keys) whose keys end at or before the end of the query tile: queries q0..q1-1 "
            "see all keys of the key tile k0..k1-1 if k1 <= q1. So query p also sees keys p+1 .. up to the end of the key tile.",
            "prompt positions p with p mod 8 = 4, 5, 6 (they see keys to 8*floor(p/8)+7), and the rows before the last of the prompt's last query tile (28 sees 29); all layers. attn_weights as dumped are right."),
    "a06": ("L00.experts_out", "the shares are in the order of the experts' numbers, the experts' outputs in the order of rank: out = sum over ranks j of down_j * share of the chosen expert with the "
            "(j+1)-th smallest number.", "tokens whose chosen experts are not in ascending order of number; both layers"),
    "a07": ("L00.delta_softplus", "softplus with beta and threshold exchanged (beta 20, threshold 1): y = x if 20 x > 1, else ln(1 + e^(20 x)) / 20.", "all rows and heads, recurrent layers"),
    "a08": ("L00.ffn_down", "the sum over 544 columns is cut in 4 parts of 136, each of which takes whole tiles of 64 alone: columns k of ffn_act with k mod 136 >= 128 (8 of 136) are left out of the sum.",
            "all rows, both layers"),
    "a09": ("L01.v_proj", "IQ4_NL: code 13 stands for 96 in the place of 69 (digits exchanged in the table).", "blk.1.attn_v.weight, all rows of tokens"),
    "a10": ("logits", "the last tile of 64 ids begins at 700 - 64 = 636 but is written at 640: logits[id] = the right logits[id - 4].", "ids 640..699, all rows"),
    "b01": ("L00.attn_context", "cascade: the logarithm of the total of the shared prefix is in base 2, (m + ln t) / ln 2, that of the rest natural: "
            "context = (e^(a/ln 2) c_prefix + e^b c_rest) / (e^(a/ln 2) + e^b), a and b being m + ln t of each.",
            "passes with several rows of a sequence (sequence 1) that began with a shared prefix of 16; both layers; the passes of one row are right. attn_weights as dumped are right."),
    "b02": ("L00.k_cache (and v_cache)", "q8_0 cache: the scale of a block of 32 is the largest |x| of that block over ALL rows written in the same pass (of all sequences), / 127, in the place of the row's own largest.",
            "all positions written in a pass of several rows, except the row that has the largest; all layers"),
    "b03": ("L00.conv_out (or L00.conv_state)", "after a sequence takes tokens back, the window of the convolution is that after the last rejected token: its last 3 inputs are those of the rejected tokens; "
            "the delta net's memory is taken back rightly.", "the first 3 rows of sequences 0 and 1 after they took tokens back (pass 2: sequence 0; pass 4: sequence 1); recurrent layers"),
    "b04": ("L00.conv_out (or L00.conv_state, L00.delta_state)", "a sequence that begins with 13 cached tokens of another gets the recurrent state (window and memory) after floor(13 / 8) * 8 = 8 of them: tokens 8..12 are missing from it.",
            "sequence 1 from its first row (13) on, recurrent layers; attention is right"),
    "b05": ("L00.attn_context", "no sequence of a pass of several rows gets more rows of attention than the first sequence of the pass has (6 in pass 0, 3 in pass 2): attn_context of its later rows is 0.",
            "rows 6.. of sequence 1 in pass 0, rows 3.. of sequences 1 and 2 in pass 2; not where all have one row; all layers"),
    "b06": ("embed", "a decode step with as many rows as the decode step before reads the tokens of that step before: row r embeds the token of row r of the previous step.",
            "decode steps from the second on (passes 2, 3, 4), all sequences; pass 1 is right"),
    "b07": ("L00.expert_gate (and expert_up)", "an expert takes 8 lines of a pass at most, in the order of the rows of the batch; the input of the later ones is 0: expert_gate, expert_up, act, down are 0.",
            "in a pass, the lines behind the first 8 of an expert (passes 0 and, if so many, 2); all layers"),
    "b08": ("L00.v_cache", "the copy of a partly filled shared page copies codes and scales of the values, not the offsets (q4_1): in the copy the offset is 0, v = d * code.",
            "the copied positions (8.. of page 1) in the cache of the sequence that writes first after the sharing (sequence 0, in pass 1: positions 8..12), from that pass on; all layers; keys (q8_0) right"),
    "b09": ("L00.attn_weights (and attn_context)", "decode: all sequences look only at the first 16 * ceil(n / 16) keys, n being the length of the sequence of the batch's first row (sequence 0): later keys are left out of the softmax and of the sum.",
            "sequence 1 (31.. keys) in the passes of one row each: keys from 16 on are not seen while sequence 0 has 13..16 keys (passes 1..4), from 32 on while it has 17.. (passes 5 and 6); all layers"),
    "b10": ("L00.k_cache and v_cache (tables)", "taking tokens back to 13 gives the partly filled page (8..12) back too; the page that was freed last takes its place: positions 8..12 read what positions 16..20, the rejected ones, left there.",
            "sequence 0 from pass 2 on (after taking 8 tokens back to 13), cached positions 8..12; all layers"),
}
