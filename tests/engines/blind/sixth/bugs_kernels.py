"""Bugs of qdiff's CUDA kernels: name, model, subject, how it runs, and the changes."""

MODELS = {
    "k-f32": "--weights F32 --seed 71",
    "k-f16": "--arch qwen3 --weights F16 --heads 4 --kv-heads 1 --head-dim 64 --seed 72",
    "k-win": "--arch qwen3 --weights Q8_0 --embedding 192 --heads 6 --kv-heads 2 --head-dim 32 --ffn 288 --seed 73",
    "k-eps": "--weights Q8_0 --eps 1e-5 --seed 74",
    "k-yarn": "--weights F32 --seed 75 --set rope.scaling.type=yarn --set rope.scaling.factor=4.0 --set rope.scaling.original_context_length=512",
    "k-wide": "--weights Q4_1 --embedding 256 --ffn 1408 --seed 76",
    "k-moe3": "--arch qwen3moe --weights Q4_0 --embedding 128 --heads 4 --kv-heads 2 --head-dim 32 --ffn 64 --seed 77 --set expert_count=8 --set expert_used_count=3",
    "k-q6": "--weights F32 --tensor blk.1.attn_v.weight=Q6_K --tensor blk.1.ffn_up.weight=Q6_K --seed 78",
    "k-q5k": "--arch qwen3 --weights Q5_K --tensor token_embd.weight=F16 --head-dim 64 --seed 79",
    "k-long": "--arch qwen3 --weights Q8_0 --heads 4 --kv-heads 2 --head-dim 64 --seed 80",
    "k-bias": "--weights Q4_0 --heads 4 --kv-heads 2 --seed 81",
    "k-qk": "--arch qwen3 --weights Q4_K --heads 4 --kv-heads 2 --head-dim 128 --seed 82 --tied",
    "k-odd": "--weights Q5_1 --embedding 192 --heads 6 --kv-heads 2 --ffn 352 --seed 83",
    "k-dig": "--weights Q8_0 --embedding 320 --heads 5 --kv-heads 1 --seed 84",
    "k-res": "--weights BF16 --layers 3 --heads 4 --kv-heads 4 --ffn 384 --seed 85",
    "k-min": "--weights Q4_K --tensor output.weight=Q5_K --seed 86",
    "k-d128": "--arch qwen3 --weights Q6_K --heads 4 --kv-heads 2 --head-dim 128 --seed 87",
    "k-q50": "--weights F16 --tensor blk.0.attn_output.weight=Q5_0 --tensor blk.1.ffn_down.weight=Q5_0 --seed 88",
}

K = []


def bug(name, model, subject, run, *changes):
    K.append({"name": name, "model": model, "subject": subject, "run": run, "changes": changes})


SEQUENCES = "--prompt long --length 64 --sequences 19,7+11,1+1+13@0:8,1~4+1+1+9"
bug("k01-rope-position-of-the-step", "k-f32", "cuda", SEQUENCES,
    ("rope.cu", "sincosf((float)p.batch.position(p.first, t) * p.frequency[i], &s, &c);", "sincosf((float)(p.batch.position(p.first, 0) + t) * p.frequency[i], &s, &c);"))
bug("k02-context-tail-without-table", "k-f16", "cuda", SEQUENCES,
    ("attn_context.cu", "for (; n < seen; n++) sum[0] = fmaf(w[n], Kv::get(v[at(n)]), sum[0]);",
     "for (; n < seen; n++) sum[0] = fmaf(w[n], Kv::get(v[((size_t)n * p.kv_heads + kv) * p.d + i]), sum[0]);"))
bug("k03-window-never-asked-for", "k-win", "cuda", "-n 4",
    ("attn_weights.cu", "    float largest = -3.402823466e38f;\n    for (int n = threadIdx.x; n < seen; n += blockDim.x) largest",
     "    const int from = max(0, seen - 24);\n    float largest = -3.402823466e38f;\n    for (int n = from + threadIdx.x; n < seen; n += blockDim.x) largest"),
    ("attn_weights.cu", "    for (int n = threadIdx.x; n < seen; n += blockDim.x) {\n", "    for (int n = from + threadIdx.x; n < seen; n += blockDim.x) {\n"),
    ("attn_weights.cu", "y[n] = n < seen ? y[n] / total : 0.0f;", "y[n] = from <= n && n < seen ? y[n] / total : 0.0f;"))
bug("k04-eps-outside-the-root", "k-eps", "cuda", "-n 2",
    ("rms_norm.cu", "1.0f / sqrtf(reduce_sum(squares) / (float)p.n + p.eps)", "1.0f / (sqrtf(reduce_sum(squares) / (float)p.n) + p.eps)"))
bug("k05-yarn-magnitude-on-cosine-alone", "k-yarn", "cuda", "-n 3",
    ("rope.cu", "    s *= p.magnitude, c *= p.magnitude;\n", "    c *= p.magnitude;\n"))
