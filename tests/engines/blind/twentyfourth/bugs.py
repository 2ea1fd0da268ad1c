"""Twenty bugs in qdiff's CUDA kernels: models, commands and changes of kernel sources. key.py is the answer key."""

MODELS = {
    "q4": "--arch qwen3 --weights Q4_0 --heads 4 --kv-heads 2 --head-dim 64 --ffn 320 --seed 241",
    "q4k": "--arch qwen3 --weights Q4_K --tensor token_embd.weight=F16 --heads 4 --kv-heads 2 --head-dim 64 --seed 242",
    "six": "--arch qwen3 --weights Q8_0 --heads 6 --kv-heads 2 --embedding 192 --head-dim 64 --ffn 320 --seed 243",
    "q2": "--arch qwen2 --weights Q8_0 --heads 4 --kv-heads 2 --head-dim 64 --ffn 384 --seed 244",
    "bf16": "--arch qwen3 --weights BF16 --heads 4 --kv-heads 2 --head-dim 64 --ffn 384 --seed 245",
    "q6k": "--arch qwen2 --weights Q6_K --tensor token_embd.weight=F16 --heads 4 --kv-heads 2 --head-dim 64 --seed 246",
    "q35": "--arch qwen35 --weights Q8_0 --layers 4 --seed 247",
    "moe": "--arch qwen3moe --weights Q4_0 --heads 4 --kv-heads 2 --head-dim 64 --seed 248",
    "odd": "--arch qwen3 --weights Q5_1 --heads 4 --kv-heads 2 --head-dim 64 --ffn 352 --seed 249",
    "q51": "--arch qwen3 --weights Q5_1 --heads 4 --kv-heads 2 --head-dim 64 --ffn 384 --seed 250",
}
BUGS = []


def bug(name, subject, model, run, file, old, new):
    BUGS.append(dict(name=name, subject=subject, model=model, run=run, changes=[(file, old, new)]))


# Common.
bug("c01", "cuda", "bf16", "--prompt haiku --length 27 -n 3", "linear.cu",
    "(size_t)(first + t) * p.n + 32 * g)", "(size_t)(first + min(t, TOKENS - 2)) * p.n + 32 * g)")
bug("c02", "cuda", "q4k", "--prompt haiku --length 25 -n 3", "blocks.cuh",
    "mid & 63 : (top >> 4) | ((mid >> 6) << 4);", "mid & 63 : (top >> 4);")
bug("c03", "cuda", "six", "--prompt haiku --length 29 -n 3", "attn_scores.cu",
    "h / (p.heads / p.kv_heads)) * p.d", "min(h / 2, p.kv_heads - 1)) * p.d")
bug("c04", "cuda", "q2", "--prompt haiku --length 30 -n 4", "attn_weights.cu",
    "n < seen; n += blockDim.x) {\n        const float e", "n < p.keys; n += blockDim.x) {\n        const float e")
bug("c05", "cuda", "q35", "--prompt haiku --length 24 -n 3", "delta_net.cu",
    "            m[i] *= decay;\n            dot = fmaf(m[i], p.k[key + i], dot);",
    "            dot = fmaf(m[i], p.k[key + i], dot);\n            m[i] *= decay;")
bug("c06", "cuda", "q6k", "--prompt haiku --length 26 -n 3", "blocks.cuh",
    "(float)(signed char)(r.scales >> 8))", "(float)(r.scales >> 8))")
bug("c07", "cuda-fast", "q4", "--prompt haiku --length 70 -n 4", "fused/attn_out.cu",
    "total = fmaf(measure[k].y, factor[k], total);", "total += measure[k].y;")
bug("c08", "cuda-fast", "q2", "--prompt haiku --length 28 -n 5", "fused/attn_qkv.cu",
    "bias_b = bias[b_at];", "bias_b = bias[a_at];")
bug("c09", "cuda-fast", "six", "--prompt haiku --length 33 --ubatch 20 -n 4", "prefill/head_rows.cu",
    """                const float turned = a[j] * cosine[j] - b[j] * sine[j];
                b[j] = a[j] * sine[j] + b[j] * cosine[j];
                a[j] = turned;
""", """                a[j] = a[j] * cosine[j] - b[j] * sine[j];
                b[j] = a[j] * sine[j] + b[j] * cosine[j];
""")
bug("c10", "cuda-fast", "moe", "--prompt haiku --length 24 -n 5", "fused/expert_down.cu",
    "line + slot * groups * LINE", "line")

# Rare, subtle or conditional.
bug("r01", "cuda", "q2", "--prompt haiku --length 27 -n 3 --kv-type iq4_nl", "kv_types.cuh",
    "scale = with_values / of_squares;", "scale = largest / -127.0f;")
bug("r02", "cuda", "bf16", "--prompt haiku --length 26 -n 3 --kv-type f8_e4m3 --reference none", "kv_types.cuh",
    "size < SMALLEST ? (unsigned)__float2int_rn(fabsf(v) * STEPS) : rounded;", "size < SMALLEST ? 0u : rounded;")
bug("r03", "cuda", "q35", "--prompt haiku --length 30 --ubatch 17 -n 3", "convolution.cu",
    "p.before[(size_t)row * p.n + c]", "p.before[(size_t)(past - 1 - row) * p.n + c]")
bug("r04", "cuda", "moe", "--prompt haiku --length 23 -n 3", "row_shares.cu",
    "(size_t)(i / p.k) * p.k;", "(size_t)blockIdx.x * p.k;")
bug("r05", "cuda-fast", "q51", "--prompt haiku --length 30 -n 5", "fused/attention.cu",
    "copy16(to + KEYS * D, (const Type *)p.v + from);", "copy16(to + KEYS * D, (const Type *)p.k + from);")
bug("r07", "cuda-fast", "moe", "--prompt haiku --length 40 -n 3", "prefill/expert_rows.cu",
    "(size_t)(list[from + i] / p.lines_of_row) * p.n", "(size_t)(list[i] / p.lines_of_row) * p.n")
bug("r08", "cuda-fast", "bf16", "--prompt haiku --length 31 -n 3", "prefill/cache_tiles.cu",
    "for (int step = 1; step < FOURS; step *= 2) largest", "for (int step = 1; step < FOURS / 2; step *= 2) largest")
bug("r09", "cuda-fast", "q2", "--prompt haiku --length 32 -n 3", "prefill/attention_rows.cu",
    "v = n <= last ? __fmul_rn(v, p.scale)", "v = n - e <= last ? __fmul_rn(v, p.scale)")
bug("r10", "cuda-fast", "odd", "--prompt haiku --length 24 -n 5", "fused/half_linear.cu",
    "(const float4 *)p.x + span.first * 8;", "(const float4 *)p.x + blockIdx.y * span.groups * 8;")
bug("r06", "cuda-fast", "q35", "--prompt haiku --length 22 -n 5", "fused/mixer_in.cu",
    "tap(p.window_tap, (p.past - 1) * all + row, v);", "tap(p.window_tap, (p.past - 1) * all + row, fmaf(last, v, sum));")
