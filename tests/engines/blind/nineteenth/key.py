"""The answer key: of each bug the first stage that is wrong, the law of what the kernels compute, and when it holds. Prints itself."""

KEY = {
    "c01": ("embed", "row of token id i is taken from element 256 i of the table on instead of 320 i (stride of 8 groups of 32 instead of 10): y[t, j] = W_flat[256 token[t] + j]",
            "all tokens (id 0 apart), prompt and decode steps"),
    "c02": ("L00.attn_norm", "y = w x / sqrt((sum of x_i^2 over i < 256) / 288 + eps): the last 32 of 288 elements are left out of the sum of squares, and the mean still divides by 288; these elements are scaled like the others",
            "all tokens; all norms of 288 elements (attn_norm, ffn_norm, final_norm); the norms of heads, of 64, are right"),
    "c03": ("L00.q_proj", "Q5_K: the fifth bit of a weight of groups 4 to 7 of a block of 256 is that of the weight 128 before it (bit j & 3 instead of bit j of the high byte)",
            "all tokens; all products with Q5_K matrices, inputs i with i mod 256 >= 128; the F16 embedding is right"),
    "c04": ("L00.q_proj", "all products: x is cut to bf16 before it is multiplied (the lower 16 bits of its float are zeroed: towards zero, not to the nearest); weights and sums are right",
            "all tokens, all products with a matrix, the head also"),
    "c05": ("L00.q_rope", "plane i of 32 is turned by position * frequency[i mod 16] instead of frequency[i]",
            "q and k, planes 16 to 31 (elements 16 to 31 and 48 to 63 of a head); position 0 is right; all passes"),
    "c06": ("L00.ffn_act", "g / (1 + exp(-|g|)) * u instead of g / (1 + exp(-g)) * u: SiLU of a negative gate takes the sigmoid of |g|",
            "elements whose gate is negative, all tokens"),
    "c07": ("L00.k_cache", "q8_0 cache: codes are cut towards zero instead of rounded to the nearest: code = trunc(127 x / max|x|)",
            "keys and values, all rows, prompt and decode steps (codes whose fraction is below a half are right)"),
    "c08": ("L00.v_cache", "q5_0 cache: the scale of a block of 32 is that of the largest magnitude of its first 16 elements: d = m / -16; codes min(31, trunc(x / d + 16.5)), of which the lower 5 bits are kept",
            "blocks of values whose largest magnitude is among the last 16; keys (f16) are right; all rows"),
    "c09": ("L00.attn_context", "of the keys below 4 floor(seen / 4) those with n mod 4 = 3 are left out, and those with n mod 4 = 2 count twice; the remaining keys count once: sum[2] in the place of sum[3]",
            "tokens from position 3 on, all passes (seen = position + 1)"),
    "c10": ("L00.attn_scores", "score = sum of q_i k_i over i with i mod 32 < 16 alone: the shuffle goes over 16 lanes; elements 16 to 31 and 48 to 63 of a head are left out",
            "all scores, all tokens"),
    "c11": ("L00.router_shares", "share_j = w_j / (w_0 + ... + w_(k-2)): the last of the 3 chosen weights is left out of the total",
            "all tokens"),
    "c12": ("L00.delta_state", "delta = beta (v - M k) with the state before its decay; then M <- e^g M + delta k^T as it should be: the dot product with k takes the state before the decay",
            "all tokens but the first (the state is zero then); prompt and decode steps"),
    "f01": ("step1 L00.q_proj", "Q6_K in a decode step: weights 16 to 31 of each group of 32 are scaled by the scale of the weights 0 to 15 of that group",
            "decode steps alone; all products with Q6_K (q, k, v, attn_out, gate, up, down, head); prompt right, embedding right"),
    "f02": ("L00.q_proj", "Q5_0: the weights of every odd block of 32 are scaled by the scale of the even block before it",
            "the prompt's passes alone (products of many tokens); all matrices, the head of the prompt also; inputs i with i / 32 odd; decode steps right"),
    "f03": ("L00.attn_weights", "weights and context are divided by t_0 + t_1, the sums of the weights of two halves of the keys (n mod 64 < 32, and the others), each relative to the largest score of its own half, instead of both relative to the largest of all: w = e^(s - m) / (sum_0 e^(s - m_0) + sum_1 e^(s - m_1))",
            "the prompt, tokens from position 32 on (before, the second half is empty); decode steps right"),
    "f04": ("L00.q_normed", "elements 32 to 63 of a head are multiplied with the norm's weights 0 to 31 instead of 32 to 63",
            "q and k, the prompt alone; decode steps right"),
    "f05": ("step1 L01.attn_residual", "attn_residual = L00.attn_residual + (product of ffn_down of the layer before over its inputs 0 to 191 alone) + attn_out: the second half of ffn_down's inputs is not in the residual stream that attention's result is added to; the layer_out that is tapped and normed is right",
            "decode steps alone, layers from 1 on"),
    "f06": ("step1 L00.expert_up", "up of the r-th chosen expert is made with the matrix of expert r (0, 1, 2: the place in the choice) instead of the chosen expert's",
            "decode steps alone; right where the r-th chosen expert is expert r; expert_gate and expert_down right"),
    "f07": ("step1 L00.conv_state", "the window does not move: rows 0 and 1 stay what they were, and row 2 becomes the new product, instead of rows 1, 2, new; from the second decode step on conv_out is wrong by it",
            "decode steps alone, all delta layers; the prompt right"),
    "f08": ("step1 logits", "logits o with (o / 16) odd are never written (no number on this card, whose fresh memory holds none)",
            "decode steps alone; the prompt's logits and final_norm right"),
}

if __name__ == "__main__":
    from bugs import BUGS, MODELS
    for b in BUGS:
        (file, old, new), = b["changes"]
        stage, law, when = KEY[b["name"]]
        print(f"== {b['name']}  {b['subject']}  {b['run']}\nmodel  {MODELS[b['model']]}\nfirst  {stage}\nlaw    {law}\nwhen   {when}\n{file}:\n- {old}\n+ {new}\n")