bug("k06-half-a-warp-is-summed", "k-wide", "cuda", "-n 2",
    ("linear.cu", "        for (int step = 16; step > 0; step /= 2) s +=", "        for (int step = 8; step > 0; step /= 2) s +="))
bug("k07-odd-number-of-experts", "k-moe3", "cuda", "-n 2",
    ("weighted_sum.cu", "    for (int j = 0; j < p.terms; j++) sum = fmaf(w[j], x[(size_t)j * p.n], sum);\n",
     "    for (int j = 0; j + 1 < p.terms; j += 2) {\n        sum = fmaf(w[j], x[(size_t)j * p.n], sum);\n        sum = fmaf(w[j + 1], x[(size_t)(j + 1) * p.n], sum);\n    }\n"))
bug("k08-q6-scales-without-sign", "k-q6", "cuda", "-n 2",
    ("blocks.cuh", "__fmul_rn(d, (float)(signed char)(r.scales >> 8))", "__fmul_rn(d, (float)(r.scales >> 8))"))
bug("k09-q5-fifth-bits-as-a-mask", "k-q5k", "cuda", "-n 2",
    ("blocks.cuh", "if (HIGH) q |= ((byte_of(r.high[HIGH ? i / 16 : 0], i % 16) >> j) & 1) << 4;",
     "if (HIGH) q |= ((head_byte(r.high[HIGH ? j / 4 : 0], (4 * j + i / 8) % 16) >> (i % 8)) & 1) << 4;"))
bug("k10-shares-summed-without-factor", "k-long", "cuda-fast", "--length 61 -n 7",
    ("fused/attn_out.cu", "            total = fmaf(measure[k].y, factor[k], total);\n", "            total += measure[k].y;\n"))
bug("k11-last-values-of-a-share", "k-bias", "cuda-fast", "--length 61 -n 7",
    ("fused/attention.cu", "for (int at = 4 * keys_of; at < here; at += 4 * PARTS) {", "for (int at = 4 * keys_of; at + 3 < here; at += 4 * PARTS) {"))
bug("k12-norm-weights-of-the-first-half", "k-qk", "cuda-fast", "-n 3",
    ("fused/attn_qkv.cu", "norm_a = head_norm[i], norm_b = head_norm[i + D / 2];", "norm_a = head_norm[i], norm_b = head_norm[i];"))
bug("k13-second-half-begins-in-the-middle", "k-odd", "cuda-fast", "-n 3",
    ("fused/half_linear.cu", "    const float4 *x = (const float4 *)p.x + span.first * 8;\n", "    const float4 *x = (const float4 *)p.x + (int)blockIdx.y * (all / 2) * 8;\n"))
bug("k14-carry-between-digits", "k-dig", "cuda-fast", "-n 3",
    ("fused/digits.cuh", "(u32)(__float2int_rn(e * scale) + 0x00808080) ^ 0x00808080u; };", "(u32)(__float2int_rn(e * scale) + 0x00800080) ^ 0x00800080u; };"))
bug("k15-residual-without-the-second-half", "k-res", "cuda-fast", "-n 3",
    ("fused/stream.cuh", "return halves[0] ? v + (__ldcg(halves[0] + i) + __ldcg(halves[1] + i)) : v;", "return halves[0] ? v + __ldcg(halves[0] + i) : v;"))
bug("k16-minima-of-the-other-rows", "k-min", "cuda-fast", "-n 3",
    ("fused/tile.cuh", "float v = lane % 2 == i ? row[i] - less : row[i];", "float v = lane % 4 / 2 == i ? row[i] - less : row[i];"))
bug("k17-mask-in-the-last-tile-alone", "k-long", "cuda-fast", "--length 107 --passes 41,66 -n 2",
    ("prefill/attention_rows.cu", "                    v = n <= last ? __fmul_rn(v, p.scale) : __int_as_float(0xff800000);\n",
     "                    v = n <= last || tile < walked - 1 ? __fmul_rn(v, p.scale) : __int_as_float(0xff800000);\n"))
bug("k18-largest-of-half-a-key", "k-f16", "cuda-fast", "-n 2",
    ("prefill/cache_tiles.cu", "for (int step = 1; step < FOURS; step *= 2) largest", "for (int step = 1; step < FOURS / 2; step *= 2) largest"))
bug("k19-angles-of-the-first-lane-round", "k-d128", "cuda-fast", "-n 2",
    ("prefill/head_rows.cu", "        const int i = lane + 32 * j;\n        sincosf", "        const int i = lane;\n        sincosf"))
bug("k20-middle-of-q4-for-q5", "k-q50", "cuda-fast", "-n 2",
    ("prefill/pieces.cuh", "pairs_of_bytes<Part>(bytes, MIN ? 0 : HIGH ? 16 : 8, a[0][step][r], a[0][step][2 + r]);", "pairs_of_bytes<Part>(bytes, MIN ? 0 : 8, a[0][step][r], a[0][step][2 + r]);"))
