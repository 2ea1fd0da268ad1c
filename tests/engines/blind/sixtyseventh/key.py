"""What was planted: rule; first wrong stage; sequences and positions in the first run; the report or class that it follows; always or when, common or rare.
Models and plans of passes are in bugs.py. Stages and places were measured with check.py, without qdiff."""
KEY = {
    "prefix-turns": (
        "The rotary position of a row of a sequence that began with P shared tokens is its position minus P.",
        "L00.k_rope and L00.q_rope", "pass 1 (rows of sequence 1, positions 6..17) and all later rows of sequence 1",
        "class: position ids after a prefix-cache hit count only the uncached tokens (vLLM and SGLang, when prefix caching was new; llama.cpp slots with n_past)",
        "always, common"),
    "chunk-mask": (
        "In a pass of several tokens, query i of a sequence sees keys 0..i only, also if the sequence has cached keys (mask aligned at the top left).",
        "L00.attn_weights", "pass 1 sequence 0 (p7..12), pass 2 sequence 1 (p9..16); sequence 0's one row of pass 2 sees key 0 only",
        "FlashAttention before 2.1 (causal mask aligned top-left for seqlen_q != seqlen_k); chunked prefill, FIELD.md 4.6",
        "always, common"),
    "heads-sorted": (
        "In a decode step the head goes over the rows in the order of length, longest first, and the logits stay in that order: row i of the logits is that of the i-th longest sequence.",
        "logits", "pass 1 and 2, sequences 0, 1, 2 (sequence 3 is the shortest and stays)",
        "class: batch reordered for attention and not put back (vLLM reorder_batch, llama.cpp output_ids after ubatch splitting by length)",
        "always, common"),
    "memory-kept": (
        "After tokens were taken back (but not all), the delta net goes on from the state after the last rejected token; the convolution's window is that of the kept tokens.",
        "L00.delta_state (and delta_out)", "sequence 0 after rollback 1, from its first row after the rollback, p10",
        "FIELD.md 4.3: rMLX 436, lattice 237 (recurrent state not restored after a rejected draft)",
        "always, common"),
    "shares-unsorted": (
        "Line i of the lines sorted by expert is multiplied by the share of pair i in the order of rows, instead of the share of its own pair.",
        "L00.experts_out", "all passes, all rows but those whose lines have the same index in both orders",
        "class: permuted expert outputs, unpermuted topk weights (moe_permute/unpermute of TensorRT-LLM and vLLM)",
        "always, rare"),
    "scale-of-page": (
        "Each q8_0 block of a cached row is read with the scale of the same block in the first slot of its page.",
        "L00.k_cache and L00.v_cache", "rows 1..7 of each page (not 0, 8, ...), all sequences",
        "FIELD.md 4.4 (quantised KV); class: scale indexed by block instead of by token (per-token scales of int8 KV, LMDeploy, vLLM int8)",
        "always, rare"),
    "window-of-first": (
        "In a pass, the convolution of every sequence begins with the window of the first sequence of the pass.",
        "L00.conv_out", "the first 3 rows of sequences 1 and 2 in pass 1; 1 and 2 in pass 2; from pass 2 on also conv_state (rows shorter than the window)",
        "FIELD.md 1, prefix cache: state index with several requests; vLLM causal_conv1d cache_indices",
        "always, common"),
    "parts-by-peak": (
        "Partitions of 16 keys of a decode step are merged with weights exp(largest score) instead of exp(largest score) times the partition's sum.",
        "L00.attn_context", "decode steps with more than 16 keys: passes 2 and 3, sequences 0 and 1",
        "class: split-KV reduce without exp_sums (paged_attention_v2, flash-decoding, cascade merge of lse)",
        "always, rare"),
    "prefix-rounded": (
        "In a pass of several tokens, no query sees the keys between the end of the sequence's shared prefix (P) and the next page edge (8).",
        "L00.attn_weights", "pass 1 sequence 1 (P 11: keys 11..15), pass 2 sequence 2 (P 5: keys 5..7), pass 2 sequence 1 (keys 11..15)",
        "class: cascade attention needs a prefix of whole blocks (vLLM use_cascade_attention, common_prefix_len; SGLang page_size > 1)",
        "always, rare"),
    "whole-page": (
        "A decode step attends to all slots of the sequence's last page, also to those that are not written (zero rows here, as no page was used before).",
        "L00.attn_weights", "each decode step whose length is no multiple of 8: passes 1..3, both sequences",
        "class: context_len rounded up to the block (paged attention without the tail mask)",
        "always, common"),
    "page-not-copied": (
        "A sequence that shares a partly filled page writes into it without a copy, so both sequences write to the same slots, and the later row of a pass stays.",
        "L00.k_cache and L00.v_cache", "pass 1: row 7 of sequence 0 holds that of sequence 2 (p7); pass 2 writes to different pages",
        "class: missing copy-on-write of a shared last block (vLLM v0 copy_blocks, SGLang radix partial page)",
        "always, common"),
    "gate-of-first-row": (
        "All rows of a sequence in a pass are gated by the gate of the sequence's first row in the pass.",
        "L01.attn_gated", "all rows but the first of each sequence in passes of several tokens",
        "FIELD.md 1, gated attention; class: [B, 1, H] broadcast against [B, T, H]",
        "always, rare"),
    "one-tile": (
        "An expert computes only the first 8 of its lines of a pass (in the order of rows); gate, up and down of its other lines are zero.",
        "L00.expert_gate and L00.expert_up", "pass 1 only: experts with more than 8 lines, rows 9, 12.. of the pass",
        "class: grouped product launched with one tile of rows per expert, capacity (DeepEP low-latency max tokens; llama.cpp mul_mat_id with many rows)",
        "only experts with > 8 lines, rare"),
    "turns-replayed": (
        "In a decode step of the same bucket as the last decode step, rows are rotated with the positions of the step that filled the buffer (not copied again).",
        "L00.k_rope and L00.q_rope", "passes 2 and 3, both sequences: the positions of pass 1",
        "class: CUDA graph replay with a stale positions buffer (FIELD.md 1: stale graph-buffer tail; vLLM, SGLang cuda_graph_runner)",
        "only replayed decode steps, rare"),
    "slots-in-a-row": (
        "The slots of a sequence's rows of a pass count on from the slot of the first one, also over the end of its page (whose next page may be elsewhere).",
        "slots; L00.k_cache and L00.v_cache", "pass 1: rows 8..10 of sequence 0 go to slots 8..10, which are rows 0..2 of sequence 1; pass 2: row 16.. of sequence 0",
        "class: slot_mapping assumes contiguous blocks (vLLM backends; llama.cpp find_slot contiguous)",
        "only at page edges, common"),
    "page-freed": (
        "When tokens are taken back, the partly filled last page is freed too: its kept rows are lost, the next rows go to a new page (block table as dumped).",
        "tables and slots; L00.k_cache and L00.v_cache", "sequence 0 after rollback 1: rows 8..13",
        "class: kept // block instead of ceil on rollback (block freed in flight, FIELD.md 1; speculative decoding rollback)",
        "only after a rollback inside a page, common"),
    "draft-stays": (
        "At positions that a rejected draft had filled, the sequence's token buffer keeps the draft's tokens: these are embedded instead of the fed ones.",
        "embed", "sequence 0 after rollback 1, positions 10..12 (13: the last of the draft) but not later ones",
        "class: token_ids_cpu not overwritten after a rejected draft (vLLM async scheduling + spec decode, EAGLE)",
        "only after a rollback, rare"),
    "memory-of-another": (
        "A sequence that joins in a recycled row of the state pool begins with the former owner's last delta-net state instead of zeros (its window is zero).",
        "L00.delta_state and L00.delta_out", "pass 1: sequence 0 after rollback 1 begins with the state of old sequence 1, and sequence 1 after rollback 1 with that of old sequence 0",
        "class: Mamba/GDN state slot not zeroed on reuse (vLLM has_initial_state; SGLang mamba pool)",
        "only sequences that join in a used row, common"),
    "residual-from-start": (
        "Rows are added to the residual stream in strides of 16: row r of a pass gets the residual of row r mod 16.",
        "L00.attn_residual", "pass 1: rows 16..18 (sequence 1, p11..13); pass 3: rows 16 and 17 (sequence 1)",
        "class: base offset of one operand missing in a tiled fused add + norm",
        "only passes of > 16 rows, rare"),
    "padding-writes": (
        "Rows that fill a decode batch up to its bucket (token 0 at position 0) write their key and value to slot 0, row 0 of sequence 0.",
        "L00.k_cache and L00.v_cache", "from pass 1 on: row 0 of sequence 0 in every pass",
        "class: padded slot_mapping 0 instead of -1 / a null block (vLLM PAD_SLOT_ID; SGLang slot 0 reserved)",
        "only decode batches with padding, common"),
}
