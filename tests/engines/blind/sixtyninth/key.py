"""What was planted, written before any verdict: for each bug the rule in words with its condition, the first stage and layer, where (sequences and
positions, as check.py of this folder finds them), what a report should lead to, and the kind. Positions are those of a sequence."""

KEY = {
    # Always (12).
    "draft-positions": (
        "The position counter of a sequence is not set back when tokens are taken back: rows behind a rejected draft are rotated at their position plus "
        "the number of tokens taken back (4 in sequence 0, 2 in sequence 1)",
        "L00.q_rope (L00.k_rope in the same rows)",
        "runs after rollback only: sequence 0 at 11..14 (rotated as 15..18), sequence 1 at 7 (as 9)",
        "positions too large by the tokens taken back; the counter of positions at a rollback",
        "positions, rollback; always, common"),
    "table-by-row": (
        "Row i of the batch's block table is filled with the table of sequence i, not of the i-th sequence of the pass: where a sequence of a lower number "
        "has no rows in the pass, another sequence's pages are read (writes go to the right slots)",
        "L00.k_cache",
        "pass 2 (0+1+1): sequence 1 reads the pages of 0, sequence 2 those of 1; passes 3 (3+0+2), sequence 2; pass 4: sequences 1 and 2; all positions "
        "whose pages exist there; beyond the other's table page 0. Sequence 0 never",
        "cached rows are those of another sequence (the one before in number): block table by batch row against sequence number, in passes without a sequence",
        "block tables; always (where a sequence pauses), common"),
    "rollback-page": (
        "At a rollback the number of pages kept is rounded down: the page that is partly kept is freed, and its kept rows are lost; the next token takes a "
        "new page, whose rows there were never written",
        "L00.k_cache",
        "runs after rollback: sequence 0 (kept 9) at 8, sequence 1 (kept 12) at 8..11; rows are zeros (a new page)",
        "cached rows of the partly kept page are lost after a rollback; zeros",
        "page table, rollback; always (kept not a multiple of 8), common"),
    "copied-codes": (
        "Copy on write of a page of a q8_0 cache copies codes but not scales (nor offsets): the rows of the prefix in the page that is partly shared read as "
        "codes times the scales of the new page, which are 0",
        "L00.k_cache (L00.v_cache too)",
        "sequence 1 (prefix 13) at 8..12, sequence 2 (prefix 3) at 0..2, from their first pass on; rows are zeros",
        "rows of a prefix in its last, partial page are zeros: copy on write, scales not copied",
        "copy on write, q8_0; always, rare"),
    "no-copy": (
        "There is no copy on write: a sequence that begins with a prefix writes its own rows into the last page of the prefix, which the source and others "
        "still read; and the source writes into it too",
        "L00.k_cache",
        "pass 3: sequence 0 at 11..14 (they hold the rows of sequence 1 at these positions), sequence 1 at 15 (the row of sequence 0 at 15); pass 4: sequence 0 "
        "at 11..15, sequence 1 at 14..15 (rows of sequence 2 and 0)",
        "cached rows are overwritten by rows of a sequence that shares the page: copy on write is missing",
        "copy on write; always, common"),
    "padding-slot": (
        "Rows that only fill a decode step up to its bucket have slot 0 instead of none: they write the key and value of token 0 at position 0 into slot 0, "
        "which is position 0 of sequence 0",
        "L00.k_cache",
        "sequence 0 at position 0, from pass 2 on (the first decode step of three rows, bucket 4); in all layers",
        "position 0 of the first sequence overwritten in decode passes of three rows: padding rows write to slot 0",
        "slots, padding; always (passes with padding), common"),
    "state-before": (
        "At a rollback the recurrent states (convolution window and delta net) are restored to one token before the last kept one: the last kept token is "
        "missing from both",
        "L00.conv_state where one row follows the rollback, as in all three cases here (conv_out and delta_state with it); every recurrent layer",
        "runs after rollback: sequence 0 at 12 (kept 12), sequence 1 at 8 (kept 7, two rows: conv_state has only one lost row), then from there on",
        "states after a rollback are those of one token too few; checkpoint index accepted − 1",
        "recurrent states, rollback; always, common"),
    "chunk-from-zero": (
        "The delta net of a pass of several rows (a prefill chunk) begins with a state of zeros, also where the sequence has tokens already",
        "L00.delta_state (L00.delta_out with it)",
        "sequence 0 in pass 2 (12..17) and pass 4 (19..27), sequence 1 in pass 4 (6..9); not in first passes and not in decode passes (which carry it on)",
        "later chunks of a prefill begin with a zeroed delta state; the convolution's window is right",
        "recurrent states, chunked prefill; always, common"),
    "expert-blocks": (
        "Lines sorted by expert are computed in blocks of 8 without padding each expert to a block: each block uses the weights of the expert of its first line",
        "L00.expert_gate (L00.expert_up with it)",
        "all passes, both sequences, in rows one of whose experts is not that of the first line of its block; not expert_down alone: all three products",
        "lines use another expert's weights, by blocks of 8 over the pass; moe_align_block_size",
        "experts over a pass; always, rare"),
    "pass-scale": (
        "The q8_0 cache quantises a row's block with the largest magnitude over all rows of the pass (of the same head and block), not of the row itself: one "
        "scale for the pass",
        "L00.k_cache (L00.v_cache too)",
        "rows written in passes of several rows, both sequences, except the row that has the largest element of a block; rows of both sequences of a pass share the scale",
        "scale of blocks is that of the whole pass",
        "q8_0 cache; always (passes of more than one row), rare"),
    "window-of-source": (
        "A sequence that begins with a prefix takes the convolution's window from the source's last token, not from the last token of the prefix; the delta "
        "net's state is the right one",
        "L00.conv_out (conv_state is right: 5 and 6 rows of their own follow); every recurrent layer",
        "sequence 1 (prefix 9, source has 17) at 9..11, sequence 2 (prefix 12, source has 18 before the pass) at 12..14",
        "window behind a prefix is that of the source's end; the state at the wrong boundary",
        "recurrent states, prefix; always, rare"),
    "last-row": (
        "The head reads the last row of a sequence one row early: logits of the last row of each sequence with several rows in the pass are those of the row "
        "before it",
        "logits",
        "pass 1: sequence 0 at 7, sequence 1 at 4; pass 3: sequence 0 at 11, sequence 1 at 11; pass 4: sequence 1 at 15",
        "logits of the last row are those of the row before: index of the last row off by one",
        "logits rows; always, common"),
    # Under a condition (8).
    "capacity": (
        "An expert computes at most 16 lines of a pass; lines beyond (of later rows) are zeros",
        "L00.expert_gate (L00.expert_up with it)",
        "passes 1 (70 rows) and 4 (34 rows) only: pass 1 sequence 0 at 21, 23..29, 31..39 and sequence 1 at 0..29, pass 4 sequence 1 at 51..64; only the chosen "
        "experts that have 16 earlier lines",
        "an expert's lines after the 16th of a pass are dropped (zeros): capacity",
        "experts over a pass; only where an expert has more than 16 lines in the pass; rare"),
    "recorded-lengths": (
        "A decode step with the same bucket as the decode step before is told the lengths of the first step of that run: it does not see the keys written "
        "since then, its own included",
        "L00.attn_weights",
        "sequence 0 at 14, 15 and 21, sequence 1 at 8, 9, 10 (lengths 14 and 8 of pass 2); not pass 2, which sets them, nor pass 7 (other bucket), nor prefills",
        "the newest keys are not seen in decode steps: stale lengths (14 and 8 keys seen)",
        "recorded graph, stale buffer; only in decode steps with the bucket of the step before; rare"),
    "draft-mask": (
        "Passes of 2 to 4 rows of a sequence behind cached tokens (drafts) have no causal mask among their rows: each row sees all rows of its sequence in the pass",
        "L00.attn_weights",
        "pass 2 sequence 0 at 12..13, pass 3 sequence 1 at 7..9, pass 4 sequence 1 at 11..12, pass 6 sequence 0 at 22; the last row of a pass is right; not "
        "passes of 5 or 7 rows, not first passes",
        "rows of a draft see later rows of the draft",
        "mask; only passes of 2..4 rows with tokens before; common"),
    "merged-prefix": (
        "Behind a prefix, the context of the prefix's keys and that of the others are added without rescaling each to the common largest score",
        "L00.attn_context",
        "sequence 1 at 13..25 and 27, sequence 2 at 8..16, in passes that are not decode steps; sequence 1 at 26 is a decode step and right; sequence 0 never",
        "partial sums over the prefix and over the rest are merged without rescaling; weights are right",
        "prefix, cascade attention; only behind a prefix in prefill passes; rare"),
    "decodes-first": (
        "In a pass that mixes sequences of one row with sequences of several, token ids are put in the order with the one-row sequences first, while all else keeps "
        "the pass's order",
        "embed",
        "passes 2 (4+1), 4 (7+1), 6 (8+1): row 0 embeds the token of sequence 1, rows of sequence 0 the token one position earlier, the row of sequence 1 the last token "
        "of sequence 0. Pass 5 (1+3) is in order and right",
        "rows of a mixed pass have the token ids of other rows (decodes first)",
        "batch order; only mixed passes with a one-row sequence behind one of several rows; common"),
    "four-columns": (
        "Decode steps are recorded with a block table of four columns: pages beyond the fourth are read from the fourth (the column is clamped), so position n >= 32 "
        "reads the row of position 24 + n mod 8",
        "L00.k_cache",
        "sequence 0 at 32..38, 32..39, 32..45 in the decode passes 2, 3, 5; not in pass 4 (5+1); sequence 1 never",
        "positions from 32 on read the page of 24..31, in decode passes only",
        "recorded graph, block table; only decode steps with more than 32 tokens; rare"),
    "neighbour-window": (
        "The convolution of a sequence that begins in a pass behind at least 3 rows of others takes those rows of the pass as its window, instead of zeros",
        "L00.conv_out; every recurrent layer",
        "sequence 1 at 0..2 (pass 1), sequence 2 at 0..2 (pass 2), sequence 3 at 0..2 (pass 4); not sequence 0",
        "a beginning sequence's convolution reads the rows of the sequence before it in the pass",
        "recurrent states, batching; only sequences that begin behind other rows; rare"),
    "joins-uncleared": (
        "The state row of a sequence that begins is cleared only if all sequences of the pass begin: beside one that goes on, it begins with what the row's last owner left (window "
        "and delta state)",
        "L00.conv_out (six and five rows: conv_state is right), delta_state too; every recurrent layer",
        "sequence 1 after it took all back: at 0..2 in pass 3 and in pass 5 (the delta state at all of its positions); what it finds is its own run before",
        "a reused state row is not zeroed when a sequence begins beside others that go on",
        "recurrent states, slots reused; only beside sequences that go on; rare"),
}
