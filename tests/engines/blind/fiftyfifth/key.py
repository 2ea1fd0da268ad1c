"""The answer key of the fifty-fifth round, written and committed before qdiff had judged any of the bugs.

Of each bug: the first wrong stage and layer, what the engine does instead, when it does, the report it is after. T is the length of the
prompt, n a key, t a row of a pass, i an element. All indices count from 0."""

KEY = {
    # Always.
    "v01": ("L00.q_proj", "the fifth bit of the weights 16..31 of a Q5_1 block is bit i - 4 of the 32 (12..27) for bit i: ggml's (qh >> (j + 12)), "
            "which wants & 0x10 without a shift, is shifted left again. All q5_1 matrices; the embedding is q8_0 and right",
            "always, in columns 16..31 of each 32 of the input", "kind: kekzl imp 722 and aprender 2127 (places of nibbles and fifth bits)"),
    "v02": ("L00.attn_norm", "the sum of squares of a row of 288 leaves out the last 16 elements of each half (128..143 and 272..287): a partial warp's sum "
            "is not read; it is still divided by 288. Every norm of rows of 288 (attn_norm, ffn_norm, final_norm)",
            "always", "flashinfer 3879 (blockReduceSumV2, a block of 5 and a half warps)"),
    "v03": ("L00.q_rope", "the magnitude of YaRN, 1 + 0.1 ln 4 = 1.13863, goes through the formula once more: sine and cosine are multiplied with "
            "0.1 * 1.13863 * ln 4 + 1 = 1.15785. q_rope and k_rope, all layers", "always", "TensorRT-LLM 16379 (the log applied twice)"),
    "v04": ("L00.k_cache", "a cache of f8_e5m2 is written with the bits of f8_e4m3 (rounded to the nearest, ties to even, saturated at 448) and read as "
            "e5m2: 1 becomes 0.5, 2 stays 2, 3.5 becomes 6, 0.25 becomes 0.03125. The same in v_cache", "always", "vllm 54341"),
    "v05": ("L00.attn_context", "the weights of a row are rounded to 8-bit integers before they meet the values: with m the largest weight of the row, "
            "w counts as rint(127 w / m) / 127 * m. attn_weights are right", "always (rows of one key are right)",
            "kind: SageAttention's P in INT8 with the scale 1/127"),
    "v06": ("L00.router_shares", "the chosen probabilities are divided by the root of the sum of their squares (the L2 norm) for their sum", "always",
            "megablocks 87 (torch.norm with p of the chosen weights)"),
    "v07": ("L00.conv_out", "the weights of the convolution are read as [taps, channels] for [channels, taps]: tap j of channel c is element "
            "j * 512 + c of the flat tensor, a reshape for a transposition. All recurrent layers", "always", "1bit-MONSTER 572 (conv1d weight reshape)"),
    "v08": ("L00.ffn_act", "the activation is that of gpt-oss without its clamps: gate * sigmoid(1.702 gate) * (up + 1) for gate * sigmoid(gate) * up",
            "always", "tt-metal 43152 (the constants of gpt-oss are hard-coded)"),
    "v09": ("L01.q_half", "the product of queries and gates is split flat for per head: q is its first 256 columns, the gate its last 256 (right: "
            "of each 128 columns of a head the first 64 and the last 64). q_half and gate_half of the attention layers, L01 and L03; column 0..63 "
            "of q_half and 192..255 of gate_half are right", "always", "FIELD: query and gate split flat instead of per head"),
    "v10": ("L01.index_scores", "the indexer's key of a block is rotated in adjacent pairs (2i, 2i + 1) for halves (i, i + 16), of the 32 rotated "
            "elements; index_q is rotated right", "always (the block that begins at position 0 is right)", "sglang 13495, vllm 28968, vllm-ascend 7341"),
    "v11": ("L00.delta_beta", "beta is 2 sigmoid(b) for sigmoid(b): allow_neg_eigval of a model that has none. All recurrent layers", "always", "fla 919"),
    "v12": ("logits", "the head's product is made in bf16: weights and the normed hidden state are rounded to bf16 (nearest even), summed in f32, and the "
            "logit is rounded to bf16. The embedding and all other products are right", "always", "open-instruct 1387, prime-rl 2438"),
    # Only under a condition.
    "v13": ("embed", "ids are clamped to the vocabulary without its three special tokens: ids 356, 357 and 358 read row 355",
            "for the tokens 356, 357, 358 (in the haiku: positions 0, 31, 33)", "inseq 306, mempalace 2171, vllm 35937 (ids past vocab_size are clamped)"),
    "v14": ("L00.attn_scores", "Qwen1's logn attention in a model that has none: with p a query's position, its scores are multiplied with "
            "ln(p + 1) / ln(128) where p + 1 > 128", "in rows of positions from 128 on, decode steps too", "vllm 36880, 44136, TensorRT-LLM 836"),
    "v15": ("L00.attn_weights, in the second and third pass", "the causal mask is aligned to the upper left corner: row t of a pass of several tokens "
            "sees the keys 0..t of the cache for 0..first + t; other weights are 0. Decode (one token) is right",
            "in later passes of several tokens: positions 21..32 and 33..39", "sparkinfer 3, executorch 21749, onnx 8068"),
    "v16": ("L00.attn_weights", "the denominator of softmax has the padding of the last tile of 32 keys too, with the score 0: for a row of s keys "
            "exp(-m) is added (ceil(s / 32) * 32 - s) times, m the largest scaled score; so the weights do not add up to 1",
            "in rows whose number of keys is no multiple of 32 (right: position 31)", "tt-metal 6832 (tile padding in softmax), llama.cpp 29034"),
    "v17": ("L00.delta_state of the prompt", "after a pass whose length is no multiple of 32 the state that is kept is the right one without the decay of "
            "its last, partial chunk: S * exp(-sum of g over the tokens from floor(T / 32) * 32 on) for each head (tokens 32, 33, 34 here). delta_out "
            "of the pass is right; decode steps begin with the wrong state and are right for it", "in the state after a pass of several tokens, T % 32 > 0",
            "sparkinfer 604 (G_last of a short final chunk is 0)"),
    "v18": ("L00.v_biased at decode step 1", "v has the bias of k: an offset of one part in a fused QKV bias. q and k are right; the prompt is right",
            "in decode steps (the fused kernel)", "kind: offsets of add_QKV_bias (DeepLearningExamples 664)"),
    "v19": ("L00.expert_gate", "an expert takes no more than ceil(3 T / 8), at least 4, of a pass's (token, choice) lines, in their order; of lines beyond, "
            "expert_gate, expert_up and expert_down are zero. 14 lines in the haiku; a decode step loses none",
            "for tokens beyond the capacity of a crowded expert", "DeepSpeed 6809 (drop_tokens, eval_capacity_factor), vllm-ascend 14926 (zero outputs)"),
    "v20": ("L00.attn_context of decode step 1", "where the keys are in more than one share (from 65 keys on), each share's sum of weighted values, "
            "relative to the share's largest score and not divided by its total, is rounded to bf16 before the shares are put together. 3 shares of "
            "64 keys here (151 keys). attn_weights are right", "in decode steps of more than 64 keys (the fused kernel)", "flashinfer 5107"),
}
