"""20 bugs in qdiff's CUDA kernels, as patches of their source: (file, old text, new text). key.py says what each is and after what."""

MODELS = {
    "q51": "--arch qwen2 --weights q5_1 --seed 571",
    "q3": "--arch qwen3 --heads 4 --kv-heads 2 --head-dim 64 --seed 572",
    "q2": "--arch qwen2 --seed 573",
    "q35": "--arch qwen35 --layers 4 --seed 574",
    "six": "--arch qwen3 --heads 6 --kv-heads 2 --head-dim 64 --seed 575",
    "moe": "--arch qwen3moe --set expert_count=8 --set expert_used_count=3 --seed 576",
    "shared": "--arch qwen2moe --set expert_count=8 --set expert_used_count=2 --seed 577",
    "d80": "--arch qwen2 --embedding 320 --heads 4 --kv-heads 2 --seed 578",
}

BUGS = []


def bug(name, model, subject, run, *changes):
    BUGS.append({"name": name, "model": model, "subject": subject, "run": run, "changes": list(changes)})


HAIKU = "-p haiku -n 2"
BF16 = "[](float v) { const unsigned b = __float_as_uint(v); return __uint_as_float((b + 0x7fffu + (b >> 16 & 1)) & 0xffff0000u); }"

# Always.
bug("v01", "q51", "cuda", HAIKU,
    ("blocks.cuh", "const u32 byte = byte_of(r.q, i % 16);", "const u32 byte = byte_of(r.q, i / 2);"),
    ("blocks.cuh", "u32 q = i < 16 ? byte & 15 : byte >> 4;", "u32 q = i % 2 == 0 ? byte & 15 : byte >> 4;"))
bug("v02", "q3", "cuda", HAIKU,
    ("rms_norm.cu", "for (int i = threadIdx.x; i < p.n; i += blockDim.x) y[i] = x[i] * scale * p.w[i];",
     "const auto bf16 = " + BF16 + ";\n    for (int i = threadIdx.x; i < p.n; i += blockDim.x) y[i] = bf16(x[i] * scale) * p.w[i];"))
bug("v03", "q2", "cuda", HAIKU,
    ("bias.cu", "p.y[i] = p.x[i] + p.b[i % p.n];", "p.y[i] = p.x[i] + p.b[i / p.n % p.n];"))
bug("v04", "q35", "cuda", HAIKU,
    ("rope.cu", "const size_t stays = (size_t)head * p.d + planes + i;",
     "int e = planes + i;\n        if (e >= p.d / 2 && e < p.d / 2 + planes) e += planes - p.d / 2;\n"
     "        const size_t stays = (size_t)head * p.d + e;"),
    ("rope.cu", "2 * i + 1 : i + planes);", "2 * i + 1 : i + p.d / 2);"))
bug("v05", "q3", "cuda", HAIKU + " --kv-type bf16",
    ("kv_types.cuh", "return (Type)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);", "return (Type)(bits >> 16);"))
bug("v06", "q2", "cuda", HAIKU,
    ("attn_weights.cu", "    total = reduce_sum(total);", "    total = reduce_sum(total) + expf(-largest);"))
bug("v07", "six", "cuda", HAIKU,
    ("linear.cu", "for (int g = lane; g < groups; g += 32) {", "for (int g = lane; g < (p.n == 384 ? 8 : groups); g += 32) {"))
bug("v08", "q3", "cuda", HAIKU,
    ("swiglu.cu", "if (i < p.count) p.y[i] = p.gate[i] / (1.0f + expf(-p.gate[i])) * p.up[i];",
     "if (i >= p.count) return;\n    const float half = p.gate[i] * 0.5f, curve = half * (1.0f + 0.1834f * half * half);\n"
     "    p.y[i] = p.gate[i] * (0.5f + 0.5f * fminf(fmaxf(curve, -1.0f), 1.0f)) * p.up[i];"))
bug("v09", "moe", "cuda", HAIKU,
    ("row_shares.cu", "for (int j = 0; j < p.k; j++) total += row[j];", "for (int j = 0; j < p.k; j++) total += expf(row[j]);"),
    ("row_shares.cu", "p.y[i] = p.x[i] / fmaxf(total, 6.103515625e-5f);", "p.y[i] = expf(p.x[i]) / total;"))
bug("v10", "shared", "cuda", HAIKU,
    ("unary.cu", "struct Sigmoid {\n    static __device__ __forceinline__ float of(float x) { return 1.0f / (1.0f + expf(-x)); }",
     "struct Sigmoid {\n    static __device__ __forceinline__ float of(float x) { return x; }"))
bug("v11", "q35", "cuda", HAIKU,
    ("delta_net.cu", "            m[i] *= decay;\n            dot = fmaf(m[i], p.k[key + i], dot);",
     "            dot = fmaf(m[i], p.k[key + i], dot);\n            m[i] *= decay;"))
bug("v12", "q35", "cuda", HAIKU,
    ("softplus.cu", "const float z = p.x[i] + p.b[i % p.n];",
     "const int h = i % p.n, groups = p.n / 2;\n    const float z = p.x[i] + p.b[h % groups * 2 + h / groups];"))

# Only under a condition.
bug("v13", "d80", "cuda", HAIKU,
    ("attn_scores.cu", "for (int i = lane; i < p.d; i += 32) sum", "for (int i = lane; i < p.d / 32 * 32; i += 32) sum"))
bug("v14", "q2", "cuda", HAIKU,
    ("linear.cu", "p.y[(size_t)(first + t) * p.m + o] = s;", "p.y[(size_t)(first + t) * p.m + o] = o < p.m / 32 * 32 ? s : 0.0f;"))
bug("v15", "q3", "cuda-fast", "--prompt long --length 150 -n 3",
    ("fused/shares.cuh", "live = (keys + share - 1) / share;", "live = max(keys / share, 1);"))
bug("v16", "q2", "cuda", HAIKU,
    ("attn_context.cu", "for (; n < seen; n++) sum[0]", "for (; n < seen; n += 4) sum[0]"))
bug("v17", "q3", "cuda", "--prompt long --length 40 --passes 21,12,7 -n 2",
    ("attn_weights.cu", "const int seen = min(p.keys, p.batch.position(p.first, t) + 1);",
     "const int seen = min(p.keys, (p.tokens > 1 ? t : p.batch.position(p.first, t)) + 1);"))
bug("v18", "moe", "cuda", "--prompt long --length 45 -n 2",
    ("expert_linear.cu", "    for (int step = 16; step > 0; step /= 2) sum +=",
     "    int before = 0;\n    for (int l = 0; l < line; l++) before += p.chosen[l] == p.chosen[line];\n    if (before >= 16) sum = 0.0f;\n"
     "    for (int step = 16; step > 0; step /= 2) sum +="))
bug("v19", "q2", "cuda", "--prompt long --length 40 --passes 21,12,7 -n 2",
    ("kv_cache.cu", "[p.batch.element(p.first, p.width, i)] =", "[p.batch.element(p.tokens > 1 ? p.first / 16 * 16 : p.first, p.width, i)] ="))
bug("v20", "q35", "cuda-fast", "-p haiku -n 4",
    ("fused/mixer_in.cu", "if (j > 0 && j < p.past) p.window[(j - 1) * all + row] = tap(p.window_tap, (j - 1) * all + row, x[j]);",
     "if (j + 1 < p.past) p.window[j * all + row] = tap(p.window_tap, j * all + row, x[j]);"))
