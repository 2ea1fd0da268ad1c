"""The answer key of the thirty-second round, committed before any verdict was seen.

For each bug: the stage that is wrong first, the rule, the condition (None: always), and where the kind comes from."""

KEY = {
    "eps": ("L00.attn_norm", "Every RMS norm adds an epsilon of 1e-6, though the file says 1e-5.", None,
            "reports: aprender 1606, FastDeploy 2804, MinivLLM 82 (the other way round)"),
    "norm-in-place": ("L00.attn_residual", "The norm of the first layer writes over its input, so that the residual of layer 0 adds embed * 1/rms(embed), without the norm's weights, and not embed.",
                      "layer 0 alone, as later layers go through the kernel that adds", "report: nano-vllm 170"),
    "kv-tile": ("L00.attn_scores", "Query head h reads key and value head h mod 2 (tiled), and not h div 4 (repeated).", None, "report: jax-js 180"),
    "head-tail": ("logits", "The rows of the output matrix beyond the last whole block of 8 are never computed: the logits of the last 359 mod 8 = 7 ids are 0.", None, "report: mlx 4250"),
    "q3k-scales": ("L00.q_proj (the first product with a matrix in Q3_K; embed too, if the table is Q3_K)", "The reader of Q3_K takes the sixteen scales as four bits of eight bytes, less 8: the upper two bits of each and the offset of 32 are lost.", None,
                   "report: aprender 2115"),
    "tied-head": ("logits", "The logits are computed with token_embd.weight, though the file has output.weight.", None, "reports: pegainfer 544, ComfyUI 15048, 1bit-MONSTER 319"),
    "topk-norm": ("L00.router_weights", "The weights of the chosen experts are divided by their sum, though qwen2moe (norm_topk_prob false) keeps them as they are.", None, "FIELD.md, routing of experts: norm_topk_prob default"),
    "head-dim": ("L00.attn_weights", "Scores are scaled by 1/sqrt(embedding / heads) = 1/8, and not by 1/sqrt(head dimension) = 1/sqrt(128).", None,
                 "own experience; reports on the same assumption: EAGLE 223, TensorRT-LLM 5912"),
    "inv-freq": ("L00.q_rope", "The frequencies of the rotation are rounded to bf16 before they are multiplied by the positions.", "positions from 1 on, naturally", "reports: transformers 29496, NeMo Automodel 2549, Modalities 462"),
    "gate-flat": ("L01.q_half", "The product of query and gate is cut into two flat halves, and not into query and gate within each head.", None, "FIELD.md, gated attention"),
    "odd-sum": ("L00.attn_norm", "The tree that sums the squares of a row halves the count downwards, so that at an odd count the last partial sum is lost: of 320 columns (320, 160, .., 5) those with index mod 5 = 4 are not summed; "
                "the divisor stays 320. Head norms of 64 columns are right.", None, "reports: RL-Kernel 201 (review), vllm-xpu-kernels 387"),
    "delta-heads": ("L00.delta_out (with delta_state)", "Value head h of the delta net reads the query and key head h div 2 (repeated, as in the safetensors), and not h mod 2 (as the GGUF has them).", None, "report: llama.cpp 25315"),
    "mask-offset": ("L00.attn_weights", "In a part of the prompt after the first, the causal mask has no offset: the query with number i in the part sees keys 0..i and not 0..first+i.", "parts of more than one token with a full cache before them",
                    "reports: hyprstream 1521, sparkinfer 3"),
    "k-tail": ("L00.ffn_down", "The tiled product of the down projection steps over whole tiles of 64 columns: the last 544 mod 64 = 32 columns are left out.", "passes of more than one token", "report: mlx 3912"),
    "short-part": ("L00.conv_state (L00.conv_out of the next part)", "After a part of two tokens the window of the convolution is these two rows with a row of zeros before them: the older row is lost.",
                   "parts of more than one token and less than three", "reports: xllm 1308 (the code under review), vllm 56196"),
    "stale-table": ("L00.k_cache of the next pass (with v_cache)", "At a decode step that needs a new page, the kernels see the table of before: the row goes to page 0, and from the next pass on the row of the page's first position is zero.",
                    "passes of one token whose position is a multiple of 16; seen from the pass after on", "own experience, after nano-vllm 258 and kekzl/imp 1709"),
    "first-scale": ("L00.k_cache (with v_cache)", "At a decode step the reader of the q8_0 cache multiplies all blocks of a head with the scale of the head's first block.", "passes of one token; columns 32.. of each head", "own experience, after FIELD.md, quantised KV: scale not passed"),
    "half-variance": ("L00.ffn_norm", "At a decode step the kernel of sum and norm takes the mean square of the sum rounded to bf16; what it scales is the sum in f32.", "passes of one token", "report: vllm 52151 (issue 52104)"),
    "rope-table": ("L00.q_rope (with k_rope)", "The table of the rotation has original_context_length = 64 rows; positions from 64 on take row 63.", "positions from 64 on", "reports: pegainfer 220 and 253, vllm 55910; here the index is clamped"),
    "moe-grid": ("L00.expert_gate (with expert_up, expert_down)", "The blocks of the experts' products are counted from the tokens' choices and not from the lines after each expert's were filled up to blocks of 4: the last blocks are never computed, and their lines are zero.",
                 "choices whose line is beyond tokens * 3, that is of the experts with the largest numbers", "report: ROCm/vllm 980"),
}
