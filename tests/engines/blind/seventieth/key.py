"""The answer key of the seventieth round, written before qdiff had judged any bug: what is planted, its condition, the first stage
that is wrong and where, and the kind. Sequences are 0, 1, 2 in the order of the plan, passes count from 0, rows of a pass from 0.
"always" bugs act wherever a pass has what they are about; the places below are those of the plan of bugs.py."""

KEY = {
    # ---- always
    "rope-of-chunk": dict(
        planted="queries and keys are rotated by the row's index in its sequence's part of the pass (0 at the part's first row), not by its position",
        condition="always (a part that begins at position 0 is right anyway)",
        stage="L00.q_rope (and L00.k_rope)", where="all sequences from their second part on; no row of a first part", kind="positions", often="common"),
    "table-of-first": dict(
        planted="keys are read through the block table of the first row's sequence: key n of any row is entry n of the pass's first table",
        condition="always (sequence 0 is the pass's first and right)",
        stage="L00.attn_scores", where="sequence 1, every row", kind="page tables", often="common"),
    "slots-of-next-row": dict(
        planted="each row of K and V is written to the slot of the next row of the pass, the last row to that of the first",
        condition="always (where the pass has more than one row)",
        stage="L00.k_cache (and L00.v_cache)", where="all sequences, every row from the first pass on", kind="slots", often="rare"),
    "sees-whole-part": dict(
        planted="no causal mask in a part: each row attends to its sequence's keys up to the last row of the part in this pass",
        condition="always (a part of one row, and the last row of each, are right)",
        stage="L00.attn_scores", where="every sequence, all rows of a part but its last", kind="masks", often="common"),
    "own-key-missed": dict(
        planted="the softmax does not see the row's own key: of position p the keys 0 to p - 1 have weight (position 0 keeps its own)",
        condition="always (position 0 is right)",
        stage="L00.attn_weights", where="every sequence, every position but 0", kind="masks (lengths of the pass before)", often="common"),
    "values-of-first-page": dict(
        planted="the value of key n is read from the slot of position n mod 8: every page of 8 positions is the sequence's first",
        condition="always (from position 8 on)",
        stage="L00.attn_context", where="every sequence, positions from 8 on", kind="page tables", often="rare"),
    "scale-of-first-row": dict(
        planted="in the q8_0 caches every row of a pass is quantised with the scales of the pass's first row (block by block; codes cut at 127)",
        condition="always (the first row of a pass is right)",
        stage="L00.k_cache (and L00.v_cache)", where="all rows but the first of each pass; a pass's first row is sequence 0's", kind="quantised caches", often="rare"),
    "scale-of-key-before": dict(
        planted="the codes of value n are read with the scale of value n - 1 of the same sequence (n = 0 its own) in the q8_0 V cache",
        condition="always (position 0 is right)",
        stage="L00.attn_context", where="every sequence, every position but 0", kind="quantised caches", often="rare"),
    "first-row-undecayed": dict(
        planted="the delta rule does not decay the state at the first row of a sequence's part (a launch): e^g counts as 1 there",
        condition="always (at position 0 the state is zero, and nothing changes)",
        stage="L00.delta_state (and L00.delta_out)", where="every sequence from its second part on", kind="recurrent states", often="rare"),
    "window-of-first": dict(
        planted="the convolution of every sequence begins with the window (last inputs) of the pass's first sequence",
        condition="always (the first sequence of a pass is right)",
        stage="L00.conv_out", where="sequences 1 and 2, the first three rows of each part", kind="recurrent states (state index)", often="common"),
    "expert-capacity": dict(
        planted="an expert takes four lines of a pass; its products of all later lines in the pass are zero",
        condition="always (an expert with more than four lines in a pass: only in passes of more than four rows)",
        stage="L00.expert_gate (and expert_up, expert_down)", where="later rows of the passes 0, 1, 2 and perhaps 3", kind="experts over a pass", often="rare"),
    "shares-of-first-row": dict(
        planted="the weights of the chosen experts of every row are divided by the sum of the first row of the pass",
        condition="always (the first row of a pass is right)",
        stage="L00.router_shares", where="every row of a pass but its first", kind="experts over a pass", often="rare"),

    # ---- under a condition
    "draft-positions": dict(
        planted="all rows of a part are rotated by the position of the part's first row",
        condition="only where a sequence has 2 to 5 rows in the pass",
        stage="L00.q_rope (and L00.k_rope)", where="sequence 0 in passes 2 (positions 9 to 12: its rows 1, 2, 3) and 4 (rows 1 to 4)", kind="drafts, positions", often="common"),
    "tail-tile": dict(
        planted="ffn_down of the rows behind the last whole tile of 8 rows is that of the pass's first rows: row 8 + i (16 + i) has the input of row i",
        condition="only in passes of more than 8 rows (the last tile, if not whole)",
        stage="L00.ffn_down", where="pass 0 (sequence 0, rows 8 to 10), pass 1 (rows 8 to 11, of sequence 1), pass 2 (rows 8 to 10, of sequence 2)", kind="batching (tails)", often="rare"),
    "recorded-positions": dict(
        planted="queries and keys are rotated by the positions of the pass before, row by row (a recorded graph that is replayed with its old positions)",
        condition="only where this pass and the pass before have single rows of sequences alone, and as many of them",
        stage="L00.q_rope (and L00.k_rope)", where="both sequences in passes 2, 3, 4 and 7 (1+1 after 1+1): one position too few", kind="recorded graphs", often="common"),
    "draft-kept": dict(
        planted="a row of K or V whose slot was written before is not written: the row of the rejected draft stays in the freed slot",
        condition="only where a slot is taken again after a rollback",
        stage="L00.k_cache (and L00.v_cache)", where="after each rollback (passes 3 and 5 on): sequence 0 or 1, whoever takes a freed slot", kind="rollbacks", often="rare"),
    "short-part-window": dict(
        planted="after a part with fewer rows than the window of three, the old rows of the window do not move up: row r stays in place r, only the new rows come in",
        condition="only where a part has one or two rows",
        stage="L00.conv_state", where="sequence 0 in passes 1 (2 rows), 2, 4 on; sequence 1 in passes 2 on; sequence 2 in pass 2 and 4 on", kind="recurrent states (window)", often="common"),
    "copy-on-write-missed": dict(
        planted="a sequence that begins with a prefix of another writes its first own row of K and V into the page that both share: the other's row at the same position is overwritten by it",
        condition="only where the donor has a row at the position of the borrower's first own row in the same pass, behind the shared prefix",
        stage="L00.k_cache (and L00.v_cache)", where="sequence 0, position 10, written in pass 1: holds the row of sequence 1's position 10", kind="prefix sharing, copy-on-write", often="rare"),
    "splits-not-merged": dict(
        planted="the softmax is made in splits of 16 keys, each of which is divided by its own sum; they are joined with equal weights (divided by the number of splits)",
        condition="only where a row sees more than 16 keys",
        stage="L00.attn_weights", where="sequence 0 and 2 from position 16 on", kind="split attention", often="rare"),
    "last-logits-of-row-before": dict(
        planted="the logits of the last row of a pass are those of the row before it",
        condition="only in passes of more than 8 rows",
        stage="logits", where="pass 0 (sequence 0's position 9) and pass 1 (sequence 2's last row, position 8)", kind="logits rows", often="common"),
}
