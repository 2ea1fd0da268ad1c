"""What was planted: the stage that shows it first, what the engine computes in the place of what it should, when, and the report or kind.
Frozen before any run of qdiff on a bug."""
KEY = {
    # Always.
    "ragged-gather": ("embed of sequence 1 (and 2), pass 0",
        "Tokens of a ragged pass are gathered as if padded: row t of the pass's sequence b (b-th in the pass) takes token min(b * T_max + t, n - 1) of the"
        " pass, T_max the longest sequence's length in the pass, n the pass's rows, in the place of token start_b + t.",
        "Every pass that is not a decode batch, all sequences but the first of the pass.",
        "kind: padded index into packed rows (padding-free batches)"),
    "packed-positions": ("L00.q_rope and L00.k_rope of sequences 1 and 2, every layer",
        "Positions run on over the packed rows: angle of (first position of the sequence in the pass + row of the whole pass) in the place of"
        " (first + row within the sequence); p + start_b in the place of p.",
        "Every pass, all sequences but the first of the pass (decode batches too: row r is rotated by p + r).",
        "kind: packed sequences without positions of their own (fla-org/flash-linear-attention 902, TRL padding-free)"),
    "v-hnd": ("L00.v_cache, every layer, all sequences",
        "V is read as if a page were laid out [head, slot] while it is written [slot, head]: position i, head g of a page (8 slots, G = 2 heads) is the"
        " stored position (i G + g) mod 8, head (i G + g) div 8 of the same page; slots that were not written yet are zero. K is right.",
        "All passes; only (i, g) = (0, 0) and (7, 1) of a page are right.",
        "kind: HND against NHD layout of paged caches"),
    "bf16-trunc": ("L00.k_cache and L00.v_cache, every layer, all sequences",
        "Rows of the bf16 cache are cut off (upper 16 bits) in the place of rounding to nearest.",
        "All rows; half of the elements differ, by one step of bf16.",
        "kind: f32 to bf16 by dropping the low half"),
    "scale-layout": ("L00.k_cache and L00.v_cache, every layer, all sequences",
        "q8_0 cache: scales are stored [heads, blocks] and read as [blocks, heads]: block b of head g is read with the scale of flat entry b G + g, that is"
        " block 1 of head 0 has the scale of block 0 of head 1 and the reverse; codes are right.",
        "All rows; block 0 of head 0 and block 1 of head 1 are right.",
        "kind: layout of scales of int8 caches"),
    "mask-row-0": ("L00.attn_weights of sequences 1 and 2, pass 1, every layer",
        "The mask of a prefill or mixed pass is made with the first sequence's number of cached tokens for all: query i of sequence s sees keys"
        " j <= first_0 + i (as far as the sequence has keys) in the place of j <= first_s + i.",
        "Passes that are not decode batches, sequences whose number of cached tokens is not that of the first (here first_0 is larger: they see later keys).",
        "huggingface/candle 3582 (mask valid for row 0 only)"),
    "lse-layout": ("L00.attn_context of sequences 1 and 2, pass 1, every layer",
        "Shared prefix and rest are merged by their log-sum-exp read in another layout: [heads, tokens] is read as [tokens, heads], so query t of head h"
        " uses both parts' lse of flat entry t H + h (of [heads, tokens] in memory). Weights as captured are right.",
        "Passes that are not decode batches, sequences with a shared prefix (for one row both layouts agree).",
        "kind: layout of lse in the merge of attention states (cascade); vllm-project/vllm-xpu-kernels 556 (row mapping of statistics)"),
    "moe-starts": ("L00.expert_gate and L00.expert_up, every layer",
        "Lines sorted by expert are placed without padding (start of expert e = sum of counts before it), but the table of blocks' experts (blocks of 4"
        " lines) is made from padded counts: line at place i is multiplied by expert of_block[i div 4], not by its own. Shares and choices are right.",
        "All passes; wrong wherever an earlier expert's count is not a multiple of 4.",
        "kind: moe_align_block_size (vllm-project/vllm 55896 is about its table)"),
    "logits-next": ("logits",
        "The last row of each sequence in a pass gets the logits of the next row of the pass (first row of the next sequence): indices are"
        " query_start_loc[1:] without - 1, cut to the pass's last row. final_norm is right.",
        "All passes, last row of every sequence but the last of the pass (in decode batches all rows but the last).",
        "kind: logits_indices off by one"),
    "state-transposed": ("L00.delta_out and L00.delta_state from the second pass of a sequence on, layers 0-2",
        "A delta net's state is stored [value, key] and read back as [key, value]: a pass begins with the transpose of the kept state, head by head.",
        "Every pass of a sequence but its first.",
        "kind: layout of state pools (K-last against V-last)"),
    "conv-leak": ("L00.conv_out of sequences 1 and 2, layers 0-2",
        "The convolution runs over the packed rows of the pass: the first 3 tokens of a sequence use the rows before them in the pass (other sequences'"
        " last inputs) in the place of their own window. Only the pass's first sequence begins with its window. conv_state is right.",
        "Every pass, all sequences but the first of the pass.",
        "Dao-AILab/causal-conv1d 75 (seq_idx against initial states)"),
    "v-descale": ("L00.attn_context, every layer, all sequences",
        "The fp8 cache's scale of V is not applied to the sum: context is divided by v_scale (0.011 in layer 0, 0.013 in layer 1).",
        "All rows, all passes. Caches as captured are right.",
        "lightseekorg/tokenspeed 759 (FP8 KV scales are not applied in one path)"),
    # Under a condition.
    "buffer-grow": ("embed of sequence 2, pass 2 and pass 5",
        "In a decode batch with more rows than the decode batch before, the rows beyond the old number are not copied into the token buffer: they keep"
        " the id that stands there (0 if nothing, else that of an older batch: pass 5 has sequence 2's token of pass 3).",
        "Decode batches larger than the last one, rows beyond its size.",
        "vllm-project/vllm 33638 and FIELD's 'stale graph-buffer tail': persistent buffers of graphs"),
    "rope-chunk-local": ("L00.q_rope and L00.k_rope in later parts, every layer",
        "Later parts of a prompt are rotated from position 0 on: (p - first position of the part) in the place of p.",
        "Passes in which a sequence with cached tokens feeds more than one token; parts of one token are right.",
        "huggingface/transformers 43082; tenstorrent/tt-metal 33883 (start_pos without the cached tokens)"),
    "no-cow": ("L00.k_cache and L00.v_cache of sequence 0 at positions 11..13 from pass 1 on, of sequence 2 from position 14 on in later passes",
        "A partly filled page is shared with no copy on write: both sequences write to the same slots from the end of the prefix to the page's end, and the"
        " row written last stays: sequence 0's 11..13 are sequence 2's rows of these positions, sequence 2's 14 and 15 later are sequence 0's.",
        "Sequences that share a page that is not full, positions from the prefix's end to the page's end.",
        "Avarok-Cybersecurity/atlas 1193 and 692"),
    "rollback-floor": ("L00.k_cache and L00.v_cache of sequence 1 after its take-back, every layer",
        "A take-back keeps floor(kept / 8) pages in the place of ceil: the partly filled page is freed, and another page takes its place; the kept rows of"
        " that page (positions 8..10) are not in it (here zeros: it was never written).",
        "After a take-back to a length that is not a multiple of 8, if another sequence takes the freed page first.",
        "kind: wrong unit of blocks at a rollback (FIELD: wrong block unit)"),
    "paged-tail": ("L00.attn_weights of decode batches, every layer",
        "A decode step's softmax runs over all slots of the last page: the unused ones (zeros: score 0) count in the maximum and the total, so the weights of"
        " the keys add up to less than 1. weight_j = exp(s_j) / (sum exp(s) + (-N mod 8) exp(0)).",
        "Decode batches, sequences whose length is not a multiple of 8.",
        "vllm-project/vllm 42494 (the last page's tail)"),
    "gdn-tail-gate": ("L00.delta_state, layers 0-2",
        "A pass's last chunk (chunks of 8 tokens) that is not full takes 0 for its summed log-decay at the end: the state kept after the pass is"
        " exp(-sum of the decays of the last L mod 8 tokens) times the right one, head by head. delta_out of the same pass is right.",
        "Passes that are not decode batches, sequences whose number of tokens in the pass is not a multiple of 8.",
        "gittensor-ai-lab/sparkinfer 604"),
    "stale-state": ("L00.delta_out and L00.delta_state of sequence 2 from its first pass on, layers 0-2",
        "A delta net's state is not cleared for a new sequence: it begins with what the state's row held, here the state of sequence 0 after its rejected"
        " position 13 (pass 1). The window of the convolution is cleared.",
        "Sequences that begin after rows of states were freed (sequence 2); 0 and 1 begin on fresh rows.",
        "ggml-org/llama.cpp 29092; Luce-Org/lucebox 210"),
    "topk-rows": ("L00.router_experts (and router_weights, router_shares), every layer",
        "Rows from 16 on of a pass are not routed: their experts are all 0, their weights and shares 0, so experts_out is 0.",
        "Passes of more than 16 rows, rows 16 and more.",
        "mirage-project/mirage 764"),
}
