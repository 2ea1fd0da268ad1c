"""20 bugs in qdiff's CUDA kernels, as patches of their source: (file, old text, new text). key.py says what each is and after what."""

MODELS = {
    "q4k": "--arch qwen3 --weights q4_K --tensor token_embd.weight=q8_0 --heads 4 --kv-heads 2 --head-dim 64 --seed 91",
    "emb": "--arch qwen2 --tensor token_embd.weight=q4_1 --seed 92",
    "yarn": "--arch qwen3 --head-dim 64 --set rope.scaling.type=yarn --set rope.scaling.factor=4.0 "
            "--set rope.scaling.original_context_length=512 --seed 93",
    "q2": "--arch qwen2 --seed 94",
    "q3": "--arch qwen3 --heads 4 --kv-heads 2 --head-dim 64 --seed 95",
    "h96": "--arch qwen3 --heads 4 --kv-heads 2 --head-dim 96 --seed 96",
    "six": "--arch qwen3 --heads 6 --kv-heads 2 --head-dim 64 --seed 97",
    "moe": "--arch qwen3moe --set expert_count=8 --set expert_used_count=3 --seed 98",
    "q35": "--arch qwen35 --layers 4 --seed 99",
}

BUGS = []


def bug(name, model, subject, run, *changes):
    BUGS.append({"name": name, "model": model, "subject": subject, "run": run, "changes": list(changes)})


HAIKU = "-p haiku -n 2"
BF16 = "[](float v) { const unsigned b = __float_as_uint(v); return __uint_as_float((b + 0x7fffu + (b >> 16 & 1)) & 0xffff0000u); }"

# Always.
SIX = ("[&](int bit) { const int at = 4 + bit / 8; return ((head_byte(head, at) | (at < 15 ? head_byte(head, at + 1) << 8 : 0)) >> "
       "(bit % 8)) & 63; }")
bug("s01", "q4k", "cuda", HAIKU,
    ("blocks.cuh", "return j < 4 ? mid & 63 : (top >> 4) | ((mid >> 6) << 4);", "return " + SIX + "(12 * j + 6);"),
    ("blocks.cuh", "return j < 4 ? low & 63 : (top & 15) | ((low >> 6) << 4);", "return " + SIX + "(12 * j);"))
bug("s02", "emb", "cuda", HAIKU,
    ("embed.cu", "y[32 * g + i] = value[i];", "y[32 * g + i] = value[i % 2 * 16 + i / 2];"))
bug("s03", "yarn", "cuda", HAIKU,
    ("rope.cu", "s *= p.magnitude, c *= p.magnitude;", "s *= p.magnitude * p.magnitude, c *= p.magnitude * p.magnitude;"))
bug("s04", "q2", "cuda", HAIKU,
    ("bias.cu", "struct BiasParams {", '#include "kv.cuh"\n\nstruct BiasParams {'),
    ("bias.cu", "p.y[i] = p.x[i] + p.b[i % p.n];", "p.y[i] = KvF16::get(KvF16::put(p.x[i])) + p.b[i % p.n];"))
bug("s05", "q3", "cuda", HAIKU + " --kv-type q8_0",
    ("kv_types.cuh", "inverse = most == 0.0f ? 0.0f : 127.0f / most;",
     "inverse = most == 0.0f ? 0.0f : 1.0f / KvF16::get(KvF16::put(most / 127.0f));"))
bug("s06", "h96", "cuda", HAIKU,
    ("attn_scores.cu", "for (int i = lane; i < p.d; i += 32)", "for (int i = lane; i < p.d / 64 * 64; i += 32)"))
bug("s07", "q3", "cuda", HAIKU,
    ("attn_context.cu", "p.c[((size_t)t * p.heads + h) * p.d + i]", "p.c[((size_t)h * p.tokens + t) * p.d + i]"))
bug("s08", "six", "cuda", HAIKU,
    ("linear.cu", "(p.x + (size_t)(first + t) * p.n + 32 * g);",
     "(p.x + (size_t)(first + t) * p.n + (p.n == 384 ? (g / 2 % 3 * 2 + g / 2 / 3) * 64 + g % 2 * 32 : 32 * g));"))
bug("s09", "q2", "cuda", HAIKU,
    ("swiglu.cu", "if (i < p.count) p.y[i] = p.gate[i] / (1.0f + expf(-p.gate[i])) * p.up[i];",
     "if (i >= p.count) return;\n    const float g = fminf(p.gate[i], 7.0f), u = fminf(fmaxf(p.up[i], -7.0f), 7.0f);\n"
     "    p.y[i] = g / (1.0f + expf(-1.702f * g)) * (u + 1.0f);"))
