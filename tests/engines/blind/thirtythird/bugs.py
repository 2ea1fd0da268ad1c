"""Twenty bugs in qdiff's CUDA kernels, as patches of their source: (file, old, new). key.py says what each breaks, and its origin."""

MODELS = {
    "q6k": "--layers 2 --weights q8_0 --tensor blk.0.ffn_down.weight=Q6_K --tensor blk.1.ffn_down.weight=Q6_K --seed 331",
    "q3": "--arch qwen3 --layers 2 --weights f16 --heads 4 --kv-heads 2 --head-dim 64 --seed 332",
    "q2": "--layers 2 --weights q8_0 --heads 6 --kv-heads 2 --head-dim 64 --embedding 384 --ffn 608 --seed 333",
    "q2k": "--layers 2 --weights q4_K --ffn 768 --seed 334",
    "q35": "--arch qwen35 --layers 4 --weights q8_0 --seed 335",
    "q3k": "--arch qwen3 --layers 2 --weights q4_K --heads 4 --kv-heads 2 --head-dim 64 --seed 336",
    "q2f": "--layers 2 --weights q8_0 --tensor output.weight=F16 --heads 5 --kv-heads 1 --embedding 320 --head-dim 64 --ffn 512 --seed 337",
    "q4k": "--layers 2 --weights q4_K --tensor token_embd.weight=F16 --ffn 512 --seed 338",
    "moe": "--arch qwen3moe --layers 2 --weights q8_0 --set expert_count=8 --set expert_used_count=2 --seed 339",
    "moek": "--arch qwen3moe --layers 2 --weights q4_K --set expert_count=16 --set expert_used_count=4 --seed 340",
    "long": "--arch qwen3 --layers 2 --weights q8_0 --heads 4 --kv-heads 2 --head-dim 64 --seed 341",
    "vocab": "--layers 2 --weights q8_0 --vocab 365 --heads 4 --kv-heads 1 --head-dim 64 --seed 342",
}

BF16 = "__uint_as_float((__float_as_uint({0}) + 0x7fffu + (__float_as_uint({0}) >> 16 & 1)) & 0xffff0000u)"

