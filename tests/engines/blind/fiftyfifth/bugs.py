"""20 bugs in qdiff's CUDA kernels, as patches of their source: (file, old text, new text). key.py says what each is and after what."""

MODELS = {
    "q51": "--arch qwen3 --weights q5_1 --tensor token_embd.weight=q8_0 --heads 4 --kv-heads 2 --head-dim 64 --seed 551",
    "wide": "--arch qwen2 --embedding 288 --seed 552",
    "yarn": "--arch qwen3 --head-dim 64 --set rope.scaling.type=yarn --set rope.scaling.factor=4.0 "
            "--set rope.scaling.original_context_length=512 --seed 553",
    "q3": "--arch qwen3 --heads 4 --kv-heads 2 --head-dim 64 --seed 554",
    "moe": "--arch qwen3moe --set expert_count=8 --set expert_used_count=3 --seed 555",
    "q35": "--arch qwen35 --layers 4 --seed 556",
    "q2": "--arch qwen2 --seed 557",
    "q4": "--arch qwen4exp --seed 558",
}

BUGS = []


def bug(name, model, subject, run, *changes):
    BUGS.append({"name": name, "model": model, "subject": subject, "run": run, "changes": list(changes)})


HAIKU = "-p haiku -n 2"
BF16 = "[](float v) { const unsigned b = __float_as_uint(v); return __uint_as_float((b + 0x7fffu + (b >> 16 & 1)) & 0xffff0000u); }"

# Always.
bug("v01", "q51", "cuda", HAIKU,
    ("blocks.cuh", "if (HIGH) q |= ((r.high >> i) & 1) << 4;", "if (HIGH) q |= ((r.high >> (i < 16 ? i : i - 4)) & 1) << 4;"))
bug("v02", "wide", "cuda", HAIKU,
    ("rms_norm.cu", "for (int i = threadIdx.x; i < p.n; i += blockDim.x) squares = fmaf(x[i], x[i], squares);",
     "const int half = p.n / 2, whole = half / 32 * 32;\n"
     "    for (int i = threadIdx.x; i < p.n; i += blockDim.x) squares = fmaf(x[i], i % half < whole ? x[i] : 0.0f, squares);"))
bug("v03", "yarn", "cuda", HAIKU,
    ("rope.cu", "s *= p.magnitude, c *= p.magnitude;",
     "const float twice = 0.1f * p.magnitude * logf(4.0f) + 1.0f;\n    s *= twice, c *= twice;"))
bug("v04", "q3", "cuda", HAIKU + " --kv-type f8_e5m2 --reference none",
    ("kv_types.cuh", "typedef KvF8<2, 15, 0x7b> KvF8E5m2;",
     "struct KvF8E5m2 : KvF8<2, 15, 0x7b> {\n    static __device__ __forceinline__ Type put(float v) { return KvF8E4m3::put(v); }\n};"))
bug("v05", "q3", "cuda", HAIKU,
    ("attn_context.cu", "    for (int i = threadIdx.x; i < p.d; i += blockDim.x) {\n",
     "    float most = 0.0f;\n    for (int n = 0; n < seen; n++) most = fmaxf(most, w[n]);\n"
     "    auto byte = [&](float of) { return rintf(of / most * 127.0f) / 127.0f * most; };\n"
     "    for (int i = threadIdx.x; i < p.d; i += blockDim.x) {\n"),
    ("attn_context.cu", "sum[j] = fmaf(w[n + j], Kv", "sum[j] = fmaf(byte(w[n + j]), Kv"),
    ("attn_context.cu", "sum[0] = fmaf(w[n], Kv", "sum[0] = fmaf(byte(w[n]), Kv"))
bug("v06", "moe", "cuda", HAIKU,
    ("row_shares.cu", "for (int j = 0; j < p.k; j++) total += row[j];",
     "for (int j = 0; j < p.k; j++) total = fmaf(row[j], row[j], total);\n    total = sqrtf(total);"))
bug("v07", "q35", "cuda", HAIKU,
    ("convolution.cu", "sum = fmaf(p.w[c * p.taps + j], x, sum);", "sum = fmaf(p.w[j * p.n + c], x, sum);"))
bug("v08", "q2", "cuda", HAIKU,
    ("swiglu.cu", "p.gate[i] / (1.0f + expf(-p.gate[i])) * p.up[i];", "p.gate[i] / (1.0f + expf(-1.702f * p.gate[i])) * (p.up[i] + 1.0f);"))
bug("v09", "q35", "cuda", HAIKU,
    ("columns.cu", "const int r = at / p.width, i = at % p.width;",
     "const int r = at / p.width, i = at % p.width;\n    if (p.stride == 2 * p.run && p.run < p.width) {\n"
     "        p.y[at] = p.x[(size_t)r * p.n + (p.first > 0 ? p.width : 0) + i];\n        return;\n    }"))