bug("s10", "moe", "cuda", HAIKU,
    ("row_shares.cu", "total += row[j];", "total += row[j] * row[j];"),
    ("row_shares.cu", "fmaxf(total, 6.103515625e-5f)", "fmaxf(sqrtf(total), 6.103515625e-5f)"))
bug("s11", "q35", "cuda", HAIKU,
    ("delta_net.cu", "p.to[row + i] = m[i];", "p.to[row + i] = " + BF16 + "(m[i]);"))
bug("s12", "q3", "cuda", HAIKU,
    ("linear.cu", "p.y[(size_t)(first + t) * p.m + o] = s;", "p.y[(size_t)(first + t) * p.m + o] = p.m == 359 ? " + BF16 + "(s) : s;"))

# Only under a condition.
bug("s13", "q35", "cuda", HAIKU,
    ("convolution.cu", "p.before[(size_t)row * p.n + c]", "p.before[(size_t)(p.count == p.n ? past - 1 - row : row) * p.n + c]"))
bug("s14", "q35", "cuda-fast", HAIKU,
    ("fused/mixer_out.cu", "const float4 v = __ldcg((const float4 *)p.x + i), z = __ldcg((const float4 *)p.z + i);",
     "const float4 x = __ldcg((const float4 *)p.x + i), z = __ldcg((const float4 *)p.z + i);\n"
     "            const float4 v = make_float4(gated(z.x, x.x), gated(z.y, x.y), gated(z.z, x.z), gated(z.w, x.w));"),
    ("fused/mixer_out.cu", "make_float4(gated(z.x, normed.x), gated(z.y, normed.y), gated(z.z, normed.z), gated(z.w, normed.w))", "normed"))
bug("s15", "q3", "cuda", "--prompt long --length 40 --passes 21,12,7 -n 2",
    ("attn_weights.cu", "const int seen = min(p.keys, p.batch.position(p.first, t) + 1);",
     "const int seen = min(p.keys, p.tokens > 1 ? t + 1 : p.batch.position(p.first, t) + 1);"))
bug("s16", "q2", "cuda", "--prompt long --length 150 -n 2",
    ("attn_weights.cu", "    const float *s = p.s + row;", "    const int from = max(0, seen - 128);\n    const float *s = p.s + row;"),
    ("attn_weights.cu", "for (int n = threadIdx.x; n < seen; n += blockDim.x) largest", "for (int n = from + threadIdx.x; n < seen; n += blockDim.x) largest"),
    ("attn_weights.cu", "for (int n = threadIdx.x; n < seen; n += blockDim.x) {", "for (int n = from + threadIdx.x; n < seen; n += blockDim.x) {"),
    ("attn_weights.cu", "y[n] = n < seen ? y[n] / total : 0.0f;", "y[n] = n >= from && n < seen ? y[n] / total : 0.0f;"))
bug("s17", "q2", "cuda", "--prompt long --length 290 -n 2",
    ("rope.cu", "sincosf((float)p.batch.position(p.first, t) * p.frequency[i], &s, &c);",
     "sincosf((float)min(p.batch.position(p.first, t), 255) * p.frequency[i], &s, &c);"))
bug("s18", "q3", "cuda-fast", "--prompt long --length 150 -n 2",
    ("fused/attn_out.cu", "total = fmaf(measure[k].y, factor[k], total);",
     "total += factor[k];\n            if (measure[k].y > 0.0f) factor[k] /= measure[k].y;"))
bug("s19", "moe", "cuda", HAIKU,
    ("expert_linear.cu", "    float sum = 0.0f;\n    if (expert >= 0) {",
     "    float sum = 0.0f;\n    int before = 0;\n    for (int l = 0; l < line; l++) before += p.chosen[l] == p.chosen[line];\n"
     "    if (expert >= 0 && before < 8) {"))
bug("s20", "q3", "cuda-fast", HAIKU,
    ("fused/attn_qkv.cu", "((typename Kv::Type *)to)[0] = Kv::put(a), ((typename Kv::Type *)to)[D / 2] = Kv::put(b);",
     "((typename Kv::Type *)to)[0] = Kv::put(part == 1 ? normed.x : a), ((typename Kv::Type *)to)[D / 2] = Kv::put(part == 1 ? normed.y : b);"))
