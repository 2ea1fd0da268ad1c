"""The answer key of the fifty-seventh round, written and committed before qdiff had judged any of the bugs.

Of each bug: the first wrong stage and layer, what the engine does instead, when it does, the report it is after. T is the length of the
prompt, n a key, t a row of a pass, i an element. All indices count from 0."""

KEY = {
    # Always.
    "v01": (
        "embed",
        "Q5_1 is unpacked as if the two nibbles of a byte stood side by side: element e of a block of 32 has the nibble of element (e mod 2) 16 + e"
        " / 2 (byte e / 2, low for even e, high for odd e), and the fifth bit of element e itself. All q5_1 matrices, from the embedding on",
        "always",
        "aprender 1623 and 1656 (Q5_0 and Q5_1 emitted in interleaved order)",
    ),
    "v02": (
        "L00.attn_norm",
        "RMSNorm rounds x scale to bf16 (nearest, ties to even) before it is multiplied with the weight in f32. All norms, those of heads too",
        "always",
        "TransformerEngine 1132, transformers 33133, vllm-xpu-kernels 536",
    ),
    "v03": (
        "L00.q_biased",
        "the bias goes along the wrong axis: row t of a pass has b[t mod n] added to all its elements, in the place of b[i] to element i. q, k and "
        "v",
        "always (where t = i it is right)",
        "xla 46897, cutlass 3540 (bias epilogue applied along the wrong axis)",
    ),
    "v04": (
        "L01.q_rope",
        "RoPE pairs element i with i + d/2 (d = 64, the head's width) for i + rotated/2 (rotated = 32); frequencies are right. So of each head "
        "0..15 and 32..47 are rotated and 16..31 stay. q_rope and k_rope of L01 and L03",
        "always (position 0 is right)",
        "pie 602 and 603",
    ),
    "v05": (
        "L00.k_cache",
        "the cache's bf16 is cut off (toward zero) in the place of nearest even. The same in v_cache",
        "always",
        "1bit-MONSTER 640, tt-metal 19882, stillwater-sc/universal 1134",
    ),
    "v06": (
        "L00.attn_weights",
        "the softmax of attention has an additional score of 0 in its denominator (softmax-one, a sink of zero): w = e^s / (1 + sum e^s), s the "
        "scaled scores; the rows add to less than 1",
        "always",
        "TransformerEngine 2225 (off-by-one softmax), rocm-libraries 12229 (sinks), sgl-kernel-npu 216",
    ),
    "v07": (
        "L00.attn_out",
        "the output projection sums over the first 256 (the residual's width) of its 384 = H d columns: heads 4 and 5 are not multiplied. Rows are "
        "read at their right places",
        "always",
        "entrenar 262, gpt-neox 1434, rapid_llm 15 (head_dim heads != hidden_size)",
    ),
    "v08": (
        "L00.ffn_act",
        "SiLU by a fast tanh: x (1 + c) / 2 u with c = y (1 + 0.1834 y^2) clamped to -1..1, y = x / 2",
        "always",
        "1bit-MONSTER 1350",
    ),
    "v09": (
        "L00.router_shares",
        "the chosen probabilities go through a second softmax: share_j = e^(p_j) / sum e^(p) over the chosen, for p_j / sum p",
        "always",
        "transformers 45120 (double softmax), mlxcel 391, Megatron-LM 955",
    ),
    "v10": (
        "L00.shared_weight",
        "the shared expert's gate has no sigmoid: its weight is the raw score",
        "always",
        "lmdeploy 3491, torchtitan 36 (NousResearch)",
    ),
    "v11": (
        "L00.delta_state (or delta_out)",
        "the delta rule reads the state before it decays: delta = beta (v - M k) with M of before, then M <- e^g M + delta k",
        "always (the first token is right: the state is zero)",
        "flash-linear-attention 885 (forget before error)",
    ),
    "v12": (
        "L00.delta_softplus",
        "dt_bias is read in the order of grouped heads: value head h of 4 has the bias of head (h mod 2) 2 + h / 2; heads 1 and 2 have each "
        "other's. L00, L02",
        "always, in heads 1 and 2",
        "mlx-lm 1792 (dt_bias per head), llama.cpp 19468 (order of V heads)",
    ),
    # Only under a condition.
    "v13": (
        "L00.attn_scores",
        "the product of query and key goes over d / 32 whole groups of 32 elements: of a head of 80 the last 16 (64..79) are not multiplied",
        "in the last partial tile of a head (d = 80)",
        "FasterTransformer 89 (size_per_head 80), mlc-llm 1889, tt-metal 33434",
    ),
    "v14": (
        "logits",
        "the last partial tile of 32 rows of a matrix is 0: V = 359, so the logits of 352..358 are 0. All other matrices have whole tiles",
        "in ids 352..358",
        "pypto-lib 970 and 437 (floor of the vocabulary's tiles)",
    ),
    "v15": (
        "L00.attn_weights of decode step 1",
        "the number of shares of keys that are put together is rounded down, max(keys / share, 1): the last partial share is dropped from the "
        "softmax and the context; scores are right. Two shares: 151 keys are 76 + 75, and keys 76..150 have weight 0, the others are the softmax of"
        " 0..75 alone; 152 keys are 76 + 76, and step 2 is right; in step 3 keys 77..152 of 153 are dropped",
        "in decode steps whose keys are no multiple of the share (of 64 at least): here steps 1 and 3",
        "tilelang 2010 (floor of num_split drops the remainder)",
    ),
    "v16": (
        "L00.attn_context",
        "the loop over four keys at a time has a tail that takes its first key alone: of the last (seen mod 4) keys of a row the second and third "
        "are not summed",
        "in rows that see 4m + 2 or 4m + 3 keys: positions 1, 2, 5, 6, ...",
        "tails of unrolled loops: aiter 2567, tilelang-ascend 890",
    ),
    "v17": (
        "L00.attn_weights of the pass 21..32",
        "the causal mask of a later pass of several tokens counts from the pass's first row: row t sees the keys 0..t for 0..first + t. Decode "
        "steps are right",
        "in later parts of a prompt",
        "sparkinfer 14 (closes 3), flashinfer 348",
    ),
    "v18": (
        "L00.expert_gate",
        "only the first 16 rows of an expert in a pass (in the order of tokens, and of choices within a token) are multiplied; later ones are 0. "
        "expert_gate, expert_up, expert_down",
        "for tokens that come after 16 rows of their expert, in passes of many tokens",
        "one tile of rows of a grouped product: PaddleFleet 282, llama.cpp's rows per expert (FIELD)",
    ),
    "v19": (
        "L00.k_cache of the pass 21..32",
        "a pass of several tokens writes its rows from the start of the page on, (first / 16) 16 for first: token 21 goes to slot 16 and so on, "
        "16..20 are overwritten, 28..32 stay unwritten (0); the pass 33..39 writes 32..38. The same in v_cache; decode writes its own slot",
        "in later parts of a prompt that begin within a page",
        "tt-metal 55630, pypto-lib 160 (prefill writes from index 0)",
    ),
    "v20": (
        "L00.conv_state of decode step 1",
        "a decode step does not shift the convolution's state: the two older rows stay and the newest is replaced by this token's. From step 2 on "
        "conv_out has the wrong rows. L00 and L02",
        "in decode steps (the fused kernel)",
        "transformers 45707, vllm-ascend 8561, attention-gym 323",
    ),
}
