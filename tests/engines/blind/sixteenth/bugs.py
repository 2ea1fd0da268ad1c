"""Twenty bugs in qdiff's CUDA kernels: models, commands and changes of the kernels' text. key.py has the answer key."""

MODELS = {
    "embed5": "--weights Q8_0 --tensor token_embd.weight=Q5_K --layers 2 --seed 1601",
    "wide": "--weights Q8_0 --layers 2 --heads 5 --kv-heads 1 --embedding 320 --head-dim 64 --ffn 512 --seed 1602",
    "q50": "--arch qwen3 --weights Q5_0 --tensor token_embd.weight=F16 --layers 2 --seed 1603",
    "q6k": "--arch qwen3 --weights Q4_0 --tensor token_embd.weight=F16 --tensor blk.1.attn_output.weight=Q6_K --layers 3 --seed 1604",
    "f16": "--weights F16 --layers 2 --ffn 1024 --seed 1605",
    "rope": "--arch qwen3 --weights Q4_1 --layers 2 --heads 4 --kv-heads 2 --head-dim 64 --seed 1606",
    "cache": "--weights Q8_0 --layers 2 --heads 8 --kv-heads 4 --head-dim 32 --seed 1607",
    "act": "--arch qwen3 --weights Q3_K --layers 2 --seed 1608",
    "tail": "--weights Q4_K --layers 2 --heads 4 --kv-heads 1 --seed 1609",
    "warps": "--arch qwen3 --weights Q8_0 --layers 2 --heads 6 --kv-heads 2 --embedding 256 --head-dim 64 --seed 1610",
    "moe": "--arch qwen3moe --weights Q5_1 --layers 2 --seed 1611",
    "delta": "--arch qwen35 --weights Q8_0 --layers 4 --seed 1612",
    "bias": "--weights Q5_1 --layers 2 --heads 4 --kv-heads 2 --seed 1613",
    "groups": "--arch qwen3 --weights F16 --layers 2 --heads 8 --kv-heads 2 --head-dim 32 --seed 1614",
    "parts": "--weights Q6_K --layers 2 --heads 4 --kv-heads 2 --head-dim 64 --massive --seed 1615",
    "brain": "--arch qwen3 --weights BF16 --layers 2 --seed 1616",
    "experts": "--arch qwen3moe --weights Q8_0 --layers 2 --seed 1617",
    "rings": "--arch qwen3moe --weights Q4_K --layers 2 --seed 1618",
    "hybrid": "--arch qwen35 --weights Q4_0 --layers 2 --seed 1619",
    "head": "--weights Q5_K --layers 2 --seed 1620",
}
BUGS = []


def bug(name, model, run, *changes, subject="cuda"):
    BUGS.append({"name": name, "model": model, "run": run, "changes": changes, "subject": subject, "kv": None})


def fused(*args):
    bug(*args, subject="cuda-fast")


TOKENS = "--tokens 3,17,250,91,33,128,77,301,9,55,214,160"

bug("c01-embed", "embed5", f"{TOKENS} --length 24 -n 4",
    ("embed.cu", "(size_t)p.tokens[blockIdx.x] * groups + g), g % 8, value)", "(size_t)p.tokens[blockIdx.x] * groups + g), g % 4, value)"))
bug("c02-norm", "wide", f"{TOKENS} --length 22 -n 4",
    ("rms_norm.cu", "    for (int i = threadIdx.x; i < p.n; i += blockDim.x) squares = fmaf(x[i], x[i], squares);",
     "    if (threadIdx.x < p.n) squares = x[threadIdx.x] * x[threadIdx.x];"))
bug("c03-fifth-bits", "q50", f"{TOKENS} --length 26 -n 4",
    ("blocks.cuh", "if (HIGH) q |= ((r.high >> i) & 1) << 4;", "if (HIGH) q |= ((r.high >> (i % 16)) & 1) << 4;"))
bug("c04-second-scale", "q6k", f"{TOKENS} --length 21 --ubatch 16 -n 3",
    ("blocks.cuh", "out[i] = __fmul_rn(scale[i / 16], small(low | (high << 4)) - 32.0f);",
     "out[i] = __fmul_rn(scale[i / 32], small(low | (high << 4)) - 32.0f);"))
bug("c05-shuffle", "f16", f"{TOKENS} --length 20 -n 4",
    ("linear.cu", "for (int step = 16; step > 0; step /= 2) s +=", "for (int step = 8; step > 0; step /= 2) s +="))
