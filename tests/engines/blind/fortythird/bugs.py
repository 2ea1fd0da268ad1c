"""20 bugs in qdiff's CUDA kernels, as patches of their source: (file, old text, new text). key.py says what each is and after what."""

MODELS = {
    "q6k": "--arch qwen3 --weights q6_K --tensor token_embd.weight=q8_0 --heads 4 --kv-heads 2 --head-dim 64 --seed 71",
    "q3": "--arch qwen3 --heads 4 --kv-heads 2 --head-dim 64 --seed 72",
    "six": "--arch qwen3 --heads 6 --kv-heads 2 --head-dim 64 --seed 73",
    "q35": "--arch qwen35 --layers 4 --seed 74",
    "moe": "--arch qwen3moe --set expert_count=8 --set expert_used_count=3 --seed 75",
    "moe4": "--arch qwen3moe --set expert_count=12 --set expert_used_count=4 --seed 76",
    "q2": "--arch qwen2 --seed 77",
    "q5k": "--arch qwen2 --weights q5_K --tensor token_embd.weight=q8_0 --seed 78",
    "odd": "--arch qwen2 --ffn 608 --seed 79",
}

BUGS = []


def bug(name, model, subject, run, *changes):
    BUGS.append({"name": name, "model": model, "subject": subject, "run": run, "changes": list(changes)})


HAIKU = "-p haiku -n 2"
BF16 = "[](float v) { const unsigned b = __float_as_uint(v); return __uint_as_float((b + 0x7fffu + (b >> 16 & 1)) & 0xffff0000u); }"

# Always.
bug("z01", "q6k", "cuda", HAIKU,
    ("blocks.cuh", "__fmul_rn(d, (float)(signed char)(r.scales & 255))", "__fmul_rn(d, (float)(u8)(r.scales & 255))"),
    ("blocks.cuh", "__fmul_rn(d, (float)(signed char)(r.scales >> 8))", "__fmul_rn(d, (float)(u8)(r.scales >> 8))"))
bug("z02", "q3", "cuda", HAIKU,
    ("attn_weights.cu", "const float e = expf(s[n] * p.scale - largest);", "const float e = exp2f(s[n] * p.scale - largest);"))
bug("z03", "six", "cuda", HAIKU,
    ("attn_scores.cu", "slot * p.kv_heads + h / (p.heads / p.kv_heads)",
     "slot * p.kv_heads + [&] { int group = 1; while (group < p.heads / p.kv_heads) group *= 2; return h / group; }()"))
bug("z04", "q35", "cuda", HAIKU,
    ("delta_net.cu", "const float delta = (p.v[at * p.d + j] - sum_of_warp(dot)) * p.beta[at];",
     "const float delta = p.v[at * p.d + j] * p.beta[at] - sum_of_warp(dot);"))
bug("z05", "q35", "cuda", HAIKU,
    ("delta_net.cu", "h % p.key_heads) * p.d", "h / (p.heads / p.key_heads)) * p.d"))
bug("z06", "moe", "cuda", HAIKU,
    ("weighted_sum.cu", "for (int j = 0; j < p.terms; j++) sum = fmaf(w[j], x[(size_t)j * p.n], sum);",
     "for (int j = 0; j + 1 < p.terms; j += 2) sum = fmaf(w[j + 1], x[(size_t)(j + 1) * p.n], fmaf(w[j], x[(size_t)j * p.n], sum));"))
bug("z07", "moe4", "cuda", HAIKU,
    ("row_shares.cu", "p.y[i] = p.x[i] / fmaxf(total, 6.103515625e-5f);",
     "const auto bf16 = " + BF16 + ";\n    p.y[i] = bf16(p.x[i] / fmaxf(total, 6.103515625e-5f));"))
bug("z08", "q3", "cuda", HAIKU + " --kv-type f8_e4m3 --reference none",
    ("kv_types.cuh", "const unsigned code = size < SMALLEST ? (unsigned)__float2int_rn(fabsf(v) * STEPS) : rounded;",
     "const unsigned code = size < SMALLEST ? 0 : rounded;"))
