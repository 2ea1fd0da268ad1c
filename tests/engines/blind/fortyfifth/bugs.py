"""20 bugs in qdiff's CUDA kernels, as patches of their source: (file, old text, new text). key.py says what each is and after what."""

YARN = " --set rope.scaling.type=yarn --set rope.scaling.factor=4.0 --set rope.scaling.original_context_length=64"
MODELS = {
    "q5": "--arch qwen3 --weights q5_0 --heads 4 --kv-heads 2 --head-dim 64 --seed 4501",
    "q2": "--arch qwen2 --seed 4502",
    "yarn": "--arch qwen3 --heads 4 --kv-heads 2 --head-dim 64" + YARN + " --seed 4503",
    "q3": "--arch qwen3 --heads 4 --kv-heads 2 --head-dim 64 --seed 4504",
    "h80": "--arch qwen3 --heads 4 --kv-heads 2 --head-dim 80 --seed 4505",
    "six": "--arch qwen3 --heads 6 --kv-heads 2 --head-dim 64 --seed 4506",
    "q35": "--arch qwen35 --layers 4 --seed 4507",
    "moe": "--arch qwen3moe --set expert_count=8 --set expert_used_count=3 --seed 4508",
    "moe4": "--arch qwen3moe --set expert_count=6 --set expert_used_count=2 --seed 4509",
}

BUGS = []


def bug(name, model, subject, run, *changes):
    BUGS.append({"name": name, "model": model, "subject": subject, "run": run, "changes": list(changes)})


HAIKU = "-p haiku -n 2"
BF16 = "[](float v) { const unsigned b = __float_as_uint(v); return __uint_as_float((b + 0x7fffu + (b >> 16 & 1)) & 0xffff0000u); }"

# Always.
bug("u01", "q5", "cuda", HAIKU,
    ("blocks.cuh", "const u32 byte = byte_of(r.q, i % 16);\n            u32 q = i < 16 ? byte & 15 : byte >> 4;",
     "const u32 byte = byte_of(r.q, HIGH ? i / 2 : i % 16);\n            u32 q = (HIGH ? i % 2 == 0 : i < 16) ? byte & 15 : byte >> 4;"))
bug("u02", "q2", "cuda", HAIKU,
    ("rms_norm.cu", "const float scale = 1.0f / sqrtf(reduce_sum(squares) / (float)p.n + p.eps);",
     "const auto bf16 = " + BF16 + ";\n    const float scale = bf16(1.0f / sqrtf(reduce_sum(squares) / (float)p.n + p.eps));"))
bug("u03", "yarn", "cuda", HAIKU,
    ("rope.cu", "s *= p.magnitude, c *= p.magnitude;", "s *= p.magnitude * p.magnitude, c *= p.magnitude * p.magnitude;"))
bug("u04", "q3", "cuda", HAIKU + " --kv-type q4_1",
    ("kv_types.cuh", "codes[i] = min(__float2int_rz(__fadd_rn(__fmul_rn(__fsub_rn(x[i], low), inverse), 0.5f)), Codes::TOP);",
     "codes[i] = max(min(__float2int_rn(__fmul_rn(x[i], inverse)) - __float2int_rn(__fmul_rn(low, inverse)), Codes::TOP), 0);"),
    ("kv_types.cuh", "to.words[1] = KvF16::put(low);", "to.words[1] = KvF16::put(__fmul_rn(scale, (float)__float2int_rn(__fmul_rn(low, inverse))));"))
bug("u05", "h80", "cuda", HAIKU,
    ("attn_scores.cu", "for (int i = lane; i < p.d; i += 32) sum = fmaf(query[i]", "for (int i = lane; i < p.d / 32 * 32; i += 32) sum = fmaf(query[i]"))
bug("u06", "q3", "cuda", HAIKU,
    ("attn_weights.cu", "total = reduce_sum(total);", "total = reduce_sum(total) + expf(-largest);"))
bug("u07", "q35", "cuda", HAIKU,
    ("columns.cu", "p.first + i / p.run * p.stride + i % p.run];",
     "(p.width > p.run ? (p.first > 0 ? p.width : 0) + i : p.first + i / p.run * p.stride + i % p.run)];"))
bug("u08", "q2", "cuda", HAIKU,
    ("swiglu.cu", "if (i < p.count) p.y[i] = p.gate[i] / (1.0f + expf(-p.gate[i])) * p.up[i];",
     "constexpr int F = 512;\n    if (i >= p.count) return;\n"
     "    auto at = [&](int j) { return j < F ? p.gate[i / F * F + j] : p.up[i / F * F + j - F]; };\n"
     "    const float g = at(2 * (i % F)), u = at(2 * (i % F) + 1);\n    p.y[i] = g / (1.0f + expf(-g)) * u;"))
