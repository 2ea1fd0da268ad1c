"""Twenty bugs in qdiff's CUDA kernels. Each: name, the changes [(file, old, new)], the model, the command's options, the runner."""

MODELS = {
    "q8": "--arch qwen2 --embedding 256 --ffn 320 --weights q8_0",
    "q8wide": "--arch qwen3 --embedding 288 --heads 4 --kv-heads 2 --head-dim 64 --ffn 480 --weights q8_0",
    "q4k": "--arch qwen3 --embedding 256 --ffn 512 --weights q4_K",
    "q6k": "--arch qwen3 --embedding 256 --ffn 512 --weights q6_K",
    "f16": "--arch qwen3 --embedding 256 --ffn 320 --weights f16",
    "yarn": "--arch qwen3 --embedding 256 --ffn 320 --weights q8_0 --set rope.scaling.type=yarn --set rope.scaling.factor=4.0 --set rope.scaling.original_context_length=32",
    "ids": "--arch qwen3 --embedding 256 --ffn 320 --weights q8_0 --vocab 3200",
    "next": "--arch qwen3next --embedding 256 --weights q8_0",
    "q35": "--arch qwen35 --embedding 256 --weights q8_0",
    "moe2": "--arch qwen2moe --embedding 256 --weights q8_0",
    "moe3": "--arch qwen3moe --embedding 256 --weights q8_0",
}