BUGS = [
    # Always.
    dict(name="w01", subject="cuda", model="q6k", run="--prompt haiku --length 24 -n 2", changes=[
        ("blocks.cuh", "__fmul_rn(d, (float)(signed char)(r.scales & 255)),", "__fmul_rn(d, (float)(u8)(r.scales & 255)),"),
        ("blocks.cuh", "__fmul_rn(d, (float)(signed char)(r.scales >> 8))};", "__fmul_rn(d, (float)(u8)(r.scales >> 8))};")]),
    dict(name="w02", subject="cuda", model="q3", run="--prompt code --length 40 -n 2", changes=[
        ("rope.cu", '#include "batch.cuh"', '#include "batch.cuh"\n#include "kv.cuh"'),
        ("rope.cu", "    s *= p.magnitude, c *= p.magnitude;",
         "    s = KvF16::get(KvF16::put(s * p.magnitude)), c = KvF16::get(KvF16::put(c * p.magnitude));")]),
    dict(name="w03", subject="cuda", model="q2", run="--prompt chinese --length 30 -n 2", changes=[
        ("attn_weights.cu", "struct AttnWeightsParams {",
         "__device__ __forceinline__ float capped(float v) { return 50.0f * tanhf(v / 50.0f); }\n\nstruct AttnWeightsParams {"),
        ("attn_weights.cu", "largest = fmaxf(largest, s[n] * p.scale);", "largest = fmaxf(largest, capped(s[n] * p.scale));"),
        ("attn_weights.cu", "expf(s[n] * p.scale - largest)", "expf(capped(s[n] * p.scale) - largest)")]),
    dict(name="w04", subject="cuda-fast", model="q2k", run="--prompt haiku --length 20 -n 2", changes=[
        ("prefill/act_rows.cu", "return gate / (1.0f + expf(-gate)) * up;", "return up / (1.0f + expf(-up)) * gate;"),
        ("fused/ffn_act.cu", "gated(g, u)", "gated(u, g)")]),
    dict(name="w05", subject="cuda", model="q35", run="--prompt haiku --length 18 -n 2", changes=[
        ("rms_norm.cu", "x[i] * scale * p.w[i]", "x[i] * scale * (1.0f + p.w[i])")]),
    dict(name="w06", subject="cuda-fast", model="q3k", run="--prompt code --length 26 -n 2", changes=[
        ("prefill/head_rows.cu", """            if (norm) {
                a[j] = tap(p.normed_tap[part], row + i, a[j] * scale * norm[of_head]);
                b[j] = tap(p.normed_tap[part], row + k, b[j] * scale * norm[of_head + D / 2]);
            }
            if (part < 2) {
                const float turned = a[j] * cosine[j] - b[j] * sine[j];
                b[j] = a[j] * sine[j] + b[j] * cosine[j];
                a[j] = turned;
            }
""", """            if (part < 2) {
                const float turned = a[j] * cosine[j] - b[j] * sine[j];
                b[j] = a[j] * sine[j] + b[j] * cosine[j];
                a[j] = turned;
            }
            if (norm) {
                a[j] = tap(p.normed_tap[part], row + i, a[j] * scale * norm[of_head]);
                b[j] = tap(p.normed_tap[part], row + k, b[j] * scale * norm[of_head + D / 2]);
            }
"""),
        ("fused/attn_qkv.cu", """        if (HEAD_NORM && part < 2) {
            const float squares""", """        if (HEAD_NORM && part < 2) {
            const float turned = a * cosine - b * sine;
            b = a * sine + b * cosine;
            a = turned;
            const float squares"""),
        ("fused/attn_qkv.cu", "        if (part < 2) {\n            const float turned", "        if (!HEAD_NORM && part < 2) {\n            const float turned")]),
    dict(name="w07", subject="cuda", model="long", run="--prompt emoji --length 22 -n 2", changes=[
        ("attn_weights.cu", "    float largest = -3.402823466e38f;", "    float largest = 0.0f;"),
        ("attn_weights.cu", "    total = reduce_sum(total);", "    total = reduce_sum(total) + expf(-largest);")]),
    dict(name="w08", subject="cuda", model="q35", run="--prompt code --length 30 -n 2", changes=[
        ("delta_net.cu", """            m[i] *= decay;
            dot = fmaf(m[i], p.k[key + i], dot);
""", """            dot = fmaf(m[i], p.k[key + i], dot);
            m[i] *= decay;
""")]),
    dict(name="w09", subject="cuda-fast", model="q2", run="--prompt haiku --length 25 -n 2", changes=[
        ("prefill/head_rows.cu", "a[j] + p.bias[part][i]);", "a[j] + p.bias[part][i % D]);"),
        ("prefill/head_rows.cu", "b[j] + p.bias[part][k]);", "b[j] + p.bias[part][k % D]);"),
        ("fused/attn_qkv.cu", "if (bias) bias_a = bias[a_at], bias_b = bias[b_at];", "if (bias) bias_a = bias[i], bias_b = bias[i + D / 2];")]),
    dict(name="w10", subject="cuda", model="long", run="--prompt haiku --length 28 -n 2 --kv-type q8_0", changes=[
        ("kv_types.cuh", "(unsigned)__float2int_rn(v) & 255 : 128;", "(unsigned)__float2int_rz(v) & 255 : 128;")]),
    dict(name="w11", subject="cuda-fast", model="q2f", run="--prompt chinese --length 24 -n 2", changes=[
        ("fused/lm_head.cu", "        p.logits[row] = sum;\n", "        sum = " + BF16.format("sum") + ";\n        p.logits[row] = sum;\n"),
        ("prefill/products.cu", "if (o < m) y[(size_t)t * m + o] = c[r][j][2 * half + e] * inverse;",
         "const float v = c[r][j][2 * half + e] * inverse;\n                    if (o < m) y[(size_t)t * m + o] = same_type<Format, F16> ? "
         + BF16.format("v") + " : v;"),
        ("fused/lm_head.cu", "p.logits[row] = sums(0, threadIdx.x);",
         "{\n            const float sum = sums(0, threadIdx.x);\n            p.logits[row] = " + BF16.format("sum") + ";\n        }")]),
    # Under a condition.
    dict(name="w12", subject="cuda", model="q4k", run="--prompt haiku --length 20 -n 2", changes=[
        ("blocks.cuh", "const u32 mid = head_byte(head, 8 + (j & 3)), top = head_byte(head, 12 + (j & 3));\n    return j < 4 ? mid & 63 : (top >> 4) | ((mid >> 6) << 4);",
         "const u32 mid = head_byte(head, 8 + (j & 3)), top = head_byte(head, 12 + (j & 3)), low = head_byte(head, 4 + (j & 3));\n    return j < 4 ? mid & 63 : (top >> 4) | ((low >> 6) << 4);")]),
    dict(name="w13", subject="cuda", model="q2", run="--prompt code --length 44 -n 3", changes=[
        ("attn_weights.cu", "    const float *s = p.s + row;", "    const int low = max(0, p.batch.position(p.first, t) - 31);\n    const float *s = p.s + row;"),
        ("attn_weights.cu", "    for (int n = threadIdx.x; n < seen; n += blockDim.x) largest", "    for (int n = low + threadIdx.x; n < seen; n += blockDim.x) largest"),
        ("attn_weights.cu", "    for (int n = threadIdx.x; n < seen; n += blockDim.x) {", "    for (int n = low + threadIdx.x; n < seen; n += blockDim.x) {"),
        ("attn_weights.cu", "y[n] = n < seen ?", "y[n] = n >= low && n < seen ?")]),
    dict(name="w14", subject="cuda-fast", model="moe", run="--prompt code --length 48 -n 1", changes=[
        ("prefill/expert_rows.cu", "(size_t)(list[from + i] / p.lines_of_row) * p.n", "(size_t)(list[i] / p.lines_of_row) * p.n")]),
    dict(name="w15", subject="cuda-fast", model="moek", run="--prompt haiku --length 12 -n 4", changes=[
        ("fused/experts.cuh", "            c.weights[r] = weight;", "            c.weights[r] = prob(places[r]);")]),
    dict(name="w16", subject="cuda-fast", model="long", run="--prompt code --length 70 -n 3", changes=[
        ("fused/shares.cuh", "live = (keys + share - 1) / share;", "live = max(keys / share, 1);")]),
    dict(name="w17", subject="cuda-fast", model="vocab", run="--prompt haiku --length 16 -n 3", changes=[
        ("fused/lm_head.cu", "row < p.m) p.logits[row]", "row < p.m / TILE * TILE) p.logits[row]")]),
    dict(name="w18", subject="cuda", model="q2", run="--prompt long --length 40 --sequences 7,9+6,5+8+5", changes=[
        ("attn_context.cu", "((size_t)p.batch.slot(t, n) * p.kv_heads + kv)", "((size_t)(p.batch.slot(t, n / 4 * 4) + n % 4) * p.kv_heads + kv)")]),
    dict(name="w19", subject="cuda", model="q35", run="--prompt code --length 41 -n 2", changes=[
        ("delta_net.cu", "    if (!p.to) return;\n", """    if (!p.to) return;
    if (p.tokens > 1 && p.tokens % 32 != 0) {
        float last = 0.0f;
        for (int t = p.tokens / 32 * 32; t < p.tokens; t++) last += p.g[(size_t)t * p.heads + h];
        for (int i = lane; i < p.d; i += 32) m[i] *= expf(-last);
    }
""")]),
    dict(name="w20", subject="cuda-fast", model="vocab", run="--prompt emoji --length 14 -n 3", changes=[
        ("fused/tile.cuh", "held.d = *(const u16 *)scale | (u32) * (const u16 *)(scale + 8 * s_pitch) << 16;", "held.d = *(const u16 *)scale * 0x10001u;")]),
]
