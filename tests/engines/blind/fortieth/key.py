"""The answer key, committed before the program judged any bug: for each the first wrong stage, what is done instead, when, and the report that it is after."""
KEY = {
 # In every run that batches.
 "empty-splits": (
  "L00.attn_context",
  "A decode step cuts each sequence's keys into splits of 8. The buffers are as long as the most splits of the batch, and the logarithm of the total "
  "of a split that a sequence does not have is 0 where it must be -inf: each missing split counts with the total exp(0) = 1 and the result 0. "
  "The context is the right one times T / (T + n): T is the sum of exp(scaled score) over all keys, n the splits fewer than the longest sequence has.",
  "batched decode steps, the sequences that have fewer splits of 8 keys than the longest one; a head and row each has its own factor",
  "vllm-project/flash-attention 190: the accumulators must begin at -inf and 0, else splits that end early leak into the combination"),
 "expert-rows": (
  "L00.expert_gate and L00.expert_up, and every layer's",
  "Line i of the sorted lines (token i // 2, choice i % 2) gets the row i % n of the n rows of the pass, not the row i // 2. The choice, the shares and the way back are right. "
  "So choice j of token t is computed on the row of token (2 t + j) % n.",
  "every pass with more than one row; in a decode step n is the bucket (1, 2, 4, ...), with its padding rows",
  "sorted ids that must be divided by top_k: foundation-model-stack 217, vllm 16801 (which of the two arrays the id / top_k indexes)"),
 "mixed-newest": (
  "L00.attn_weights of the row",
  "A decode row in a pass with a prefill does not see its own, newest key: its limit is one key too small. The weights of the other keys are larger by the same factor.",
  "passes in which some sequence has several rows: sequences with one row that have earlier tokens (more than a shared prefix)",
  "onnxruntime-genai 2354: lengths of a decode step off by one in the varlen decoder"),
 "mixed-plain-key": (
  "L00.k_cache (k_rope as captured is right)",
  "A decode row in a pass with a prefill writes its key to the cache as it was before RoPE.",
  "passes in which some sequence has several rows: sequences with one row that have earlier tokens. The row stays in the cache",
  "sgl-project/sglang 22868, tokenspeed 281: RoPE fused with the write to the cache, in one of two paths"),
 "write-stride": (
  "L00.k_cache and L00.v_cache",
  "In a decode step the slot that a row is written to is looked up in a table whose rows are 16 pages long, with the pages of the widest sequence as the stride: the entry "
  "at*width + p // 8 of the flat table. The batch stands longest first. For the second place of the batch and later ones this is mostly an empty entry, which is 0: "
  "the row goes to page 0, at the offset p % 8, over a row of the sequence that has page 0. The sequence's own slot stays as it was (zeros, or an earlier row). The table that attention reads by is right.",
  "decode steps of several sequences, all but the longest one; and what they write over in page 0",
  "xLLM-AI/xllm 932: the write to the cache took a sliced table for a contiguous one"),
 "query-grid": (
  "L00.attn_context (weights are right)",
  "The grid of a prefill has as many tiles of 4 queries as the first sequence of the pass needs: query rows of other sequences behind these tiles are not computed, and their context is 0.",
  "passes of several rows a sequence: the rows of later sequences from the row 4 * ceil(rows of the first sequence / 4) of that sequence on",
  "mirage-project/mirage 764: rows past the first block were never visited; the grid by max_seqlen_q, as in TileOPs 2160"),
 "chunk-cumsum": (
  "L00.delta_state and L00.delta_out",
  "The logarithms of the decays are added up over chunks of 8 rows of the pass, without beginning anew at a sequence: a sequence's old state is multiplied by the decays "
  "of the rows of other sequences that stand before it in its first chunk (the rows from a multiple of 8 of the pass to its first row), besides its own.",
  "passes with several rows of a sequence: sequences that have a state and do not begin at a multiple of 8 of the pass, so the second or a later sequence",
  "vllm-ascend 13932: chunk-local cumsum of packed sequences; fla-org/flash-linear-attention 1184"),
 "states-all": (
  "L00.delta_state and L00.delta_out (the convolution is right)",
  "If a sequence of the pass has no earlier token, the delta states of all sequences of the pass begin at zero.",
  "passes in which a sequence begins: the other sequences",
  "sgl-project/sglang-jax 1039, vllm-project/tpu-inference 2574: what says whether there is an initial state"),
 "expert-bound": (
  "L00.expert_gate at the first decode step; in either layer, by what the padding rows choose there",
  "The grid of the experts' product has as many blocks of 4 lines as the real rows need, but padding rows are sorted in too: the last blocks, those of the experts "
  "with the highest numbers, are not computed. Lines in them give 0 in expert_gate, expert_up and expert_down.",
  "decode steps that do not fill their bucket (3 rows of 4), where a padding row's experts need a block more; the lines of the highest experts",
  "alibaba/rtp-llm 1325, sgl-project/sglang-jax 760: padding rows in the routing of experts"),
 "append-offset": (
  "L00.k_cache and L00.v_cache",
  "In the q4_1 cache a decode step writes codes and scales, and not the minimum: the minimum of a block stays what the slot had, 0 in a slot never used. A cached number is code * d without the minimum m.",
  "rows that a decode step wrote",
  "two ways of writing a row, of which one lacks something: sglang 29271; quantised caches of llama.cpp 23044 and 25391"),
 "value-scale": (
  "L00.v_cache",
  "In decode steps values of the f8 cache are read with the scale of the keys of their layer (0.02 and 0.017 for 0.011 and 0.013): all values are too large by that factor.",
  "decode steps, all rows of the cache; a prefill reads them rightly",
  "sgl-project/sglang 24198, sgl-kernel-xpu 252: which scale a path is passed"),
 "graph-lengths": (
  "L00.attn_weights",
  "A captured graph keeps the lengths of the first decode step of its bucket: in later steps the row at place i of the batch attends only to the keys that the place had at the capture; newer keys are not seen.",
  "all decode steps of a bucket but the first",
  "paiml/aprender 2030: lengths baked into a graph that is replayed as the sequence grows"),
 # Under a condition.
 "cascade-pages": (
  "L00.attn_weights of a sequence with a prefix",
  "A shared prefix is attended to in whole pages of 8, rounded up, without a mask: queries of the sequence see later keys, up to the end of the page in which the prefix ends (as far as the sequence has keys).",
  "prefill passes of a sequence with a prefix whose length is no multiple of 8, its queries in that page",
  "vllm-project/vllm 11635: the first kernel of cascade attention has no mask, so that no query may be in the common prefix"),
 "fork-copies": (
  "L00.k_cache and L00.v_cache of the earlier of two sequences that fork a page",
  "Copies on write of a pass are collected by the page that is copied: of two sequences that copy the same page in one pass, only the last copy is made. The earlier one has a new page "
  "without the rows of the prefix that are in it (zeros, or what the page held before).",
  "a pass in which two sequences begin with the same prefix, no multiple of 8: sequence 1 at positions 8..12 (and sequence 3 or 4 likewise later)",
  "a map of copies by the source block, as early paged engines had (no thread found by the search)"),
 "draft-window": (
  "L00.conv_out of the first tokens after a rejection",
  "When drafts are taken back, the convolution's window stays as the rejected tokens left it: the first 3 tokens after it see the inputs of the rejected tokens (the last ones of the sequence) in place of the kept ones. The delta state goes back rightly.",
  "after tokens were taken back",
  "vllm-project/vllm 50272, ekryski/mlx-swift-lm 218: the convolution's state is not rolled back"),
 "page-edge-state": (
  "L00.delta_state and L00.delta_out (the convolution is right)",
  "A decode step of the first token of a page reads the delta state from the new page's row, which is zero (or holds what it had before), and not from the row before it.",
  "decode steps at positions that are multiples of 8",
  "vllm-project/vllm 23941 and 55601: states of pages, at_block_boundary"),
 "half-batches": (
  "L00.attn_weights of the sequence that is cut",
  "A pass of more than 16 rows is cut in two halves. The queries of the first half of the sequence that the cut goes through are aligned to the end of all its keys: they see as many later keys as the sequence has rows in the second half.",
  "prefill passes of more than 16 rows; the sequence across row n // 2, its rows before the cut",
  "vllm-project/vllm 21153, ROCm/ATOM 1142: a request that is split across micro-batches, whose length must be cut too"),
 "graph-writes": (
  "L00.k_cache and L00.v_cache of the sequence that joined",
  "The write to the caches in a captured graph has the row count of the first decode step of its bucket: in a bucket of 4 that was captured with 3 rows, row 3 is not written: the slot stays zero, or what it held.",
  "decode steps with more rows than the first step of the same bucket: sequence 3",
  "xLLM-AI/xllm 1939: metadata of 100 rows in a graph of 112"),
 "left-tokens": (
  "embed",
  "In the first decode step after sequences left the batch, row i is fed the token of the sequence that had row i in the step before (its token of this step, or, if it left, its last one): rows behind a gap are fed their predecessor's token.",
  "the decode step directly after a decode step with more rows",
  "vllm-project/vllm 23569 and 26385: tokens taken from the last step's rows by index"),
 "prefix-layout": (
  "L00.k_cache and L00.v_cache, rows of the shared prefix",
  "A shared prefix is fetched into pages of its own, sent as [heads, tokens, dim] and read as [tokens, heads, dim]: with 8 tokens and 2 heads, token t and head h hold what token (2 t + h) % 8 and head (2 t + h) // 8 of that page should.",
  "sequences that begin with a prefix, the rows of the prefix (and later rows of its last page are right)",
  "LMCache/LMCache 4222 and the HND and NHD layouts of disaggregated prefill"),
}
