"""The key of the thirty-first round, frozen before qdiff judged any bug: of each bug the stage where it first shows, the rule, and when it acts.

12 act always, 8 under a condition (p08 p09 p10 p12 p13 p14 p16 p18)."""

KEY = {
    "p01": ("embed",
            "A vocabulary-parallel table: a rank looks up the ids of other ranks at its own row 0, and this row is not set to zero before the ranks are added. "
            "Each embedding is the right row plus the first row of the other half: plus row 179 of the table for ids below 179, plus row 0 for ids of 179 and more.",
            "always"),
    "p02": ("L00.q_normed (and k_normed)",
            "The norm of heads is taken over the whole row, not over each head: the mean of squares is over all heads of the token. The weight is right.",
            "always; queries and keys"),
    "p03": ("L00.q_biased (and k_biased)",
            "The biases of queries and keys are permuted as a converter permutes the rows of Llama's matrices: within a head of D, element 2i of the added bias is element i of "
            "the file's, element 2i+1 is element D/2+i. The matrices are not permuted; the bias of values is right.",
            "always; queries and keys"),
    "p04": ("L01.ffn_down",
            "Q5_K: the masks of the fifth bit do not move on: in each block of 256, all four groups of 64 take their fifth bits from bits 0 and 1 of the bytes of high bits, "
            "not from bits 2g and 2g+1.",
            "always; the one matrix in Q5_K"),
    "p05": ("L00.attn_out",
            "IQ4_NL: a typing error in the table of values: code 3 stands for -56, not -65.",
            "always; the one matrix in IQ4_NL"),
    "p06": ("L00.q_rope (and k_rope)",
            "YaRN: the ramp between interpolated and kept frequencies is computed from the extended context length (2048), not from the original one (512). "
            "Factor and magnitude are right.",
            "always"),
    "p07": ("L00.attn_norm",
            "The sum of squares of every RMS norm is a tree of halves that drops the odd element: with a width of 192 = 3 * 64, the columns 2, 5, 8 ... (2 mod 3) are not in the sum. "
            "It is still divided by 192.",
            "always; attn_norm, ffn_norm, final_norm"),
    "p08": ("L00.q_rope",
            "Queries are rotated by their place in the pass, not by their position: the number of cached tokens is not added. Keys are right.",
            "passes after the first: later parts of the prompt and decode steps"),
    "p09": ("L00.k_cache (and v_cache)",
            "The slots of a pass are counted on from the slot of its first token, without the block table: rows beyond the page (16 tokens) in which the pass began go to a page "
            "of somebody else. Those rows of the caches are never written, and stay zero.",
            "rows of a pass from the next multiple of 16 positions after its first token on"),
    "p10": ("L00.k_cache (and v_cache)",
            "The Q8_0 cache: the kernel that appends a row at a decode step cuts the codes towards zero; that of the prompt rounds them to the nearest. The scales are right.",
            "decode steps"),
    "p11": ("L00.attn_weights",
            "Scores are scaled by 1 / sqrt(width / heads) = 1/8; the heads are 96 wide, and the right scale is 1 / sqrt(96).",
            "always"),
    "p12": ("L02.attn_weights",
            "A sliding window of 32 keys that the model switches off is applied: keys at 32 and more positions before the query are hidden, in layers from 2 of 4 on.",
            "layers 2 and 3, positions of 32 and more"),
    "p13": ("L00.attn_context",
            "Decode cuts the keys into parts of 16 and merges the parts' averages with the weights exp(m - max m) alone: the sum of exponentials of each part is left out of its weight. "
            "Scores and weights are right.",
            "decode steps (with more than 16 keys)"),
    "p14": ("L00.attn_scores (and attn_context)",
            "6 query heads share 2 heads of keys and values, three each. Blocks of two query heads load the keys and values of their first head: query head 3 reads KV head 0, not 1.",
            "query head 3"),
    "p15": ("L00.ffn_gate (and ffn_up)",
            "The fused product of gate and up has the gate in its first half of columns; the engine takes the even columns as the gate and the odd ones as up.",
            "always"),
    "p16": ("L00.ffn_down",
            "Tiles of 8 rows: the last tile is moved back so that it is whole, and adds its rows a second time: rows that the tile before had are twice as large.",
            "passes of more than 8 rows whose number is not a multiple of 8: rows n-8 .. n - n%8 - 1, which is 37..39 of 45"),
    "p17": ("L00.router_weights",
            "The router's softmax is over the chosen experts alone, and so their weights add up to 1; qwen2moe takes the probabilities among all experts.",
            "always"),
    "p18": ("L00.expert_gate (and expert_up, expert_down)",
            "Lines (choices of experts) are sorted by expert and computed in blocks of 4 lines, and the lines of an expert are not filled up to whole blocks: a block takes the matrix of the expert of "
            "its first line for all its lines. So a line whose block begins with a line of another expert gets this expert's matrix.",
            "lines of a block that begins with another expert"),
    "p19": ("L00.delta_out",
            "The chunked delta net (chunks of 16): what tokens of the same chunk wrote is read without the decay between them: a plain causal mask instead of one with decay. "
            "The state and what comes from before the chunk are right.",
            "always in passes of several tokens; the first token of a chunk is right"),
    "p20": ("logits",
            "The output matrix goes in blocks of 8 rows; the rows left over are read from the beginning of the matrix: the logits of ids 352..358 are those of ids 0..6.",
            "always; ids 352..358"),
}