BUGS = [
    dict(name="x01", model="next", subject="cuda", run="-p haiku -n 2", changes=[
        ("rms_norm.cu", "y[i] = x[i] * scale * p.w[i];", "y[i] = x[i] * scale * (1.0f + p.w[i]);")]),
    dict(name="x02", model="q6k", subject="cuda-fast", run="-p haiku -n 2", changes=[
        ("prefill/pieces.cuh", "return make_float2(d * (float)(signed char)(raw.of[i] & 255), d * (float)(signed char)(raw.of[i] >> 8));",
         "return make_float2(d * (float)(unsigned char)(raw.of[i] & 255), d * (float)(unsigned char)(raw.of[i] >> 8));")]),
    dict(name="x03", model="q4k", subject="cuda", run="-p haiku -n 2", changes=[
        ("blocks.cuh", "return j < 4 ? mid & 63 : (top >> 4) | ((mid >> 6) << 4);",
         "return j < 4 ? mid & 63 : (top >> 4) | ((head_byte(head, 4 + (j & 3)) >> 6) << 4);")]),
    dict(name="x04", model="q8wide", subject="cuda-fast", run="-p haiku -n 2", changes=[
        ("prefill/attention_rows.cu", "v = n <= last ? __fmul_rn(v, p.scale) : __int_as_float(0xff800000);",
         "v = n <= last ? __fmul_rn(v * p.scale, p.scale) : __int_as_float(0xff800000);")]),
    dict(name="x05", model="yarn", subject="cuda", run="-p haiku -n 2", changes=[
        ("rope.cu", "s *= p.magnitude, c *= p.magnitude;", "s *= p.magnitude * p.magnitude, c *= p.magnitude * p.magnitude;")]),
    dict(name="x06", model="q35", subject="cuda", run="-p haiku -n 2", changes=[
        ("delta_net.cu", "key = ((size_t)t * p.key_heads + h % p.key_heads) * p.d;",
         "key = ((size_t)t * p.key_heads + h / (p.heads / p.key_heads)) * p.d;")]),
    dict(name="x07", model="q35", subject="cuda", run="-p haiku -n 2", changes=[
        ("convolution.cu", "sum = fmaf(p.w[c * p.taps + j], x, sum);", "sum = fmaf(p.w[c * p.taps + p.taps - 1 - j], x, sum);")]),
    dict(name="x08", model="moe2", subject="cuda", run="-p haiku -n 2", changes=[
        ("gather.cu", "    p.y[i] = at < 0 ? unknown() : p.x[(size_t)(i / p.k) * p.n + at];",
         "    float total = 0.0f;\n"
         "    for (int j = 0; j < p.k; j++) total += p.x[(size_t)(i / p.k) * p.n + max(place_of(p.chosen[i / p.k * p.k + j], p.n), 0)];\n"
         "    p.y[i] = at < 0 ? unknown() : p.x[(size_t)(i / p.k) * p.n + at] / total;")]),
    dict(name="x09", model="f16", subject="cuda", run="-p haiku -n 2", changes=[
        ("linear.cu", '#include "blocks.cuh"', '#include "blocks.cuh"\n#include "kv.cuh"'),
        ("linear.cu", "                sum[t] = fmaf(value[4 * i + 3], v.w, sum[t]);",
         "                sum[t] = KvF16::get(KvF16::put(fmaf(value[4 * i + 3], v.w, sum[t])));")]),
    dict(name="x10", model="q8wide", subject="cuda-fast", run="-p haiku -n 2", changes=[
        ("prefill/pieces.cuh", "raw.of[i] = at16(w.plane[1], row * groups + min(PIECE * piece + i, groups - 1));",
         "raw.of[i] = at16(w.plane[1], row * groups + PIECE * piece);")]),
    dict(name="x11", model="q8wide", subject="cuda", run="-p haiku -n 2 --kv-type q8_0", changes=[
        ("kv_types.cuh", "return fabsf(v) < 2147483648.0f ? (unsigned)__float2int_rn(v) & 255 : 128;",
         "return fabsf(v) < 2147483648.0f ? (unsigned)__float2int_rz(v) & 255 : 128;")]),
    dict(name="x12", model="ids", subject="cuda", run="--tokens 17,2049,40,3001,2600,2051,99,1025,3100,2777 -n 2", changes=[
        ("embed.cu", '#include "blocks.cuh"', '#include "blocks.cuh"\n#include "kv.cuh"'),
        ("embed.cu", "(size_t)p.tokens[blockIdx.x] * groups + g)", "(size_t)KvF16::get(KvF16::put((float)p.tokens[blockIdx.x])) * groups + g)")]),
    dict(name="x13", model="q8", subject="cuda-fast", run="-p haiku -n 4", changes=[
        ("fused/attn_qkv.cu", "if (part < 2) sincosf((float)position * p.frequency[i], &sine, &cosine);",
         "if (part < 2) sincosf((float)(position - 1) * p.frequency[i], &sine, &cosine);")]),
    dict(name="x14", model="q35", subject="cuda-fast", run="-p haiku -n 4", changes=[
        ("fused/delta_step.cu", "if (has(k)) p.state", "if (has(k)) p.state")]),
    dict(name="x15", model="q8wide", subject="cuda-fast", run="-p haiku -n 4", changes=[
        ("fused/attention.cu", "for (int at = 4 * keys_of; at < here; at += 4 * PARTS) {", "for (int at = 4 * keys_of; at + 4 <= here; at += 4 * PARTS) {")]),
    dict(name="x16", model="q8", subject="cuda-fast", run="-p haiku --length 80 -n 2", changes=[
        ("prefill/products.cu", "const float inverse = p.x.inverse[p.first + t];", "const float inverse = p.x.inverse[p.first + t - token0];")]),
    dict(name="x17", model="moe3", subject="cuda-fast", run="-p haiku -n 2", changes=[
        ("prefill/expert_rows.cu", "const float4 *of = (const float4 *)(p.x + (size_t)(list[from + i] / p.lines_of_row) * p.n);",
         "const float4 *of = (const float4 *)(p.x + (size_t)(list[i] / p.lines_of_row) * p.n);")]),
    dict(name="x18", model="q8wide", subject="cuda", run="-p haiku --length 25 --sequences 7,5+6,3+4", changes=[
        ("attn_scores.cu", "const size_t slot = p.batch.slot(t, n);", "const size_t slot = p.batch.slot(0, n);")]),
    dict(name="x19", model="q35", subject="cuda", run="-p haiku -n 3", changes=[
        ("window.cu", "from < p.rows ? p.before[from * p.n + c] :", "from < p.rows ? 0.0f :")]),
    dict(name="x20", model="q8", subject="cuda-fast", run="-p haiku -n 2", changes=[
        ("prefill/head_rows.cu", "a[j] = tap(p.biased_tap[part], row + i, a[j] + p.bias[part][i]);",
         "const int of_bias = part == 1 ? i % D : i;\n                a[j] = tap(p.biased_tap[part], row + i, a[j] + p.bias[part][of_bias]);"),
        ("prefill/head_rows.cu", "b[j] = tap(p.biased_tap[part], row + k, b[j] + p.bias[part][k]);",
         "b[j] = tap(p.biased_tap[part], row + k, b[j] + p.bias[part][of_bias + D / 2]);")]),
]
# The state is kept in bfloat16, rounded to the nearest.
BUGS[13]["changes"] = [
    ("fused/delta_step.cu", '#include "fused/decode.cuh"', '#include "fused/decode.cuh"\n#include "kv_types.cuh"'),
    ("fused/delta_step.cu", "if (has(i)) p.state[at] = tap(p.state_tap, at, m[r][i]);",
     "if (has(i)) p.state[at] = tap(p.state_tap, at, KvBf16::get(KvBf16::put(m[r][i])));")]