bug("z09", "q3", "cuda", HAIKU + " --kv-type q4_0",
    ("kv_types.cuh", "const float scale = kv_largest(x) / -(float)HALF, inverse", "const float scale = fabsf(kv_largest(x)) / (float)(HALF - 1), inverse"))
bug("z10", "q3", "cuda", HAIKU,
    ("attn_context.cu", "sum[j] = fmaf(w[n + j], Kv::get(v[at(n + j)]), sum[j]);",
     "sum[j] = KvF16::get(KvF16::put(fmaf(w[n + j], Kv::get(v[at(n + j)]), sum[j])));"),
    ("attn_context.cu", "sum[0] = fmaf(w[n], Kv::get(v[at(n)]), sum[0]);", "sum[0] = KvF16::get(KvF16::put(fmaf(w[n], Kv::get(v[at(n)]), sum[0])));"))
bug("z11", "q35", "cuda", HAIKU,
    ("rope.cu", "p.batch.position(p.first, t) * p.frequency[i], &s, &c);",
     "p.batch.position(p.first, t) * powf(p.frequency[i], (float)p.rotated / (float)p.d), &s, &c);"))
bug("z12", "q35", "cuda", HAIKU,
    ("softplus.cu", "const float z = p.x[i] + p.b[i % p.n];", "const float z = p.x[i] + p.b[i % p.n] + p.b[i % p.n];"))

# Only under a condition.
bug("z13", "q5k", "cuda", HAIKU,
    ("blocks.cuh", "i % 16) >> j) & 1) << 4;\n            out[i] = __fsub_rn", "i % 16) >> (j & ~1)) & 1) << 4;\n            out[i] = __fsub_rn"))
bug("z14", "q2", "cuda", "--prompt long --length 290 -n 2",
    ("rope.cu", "sincosf((float)p.batch.position(p.first, t) * p.frequency[i], &s, &c);",
     "const auto bf16 = " + BF16 + ";\n    sincosf(bf16((float)p.batch.position(p.first, t)) * p.frequency[i], &s, &c);"))
bug("z15", "q35", "cuda", "--prompt long --length 25 --passes 14,2,9 -n 2",
    ("window.cu", "from < p.rows ? p.before[from * p.n + c] :", "from < p.rows ? (p.tokens > 1 ? 0.0f : p.before[from * p.n + c]) :"))
bug("z16", "odd", "cuda", HAIKU,
    ("linear.cu", "lane = threadIdx.x % 32, groups = p.n / 32;", "lane = threadIdx.x % 32, groups = p.n / 32, ends = groups / 2 * 2;"),
    ("linear.cu", "for (int g = lane; g < groups; g += 32) {", "for (int g = lane; g < ends; g += 32) {"))
bug("z17", "q3", "cuda", "--prompt long --length 40 --passes 21,12,7 -n 2",
    ("attn_weights.cu", "    largest = reduce_max(largest);", "    const int missed = p.tokens > 1 ? p.first / 16 * 16 : p.first;\n    largest = reduce_max(largest);"),
    ("attn_weights.cu", "const float e = expf(s[n] * p.scale - largest);",
     "const float e = n >= missed && n < p.first ? 0.0f : expf(s[n] * p.scale - largest);"))
bug("z18", "q2", "cuda", "--prompt long --length 30 -n 5",
    ("kv_cache.cu", "[p.batch.element(p.first, p.width, i)] =",
     "[p.batch.element(p.tokens == 1 && p.first > 0 && p.first % 16 == 0 ? p.first - 1 : p.first, p.width, i)] ="))
bug("z19", "q3", "cuda-fast", "--prompt long --length 150 -n 2",
    ("fused/attention.cu", "const float less = expf(before - most);", "const float less = exp2f(before - most);"))
bug("z20", "q2", "cuda-fast", HAIKU,
    ("fused/attn_qkv.cu", "if (bias) bias_a = bias[a_at], bias_b = bias[b_at];",
     "if (bias && part < 2) bias_a = bias[head * D + 2 * i], bias_b = bias[head * D + 2 * i + 1];\n        else if (bias) bias_a = bias[a_at], bias_b = bias[b_at];"))
