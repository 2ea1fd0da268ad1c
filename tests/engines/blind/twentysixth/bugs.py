"""Twenty bugs in qdiff's CUDA kernels: models, commands and changes of kernel sources. key.py is the answer key."""

MODELS = {
    "q50": "--arch qwen2 --weights Q5_0 --heads 4 --kv-heads 2 --head-dim 64 --ffn 384 --seed 261",
    "q4k": "--arch qwen3 --weights Q4_K --tensor token_embd.weight=Q6_K --heads 4 --kv-heads 2 --head-dim 64 --seed 262",
    "odd": "--arch qwen3 --weights Q8_0 --heads 4 --kv-heads 2 --head-dim 64 --ffn 352 --seed 263",
    "moe": "--arch qwen3moe --weights Q8_0 --heads 4 --kv-heads 2 --head-dim 64 --seed 264",
    "f16": "--arch qwen2 --weights F16 --heads 4 --kv-heads 2 --head-dim 64 --ffn 384 --seed 265",
    "640": "--arch qwen2 --weights Q8_0 --embedding 640 --heads 10 --kv-heads 2 --head-dim 64 --ffn 384 --seed 266",
    "q3": "--arch qwen3 --weights Q8_0 --heads 4 --kv-heads 2 --head-dim 64 --ffn 384 --seed 267",
    "q41": "--arch qwen3 --weights Q4_1 --heads 4 --kv-heads 2 --head-dim 64 --ffn 384 --seed 268",
    "q2": "--arch qwen2 --weights Q8_0 --heads 4 --kv-heads 2 --head-dim 64 --ffn 384 --seed 269",
    "six": "--arch qwen3 --weights Q8_0 --heads 6 --kv-heads 2 --embedding 256 --head-dim 128 --ffn 384 --seed 270",
    "moe2": "--arch qwen2moe --weights Q8_0 --heads 4 --kv-heads 2 --head-dim 64 --set expert_count=12 --set expert_used_count=4 --seed 271",
    "q35": "--arch qwen35 --weights Q8_0 --layers 4 --seed 272",
    "next": "--arch qwen3next --weights Q8_0 --layers 4 --seed 273",
    "bf16": "--arch qwen3 --weights BF16 --heads 4 --kv-heads 2 --head-dim 64 --ffn 384 --seed 274",
}
BUGS = []


def bug(name, subject, model, run, *changes):
    BUGS.append(dict(name=name, subject=subject, model=model, run=run, changes=list(changes)))


# Dequantisation.
bug("f01", "cuda", "q50", "--prompt haiku --length 27 -n 3",
    ("blocks.cuh", "q |= ((r.high >> i) & 1) << 4;", "q |= ((r.high >> (i % 16)) & 1) << 4;"))
bug("f02", "cuda", "q4k", "--prompt haiku --length 25 -n 3",
    ("blocks.cuh", "        scale_min(r.head, j, scale, min);\n        const int shift",
     "        scale_min(r.head, j, scale, min);\n        min = __fmul_rn(half_bits((u16)(r.head.x >> 16)), small(min_of(r.head, j & ~1)));\n"
     "        const int shift"))
# Products and their tails.
bug("f03", "cuda-fast", "odd", "--prompt haiku --length 37 -n 3",
    ("prefill/products.cu", "pieces = (groups + PIECE - 1) / PIECE;", "pieces = groups / PIECE;"))
bug("f04", "cuda-fast", "moe", "--prompt haiku --length 45 -n 3",
    ("prefill/expert_rows.cu", "(size_t)(list[from + i] / p.lines_of_row)", "(size_t)(list[i] / p.lines_of_row)"))
bug("f05", "cuda-fast", "f16", "--prompt haiku --length 30 -n 4",
    ("fused/lm_head.cu", "return Rows{&p.w, (int)first_of(set) + tile * TILE, p.m}; };\n    auto done",
     "return Rows{&p.w, min((int)first_of(set) + tile * TILE, p.m - TILE), p.m}; };\n    auto done"))
# Norms.
bug("f06", "cuda", "640", "--prompt haiku --length 24 -n 3",
    ("rms_norm.cu", "for (int i = threadIdx.x; i < p.n; i += blockDim.x) squares",
     "for (int i = threadIdx.x; i < p.n / (int)blockDim.x * (int)blockDim.x; i += blockDim.x) squares"))
bug("f07", "cuda-fast", "q3", "--prompt haiku --length 29 -n 4",
    ("fused/attn_qkv.cu", "p.head_norm[part] : nullptr;", "p.head_norm[0] : nullptr;"))
# RoPE.
bug("f08", "cuda-fast", "q41", "--prompt haiku --length 33 -n 4",
    ("fused/attn_qkv.cu", "sincosf((float)position * p.frequency[i]", "sincosf((float)(position + 1) * p.frequency[i]"))