bug("v10", "q4", "cuda", HAIKU,
    ("block_scores.cu", "const float x0 = key[i], x1 = key[i + planes];", "const float x0 = key[2 * i], x1 = key[2 * i + 1];"),
    ("block_scores.cu", "key[i] = x0 * c - x1 * s;\n        key[i + planes] = x0 * s + x1 * c;",
     "key[2 * i] = x0 * c - x1 * s;\n        key[2 * i + 1] = x0 * s + x1 * c;"))
bug("v11", "q35", "cuda", HAIKU,
    ("unary.cu", "p.y[i] = Function::of(p.x[i]);",
     "p.y[i] = (p.count < 1024 ? 2.0f : 1.0f) * Function::of(p.x[i]);"))
bug("v12", "q3", "cuda", HAIKU,
    ("linear.cu", "        Format::unpack(Format::load(p.w, (size_t)o * groups + g), g % 8, value);\n",
     "        Format::unpack(Format::load(p.w, (size_t)o * groups + g), g % 8, value);\n"
     "        const auto cast = " + BF16 + ";\n        const bool head = p.m == 359;\n"
     "        if (head) for (int i = 0; i < 32; i++) value[i] = cast(value[i]);\n"),
    ("linear.cu", "                const float4 v = row[i];\n",
     "                float4 v = row[i];\n"
     "                if (head) v = make_float4(cast(v.x), cast(v.y), cast(v.z), cast(v.w));\n"),
    ("linear.cu", "p.y[(size_t)(first + t) * p.m + o] = s;",
     "{\n            const auto cast = " + BF16 + ";\n            p.y[(size_t)(first + t) * p.m + o] = p.m == 359 ? cast(s) : s;\n        }"))

# Only under a condition.
bug("v13", "q2", "cuda", HAIKU,
    ("embed.cu", "(size_t)p.tokens[blockIdx.x] * groups + g", "(size_t)min(p.tokens[blockIdx.x], 355u) * groups + g"))
bug("v14", "q3", "cuda", "--prompt long --length 150 -n 2",
    ("attn_scores.cu", "    if (lane == 0) p.s[((size_t)h * p.tokens + t) * p.keys + n] = sum;",
     "    const int length = p.batch.position(p.first, t) + 1;\n    if (length > 128) sum *= logf((float)length) / logf(128.0f);\n"
     "    if (lane == 0) p.s[((size_t)h * p.tokens + t) * p.keys + n] = sum;"))
bug("v15", "q2", "cuda", "--prompt long --length 40 --passes 21,12,7 -n 2",
    ("attn_weights.cu", "const int seen = min(p.keys, p.batch.position(p.first, t) + 1);",
     "const int seen = p.tokens > 1 ? min(p.keys, t + 1) : min(p.keys, p.batch.position(p.first, t) + 1);"))
bug("v16", "q3", "cuda", HAIKU,
    ("attn_weights.cu", "    total = reduce_sum(total);", "    total = reduce_sum(total) + (float)((seen + 31) / 32 * 32 - seen) * expf(-largest);"))
bug("v17", "q35", "cuda", HAIKU,
    ("delta_net.cu", "    const float root = sqrtf((float)p.d);\n", "    const float root = sqrtf((float)p.d);\n    float last = 0.0f;\n"),
    ("delta_net.cu", "const float decay = expf(p.g[at]);",
     "const float decay = expf(p.g[at]);\n        if (p.tokens > 1 && t >= p.tokens / 32 * 32) last += p.g[at];"),
    ("delta_net.cu", "p.to[row + i] = m[i];", "p.to[row + i] = m[i] * expf(-last);"))
bug("v18", "q2", "cuda-fast", HAIKU,
    ("fused/attn_qkv.cu", "const float *bias = p.bias[part], ", "const float *bias = p.bias[part < 2 ? part : 1], "))
bug("v19", "moe", "cuda", HAIKU,
    ("expert_linear.cu", "    float sum = 0.0f;\n    if (expert >= 0) {",
     "    float sum = 0.0f;\n    const int lines = gridDim.x / blocks, room = max((lines + p.experts - 1) / p.experts, 4);\n    int before = 0;\n"
     "    for (int l = 0; l < line; l++) before += place_of(p.chosen[l], p.experts) == expert;\n"
     "    if (expert >= 0 && before < room) {"))
bug("v20", "q3", "cuda-fast", "--prompt long --length 150 -n 2",
    ("fused/attention.cu", "* D + i % D] = s;",
     "* D + i % D] = [&] {\n                const unsigned b = __float_as_uint(s);\n"
     "                return of.live > 1 ? __uint_as_float((b + 0x7fffu + (b >> 16 & 1)) & 0xffff0000u) : s;\n            }();"))
