"""20 bugs in qdiff's CUDA kernels, as patches of their source: (file, old text, new text). key.py says what each is and after what."""

MODELS = {
    "q5k": "--arch qwen2 --weights q5_K --tensor token_embd.weight=q8_0 --seed 591",
    "q2": "--arch qwen2 --seed 592",
    "wide": "--arch qwen2 --embedding 288 --heads 9 --kv-heads 3 --seed 593",
    "mha": "--arch qwen3 --heads 4 --kv-heads 4 --head-dim 64 --seed 594",
    "q35": "--arch qwen35 --layers 4 --seed 595",
    "yarn": "--arch qwen3 --set rope.scaling.type=yarn --set rope.scaling.factor=4.0 --set rope.scaling.original_context_length=512 --seed 596",
    "six": "--arch qwen3 --heads 6 --kv-heads 2 --head-dim 64 --seed 597",
    "eps": "--arch qwen35 --layers 4 --eps 0.0001 --seed 601",
    "q3": "--arch qwen3 --heads 4 --kv-heads 2 --head-dim 64 --seed 598",
    "moe": "--arch qwen3moe --set expert_count=8 --set expert_used_count=3 --seed 599",
    "moe12": "--arch qwen3moe --set expert_count=12 --set expert_used_count=4 --seed 600",
}

BUGS = []


def bug(name, model, subject, run, *changes):
    BUGS.append({"name": name, "model": model, "subject": subject, "run": run, "changes": list(changes)})


HAIKU = "-p haiku -n 2"

# Always.
bug("a01", "q5k", "cuda", HAIKU,
    ("blocks.cuh", "if (HIGH) q |= ((byte_of(r.high[HIGH ? i / 16 : 0], i % 16) >> j) & 1) << 4;",
     "if (HIGH) q |= ((((const u32 *)r.high)[j] >> i) & 1) << 4;"))
bug("a02", "q2", "cuda", HAIKU,
    ("bias.cu", "p.b[i % p.n]", "p.b[i % p.n % (p.n / 2)]"))
bug("a03", "wide", "cuda", HAIKU,
    ("rms_norm.cu", "for (int i = threadIdx.x; i < p.n; i += blockDim.x) squares",
     "for (int i = threadIdx.x; i < p.n / 128 * 128; i += blockDim.x) squares"))
bug("a04", "mha", "cuda", HAIKU,
    ("rms_norm.cu", "    const float scale = 1.0f / sqrtf(reduce_sum(squares) / (float)p.n + p.eps);",
     "    int runs = 1;\n"
     "    if (p.n == 64) {\n"
     "        runs = 4, squares = 0.0f;\n"
     "        const float *all = p.x + (size_t)(blockIdx.x / 4 * 4) * p.n;\n"
     "        for (int i = threadIdx.x; i < 4 * p.n; i += blockDim.x) squares = fmaf(all[i], all[i], squares);\n"
     "    }\n"
     "    const float scale = 1.0f / sqrtf(reduce_sum(squares) / (float)(runs * p.n) + p.eps);"))
bug("a05", "q35", "cuda", HAIKU,
    ("rope.cu", "const size_t stays = (size_t)head * p.d + planes + i;",
     "const int j = planes + i, passes = j >= p.d / 2 && j < p.d / 2 + planes ? j - p.d / 2 + planes : j;\n"
     "        const size_t stays = (size_t)head * p.d + passes;"),
    ("rope.cu", "(p.adjacent ? 2 * i + 1 : i + planes);", "(p.adjacent ? 2 * i + 1 : i + p.d / 2);"))
bug("a06", "yarn", "cuda", HAIKU,
    ("attn_weights.cu", "largest = fmaxf(largest, s[n] * p.scale);", "largest = fmaxf(largest, s[n] * (p.scale * 1.2964770f));"),
    ("attn_weights.cu", "expf(s[n] * p.scale - largest)", "expf(s[n] * (p.scale * 1.2964770f) - largest)"))
bug("a07", "six", "cuda", HAIKU,
    ("linear.cu", '#include "blocks.cuh"', '#include "blocks.cuh"\n#include "kv.cuh"'),
    ("linear.cu", "for (int step = 16; step > 0; step /= 2) s += __shfl_xor_sync(0xffffffffu, s, step);",
     "const bool split = p.n > 256;\n"
     "        for (int step = 1; step < 32; step *= 2) {\n"
     "            if (split && step == 4) s = KvF16::get(KvF16::put(s));\n"
     "            s += __shfl_xor_sync(0xffffffffu, s, step);\n"
     "            if (split && step >= 4) s = KvF16::get(KvF16::put(s));\n"
     "        }"))