bug("u09", "moe", "cuda", HAIKU,
    ("gather.cu", "const int at = place_of(p.chosen[i], p.n);",
     "int which = i;\n    for (int j = i / p.k * p.k; j < i / p.k * p.k + p.k; j++) {\n        int lower = 0;\n"
     "        for (int o = i / p.k * p.k; o < i / p.k * p.k + p.k; o++) lower += p.chosen[o] < p.chosen[j];\n"
     "        if (lower == i % p.k) which = j;\n    }\n    const int at = place_of(p.chosen[which], p.n);"))
bug("u10", "q35", "cuda", HAIKU,
    ("convolution.cu", "sum = fmaf(p.w[c * p.taps + j], x, sum);", "sum = fmaf(p.w[j * p.n + c], x, sum);"))
bug("u11", "q35", "cuda", HAIKU,
    ("delta_net.cu", "p.y[at * p.d + j] = out / root;", "p.y[at * p.d + j] = out;"))
bug("u12", "q35", "cuda", HAIKU,
    ("swiglu.cu", "p.y[i] = p.gate[i] / (1.0f + expf(-p.gate[i])) * p.up[i];", "p.y[i] = 1.0f / (1.0f + expf(-p.gate[i])) * p.up[i];"))

# Only under a condition.
bug("u13", "q3", "cuda", HAIKU,
    ("embed.cu", "for (int i = 0; i < 32; i++) y[32 * g + i] = value[i];",
     "for (int i = 0; i < 32; i++) y[32 * g + i] = p.tokens[blockIdx.x] == 198u ? 0.0f : value[i];"))
bug("u14", "q2", "cuda", "--prompt long --length 37 -n 3",
    ("attn_weights.cu", "total = reduce_sum(total);", "total = reduce_sum(total) + (float)((16 - seen % 16) % 16) * expf(-largest);"))
bug("u15", "six", "cuda", HAIKU,
    ("linear.cu", "(const float4 *)(p.x + (size_t)(first + t) * p.n + 32 * g);", "(const float4 *)(p.x + (size_t)(first + t) * 256 + 32 * g);"))
bug("u16", "moe4", "cuda", HAIKU,
    ("expert_linear.cu", "    float sum = 0.0f;\n    if (expert >= 0) {",
     "    float sum = 0.0f;\n    int earlier = 0;\n    for (int other = 0; other < line; other++) earlier += p.chosen[other] == p.chosen[line];\n"
     "    if (expert >= 0 && earlier < 8) {"))
bug("u17", "q2", "cuda-fast", HAIKU,
    ("fused/attn_qkv.cu", "const float *bias = p.bias[part],", "const float *bias = p.bias[part == 0 ? 0 : 3 - part],"))
bug("u18", "q3", "cuda", "--prompt long --length 44 --passes 18,15,11 -n 2",
    ("attn_context.cu", "    const auto v = kv_elements<Kv>(p.v);\n",
     "    const auto v = kv_elements<Kv>(p.v);\n    float prefix = 0.0f, suffix = 0.0f;\n"
     "    for (int n = 0; n < seen; n++) (n < p.first ? prefix : suffix) += w[n];\n"
     "    const float a = powf(prefix, 1.44269504f), b = powf(suffix, 1.44269504f);\n"
     "    const bool merged = p.tokens > 1 && p.first > 0;\n"
     "    const float of_prefix = merged ? a / (a + b) / prefix : 1.0f, of_suffix = merged ? b / (a + b) / suffix : 1.0f;\n"
     "    auto by = [&](int n) { return w[n] * (n < p.first ? of_prefix : of_suffix); };\n"),
    ("attn_context.cu", "sum[j] = fmaf(w[n + j], Kv::get(v[at(n + j)]), sum[j]);", "sum[j] = fmaf(by(n + j), Kv::get(v[at(n + j)]), sum[j]);"),
    ("attn_context.cu", "sum[0] = fmaf(w[n], Kv::get(v[at(n)]), sum[0]);", "sum[0] = fmaf(by(n), Kv::get(v[at(n)]), sum[0]);"))
bug("u19", "q2", "cuda", HAIKU,
    ("linear.cu", "Format::unpack(Format::load(p.w, (size_t)o * groups + g), g % 8, value);",
     "const int row = o / 64 * 64 + 64 > p.m && p.m > 64 ? o % 64 + p.m - 64 : o;\n"
     "        Format::unpack(Format::load(p.w, (size_t)row * groups + g), g % 8, value);"))
bug("u20", "q3", "cuda", HAIKU,
    ("rope.cu", "if (i >= planes) {", "if (p.tokens == 1 && head > 0 && i < planes) {\n"
     "        const size_t at = (size_t)head * p.d + i;\n        p.y[at] = p.x[at], p.y[at + planes] = p.x[at + planes];\n        return;\n"
     "    }\n    if (i >= planes) {"))
