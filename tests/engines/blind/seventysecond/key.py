"""The key, before any judging: rule; first stage; where; kind."""
KEY = {
    "a1-row-position": ("a row is rotated at the position of the pass's first row + its place in the pass, not its own position", "L00.q_rope", "sequences after the first of each pass; every sequence of the pass but the first", "always, common"),
    "a2-first-table": ("the scores read the keys through the block table of the pass's first row", "L00.attn_scores", "every sequence of a pass but the one of its first row (not in a shared prefix)", "always, common"),
    "a3-first-decay": ("the delta net does not decay the state at the first row of a sequence in each pass", "L00.delta_out or the state, first recurrent layer", "all sequences from their second pass on (the first pass begins with a zero state)", "always, rare"),
    "a4-window-off": ("the window of the convolution that is kept misses the last row of a pass: one row too old", "first recurrent layer: conv_state or conv_out of the next pass", "all sequences", "always, common"),
    "c1-mask-wide": ("in passes of more than 8 rows the softmax takes one key beyond the row's position (its score is 0)", "L00.attn_weights", "passes of more than 8 rows; not the row at the last key of the pass", "condition, common"),
    "c2-conv-decode": ("where a sequence has one row in a pass, the convolution reads the kept rows in reverse order", "first recurrent layer, conv_out", "passes of one row of a sequence", "condition, rare"),
    "c3-experts-of-first": ("in passes of more than 8 rows gate and up take the experts of the pass's first row for every row", "L00.expert_gate", "passes of more than 8 rows, all rows but the first", "condition, rare"),
    "c4-q8-row-before": ("a sequence's only row of a pass (not the pass's first) stores the key and value of the row before it in the pass (q8_0)", "L00.k_cache", "the rows that are alone in a pass, not first of it", "condition, rare"),
}
