"""What was planted: for each bug the first wrong stage and layer, the law, when it acts, and the report that it is after. w01 to w12 act always."""

KEY = {
    "w01": (
        "embed, then each product with a q3_K matrix, every layer",
        "q3_K: the sixteen scales are read as four bits minus 8; the upper two bits of each, and the offset of 32, are left out",
        "always, all matrices",
        "aprender 2115 (Q3_K scales unpacked as 4-bit with -8)"),
    "w02": (
        "k_cache and v_cache, L00",
        "pages are read two at a time: the second page of each pair is taken from behind the first in memory, not from the block table; positions p"
        " with p // 16 odd are read from a page of somebody else (zeros)",
        "always, positions 16 to 31, 48 to 63, …; what is written is right",
        "pypto 470 (two blocks read as neighbours, without a look at the block table)"),
    "w03": (
        "q_rope and k_rope, L00",
        "YaRN: cosine and sine are multiplied by the square of 1 + 0.1 ln factor",
        "always",
        "sglang 33558 (mscale applied twice)"),
    "w04": (
        "attn_norm, L00",
        "all norms of rows (attention, FFN, final): the row is divided by its largest magnitude m before the mean of squares, and epsilon is added "
        "to the rescaled mean: x / sqrt(mean(x²) + eps·m²)",
        "always",
        "coremltools 2822"),
    "w05": (
        "q_biased, k_biased, v_biased, L00",
        "the bias of the fused product lies as q, k, v, but is read group by group: for each head of keys its query heads, then k, then v",
        "always",
        "NeMo-RL 2802 (naive concatenation read as Megatron's layout by groups)"),
    "w06": (
        "attn_out, L00",
        "stream-k without fix-up: 5 tiles of 64 columns with 6 steps of 64 are shared out over 4 blocks; a tile that two blocks share keeps the "
        "later block's part alone. Columns 64 to 127 lack the products with context columns 0 to 63, columns 128 to 191 those with 0 to 191, "
        "columns 192 to 255 those with 0 to 255",
        "always",
        "llama.cpp 17089"),
    "w07": (
        "ffn_act, L00",
        "SiLU with 0.5 + 0.5 clip(y (1 + 0.1834 y²), -1, 1), y = x/2, for the sigmoid",
        "always",
        "1bit-MONSTER 1350"),
    "w08": (
        "attn_weights, L00",
        "with YaRN the scale of the scores is multiplied by (1 + 0.1 ln factor)² although cosine and sine have the factor already",
        "always",
        "xinfer 329 (YaRN put into the attention scale of all models)"),
    "w09": (
        "router_weights, L00",
        "the weights of the chosen experts are the sigmoids of their logits, not their probabilities; then they are divided by their sum as always",
        "always",
        "vLLM-metax 270 (topk_softmax / topk_sigmoid take the wrong branch for the weights)"),
    "w10": (
        "k_cache and v_cache, L00",
        "a q8_0 cache: codes are truncated toward zero instead of rounded to nearest",
        "always, with a q8_0 cache",
        "vllm 45361"),
    "w11": (
        "delta_softplus, L00",
        "dt_bias is added after the softplus: softplus(a) + dt_bias",
        "always, the layers with a delta net",
        "state-spaces/mamba 281 (dt = softplus(dt) + dt_bias?)"),
    "w12": (
        "q_rope and k_rope, L01",
        "partial rotation by the head's width: frequencies base^(-2i/head_dim), pairs (i, i + head_dim/2), i below rotary_dim/2",
        "always (positions above 0)",
        "pie 602"),
    "w13": (
        "embed",
        "the table is cut over two ranks at 179 of 359 rows, but ids are cut at 192 (359 filled up to 384): ids 179 to 191 give zeros, an id from "
        "192 on gives row id - 13",
        "tokens with an id of 179 and more",
        "vllm 20843 (padding of ids and of the table differ)"),
    "w14": (
        "logits",
        "the rest behind whole blocks of 8 rows (7 rows, 352 to 358) reads the last 8 rows from their first on: logit 352 + r is that of row 351 + "
        "r",
        "the last partial block: ids 352 to 358",
        "tails of tiles that are shifted back (tilelang-ascend 1341 is the same in K)"),
    "w15": (
        "conv_act, L00",
        "no SiLU after the convolution",
        "decode steps (passes of one token)",
        "sgl-kernel-npu 449, mamba 816 (activation lost between convolution kernels)"),
    "w16": (
        "delta_out, L00",
        "within a chunk of 16 tokens the read of what earlier tokens of the chunk wrote is not decayed: a plain causal mask in place of exp(g_i - "
        "g_j); the state is right",
        "passes of several tokens; decode steps are right",
        "GatedDeltaNet 13 and 15, shainet 170"),
    "w17": (
        "attn_scores, L00",
        "decode kernel with tiles of 4 query heads over all heads: of 12 heads, 6 for each head of keys, heads 6 and 7 read keys and values of head"
        " 0 instead of 1",
        "decode steps, heads 6 and 7",
        "FreeToken 177"),
    "w18": (
        "attn_context, L00",
        "the last part of 16 keys is filled up with keys and values of zero that are not masked: each counts with score 0 in the softmax",
        "decode steps whose number of keys is no multiple of 16",
        "flashinfer 5090"),
    "w19": (
        "expert_gate, expert_up, expert_down, L00",
        "experts without tokens are left out of the list of groups, but not out of the weights: a group takes the matrix of the number of non-empty"
        " experts before it",
        "passes in which some expert has no tokens, the experts behind it",
        "skipped experts of zero tokens: torchtitan 1166, DeepGEMM 38"),
    "w20": (
        "attn_weights, L00",
        "the causal mask of a part begins at the start of the part rounded down to a multiple of 8: query i sees keys up to 8 floor(first/8) + i",
        "later parts of several tokens whose first position is no multiple of 8",
        "tt-metal 43165, vllm-tt-plugin 74 (start of a part that is no multiple of the chunk)"),
}
