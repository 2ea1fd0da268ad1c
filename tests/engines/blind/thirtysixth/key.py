"""The key, committed before any verdict was seen: the stage where each bug is first wrong, the rule, the condition, the source."""

OWN = "own experience"
KEY = {
    "q4k-min-high-bits": ("embed", "In Q4_K the two high bits of the minimum of groups 4..7 are read from the byte of the scale (j - 4), not from that of the minimum (j): "
                          "wrong minima in all Q4_K matrices, the embedding too", "always", "paiml/aprender 2141 (6-bit scales of Q4_K mis-decoded)"),
    "partial-rope-pairs": ("q_rope", "Partial rotation (32 of 64) pairs element i with i + head_dim / 2 = i + 32 instead of i + 16, so other elements are rotated", "always (position 0 is right)", "kekzl/imp 30"),
    "router-raw-logits": ("router_weights", "The weights of the chosen experts are the router's logits, without softmax", "always", "sgl-project/sglang 35160"),
    "yarn-mscale-squared": ("q_rope", "YaRN's magnitude factor 1 + 0.1 ln 4 is applied squared to queries and keys", "always", "FIELD.md, RoPE: mscale squared"),
    "shared-gate-after-sum": ("ffn_out", "The gate of the shared expert multiplies the sum of the routed and the shared experts, not the shared expert alone (shared_out is not dumped)", "always",
                              "FIELD.md, shared expert: gate applied after the sum"),
    "norm-after-rope": ("q_normed", "The head norms of Qwen3 come after the rotation instead of before it", "always", "meta-pytorch/torchtune 2866, 2867"),
    "gate-before-norm": ("delta_gated", "Delta net: the gate silu(z) multiplies before the norm (Mamba2's order) instead of after it: norm(out * silu(z)) * w (delta_normed is not dumped)", "always",
                         "ml-explore/mlx 2602 (gate_before_norm for qwen3next); llama.cpp 16095"),
    "tied-head-requantised": ("logits", "The tied output matrix is quantised again to Q4_0 when it is loaded; the embedding stays F16", "always", "mlx-examples 566, transformers 37905, auto-round 102"),
    "bias-order": ("k_biased", "The fused bias is concatenated as q, v, k: keys get the bias of values, values that of keys", "always", "Fused QKV bias: TensorRT-LLM 1637, ServiceNow/Fast-LLM 398; " + OWN),
    "flat-gate-split": ("q_half", "Gated attention: queries and gates are split flat (first half, second half) instead of per head", "always", "FIELD.md, gated attention"),
    "scale-of-width": ("attn_weights", "Attention's scale is 1 / sqrt(width / heads) = 1 / 8 instead of 1 / sqrt(head_dim = 128)", "always (position 0 is right)", "notorch 86 (head_dim derived as embed / heads)"),
    "head-floor-grid": ("logits", "The output matrix's product launches floor(rows / 8) blocks: the last 7 of 359 logits are never computed, zero", "always (vocabulary not divisible by 8)", "ml-explore/mlx 4250"),
    "fresh-keys-unrotated": ("attn_scores", "In passes of several tokens attention takes the keys of this pass unrotated; the cache gets the rotated ones", "passes of the prompt (n > 1)",
                             "kvcache-ai/sglang 31, ktransformers 1959"),
    "mask-top-left": ("attn_weights", "The causal mask ignores the cached prefix: in a later part row i sees keys 0..i instead of 0..first + i", "parts of the prompt after the first",
                      "huggingface/candle 3743, flashinfer 348"),
    "decode-tail-zeros": ("attn_context", "At decode the last tile of 16 keys is filled up with zero keys that are not masked: each has score 0 and counts in the softmax's sum", "decode, number of keys not divisible by 16",
                          "flashinfer 5090, hw-native-sys/simpler 72"),
    "rope-table-64": ("q_rope", "The table of cos and sin has 64 positions: later positions are rotated as position 63", "positions from 64 on", "pegainfer 253 (and index clamping of gathers)"),
    "conv-window-zeroed": ("conv_out", "The window of the convolution is zero at the start of each later part of the prompt", "parts of the prompt after the first: their first 3 tokens",
                           "FIELD.md, delta net: state zeroed at later windows; vllm 23279"),
    "state-bf16": ("delta_state", "The delta net's state is rounded to bf16 at the end of each pass", "seen by the passes after the first; the state itself always", "FIELD.md, delta net: state written as bf16"),
    "slots-from-part": ("k_cache", "The slot in the page comes from the token's index in the part, not from its position: a later part that does not begin at a page's edge writes to wrong slots",
                        "parts after the first whose start is not divisible by 16", "vllm 36580"),
    "expert-index-of-group": ("expert_gate", "A block takes the matrix of the n-th expert that has tokens, not of the expert itself: wrong if an expert before it got no token", "passes where some expert gets no token (decode)",
                              "sgl-kernel-xpu 295, TensorRT-LLM 15155; " + OWN),
}
