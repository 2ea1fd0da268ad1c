"""What was planted: the stage that shows it first, what the engine computes in the place of what it should, when, and the report that it is after.
Frozen before any run of qdiff on a bug."""
KEY = {
    "rope-advanced": (
        "L00.q_rope, every layer",
        "Queries are rotated after the cache has advanced its offset: angle (p + n) f in the place of p f, n the rows that the sequence has in this "
        "pass. Keys are right.",
        "All rows of all passes; n = 1 in decode steps.",
        "ml-explore/mlx-lm 1699 (offset mutated in place by update_and_fetch), 1396",
    ),
    "offset-row0": (
        "L00.attn_weights, every layer",
        "The mask of a prefill pass takes the number of cached tokens of the first sequence of the pass for all its sequences: query i of a sequence "
        "sees keys up to first_of_sequence_0 + i in the place of first_of_its_own + i.",
        "Sequences 1 and 2 in passes 1 and 3 (5+3+9: 7 in the place of 12 and 4; 3+6+1: 13 in the place of 16 and 14). Pass 0 and decode passes are "
        "right.",
        "tenstorrent/tt-xla 5817 (the cached-prefix offset of row 0 for every prefilling row)",
    ),
    "hnd-read": (
        "L00.k_cache and L00.v_cache, every layer",
        "Pages of 8 tokens are written [token, head, element] and read [head, token, element]: with 2 heads, the row of token t of a page, head g, is "
        "what was written at token (8 g + t) div 2, head (8 g + t) mod 2 of the same page (zeros, where nothing was written yet).",
        "All passes, both caches; only token 0 head 0 and token 7 head 1 of a page are right.",
        "vllm-project/vllm 42740 (layout defaults to NHD, kernels expect HND); ROCm/aiter 3347",
    ),
    "scale-head0": (
        "L00.k_cache and L00.v_cache, every layer",
        "Codes of q8_0 are read with the scale of head 0: value = code * d[slot, head 0, block] in the place of d[slot, head, block].",
        "KV head 1, all tokens, both caches. Head 0 is right.",
        "sgl-project/sgl-kernel-xpu 252 (a scale per KV head is read as a single scalar)",
    ),
    "merge-alias": (
        "L00.attn_context, every layer",
        "A shared prefix and the rest are merged in two blocks of 32 elements of a head; the merged log-sum-exp is stored where the prefix's stood, "
        "so the second block takes log(exp(l_prefix) + exp(l_rest)) for l_prefix: the prefix's weight is (P + R) / (P + 2 R) in the place of P / (P + "
        "R), the rest's R / (P + 2 R).",
        "Elements 32..63 of every head; sequences 1 and 2 (which share a prefix) in passes that are not decode passes.",
        "local-inference-lab/vllm 468 (prefix_lse and output_lse alias)",
    ),
    "grid-state": (
        "L00.delta_state and L00.delta_out of sequence 2 at its first pass, layers 0 and 2",
        "A sequence that begins with a cached prefix takes the delta net's state on a grid of 4 tokens that counts the rows of the pass of all "
        "sequences, not those of its source: the state after token count - (row mod 4), here 2 tokens before the end of the prefix. The window of the "
        "convolution is right.",
        "Sequence 2 (prefix of 8 tokens of sequence 1, whose first row was row 6 of its pass: the state after 6 tokens) and sequence 3 (prefix of 12: "
        "the state after 10).",
        "sgl-project/sglang 37836, 33450 (mamba radix cache: per-chunk states indexed as if each request had its own grid)",
    ),
    "state-row": (
        "L00.conv_state (and conv_out) of decode passes, layers 0 and 2, and delta_state, delta_out",
        "In a decode pass, sorted by length, the i-th of the sorted batch goes on from the window and the state of the i-th sequence in the order of "
        "requests. Order 1, 2, 0: sequence 1 goes on from the states of 0, 2 from those of 1, 0 from those of 2.",
        "Decode passes.",
        "vllm-project/vllm 55506 (mamba block tables indexed by batch row in the place of request slot)",
    ),
    "pad-window": (
        "L00.conv_state of sequences 1 and 2 at pass 0, layers 0 and 2",
        "A prefill pads each sequence of the pass with zeros to the longest, and keeps the last 3 inputs of the padded line: the window is the last 3 "
        "of [window before, inputs, longest - n zeros].",
        "Passes that are not decode passes, sequences that are not the longest: all zeros if 3 or more are missing; in pass 2 (5+3+2) sequence 1 "
        "keeps [x_last, 0, 0].",
        "huggingface/transformers 46873 (pad positions update the recurrent state); Blaizzy/mlx-vlm 1571 (rows padded in a batched prefill of "
        "Qwen3.5)",
    ),
    "logits-order": (
        "logits",
        "The head goes over a decode batch sorted by length, and its rows are put back by the permutation in the place of its inverse: row i has the "
        "logits of row perm[perm[i]] (order 1, 2, 0: row 0 has those of row 2, row 1 those of row 0, row 2 those of row 1).",
        "Decode passes of three sequences.",
        "tenstorrent/tt-metal 52808 (slot order against prefill order)",
    ),
    "kernel-block": (
        "pass 0: slots of sequence 1 (the engine dumps slots); L00.k_cache and L00.v_cache of sequence 1, every layer",
        "A prefill computes slots with the block size of the manager (16), the cache has blocks of 8: slot = block * 16 + p mod 8 in the place of "
        "block * 8 + p mod 8. Rows of page b go to page 2 b.",
        "Passes that are not decode passes; page 0 is right. Rows read back are zeros, or those of another page.",
        "vllm-project/vllm-gaudi 1323 (prefill writes with the logical block size, decode reads with the kernel's); vllm-project/vllm 27547",
    ),
    "experts-order": (
        "L00.experts_out, every layer",
        "Lines are sorted by expert, the shares are not: the line that stands at rank r of the sorted lines is multiplied by flat shares[r] (r = t k "
        "+ j of another token or choice) in the place of its own share.",
        "All passes (wherever the order of the sorted lines is not that of the tokens).",
        "vllm-project/vllm-xpu-kernels 66 (expert weight applied wrongly for topk > 1)",
    ),
    "draft-position": (
        "L00.q_rope and L00.k_rope of sequences 0 and 1 after their take-backs, every layer",
        "The device's counter of tokens is not lowered by rejected drafts: after a take-back of r tokens, queries and keys are rotated as at p + r.",
        "Sequence 0 from position 11 on (r = 3), sequence 1 from position 9 on (r = 2).",
        "vllm-project/tpu-inference 2608, vllm-project/vllm-ascend 10032 (positions from optimistic lengths after async speculative decoding)",
    ),
    "rope-clamp": (
        "L00.q_rope and L00.k_rope, every layer",
        "The table of cosines and sines has as many rows as the first pass needs (16: 13 up to whole pages), and a read behind its end gives the last "
        "row: angle min(p, 15) f in the place of p f.",
        "Positions 16 and more.",
        "the kind: a gather in XLA or JAX clamps what is out of bounds (tenstorrent/tt-mlir 9211 describes it)",
    ),
    "stale-tail": (
        "L00.k_cache and L00.v_cache of sequence 3, every layer",
        "Rows that fill a decode batch of 3 up to 4 keep the slot of the last batch of 4: k and v of token 0 at position 0 overwrite the row that "
        "sequence 3 wrote in that batch.",
        "Pass 2 (sequence 3 left out; seen when it goes on in pass 3) at position 5 of sequence 3; pass 4 (sequence 1 left out) at position 6 of "
        "sequence 3, which is in the batch.",
        "SJTU-DENG-Lab/Diffulex 44 (trailing slot_mapping of a larger batch stays); the kind: stale tails of graph buffers",
    ),
    "verify-noncausal": (
        "L00.attn_weights, every layer",
        "Up to 4 queries behind cached tokens are taken for decode rows that see all keys of the sequence: there is no causal mask among them.",
        "Passes in which a sequence with cached tokens has 2 to 4 rows (drafts, and the last passes); its last row is right.",
        "lightseekorg/tokenspeed 217 (verify rows through the decode kernel see later draft positions)",
    ),
    "decode-tile": (
        "L00.attn_weights (and attn_context), every layer",
        "A decode step reads the last page to its end: slots behind the sequence's last token count as keys. They were never written: zeros, score 0, "
        "so exp(0 - max) is added to the sum for each.",
        "Decode passes, lengths that are not divisible by 8.",
        "vllm-project/vllm-xpu-kernels 181 (causal in a decode kernel adds a tile of key positions)",
    ),
    "final-gate": (
        "L00.delta_state, layers 0 and 2",
        "Behind the last chunk of 8 tokens of a prefill the state is built with the logarithm of decay that stands at the chunk's last place, which "
        "is 0 if the chunk is not full: the state kept is the right one times exp(-sum of the decays of the last chunk).",
        "Passes of several rows of a sequence whose number is not divisible by 8; outputs of these passes are right.",
        "gittensor-ai-lab/sparkinfer 604 (g_last read at C - 1 of a short chunk)",
    ),
    "accepted-slot": (
        "L00.conv_out (or conv_state) and L00.delta_state, delta_out of the first pass after a take-back, layers 0 and 2",
        "After a rejected draft a sequence goes on from the window and the state after the first token of its last pass, in the place of those after "
        "the last token that was kept.",
        "Sequence 0: take-back of 2 of 5 (after 10 tokens in the place of 12), of 1 of 4; sequence 1: of 1 of 4.",
        "vllm-project/tpu-inference 3178, 3057; the kind: slot 0 in the place of accepted - 1",
    ),
    "embed-alias": (
        "embed",
        "In a decode batch whose first sequence is not the longest, the row of the first sequence gets the token of the longest (rows swapped through "
        "views).",
        "Decode passes 1, 2 and 4 (sequence 1 is the longest); in pass 6 sequence 0 is the longest and all is right.",
        "vllm-project/vllm 48419 (swap_states swaps views, both rows become the second)",
    ),
    "cow-offset": (
        "L00.v_cache, every layer",
        "A page that is copied before a write takes codes and scales with it, not the offsets (minima) of q4_1: value = code * d in the place of code "
        "* d + m (m is 0 in the new page).",
        "Rows of a shared, half filled page that was copied: sequence 1 positions 8-10, sequence 2 positions 8-12. K (q8_0) is right.",
        "HabanaAI/vllm-hpu-extension 292 (copy_blocks and the scales); FastDeploy 5125",
    ),
}
