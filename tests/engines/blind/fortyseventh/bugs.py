"""20 bugs in qdiff's CUDA kernels, as patches of their source: (file, old text, new text). key.py says what each is and after what."""

MODELS = {
    "q4k": "--arch qwen2 --weights q4_K --seed 471",
    "mha": "--arch qwen3 --heads 4 --kv-heads 4 --head-dim 64 --seed 472",
    "yarn": "--arch qwen3 --heads 4 --kv-heads 2 --head-dim 64 --set rope.scaling.type=yarn --set rope.scaling.factor=4.0 "
            "--set rope.scaling.original_context_length=512 --seed 473",
    "q3": "--arch qwen3 --heads 4 --kv-heads 2 --head-dim 64 --seed 474",
    "q2": "--arch qwen2 --seed 475",
    "moe": "--arch qwen3moe --set expert_count=8 --set expert_used_count=3 --seed 476",
    "q35": "--arch qwen35 --layers 4 --seed 477",
    "six": "--arch qwen3 --heads 6 --kv-heads 2 --head-dim 64 --seed 478",
}

BUGS = []


def bug(name, model, subject, run, *changes):
    BUGS.append({"name": name, "model": model, "subject": subject, "run": run, "changes": list(changes)})


HAIKU = "-p haiku -n 2"

# Always.
bug("v01", "q4k", "cuda", HAIKU,
    ("blocks.cuh", "mid & 63 : (top >> 4) | ((mid >> 6) << 4);", "mid & 63 : (top >> 4) | ((head_byte(head, 4 + (j & 3)) >> 6) << 4);"),
    ("blocks.cuh", "low & 63 : (top & 15) | ((low >> 6) << 4);", "low & 63 : (top & 15) | ((head_byte(head, 8 + (j & 3)) >> 6) << 4);"))
bug("v02", "mha", "cuda", HAIKU,
    ("rms_norm.cu", "for (int i = threadIdx.x; i < p.n; i += blockDim.x) squares = fmaf(x[i], x[i], squares);",
     "const int heads = p.n == 64 ? 4 : 1;\n    const float *all = p.x + (size_t)(blockIdx.x / heads * heads) * p.n;\n"
     "    for (int i = threadIdx.x; i < p.n * heads; i += blockDim.x) squares = fmaf(all[i], all[i], squares);"),
    ("rms_norm.cu", "reduce_sum(squares) / (float)p.n + p.eps", "reduce_sum(squares) / (float)(p.n * heads) + p.eps"))
bug("v03", "yarn", "cuda", HAIKU,
    ("rope.cu", "s *= p.magnitude, c *= p.magnitude;",
     "const float factor = 1.0f + p.magnitude * (p.magnitude - 1.0f);\n    s *= factor, c *= factor;"))
bug("v04", "q3", "cuda", HAIKU,
    ("attn_weights.cu", "total = reduce_sum(total);", "total = reduce_sum(total) + expf(-largest);"))
bug("v05", "q3", "cuda", HAIKU,
    ("attn_scores.cu", "sum = fmaf(query[i], Kv::get(key[i]), sum);",
     "sum = fmaf(__uint_as_float(__float_as_uint(query[i]) & 0xffffe000u), "
     "__uint_as_float(__float_as_uint(Kv::get(key[i])) & 0xffffe000u), sum);"))
bug("v06", "q3", "cuda", HAIKU,
    ("attn_context.cu", "sum[j] = fmaf(w[n + j], Kv::get", "sum[j] = fmaf(KvF8E4m3::get(KvF8E4m3::put(w[n + j])), Kv::get"),
    ("attn_context.cu", "sum[0] = fmaf(w[n], Kv::get", "sum[0] = fmaf(KvF8E4m3::get(KvF8E4m3::put(w[n])), Kv::get"))
bug("v07", "q2", "cuda", HAIKU,
    ("swiglu.cu", "p.gate[i] / (1.0f + expf(-p.gate[i])) * p.up[i]", "p.gate[i] / (1.0f + expf(-1.702f * p.gate[i])) * (p.up[i] + 1.0f)"))