bug("a08", "q3", "cuda", HAIKU + " --kv-type q8_0",
    ("kv_types.cuh", "const float most = fabsf(kv_largest(x)), inverse = most == 0.0f ? 0.0f : 127.0f / most;",
     "const float most = fmaxf(fabsf(kv_largest(x)), 127.0f), inverse = 127.0f / most;"))
bug("a09", "moe", "cuda", HAIKU,
    ("expert_linear.cu", "= expert < 0 ? unknown() : sum;", "= expert < 0 ? unknown() : o < (p.m + 127) / 128 * 64 ? sum : 0.0f;"))
bug("a10", "q35", "cuda", HAIKU,
    ("delta_net.cu", "            m[i] *= decay;\n            dot = fmaf(m[i], p.k[key + i], dot);",
     "            dot = fmaf(m[i], p.k[key + i], dot);\n            m[i] *= decay;"))
bug("a11", "q3", "cuda", HAIKU,
    ("swiglu.cu", "if (i < p.count) p.y[i] = p.gate[i] / (1.0f + expf(-p.gate[i])) * p.up[i];",
     "if (i >= p.count) return;\n"
     "    const float g = fminf(p.gate[i], 7.0f), u = fminf(fmaxf(p.up[i], -7.0f), 7.0f);\n"
     "    p.y[i] = g / (1.0f + expf(-1.702f * g)) * (u + 1.0f);"))
bug("a12", "eps", "cuda", HAIKU,
    ("l2_norm.cu", "sqrtf(reduce_sum(squares) + p.eps);", "sqrtf(reduce_sum(squares) + p.eps * (float)p.d);"))

# Only under a condition.
bug("c01", "q2", "cuda", HAIKU,
    ("embed.cu", "y[32 * g + i] = value[i];", "y[32 * g + i] = p.tokens[blockIdx.x] < 352u ? value[i] : 0.0f;"))
bug("c02", "moe12", "cuda", HAIKU,
    ("top_k.cu", "    for (int i = threadIdx.x; i < p.n; i += blockDim.x) {",
     "    int n = 1;\n    while (2 * n <= p.n) n *= 2;\n    for (int i = threadIdx.x; i < n; i += blockDim.x) {"),
    ("top_k.cu", "for (int j = 0; j < p.n; j++) {", "for (int j = 0; j < n; j++) {"))
bug("c03", "q35", "cuda", HAIKU,
    ("convolution.cu", "const float x = row < past ? p.before[(size_t)row * p.n + c] :",
     "const int all = p.count / p.n;\n"
     "        const float x = row < past ? (all >= past ? p.x[(size_t)(all - past + row) * p.n + c] : p.before[(size_t)row * p.n + c]) :"))
bug("c04", "q3", "cuda", HAIKU + " --kv-type f8_e4m3 --reference none",
    ("kv_types.cuh", "const unsigned bits = __float_as_uint(v), size = bits & 0x7fffffffu, sign = bits >> 24 & 0x80;",
     "v = __uint_as_float(__float_as_uint(v) & 0xffffe000u);\n"
     "        const unsigned bits = __float_as_uint(v), size = bits & 0x7fffffffu, sign = bits >> 24 & 0x80;"))
bug("c05", "q2", "cuda", HAIKU,
    ("linear.cu", "Format::load(p.w, (size_t)o * groups + g)",
     "Format::load(p.w, (size_t)(o < p.m / 32 * 32 ? o : o - (32 - p.m % 32)) * groups + g)"))
bug("c06", "q35", "cuda-fast", "-p haiku -n 3",
    ("fused/delta_step.cu", "p.state[((size_t)h * D + first + r) * D + lane + 32 * k]", "p.state[((size_t)h * D + lane + 32 * k) * D + first + r]"),
    ("fused/delta_step.cu", "const size_t at = ((size_t)h * D + first + r) * D + lane + 32 * i;",
     "const size_t at = ((size_t)h * D + lane + 32 * i) * D + first + r;"))
bug("c07", "q2", "cuda-fast", "-p haiku -n 3",
    ("fused/attn_out.cu", "__ldcg(partial.measures + h * SPLITS + at)", "__ldcg(partial.measures + h % 2 * SPLITS + at)"))
bug("c08", "q3", "cuda", "--prompt long --length 100 --passes 40,30,30 -n 2",
    ("attn_scores.cu", "if (n <= p.batch.position(p.first, t)) {", "if (p.first >= 64 || n <= p.batch.position(p.first, t)) {"),
    ("attn_weights.cu", "const int seen = min(p.keys, p.batch.position(p.first, t) + 1);",
     "const int seen = p.first >= 64 ? p.keys : min(p.keys, p.batch.position(p.first, t) + 1);"),
    ("attn_context.cu", "const int seen = min(p.keys, p.batch.position(p.first, t) + 1);",
     "const int seen = p.first >= 64 ? p.keys : min(p.keys, p.batch.position(p.first, t) + 1);"))
