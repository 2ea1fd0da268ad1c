"""The answer key of the fifty-third round, written and committed before qdiff had judged any of the bugs.

Of each bug: the first wrong stage and layer, what the engine does instead, when it does, the report it is after. T is the length of the
prompt, n a key, t a row of a pass, i an element, o a row of a matrix. All indices count from 0."""

KEY = {
    # Always.
    "y01": ("embed (L00.q_proj is wrong too, and every other product)", "the fifth bits of a Q5_0 block are read in interleaved order: the weights i "
            "of a block's first half have bit 2i for i, those of its second half (16 + i) bit 2i + 1 for 16 + i; the nibbles are right. All "
            "matrices are q5_0, the embedding too", "always (weights 0 and 31 of a block are right)", "aprender 1656, 1623, 1621"),
    "y02": ("L00.q_proj", "the 12 bytes of scales of a Q4_K block are read as eight consecutive entries of 12 bits, scale in the lower 6 bits, "
            "minimum in the upper 6, for ggml's split packing. All q4_K matrices; the embedding is q8_0 and right",
            "always (the scale of group 0 alone is right)", "trueno 182, aprender 2141"),
    "y03": ("L00.attn_norm", "the RMS norm divides the row by its largest |x| before it adds epsilon and multiplies back: it has eps max|x|^2 for eps: "
            "w x / sqrt(mean(x^2) + eps max|x|^2). All norms: also q_normed, k_normed, ffn_norm, final_norm", "always", "coremltools 2822, 2821"),
    "y04": ("L00.q_biased", "the bias is added to the first 8 of every 64 columns only (the first chunk of each tile is loaded), the other 56 get none; "
            "the same in k_biased and v_biased (a head has 64 columns)", "always, in columns i mod 64 >= 8", "mirage 397 (bias chunks: row = i, col = 0)"),
    "y05": ("L00.q_rope", "YaRN's attention factor m = 1 + 0.1 ln 4 is applied twice: cosine and sine have m^2 = 1.2965 for m = 1.1386; so has k_rope",
            "always", "sglang 33558 (mscale squared), TensorRT-LLM 16379"),
    "y06": ("L00.k_cache", "a q8_0 block of the cache is made with codes truncated toward zero for rounded to nearest (127 x / amax); v_cache too",
            "always (elements whose code has a fraction of a half and more)", "vllm 45361"),
    "y07": ("L00.attn_weights", "the softmax scale has YaRN's factor m^2, m = 1 + 0.1 ln 8 = 1.2079, though cosine and sine have it too: "
            "softmax(1.4591 s / sqrt(d))", "always (rows of one key are right)", "xinfer 329"),
    "y08": ("L00.attn_scores", "a head has 256 elements; the scores sum elements 0..127 only, and elements 128..255 of each head's context are never "
            "made: zero (L00.attn_context)", "always", "lattice 1549, sparkinfer 425"),
    "y09": ("L00.delta_proj (the product with ssm_out)",
            "6 value heads of 2 key heads: the projection takes the heads of its input in grouped order for tiled order: the columns of head j of the "
            "matrix meet head (j mod 3) 2 + j / 3 of the input: heads 0, 2, 4, 1, 3, 5 for 0..5 (0 and 5 are right). L00 and L02",
            "always", "llama.cpp 19468 (order of V heads, out_proj's columns too)"),
    "y10": ("L00.ffn_act", "the activation is GPT-OSS's: g sigmoid(1.702 g) (u + 1) for g sigmoid(g) u, with g at most 7 and |u| at most 7",
            "always", "tt-metal 43152 (GPT-OSS constants whatever the config says)"),
    "y11": ("L00.router_shares", "the shares of the chosen experts are the softmax of their probabilities, e^p / sum e^p, for p / sum p", "always",
            "1bit-MONSTER 2090 (SOFTMAX_WEIGHT re-softmaxes the chosen weights)"),
    "y12": ("L00.delta_state (written with delta_out; the one that qdiff has first)", "the delta rule takes its error from the state before its "
            "decay: delta = beta (v - M k), M <- e^g M + delta k, for M <- e^g M first", "always (the first token is right: the state is zero)", "fla 885"),
    # Only under a condition.
    "y13": ("L00.delta_gated at decode step 1", "the delta net's output is gated by sigmoid(z) for silu(z) = z sigmoid(z), in the fused kernel of "
            "decode steps; the prompt is right. L00 and L02", "in decode steps", "atlas 753, 754 (GDN's gated norm: sigmoid or SiLU), sglang 37639"),
    "y14": ("L00.conv_state of the prompt (or L00.conv_out at decode step 1)", "the kernel of passes of several tokens keeps the convolution's state "
            "channel by channel, [channels, 3], the one of decode steps reads and moves it row by row, [3, channels]: the first decode steps have a "
            "scrambled history, until three tokens have been shifted in. All recurrent layers, L00 and L02",
            "in the state that a prompt leaves, and in decode steps 1, 2 and 3", "Arcaine 10"),
    "y15": ("L00.attn_scores at decode step 1 (the newest key has no score, dumped as 0)", "the keys are shared out to blocks by "
            "floor(keys / blocks) for ceiling: what remains is dropped, here with 2 blocks the newest key where there are 151 or 153; it has "
            "weight 0, the others are a softmax without it", "in decode steps with an odd number of keys above 128 (steps 1 and 3; step 2 is right)",
            "tilelang 2010 (cur_seqlen_k // num_split drops the remainder)"),
    "y16": ("L00.attn_weights at decode step 1", "the keys that pad the last tile of 64 count with score 0 in the softmax's denominator: sum e^(s - max) + "
            "pad e^(0 - max), pad = -keys mod 64; weights sum to less than 1, the padding's share has no value. The prompt is right",
            "in decode steps whose number of keys is no multiple of 64", "flashinfer 5090, hw-native-sys/simpler 72 and 91"),
    "y17": ("logits", "the last partial tile of 64 rows of a product is not computed: 359 rows have 5 whole tiles, logits 320..358 are 0; all other "
            "matrices have whole tiles", "in the last partial tile", "pypto-lib 437, 970 (floor of the vocabulary's tiles)"),
    "y18": ("L00.router_experts, rows from 16 on", "the router makes the first 16 rows of a pass only: the other rows have expert 0 four times "
            "with weight 0 (router_experts and router_weights stay zero), so that they get nothing from the experts; all layers. Decode is right",
            "in rows from 16 on of a pass", "mirage 764, 740"),
    "y19": ("L00.attn_weights of the second pass (positions 21..32)", "the causal mask is aligned to the upper left: row t of a later pass of several "
            "tokens sees the keys n <= t of its own pass's count for n <= first + t: softmax over keys 0..t. The first pass and decode are right",
            "in later passes of several tokens", "sparkinfer 3, executorch 21749, onnx 8068"),
    "y20": ("L00.k_cache", "the last row of each block of 128 positions is never written in a pass of several tokens: rows 127 and 255 of k_cache and "
            "v_cache stay as they were (zero), in all layers and later steps", "at positions 127 and 255", "vllm-hpu-extension 94"),
}
