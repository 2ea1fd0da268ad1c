"""The answer key: frozen before qdiff had judged any bug. Model and plan of each are in bugs.py. `stage` is the first wrong stage (in every
layer), as numpy saw it in captures of the clean and the changed card; `where` says which rows; `after` the report or class that it follows
(FIELD = /work/shared/FIELD.md, else from memory). `often` says common or rare."""

KEY = {
    # --- act always
    "padding-to-slot-0": dict(
        rule="In a pass of several sequences whose number of rows is no multiple of 8, the padding rows, copies of the last row, are written to slot 0 of both caches.",
        stage="k_cache, v_cache", where="position 0 of sequence 0 (and of sequences that share its prefix), from the pass on", often="common",
        after="vLLM/SGLang: slot_mapping of graph padding 0 instead of -1; FIELD 'padding updates state'"),
    "table-of-row-before": dict(
        rule="Scores and context of row t of a pass read through the block table of row t-1, so the first row of each sequence but the first reads its neighbour's table.",
        stage="attn_scores (and attn_context for its own part)", where="first row of sequences 1, 2 in each pass", often="rare",
        after="query_start_loc / cu_seqlens off by one in varlen attention (vLLM)"),
    "padded-keys-counted": dict(
        rule="A row's softmax counts, for each key by which its sequence is shorter than the longest of the pass, one more score of 0 in its total.",
        stage="attn_weights", where="all rows of every sequence but the longest of the pass", often="common",
        after="candle 3582 (mask valid only for row 0, FIELD); padded batches without a mask"),
    "merge-in-base-2": dict(
        rule="Where the shares (splits) of a row's keys are put together, each share is weighted by 2^(m_s - m) instead of e^(m_s - m).",
        stage="attn_weights, attn_context", where="rows attended one by one with more than 64 keys (two shares)", often="rare",
        after="FlashInfer's log-sum-exp in base 2 merged in base e (cascade attention, vLLM)"),
    "values-without-table": dict(
        rule="Where a sequence has 9 rows or more in a pass, values are read at slot n for position n; only keys go through the block table.",
        stage="attn_context", where="sequences of >= 9 rows in a pass of several whose slots are not their positions", often="common",
        after="paged attention reading V contiguously (class of bugs in first ports of paged KV)"),
    "scale-of-first-row": dict(
        rule="A q8_0 block of keys is stored with the scale of the same block of the first row of the pass, codes cut at +-127.",
        stage="k_cache", where="all rows but the first of each pass", often="common",
        after="vLLM calculate_kv_scales from the first tokens only; FIELD 'fp8 KV: scale not passed'"),
    "last-tile-of-logits-early": dict(
        rule="In a pass of more than 8 rows, no multiple of 8, the logits of the last tile of 8 are those of the final_norm rows 8 - T%8 earlier (tile clamped to T-8).",
        stage="logits", where="rows from T/8*8 on, of passes of > 8 rows", often="rare",
        after="tail tile clamped for reads but not for writes (TensorRT-LLM, Triton GEMMs); logits_indices"),
    "shares-by-first-row": dict(
        rule="The chosen experts' probabilities of every row are divided by the sum of the first row of the pass.",
        stage="router_shares", where="all rows but the first of the pass", often="rare",
        after="broadcast errors in the norm of top-k probabilities (mlx / candle MoE); FIELD 'norm_topk_prob'"),
    "expert-capacity-4": dict(
        rule="An expert takes only the first 4 rows of a pass that chose it; for later rows its outputs are 0.",
        stage="expert_gate, expert_up", where="rows behind the fourth of an expert, over all sequences of the pass", often="common",
        after="capacity factor at inference (GShard-style), moe_align_block_size overflow"),
    "carried-state-undecayed": dict(
        rule="Outputs of a pass are computed as if the decay of its first row were 1: the carried state is not decayed there (the kept state is right).",
        stage="delta_out", where="all rows of a pass behind cached tokens, strongest at the first", often="rare",
        after="FIELD 's0 counted twice', initial state in chunked gated delta rule (SGLang, fla)"),
    "padding-updates-state": dict(
        rule="The kept delta state of a sequence has its last row of the pass applied again for each padding row up to a multiple of 4.",
        stage="delta_state", where="every sequence whose rows in the pass are no multiple of 4", often="common",
        after="FIELD 'padding updates state'"),
    "keys-turned-by-slot": dict(
        rule="Keys are rotated by the number of their cache slot instead of their position; queries are right.",
        stage="k_rope", where="every row whose slot is not its position", often="rare",
        after="cache index taken for position id (llama.cpp K-shift / static cache ports)"),
    # --- under a condition
    "block-edge-late": dict(
        rule="K and V of a row at a position that is a multiple of 16 (not 0) are written to the slot of the position 16 earlier; its own slot stays unwritten.",
        stage="k_cache, v_cache", where="positions 16 (unwritten) and 0 (overwritten) of a sequence", often="common", condition="only a block edge",
        after="block number computed before the new block is appended (vLLM slot mapping; FIELD 'wrong block unit', 'page edges')"),
    "draft-not-causal": dict(
        rule="A sequence with 2 to 8 rows in a pass behind cached tokens attends without causal mask among these rows.",
        stage="attn_weights (attn_scores at keys that do not count)", where="all rows of such a draft but the last", often="rare",
        condition="only drafts of 2..8 rows", after="verification of drafts without (tree) mask (SGLang EAGLE, vLLM multi-token verify)"),
    "chunk-positions-restart": dict(
        rule="Rows of a chunk (a sequence with 2 rows or more in the pass) are rotated by their number within the chunk instead of their position.",
        stage="q_rope, k_rope", where="chunks behind cached tokens, also behind a shared prefix", often="common", condition="only chunks behind cached tokens",
        after="position ids of chunked prefill / prefix hits start at 0 (FIELD chunked prefill; vllm 26042, 36580)"),
    "stale-token-tail": dict(
        rule="In a pass of more than 8 rows the rows behind the last full 8 embed the token of the row 8 earlier.",
        stage="embed", where="rows from T/8*8 on, of passes of > 8 rows", often="common", condition="only batches of > 8 rows",
        after="FIELD 'stale graph-buffer tail'"),
    "two-or-three-lines": dict(
        rule="If exactly 2 or 3 lines of a pass chose an expert, its products of the last of these are those of the first one's input.",
        stage="expert_gate, expert_up (also expert_down)", where="last row of an expert with 2 or 3 rows in the pass", often="rare",
        condition="only experts with 2 or 3 rows", after="FIELD '2-3 rows per expert' (llama.cpp mul_mat_id)"),
    "window-not-moved": dict(
        rule="In a pass of fewer rows than the convolution's window keeps (1 or 2), the kept older rows do not move up: the new rows overwrite the newest.",
        stage="conv_state", where="every sequence with 1 or 2 rows in the pass", often="common", condition="only decode passes",
        after="causal_conv1d_update shifting (Mamba in vLLM, fla)"),
    "chunk-without-window": dict(
        rule="A chunk of 2 rows or more is convolved as if nothing came before it (zeros in place of the kept window).",
        stage="conv_out", where="first 3 rows of chunks behind cached tokens", often="common", condition="only chunks of >= 2 rows behind cached tokens",
        after="has_initial_state false in chunked prefill (vLLM Mamba2; FIELD 'state zeroed at later prefill windows')"),
    "freed-slots-get-first-row": dict(
        rule="A row that is written to a slot which a roll-back freed gets K and V of the first row of its sequence in the pass.",
        stage="k_cache, v_cache", where="2nd and later rows of a pass that go to freed slots", often="rare", condition="only after a roll-back",
        after="FIELD speculative decoding: 'reads slot 0 instead of accepted - 1'"),
}
