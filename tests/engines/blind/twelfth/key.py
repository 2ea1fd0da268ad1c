"""What was planted: where it first shows, the law, and when it holds. Frozen before qdiff judged any of these bugs."""
KEY = {
 "o01": ("embed",
         "the table is cut over two shards; a shard is padded to (V rounded up to 64)/2 = 192 rows, but the second one begins at row V/2 = 179: "
         "the row of token t is that of token t - 13",
         "tokens t >= 192, at all positions"),
 "o02": ("L00.attn_norm, and all norms of the residual stream (attn_norm, ffn_norm, final_norm, all layers)",
         "only the elements i with i mod 320 < 256 (eight of ten warps) are in the sum of squares; the sum is divided by n = 640 all the same: "
         "columns 256..319 and 576..639 are missing in the mean square",
         "all rows"),
 "o03": ("L00.q_normed, all layers",
         "the last query heads (as many as key heads: heads 4 and 5 of 6) are multiplied by attn_k_norm.weight in the place of attn_q_norm.weight",
         "all rows, heads h >= n_head - n_head_kv"),
 "o04": ("L00.q_rope and L00.k_rope, all layers",
         "the inverse frequencies base^(-2i/d) are rounded to f16 (subnormals included) before they are multiplied by the position: angle = p f16(base^(-2i/d))",
         "all positions but 0; pairs whose frequency is no f16 number"),
 "o05": ("L00.attn_context, all layers",
         "online softmax over tiles of 8 keys: if the largest score grows by at most 8, sums and total so far are not rescaled by exp(old - new); so "
         "context = sum_j e^(s_j - m_tile(j)) v_j / sum_j e^(s_j - m_tile(j)), with m_tile(j) the running maximum at the tile of key j",
         "passes of the prompt (prefill), rows from position 8 on whose running maximum grows at a later tile; decode steps are right; attn_weights are right"),
 "o06": ("L00.attn_weights (and attn_context), all layers, first at a decode step",
         "the number of splits of 16 keys is rounded to the nearest, (n + 8)/16, and not up: the last n mod 16 keys, the token's own among them, are not attended to",
         "decode steps with n keys, 1 <= n mod 16 <= 7"),
 "o07": ("L00.ffn_down, all layers, first at the first decode step",
         "the sum over 512 is cut in three splits, columns 0..191, 192..383, 384..511, and each partial sum is rounded to f16 before they are added",
         "passes of one row (decode steps); the prompt is right"),
 "o08": ("L00.expert_gate and L00.expert_up, all layers",
         "an expert takes at most ceil(1.25 n k / E) lines of a pass (n rows, k experts taken of E), in the order of the rows; for the lines beyond, its input is zero, "
         "so gate, up and down are zero",
         "late rows of a prompt, for the experts whose capacity is full (n = 35: from the rank 17 on within the expert, with E = 8, k = 3); decode steps are right"),
 "o09": ("L00.delta_out (rows from 16 on) and L00.delta_state, all delta nets (layers 0..2)",
         "at the first token of a chunk of 16 rows (row 16, 32, ... of a pass) the state is not multiplied by exp(decay) of that token",
         "rows 16, 32, ... of a pass; later rows inherit it through the state; passes of up to 16 rows are right"),
 "o10": ("L01.v_proj, L01.ffn_gate, L02.ffn_down: the products with q4_K tensors",
         "q4_K: for the sub-blocks j = 4..7 the upper two bits of the minimum are taken from the upper bits of byte j-4 of the scales (those of the scale) in the place "
         "of byte j",
         "elements 128..255 of each block of 256 of the q4_K tensors"),
 "s01": ("L00.attn_context, all layers",
         "the prefix and the rest are put together by weights e^(L) with L the logarithm of their totals to base 2 in the place of base e: the share of each part is "
         "proportional to Z^(1/ln 2) = Z^1.4427 in the place of Z",
         "passes that are no pure decode pass, the sequence that began with a prefix (sequence 2; keys 0..15 against the rest)"),
 "s02": ("L00.k_cache and L00.v_cache, sequence 0 from its second pass on, rows 8..14 (all layers)",
         "copy on write of a page copies the codes and not the scales (nor the offsets of q4_1): the rows are codes times the scales (plus offsets) that the new page had "
         "before: those of sequence 1's positions 0..6 before its rollback",
         "rows of the last, partial page when two sequences share it and the first of them grows: sequence 0, rows 8..14"),
 "s03": ("L00.delta_out and L00.delta_state of the first pass after a rollback (layers 0..2)",
         "after a rollback to k tokens the delta state is that after k+1 tokens, the first rejected token included; the window of the convolution is right",
         "each pass after a rollback (all runs `after rollback`)"),
 "s04": ("L00.k_cache and L00.v_cache of sequence 3 at its next pass (pass 4), row 11 (all layers)",
         "a padding row of a decode batch keeps the slot of the last larger batch: the key and value of the padding row (token 0 at position 0) are written over the last "
         "row of the sequence that sits out",
         "sequence 3, position 11, after the passes of three sequences in a bucket of four"),
 "s05": ("L00.v_cache, all layers",
         "q4_1: minimum and maximum are taken over 64 elements (two blocks), so both blocks of a pair have the same scale and offset",
         "all rows of the V cache, all sequences; K (q8_0) is right"),
 "s06": ("L00.attn_weights (and attn_context), all layers",
         "the position of a pass's first row, as the mask uses it, is rounded down to a page (8): row t of a pass that begins at p sees keys 0..8 floor(p/8) + t; "
         "the last p mod 8 keys, its own among them, are masked",
         "rows of passes that are no pure decode pass, where the sequence's part begins at p with p mod 8 != 0 (decode rows in such mixed passes too)"),
 "s07": ("L00.conv_out (first three rows) and L00.delta_out, delta_state (layers 0..2), the first pass of a sequence that began with a prefix",
         "the states (window of the convolution and delta state) of a prefix of c tokens are those after 8 floor(c/8) tokens; the tokens behind are not in them",
         "sequences that began with a prefix whose length is no multiple of 8: sequence 2 (13: state after 8), sequence 3 (10: after 8)"),
 "s08": ("L00.attn_scores (and attn_weights, attn_context) of sequence 2, all layers",
         "cascade: in a decode pass the keys and values of the first min(shared) positions (16) are read by the block table of the first sequence in the sorted batch, "
         "the longest: sequence 2 reads those of sequence 3's prefix, the positions 0..15 of sequence 1",
         "decode passes in which all sequences have a prefix (2 and 3 together); keys 0..15; the shorter sequence"),
 "s09": ("final_norm",
         "the inverse roots of the rows lie in a scratch of 16 numbers: row r of a pass is multiplied by that of the last row r' of the pass with r' = r mod 16",
         "passes of more than 16 rows, rows r with r + 16 < n"),
 "s10": ("L00.attn_weights (and attn_context), all layers",
         "the number of splits of 16 keys is that of the first replay of the batch size (bucket): later only the first 16 ceil(longest then / 16) keys are seen",
         "decode passes in a bucket whose sequences have grown beyond: bucket 2 was recorded with at most 14 keys, so keys from 16 on are not seen (sequence 0 from "
         "its 17th key on, sequence 1 too)"),
}
