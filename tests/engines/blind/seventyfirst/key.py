"""What was planted, written before any judging: the rule and its condition; the first stage and layer; sequences and positions in the plan; the kind
(common or rare, and whether it acts always, that is wherever the part of the engine runs that has it, or only under a further condition)."""

KEY = {
    "mask-of-a-later-chunk": (
        "The causal mask of a prefill takes the first query of the pass for position 0: query i of a pass sees keys 0..i, not keys 0..first+i.",
        "L00.attn_weights",
        "passes with a first position above 0 that are not decode steps: pass 1 (0 at 12..20, 1 at 7..10) and pass 2 (0 at 21..26, 1 at 11)",
        "masks; common; always (no decode step, which has another kernel)"),
    "positions-behind-a-prefix": (
        "A sequence that begins behind a shared prefix counts its positions from the prefix rounded down to whole pages of 8: 8 for 11, for good.",
        "L00.k_rope",
        "sequence 1, all its rows: positions 11..19 of pass 1 rotated as 8..16, position 20 of pass 2 as 17. Sequence 0 right",
        "positions, prefix; rare; condition: behind a prefix whose length is not a multiple of 8"),
    "positions-after-a-draft": (
        "After a rejected draft positions go on one too high, for good: the count of positions becomes kept + 1.",
        "L00.k_rope",
        "after the rollback: sequence 0 from position 10 on (as 11..), sequence 1 from position 8 on (as 9..); q_rope too",
        "drafts; common; always"),
    "last-partition-of-one-key": (
        "A decode step leaves out its last partition of 16 keys if that partition has only one key (the query's own), in the total and in the sum "
        "over values: sequences of 17, 33, ... keys.",
        "L00.attn_weights",
        "pass 5: sequence 0 at position 16; pass 8: sequence 1 at position 16. All others right",
        "masks, partitions; rare; condition: decode step with cached length mod 16 = 1, above 1"),
    "partitions-without-totals": (
        "A decode step puts its partitions of 16 keys together with weights exp(max - largest max), without each partition's total of exps.",
        "L00.attn_context",
        "decode steps of sequences with more than 16 keys: sequence 1 from pass 1 (position 20), sequence 0 from pass 3 (position 16)",
        "partitions of a decode step; common; always"),
    "prefix-merged-unscaled": (
        "Where a sequence has a shared prefix, a prefill adds the sums over prefix and over its own keys without scaling each to the common maximum "
        "(exp(max - common max) left out of the sum over values, kept in the total).",
        "L00.attn_context",
        "sequence 1 in passes 1 and 2, all rows (positions 11..21)",
        "prefix sharing (cascade attention); common; always"),
    "copy-without-values": (
        "Copy-on-write copies a page of the key cache alone; in the copy the value rows of the page before the write are zeros (or what the page had).",
        "L00.v_cache",
        "sequence 0 (which writes first and gets the copy) from pass 1, cached rows 8, 9, 10; also at L01",
        "copy-on-write; common; always"),
    "no-copy-for-two": (
        "A shared page that is written to is copied only if three or more sequences have it; where two have it both write to the same slots, and the "
        "later rows of the pass win.",
        "L00.k_cache",
        "sequence 0, cached rows 11..15: those of sequence 1's tokens at the same positions; from pass 1, L00 and L01, v_cache too",
        "copy-on-write; rare; condition: exactly two users of a partly filled page"),
    "table-one-step-late": (
        "The block table of a decode step does not have the page that this step begins: its token is read from slot 0 of page 0.",
        "L00.k_cache",
        "the newest row alone, where position mod 8 = 0 in a decode step: pass 3 sequence 0 row 8, pass 4 sequence 1 row 16 (both hold row 0 of sequence "
        "0); v_cache too. Earlier and later passes read the row right",
        "page tables; rare; condition: decode step whose token begins a page"),
    "recorded-positions": (
        "The positions of a decode step are written to the graph's buffer only if the bucket changes: further steps of the same bucket have those of "
        "its first step.",
        "L00.k_rope",
        "both sequences, passes 2, 3, 4: positions of pass 1 (9 and 6) for 10.., 7..; q_rope too. Pass 1 right",
        "recorded graphs, stale buffers; common; always"),
    "padding-writes-slot-0": (
        "Rows that fill a decode step up to its bucket have slot 0, not none: they overwrite the first slot of page 0 (with token 0 at position 0).",
        "L00.k_cache",
        "sequence 0 (whose page 0 is), cached row 0, from pass 1 on (3 rows in a bucket of 4); v_cache too",
        "slots; common; always (decode steps that do not fill their bucket)"),
    "logits-left-sorted": (
        "A decode step's head goes over the rows by length, longest first, and its logits are left in that order: row i holds those of the i-th "
        "longest sequence.",
        "logits",
        "passes 1, 2, 3, all three rows: rows of sequences 0, 1, 2 hold those of 1, 2, 0",
        "sampler rows; common; always (decode steps)"),
    "scale-of-the-page": (
        "A q8_0 cache is read with the scales of the page's first token for all 8 tokens of the page.",
        "L00.k_cache",
        "all passes, both sequences: all rows but positions that are multiples of 8; v_cache too",
        "quantised caches; common; always"),
    "copy-without-scales": (
        "Copy-on-write of a q8_0 page copies the codes, not the scales: the copied rows read as zero.",
        "L00.k_cache",
        "sequence 0 (which writes first and gets the copy) from pass 1, cached rows 8, 9, 10, are zeros; v_cache too",
        "quantised caches, copy-on-write; rare; always"),
    "window-stays-after-a-draft": (
        "After a rejected draft the delta net's state goes back, the convolution's window does not: it still has the last tokens of the draft.",
        "L00.conv_state",
        "both sequences after the rollback: pass 2 (positions 10 and 8); conv_out too; sequence 0 in pass 3 still",
        "recurrent states, drafts; common; always"),
    "states-kept-by-chunk": (
        "In a pass with more than 8 rows of a sequence the state kept for each token, to go back to, is that at the end of its chunk of 8 tokens (of "
        "the pass), the convolution's window is right.",
        "L00.delta_state",
        "sequence 0 after the rollback (pass 2, position 16): it goes on from the state after the draft's 8th token (position 19), not after its 4th. "
        "Sequence 1, whose draft had 6 rows, is right",
        "recurrent states, drafts; rare; condition: the pass of the draft had more than 8 rows of the sequence"),
    "decay-after-the-read": (
        "The delta net's kernel for one row reads the state before it decays: v - (state before the decay) k, then decays and adds.",
        "L00.delta_state",
        "sequences with one row in a pass, not their first: pass 1 both, pass 2 sequence 0, pass 3 both",
        "recurrent states; rare; condition: one row of the sequence in the pass"),
    "state-row-by-batch-index": (
        "The row of the pool of states is the index of the sequence in the pass, not the sequence's row: right only while sequences 0, 1, 2 are all "
        "in the pass (in that order).",
        "L00.conv_state",
        "pass 2: sequence 1 reads sequence 0's row, sequence 2 that of sequence 1; in pass 3 sequence 2 reads row 0 (conv_out first: three rows fill the "
        "window); pass 4 all three begin with rows that others wrote",
        "recurrent states, batching; common; always"),
    "second-tile-reads-the-first": (
        "An expert takes its lines in tiles of 8; each further tile reads the lines of the first tile and writes to its own: lines beyond the 8th of an "
        "expert have products of its first 8 lines' inputs. All three products.",
        "L00.expert_gate",
        "pass 0 (43 rows): every expert's lines beyond 8, rows from 8 on. Pass 1 (6 rows) right",
        "experts; rare; condition: an expert has more than 8 lines in the pass"),
    "shares-not-sorted": (
        "In passes of more than 8 rows the shares of the experts are not brought into the order of the lines sorted by expert: a line is weighted with "
        "the share of another pair of row and expert.",
        "L00.experts_out",
        "passes 0 (17 rows) and 2 (11 rows), all rows. Pass 1 (5 rows) right",
        "experts; common; condition: more than 8 rows in the pass"),
}
