"""Twenty bugs in qdiff's CUDA kernels: models, commands and changes of kernel sources. key.py is the answer key."""

MODELS = {
    "320": "--arch qwen3 --weights Q8_0 --embedding 320 --heads 4 --kv-heads 2 --head-dim 64 --ffn 384 --seed 301",
    "q4k": "--arch qwen3 --weights Q4_K --heads 4 --kv-heads 2 --head-dim 64 --seed 302",
    "q6k": "--arch qwen3 --weights Q4_K --tensor output.weight=Q6_K --heads 4 --kv-heads 2 --head-dim 64 --seed 303",
    "mx4": "--arch qwen3 --weights MXFP4 --heads 4 --kv-heads 2 --head-dim 64 --ffn 384 --seed 304",
    "moe2": "--arch qwen2moe --weights Q8_0 --heads 4 --kv-heads 2 --head-dim 64 --set expert_count=10 --set expert_used_count=4 --seed 305",
    "q50": "--arch qwen2 --weights Q5_0 --heads 4 --kv-heads 2 --head-dim 64 --ffn 384 --seed 306",
    "q3": "--arch qwen3 --weights Q8_0 --heads 4 --kv-heads 2 --head-dim 64 --ffn 384 --seed 307",
    "next": "--arch qwen3next --weights Q8_0 --seed 308",
    "yarn": "--arch qwen3 --weights Q8_0 --heads 4 --kv-heads 2 --head-dim 64 --ffn 384 --set rope.scaling.type=yarn "
    "--set rope.scaling.factor=4.0 --set rope.scaling.original_context_length=128 --seed 309",
    "q2": "--arch qwen2 --weights Q8_0 --heads 4 --kv-heads 2 --head-dim 64 --ffn 384 --seed 310",
    "128": "--arch qwen3 --weights Q8_0 --heads 4 --kv-heads 2 --head-dim 128 --ffn 384 --seed 313",
    "f16": "--arch qwen2 --weights F16 --heads 4 --kv-heads 2 --head-dim 64 --ffn 384 --seed 314",
    "six": "--arch qwen3 --weights Q8_0 --heads 6 --kv-heads 2 --head-dim 64 --ffn 384 --seed 315",
    "odd": "--arch qwen3 --weights Q8_0 --heads 4 --kv-heads 2 --head-dim 64 --ffn 352 --seed 316",
    "moe": "--arch qwen3moe --weights Q8_0 --heads 4 --kv-heads 2 --head-dim 64 --set expert_count=40 --set expert_used_count=6 --seed 317",
    "q35": "--arch qwen35 --weights Q8_0 --seed 318",
}
BUGS = []


def bug(name, subject, model, run, *changes):
    BUGS.append(dict(name=name, subject=subject, model=model, run=run, changes=list(changes)))


# Norms.
bug("o01", "cuda", "320", "--prompt haiku --length 27 -n 3",
    ("reduce.cuh", "for (int i = 1; i < (int)(blockDim.x / 32); i++) r = combine(r, partial[i]);",
     "for (int i = 1; i < min((int)(blockDim.x / 32), 4); i++) r = combine(r, partial[i]);"))
# Products of block formats.
bug("o02", "cuda", "q4k", "--prompt haiku --length 25 -n 3",
    ("blocks.cuh", "return j < 4 ? mid & 63 : (top >> 4) | ((mid >> 6) << 4);",
     "return j < 4 ? mid & 63 : (top >> 4) | ((head_byte(head, 4 + (j & 3)) >> 6) << 4);"))
bug("o03", "cuda-fast", "q6k", "--prompt haiku --length 26 -n 4",
    ("fused/tile.cuh", "return (int)(signed char)(held.scales[r][i / 4] >> (8 * (i % 4)));",
     "return (int)(held.scales[r][i / 4] >> (8 * (i % 4)) & 255);"))
bug("o04", "cuda-fast", "mx4", "--prompt haiku --length 29 -n 3",
    ("fused/digits.cuh", "        // What is no number has no rest.\n        v = (bits & 0x7f800000u) == 0x7f800000u ? 0.0f : v - __uint_as_float(bits);",
     "        v = 0.0f;"))
bug("o05", "cuda", "moe2", "--prompt haiku --length 22 -n 3",
    ("expert_linear.cu", "    float sum = 0.0f;\n    if (expert >= 0) {\n",
     "    float sum = 0.0f;\n    Weights w = p.w;\n    if (expert >= 0) {\n        w.plane[1] -= 2 * (size_t)expert * p.m * groups;\n"),
    ("expert_linear.cu", "Format::load(p.w, first + g)", "Format::load(w, first + g)"))
# Biases.
bug("o06", "cuda", "q50", "--prompt haiku --length 28 -n 3",
    ("bias.cu", "p.y[i] = p.x[i] + p.b[i % p.n];", "p.y[i] = p.x[i] + p.b[i % p.n / 4 * 4];"))
# RoPE: plain, partial, YaRN.
bug("o07", "cuda", "q3", "--prompt haiku --length 280 -n 2",
    ("rope.cu", "    float s, c;\n    sincosf((float)p.batch.position(p.first, t) * p.frequency[i], &s, &c);",
     "    float s, c;\n    unsigned at_position = __float_as_uint((float)p.batch.position(p.first, t));\n"
     "    at_position = (at_position + 0x7fffu + (at_position >> 16 & 1)) & 0xffff0000u;\n"
     "    sincosf(__uint_as_float(at_position) * p.frequency[i], &s, &c);"))