bug("c06-angles", "rope", f"{TOKENS} --length 30 -n 4",
    ("rope.cu", "    s *= p.magnitude, c *= p.magnitude;",
     "    s = __uint_as_float(__float_as_uint(s) & 0xffff0000u) * p.magnitude, c = __uint_as_float(__float_as_uint(c) & 0xffff0000u) * p.magnitude;"))
bug("c07-codes", "cache", f"{TOKENS} --length 23 --kv-type q8_0 -n 4",
    ("kv_types.cuh", "return fabsf(v) < 2147483648.0f ? (unsigned)__float2int_rn(v) & 255 : 128;",
     "return fabsf(v) < 2147483648.0f ? (unsigned)__float2int_rz(v) & 255 : 128;"))
bug("c08-activation", "act", f"{TOKENS} --length 25 -n 4",
    ("swiglu.cu", "p.gate[i] / (1.0f + expf(-p.gate[i]))", "p.gate[i] / (1.0f + exp2f(-p.gate[i]))"))
bug("c09-tail", "tail", f"{TOKENS} --length 27 --ubatch 10 --kv-type f16 -n 6",
    ("attn_context.cu", "for (; n < seen; n++) sum[0] =", "for (; n + 4 <= seen; n++) sum[0] ="))
bug("c10-warps", "warps", f"{TOKENS} --length 40 -n 5",
    ("attn_weights.cu", "    total = reduce_sum(total);",
     "    for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffffu, total, step);"))
bug("c11-expert", "moe", f"{TOKENS} --length 22 -n 4",
    ("expert_linear.cu", "place_of(p.chosen[line], p.experts)", "place_of(p.chosen[line / p.lines_of_row * p.lines_of_row], p.experts)"))
bug("c12-window", "delta", f"{TOKENS} --length 24 -n 5",
    ("window.cu", "from < p.rows ? p.before[from * p.n + c]", "from < p.rows ? p.before[r * p.n + c]"))

fused("f01-bias", "bias", f"{TOKENS} --length 22 -n 5",
      ("fused/attn_qkv.cu", "if (bias) bias_a = bias[a_at], bias_b = bias[b_at];", "if (bias) bias_a = bias[a_at], bias_b = bias[a_at];"))
fused("f02-groups", "groups", f"{TOKENS} --length 24 -n 5",
      ("fused/attention.cu", "(const float4 *)(p.q + (kv_head * GROUP + h) * D + 8 * part)", "(const float4 *)(p.q + (h * kv_heads + kv_head) * D + 8 * part)"))
fused("f03-parts", "parts", f"{TOKENS} --length 44 -n 4",
      ("prefill/attention_rows.cu", "total[r] = fmaf(of_thread(i, 2 + r), of_part[i][r], total[r]);", "total[r] += of_thread(i, 2 + r);"))
fused("f04-small-products", "brain", f"{TOKENS} --length 24 --ubatch 12 -n 4",
      ("prefill/products.cu", "for (int part = PARTS - 1; part >= 0; part--) {", "for (int part = 0; part >= 0; part--) {"))
fused("f05-lines", "experts", f"{TOKENS} --length 36 -n 3",
      ("prefill/expert_rows.cu", "(p.x + (size_t)(list[from + i] / p.lines_of_row) * p.n)", "(p.x + (size_t)(list[i] / p.lines_of_row) * p.n)"))
fused("f06-base", "rings", f"{TOKENS} --length 22 -n 5",
      ("fused/expert_down.cu", "__ldcg(p.base + first * ROWS + threadIdx.x)", "__ldcg(p.base + first + threadIdx.x)"))
fused("f07-decay", "hybrid", f"{TOKENS} --length 22 -n 5",
      ("fused/delta_step.cu", "expf(__ldcg(p.decay + h))", "expf(__ldcg(p.decay + key))"))
fused("f08-last-ids", "head", f"{TOKENS} --length 22 -n 6",
      ("fused/lm_head.cu", "auto rows_of = [&](int set, int tile) { return Rows{&p.w, (int)first_of(set) + tile * TILE, p.m}; };",
       "auto rows_of = [&](int set, int tile) { return Rows{&p.w, min((int)first_of(set) + tile * TILE, p.m - TILE), p.m}; };"))