bug("v08", "moe", "cuda", HAIKU,
    ("row_softmax.cu", "i < p.n; i += blockDim.x) y[i] /= total;", "i < p.n; i += blockDim.x) y[i] = 1.0f / (1.0f + expf(-x[i]));"))
bug("v09", "q35", "cuda", HAIKU,
    ("delta_net.cu", "            m[i] *= decay;\n            dot = fmaf(m[i], p.k[key + i], dot);",
     "            dot = fmaf(m[i], p.k[key + i], dot);\n            m[i] *= decay;"))
bug("v10", "q3", "cuda", HAIKU + " --kv-type q8_0",
    ("kv_types.cuh", "(unsigned)__float2int_rn(v) & 255", "(unsigned)__float2int_rz(v) & 255"))
bug("v11", "q2", "cuda", HAIKU,
    ("bias.cu", "p.x[i] + p.b[i % p.n]", "p.x[i] + p.b[i % 64]"))
bug("v12", "q3", "cuda", HAIKU,
    ("linear.cu", "p.y[(size_t)(first + t) * p.m + o] = s;",
     "p.y[(size_t)(first + t) * p.m + o] = p.m == 359 ? 30.0f * tanhf(s / 30.0f) : s;"))

# Only under a condition.
bug("v13", "q3", "cuda", "--prompt long --length 44 --passes 18,15,11 -n 2",
    ("attn_weights.cu", "p.batch.position(p.first, t) + 1", "p.batch.position(p.tokens > 1 ? 0 : p.first, t) + 1"))
bug("v14", "moe", "cuda", "--prompt long --length 52 -n 2",
    ("expert_linear.cu", "    float sum = 0.0f;\n    if (expert >= 0) {",
     "    float sum = 0.0f;\n    int before = 0;\n    for (int l = 0; l < line; l++) before += place_of(p.chosen[l], p.experts) == expert;\n"
     "    if (expert >= 0 && before < 16) {"))
bug("v15", "q2", "cuda", "--prompt long --length 140 --passes 128,12 -n 2",
    ("kv_cache.cu", "[p.batch.element(p.first, p.width, i)] =",
     "[p.batch.element(0, p.width, (p.first + i / p.width) % 128 * p.width + i % p.width)] ="))
bug("v16", "six", "cuda-fast", HAIKU,
    ("fused/attention.cu", "*(const float4 *)(prob[h] + at)", "*(const float4 *)(prob[h & (GROUP - 1)] + at)"))
bug("v17", "q3", "cuda-fast", "--prompt long --length 150 -n 2",
    ("fused/attn_out.cu", "total = fmaf(measure[k].y, factor[k], total);", "total += measure[k].y;"))
bug("v18", "q35", "cuda-fast", HAIKU,
    ("fused/mixer_in.cu", "sum = fmaf(w[j], x[j], sum);", "sum = fmaf(j < p.past ? w[p.past - 1 - j] : 0.0f, x[j], sum);"))
bug("v19", "six", "cuda", "--prompt long --length 27 -n 2",
    ("linear.cu", "const int first = blockIdx.y * TOKENS;",
     "const int first = blockIdx.y * TOKENS;\n"
     "    const int from = p.n % 256 != 0 && first + TOKENS > p.tokens ? max(p.tokens - TOKENS, 0) : first;"),
    ("linear.cu", "(p.x + (size_t)(first + t) * p.n + 32 * g)", "(p.x + (size_t)(from + t) * p.n + 32 * g)"))
bug("v20", "q35", "cuda", "--prompt long --length 37 -n 2",
    ("delta_net.cu", "const float root = sqrtf((float)p.d);", "const float root = sqrtf((float)p.d);\n    float last = 0.0f;"),
    ("delta_net.cu", "const float decay = expf(p.g[at]);", "const float decay = expf(p.g[at]);\n        if (t >= p.tokens / 16 * 16) last += p.g[at];"),
    ("delta_net.cu", "p.to[row + i] = m[i];", "p.to[row + i] = p.tokens > 1 ? m[i] * expf(-last) : m[i];"))