bug("o08", "cuda", "next", "--prompt haiku --length 24 -n 3",
    ("rope.cu", "sincosf((float)p.batch.position(p.first, t) * p.frequency[i], &s, &c);",
     "sincosf((float)p.batch.position(p.first, t) * powf(p.frequency[i], (float)p.rotated / (float)p.d), &s, &c);"))
bug("o09", "cuda", "yarn", "--prompt haiku --length 30 -n 3",
    ("rope.cu", "s *= p.magnitude, c *= p.magnitude;", "c *= p.magnitude;"))
# Caches and block tables.
bug("o10", "cuda", "q2", "--prompt haiku --length 26 -n 3 --kv-type q4_0",
    ("kv_types.cuh", "return (codes[i] & 15) | (codes[i + 16] & 15) << 4;", "return (codes[2 * i] & 15) | (codes[2 * i + 1] & 15) << 4;"))
bug("o11", "cuda", "q3", "--prompt haiku --length 25 -n 3 --kv-type q8_0",
    ("kv_types.cuh", "const float most = fabsf(kv_largest(x)), inverse = most == 0.0f ? 0.0f : 127.0f / most;\n        to.words[0] = KvF16::put(most / 127.0f);",
     "const float scale = fmaxf(fabsf(kv_largest(x)) / 127.0f, 1.0f), inverse = 1.0f / scale;\n        to.words[0] = KvF16::put(scale);"))
bug("o12", "cuda", "q3", "--prompt haiku --length 35 --sequences 10+14,6+5 --reference none",
    ("attn_context.cu", "p.batch.slot(t, n)", "p.batch.slot(t / 4 * 4, n)"))
# Masks, online softmax, and what splits leave.
bug("o13", "cuda-fast", "128", "--prompt haiku --length 70 --ubatch 40 -n 2",
    ("prefill/attention_rows.cu", "                    const bool visible = n <= last && t < p.tokens;\n                    float &v",
     "                    const bool seen = n <= last || tile + 1 < walked, visible = seen && t < p.tokens;\n                    float &v"),
    ("prefill/attention_rows.cu", "v = n <= last ? __fmul_rn(v, p.scale)", "v = seen ? __fmul_rn(v, p.scale)"),
    ("prefill/attention_rows.cu", "                    const bool visible = n <= last && t < p.tokens;\n                    w[e] =",
     "                    const bool visible = (n <= last || tile + 1 < walked) && t < p.tokens;\n                    w[e] ="),
    ("prefill/attention_rows.cu", "const bool visible = n <= p.first + token[r];",
     "const bool visible = n <= p.first + token[r] || n / KEYS + 1 < walked;"))
bug("o14", "cuda-fast", "f16", "--prompt haiku --length 85 -n 4 --kv-type f16",
    ("fused/attn_out.cu", "factor[k] = expf(measure[k].x - most);", "factor[k] = exp2f(measure[k].x - most);"))
# Heads that share keys and values.
bug("o15", "cuda", "six", "--prompt haiku --length 21 -n 3",
    ("attn_scores.cu", "h / (p.heads / p.kv_heads)) * p.d", "(h & ~1) / (p.heads / p.kv_heads)) * p.d"),
    ("attn_context.cu", "const int kv = h / (p.heads / p.kv_heads);", "const int kv = (h & ~1) / (p.heads / p.kv_heads);"))
# Feed-forward networks.
bug("o16", "cuda-fast", "odd", "--prompt haiku --length 20 -n 5",
    ("fused/half_linear.cu", "Span{p.first, all - p.first, all};", "Span{all / 2, all - all / 2, all};"))
# Experts.
bug("o17", "cuda", "moe", "--prompt haiku --length 24 -n 3",
    ("top_k.cu", "    for (int i = threadIdx.x; i < p.n; i += blockDim.x) {",
     "    const int of_lane = p.n > 32 ? p.n / 32 : 1, n = min(32 * of_lane, p.n);\n    for (int i = threadIdx.x; i < n; i += blockDim.x) {"),
    ("top_k.cu", "for (int j = 0; j < p.n; j++) {", "for (int j = 0; j < n; j++) {"))
# Delta nets and gated attention.
bug("o18", "cuda", "q35", "--prompt haiku --length 21 -n 4",
    ("window.cu", "from < p.rows ? p.before[from * p.n + c]", "from < p.rows ? p.before[r * p.n + c]"))
bug("o19", "cuda", "q35", "--prompt haiku --length 23 -n 3",
    ("delta_net.cu", "expf(p.g[at])", "expf(p.g[(size_t)h * p.tokens + t])"))
bug("o20", "cuda", "q35", "--prompt haiku --length 26 -n 3",
    ("columns.cu", "    p.y[at] = p.x[(size_t)r * p.n + p.first",
     "    const int row = p.first > 0 && p.stride == 2 * p.run ? p.n / 2 : p.n;\n    p.y[at] = p.x[(size_t)r * row + p.first"))