bug("f09", "cuda", "q2", "--prompt haiku --length 40 -n 3",
    ("rope.cu", "    sincosf((float)p.batch.position(p.first, t) * p.frequency[i], &s, &c);",
     "    const unsigned bits = __float_as_uint(p.frequency[i]);\n"
     "    const float frequency = __uint_as_float((bits + 0x7fffu + (bits >> 16 & 1)) & 0xffff0000u);\n"
     "    sincosf((float)p.batch.position(p.first, t) * frequency, &s, &c);"))
# Attention.
bug("f10", "cuda-fast", "q41", "--prompt haiku --length 40 --passes 23,17 -n 2",
    ("prefill/attention_rows.cu", "last = p.first + t;", "last = t;"),
    ("prefill/attention_rows.cu", "n <= p.first + token[r];", "n <= token[r];"))
bug("f11", "cuda-fast", "six", "--prompt haiku --length 45 -n 2",
    ("prefill/attention_rows.cu", "walked = (p.first + (block_end - 1) / group) / KEYS + 1;",
     "walked = (p.first + (int)(gridDim.x - 1 - blockIdx.x) * ROWS / group) / KEYS + 1;"),
    ("prefill/attention_rows.cu", "n <= p.first + token[r];", "n <= p.first + token[r] && n / KEYS < walked;"))
bug("f12", "cuda-fast", "q3", "--prompt haiku --length 84 -n 4",
    ("fused/attn_out.cu", "factor[k] = expf(measure[k].x - most);", "factor[k] = exp2f(measure[k].x - most);"))
# Caches.
bug("f13", "cuda", "q3", "--prompt haiku --length 26 -n 3 --kv-type q8_0",
    ("kv_types.cuh", "(unsigned)__float2int_rn(v) & 255 : 128;", "(unsigned)__float2int_rz(v) & 255 : 128;"))
bug("f14", "cuda", "q2", "--prompt haiku --length 42 --sequences 16+9+11,1+1+1,1+1+1",
    ("attn_context.cu", "p.batch.slot(t, n)", "p.batch.slot(0, n)"))
# Experts and routing.
bug("f15", "cuda", "moe2", "--prompt haiku --length 23 -n 3",
    ("row_softmax.cu", "    total = reduce_sum(total);",
     "    for (int i = p.n + threadIdx.x; i < (p.n + 31) / 32 * 32; i += blockDim.x) total += expf(0.0f - largest);\n"
     "    total = reduce_sum(total);"))
# Delta net and convolution.
bug("f16", "cuda-fast", "q35", "--prompt haiku --length 22 -n 4",
    ("fused/delta_step.cu", "p.state[((size_t)h * D + first + r) * D + lane + 32 * k]", "p.state[((size_t)h * D + lane + 32 * k) * D + first + r]"),
    ("fused/delta_step.cu", "at = ((size_t)h * D + first + r) * D + lane + 32 * i;", "at = ((size_t)h * D + lane + 32 * i) * D + first + r;"))
bug("f17", "cuda-fast", "q35", "--prompt haiku --length 21 -n 4",
    ("fused/mixer_out.cu",
     "            const float4 v = __ldcg((const float4 *)p.x + i), z = __ldcg((const float4 *)p.z + i);",
     "            const float4 raw = __ldcg((const float4 *)p.x + i), z = __ldcg((const float4 *)p.z + i);\n"
     "            const float4 v = make_float4(gated(z.x, raw.x), gated(z.y, raw.y), gated(z.z, raw.z), gated(z.w, raw.w));"),
    ("fused/mixer_out.cu", "make_float4(gated(z.x, normed.x), gated(z.y, normed.y), gated(z.z, normed.z), gated(z.w, normed.w))", "normed"))
bug("f18", "cuda", "next", "--prompt haiku --length 29 --passes 20,2,7 -n 2",
    ("window.cu", "from < p.rows ? p.before[from * p.n + c]", "from < p.rows ? (p.tokens > 1 ? 0.0f : p.before[from * p.n + c])"))
# Biases and residuals.
bug("f19", "cuda-fast", "q2", "--prompt haiku --length 31 -n 3",
    ("prefill/head_rows.cu", "a[j] + p.bias[part][i]);", "a[j] + p.bias[part][lane + 32 * j]);"),
    ("prefill/head_rows.cu", "b[j] + p.bias[part][k]);", "b[j] + p.bias[part][lane + 32 * j + D / 2]);"))
bug("f20", "cuda-fast", "bf16", "--prompt haiku --length 28 -n 3",
    ("prefill/norm_rows.cu", "            made[k] = tap4(p.sum, at + 4 * i, make_float4(v.x + a.x, v.y + a.y, v.z + a.z, v.w + a.w));",
     "            made[k] = make_float4(v.x + a.x, v.y + a.y, v.z + a.z, v.w + a.w);\n"
     "            auto narrow = [](float e) { return half_bits(bits_of_half(e)); };\n"
     "            tap4(p.sum, at + 4 * i, make_float4(narrow(made[k].x), narrow(made[k].y), narrow(made[k].z), narrow(made[k].w)));"))
