"""The answer key of the thirty-ninth blind round, frozen before qdiff had judged any of these bugs.

For each bug: where it first acts (the earliest array that numpy finds changed), what is done instead, when, and the report that it is after.
T is the number of rows of a pass, row t of the pass is of some sequence; a decode row is the only row of its sequence in the pass; n is a key's
position in its sequence. All act in every attention or recurrent layer, so that the first wrong stage is of layer 0."""

KEY = {
    # In every run that batches.
    "z01": {
        "stage": "L00.q_rope and L00.k_rope", "sequences": "all but the first of a pass",
        "law": "rows are rotated to (position of the pass's first row) + t: positions run on over the whole pass, in place of each row's own position",
        "when": "any pass with rows of several sequences; the first sequence of the pass is right",
        "after": "Megatron-LM 453 (RoPE ignores position ids), unsloth 3699 (one cache_position for all sequences)"},
    "z03": {
        "stage": "L00.attn_context", "sequences": "all but the first of a pass",
        "law": "values are read through the block table of the first row of a tile of four rows of the pass (row t / 4 * 4) in place of the row's own: "
               "the values are those of another sequence (beyond that sequence's end, the table runs over into the next one)",
        "when": "rows whose tile of four begins in another sequence; keys are read right",
        "after": "candle 3582 (right for row 0 alone), composable_kernel 3128 (the sequence of a block of queries is to be searched for)"},
    "z07": {
        "stage": "L00.attn_context", "sequences": "any",
        "law": "split-KV: the keys are halved (the first half has ceil(seen / 2)), the context of each half is normalised by its own weights, and the two "
               "are averaged equally, in place of by their sums of weights (log sums)",
        "when": "decode rows; rows of a prefill are right",
        "after": "flashinfer 50 and 58 (no, or a wrong, log sum of a split)"},
    "z08": {
        "stage": "L00.attn_weights", "sequences": "those that are longer than the first of the pass",
        "law": "keys from n = 16 ceil(length of the pass's first sequence / 16) on are not attended to (weight 0), the softmax is over the others",
        "when": "several sequences in a pass, of which a later one is longer than the first, rounded up to 16",
        "after": "aprender 2030 (the number of chunks of keys is that of another length)"},
    "z11": {
        "stage": "L00.attn_scores", "sequences": "any",
        "law": "keys of a q8_0 cache are read with the scale of the first token of their page of 16 tokens (same block of 32 elements), in place of their own scale",
        "when": "always, with keys in blocks; the first key of each page is right",
        "after": "composable_kernel 3696, aiter 1975 (scales of a page)"},
    "z12": {
        "stage": "L00.k_cache and L00.v_cache", "sequences": "any",
        "law": "rows are quantised with the scale that the first row of the pass has in the same block of 32 elements, codes clamped to -127..127",
        "when": "always, with a cache in q8_0; the first row of each pass is right",
        "after": "TileOPs 1268 (k_scale[0] for all)"},
    "z13": {
        "stage": "L00.router_weights", "sequences": "any",
        "law": "the weights (probabilities) of the chosen experts stand in the order of lines sorted by expert (stable), in place of the order of tokens: entry i of the "
               "pass's [T, k] weights, flat, is that of the i-th line in that order; the experts' outputs are in the order of tokens",
        "when": "always",
        "after": "vllm 14568 (permute and unpermute of experts' rows), TransformerEngine 1336"},
    "z14": {
        "stage": "L00.expert_gate (then expert_up and expert_down)", "sequences": "any",
        "law": "of the lines of one expert in a pass the first eight alone are computed; the others are 0",
        "when": "passes in which an expert has more than eight lines (those of several sequences together)",
        "after": "VeOmni 1025 (a bound of the rows of an expert that is too low)"},
    "z15": {
        "stage": "L00.delta_state (and L00.delta_out)", "sequences": "all but the first of a pass",
        "law": "the recurrent state before the rows is the state that the sequence before it in the pass ends with in this pass, in place of the sequence's own",
        "when": "any pass with rows of several sequences",
        "after": "torchtitan 3892 (states go on over the bounds of packed samples), vllm 40766 (the state of another request)"},
    "z16": {
        "stage": "L00.conv_out", "sequences": "all but the first of a pass",
        "law": "the convolution's rows before the first of a sequence are the rows before it in the pass, of the sequence before it (as far as the pass goes back), in "
               "place of the sequence's own last three rows (or zeros)",
        "when": "the first three rows of a sequence in a pass with rows of several sequences; the state that is kept is right",
        "after": "causal-conv1d 75 (no initial states with packed sequences), onnxruntime 32168"},
    "z17": {
        "stage": "L00.delta_state (the state after the pass alone: L00.delta_out of the same pass is right)", "sequences": "any",
        "law": "the state after a pass lacks the decay of its short last chunk: it is multiplied by e^(-sum of the log decays of the last T' mod 8 rows), T' the "
               "sequence's rows in the pass",
        "when": "passes with several rows of the sequence, their number no multiple of 8; decode rows are right, but go on from a wrong state",
        "after": "sparkinfer 604 (the last chunk's log gate is read as 0 where the chunk is short), transformers 46873"},
    "z20": {
        "stage": "L00.attn_context", "sequences": "any",
        "law": "heads are written in the order of [heads of a group, KV heads] in place of [KV heads, heads of a group]: head h stands at h mod 3 * 2 + h / 3 "
               "(6 heads, 2 KV heads): 0, 2, 4, 1, 3, 5; heads 0 and 5 are right",
        "when": "passes of decode rows alone, of two sequences or more",
        "after": "pytorch 186434 (the swap of groups and queries of one query's attention)"},
    # Under a condition.
    "z02": {
        "stage": "L00.attn_weights", "sequences": "any",
        "law": "row i of a sequence's rows in the pass attends to keys 0..i alone, as if the pass began at position 0: the mask lacks the offset of the cached context",
        "when": "a sequence has several rows in a pass and tokens before it (a later part of a prefill); decode rows are right",
        "after": "sparkinfer 3, hyprstream 1521"},
    "z04": {
        "stage": "L00.k_cache and L00.v_cache", "sequences": "the one that has slot 0: sequence 0, its position 0",
        "law": "a captured graph of decode steps is padded to a power of two rows; the padding rows repeat the pass's last row and are written to slot 0: the row of position 0 "
               "of sequence 0 becomes the row of the last row of the pass (the newest token of the last sequence, sequence 2)",
        "when": "passes of decode rows alone whose number of rows is no power of two (3 rows here); from then on the row stays wrong",
        "after": "rvllm 32 (padding uses the live slot 0), vllm 43810"},
    "z05": {
        "stage": "L00.attn_scores (and L00.attn_context)", "sequences": "any",
        "law": "the newest key and value are read from the slot of the token 16 before: the block table has no entry of the new page yet, and names the page before",
        "when": "decode rows at the first token of a page: position a multiple of 16, from 16 on; the key n = position alone",
        "after": "nano-vllm-v1 3 (stale block pointers), TensorRT-LLM 13124"},
    "z06": {
        "stage": "L00.attn_weights", "sequences": "any",
        "law": "the last page is not attended to: its length is taken as length mod 16, which is 0 where it is full; the last 16 keys have weight 0, the softmax is over the "
               "others (all weights are 0 at length 16)",
        "when": "decode rows whose sequence then has a multiple of 16 tokens: positions 15, 31, ...",
        "after": "pegainfer 291 (pages and the length of the last one disagree at a page's edge)"},
    "z09": {
        "stage": "L00.attn_scores (and L00.attn_context)", "sequences": "the one that began with a shared prefix",
        "law": "the keys and values from the end of the shared prefix to the end of its block of eight tokens (n = 13, 14, 15 here) are read from the slots of the sequence that "
               "gave the prefix, as far as that has such tokens, in place of the sequence's own: the block that is shared in part is shared whole",
        "when": "a sequence began with the prefix of the pass's first sequence, and the prefix is no multiple of 8 tokens",
        "after": "atlas 1193 and 692 (a partly filled block is shared without a copy on write)"},
    "z10": {
        "stage": "L00.attn_weights", "sequences": "all of the pass",
        "law": "cascade attention: the softmax over the common prefix (n < 12) and the softmax over the rest are merged by exp of log sums, of which that of the prefix is to base 2 "
               "(ln / ln 2) and that of the rest natural: the shares of prefix and rest are wrong, the weights within each part are right to each other",
        "when": "all sequences of a pass have a common prefix in the same slots (warm prefix), several sequences",
        "after": "sglang 40903, vllm 52796"},
    "z18": {
        "stage": "L00.conv_state (the window after the pass)", "sequences": "any",
        "law": "a chunk shorter than the window of three rows does not shift the rows that stay: after two rows the oldest row of the window is the old oldest one, in place of "
               "the old newest one",
        "when": "passes with two rows of a sequence exactly; the convolution of the next pass is then wrong",
        "after": "vllm 56196, flash-linear-attention 1141"},
    "z19": {
        "stage": "L00.q_rope and L00.k_rope", "sequences": "any",
        "law": "the rows of a draft after its first are rotated to position + 1",
        "when": "a sequence has 2 to 8 rows in a pass and tokens before it (a draft that is verified); the first of these rows is right",
        "after": "sglang 25015 (positions are raised before the draft's step)"},
}
