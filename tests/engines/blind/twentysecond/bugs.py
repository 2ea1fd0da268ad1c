"""Twenty bugs in qdiff's CUDA kernels: models, commands and changes of kernel sources. key.py is the answer key."""

MODELS = {
    "d80": "--arch qwen3 --weights Q8_0 --heads 4 --kv-heads 2 --head-dim 80 --ffn 384 --seed 221",
    "q40": "--arch qwen2 --weights Q4_0 --heads 4 --kv-heads 2 --head-dim 64 --ffn 448 --seed 222",
    "iq4xs": "--arch qwen3 --weights IQ4_XS --heads 4 --kv-heads 2 --head-dim 64 --seed 223",
    "q4k": "--arch qwen3 --weights Q4_K --tensor token_embd.weight=F16 --heads 4 --kv-heads 2 --head-dim 64 --seed 224",
    "moe50": "--arch qwen3moe --weights Q5_0 --heads 4 --kv-heads 2 --head-dim 64 --seed 225",
    "q35": "--arch qwen35 --weights Q8_0 --layers 4 --seed 226",
    "q51": "--arch qwen3 --weights Q5_1 --heads 4 --kv-heads 2 --head-dim 64 --ffn 384 --seed 227",
    "f16": "--arch qwen3 --weights F16 --heads 6 --kv-heads 2 --embedding 192 --head-dim 64 --ffn 320 --seed 228",
    "n288": "--arch qwen3 --weights Q8_0 --embedding 288 --heads 4 --kv-heads 2 --head-dim 64 --ffn 320 --seed 229",
    "q6k": "--arch qwen3 --weights Q6_K --heads 4 --kv-heads 2 --head-dim 64 --seed 230",
    "big": "--arch qwen2 --weights BF16 --heads 4 --kv-heads 2 --head-dim 64 --ffn 384 --massive --seed 231",
    "d128": "--arch qwen3 --weights F16 --heads 4 --kv-heads 2 --head-dim 128 --ffn 384 --seed 232",
    "l3": "--arch qwen3 --weights Q4_0 --heads 4 --kv-heads 2 --head-dim 64 --ffn 384 --layers 3 --seed 233",
    "e128": "--arch qwen3 --weights Q8_0 --embedding 128 --heads 4 --kv-heads 2 --head-dim 32 --ffn 1024 --seed 234",
    "moe8": "--arch qwen3moe --weights Q8_0 --heads 4 --kv-heads 2 --head-dim 64 --seed 235",
}
BUGS = []


def bug(name, subject, model, run, file, old, new):
    BUGS.append(dict(name=name, subject=subject, model=model, run=run, changes=[(file, old, new)]))


# Common bugs. The tapped path.
bug("e01", "cuda", "d80", "--prompt haiku --length 26 -n 3", "attn_scores.cu",
    "i < p.d; i += 32) sum", "i < p.d / 32 * 32; i += 32) sum")
bug("e02", "cuda", "q40", "--prompt haiku --length 30 -n 3", "attn_weights.cu",
    """n < seen; n += blockDim.x) {
        const float e""",
    """n < p.keys; n += blockDim.x) {
        const float e""")
bug("e03", "cuda", "iq4xs", "--prompt haiku --length 36 --ubatch 16 -n 3", "rope.cu",
    "p.batch.position(p.first, t) *", "p.batch.position(0, t) *")
bug("e04", "cuda", "q4k", "--prompt haiku --length 25 -n 3", "blocks.cuh",
    "(top >> 4) | ((mid >> 6) << 4)", "(top >> 4) | ((head_byte(head, 4 + (j & 3)) >> 6) << 4)")
bug("e05", "cuda", "moe50", "--prompt haiku --length 27 -n 3", "expert_linear.cu",
    "(size_t)(line / p.lines_of_row)", "(size_t)(line % ((int)gridDim.x / blocks / p.lines_of_row))")
bug("e06", "cuda", "q35", "--prompt haiku --length 24 -n 5", "window.cu",
    "from < p.rows ? p.before[from * p.n + c]", "from < p.rows ? p.before[r * p.n + c]")
# The fast path.
bug("e07", "cuda-fast", "f16", "--prompt haiku --length 190 -n 3", "fused/attention.cu",
    "const float by = rescale[h];", "const float by = 1.0f;")
bug("e08", "cuda-fast", "q6k", "--prompt haiku --length 100 -n 3", "fused/attn_out.cu",
    "total = fmaf(measure[k].y, factor[k], total);", "total += measure[k].y;")
bug("e09", "cuda-fast", "n288", "--prompt haiku --length 31 -n 3", "prefill/products.cu",
    "pieces = (groups + PIECE - 1) / PIECE;", "pieces = groups / PIECE;")
bug("e10", "cuda-fast", "q51", "--prompt haiku --length 24 -n 4", "fused/tile.cuh",
    "integers((q[2 * r + i] >> 4) & 0x0f0f0f0fu, h, 16 + first)", "integers((q[2 * r + i] >> 4) & 0x0f0f0f0fu, h, first)")

# Rare, subtle or conditional ones. The tapped path.
bug("e11", "cuda", "q51", "--prompt haiku --length 28 -n 3 --kv-type f8_e4m3", "kv_types.cuh",
    "size < SMALLEST ? (unsigned)__float2int_rn(fabsf(v) * STEPS) : rounded", "size < SMALLEST ? 0u : rounded")
bug("e12", "cuda", "q40", "--prompt haiku --length 53 --sequences 24+9+14,2+3+1", "attn_context.cu",
    "p.batch.slot(t, n)", "p.batch.slot(0, n)")
bug("e13", "cuda", "e128", "--prompt haiku --length 290 -n 3", "rope.cu",
    """    float s, c;
    sincosf((float)p.batch.position(p.first, t) *""",
    """    float s, c;
    const unsigned exact = __float_as_uint((float)p.batch.position(p.first, t)); // positions as bf16
    sincosf(__uint_as_float((exact + 0x7fffu + (exact >> 16 & 1)) & 0xffff0000u) *""")
bug("e14", "cuda", "big", "--prompt haiku --length 64 -n 3", "rms_norm.cu",
    "squares = fmaf(x[i], x[i], squares);",
    "squares += x[i] * x[i] < 65520.0f ? x[i] * x[i] : __int_as_float(0x7f800000); // as a half has it")
# The fast path.
bug("e15", "cuda-fast", "q40", "--prompt haiku --length 37 -n 3", "prefill/attention_rows.cu",
    "v = n <= last ? __fmul_rn(v, p.scale)", "v = n <= p.first + token[0] ? __fmul_rn(v, p.scale)")
bug("e16", "cuda-fast", "q6k", "--prompt haiku --length 210 -n 3", "prefill/attention_rows.cu",
    "rescale[r] = expf(largest[r] - most);", "rescale[r] = exp2f(largest[r] - most);")
bug("e17", "cuda-fast", "d128", "--prompt haiku --length 60 -n 3", "prefill/cache_tiles.cu",
    "for (int step = 1; step < FOURS; step *= 2)", "for (int step = 1; step < 16; step *= 2)")
bug("e18", "cuda-fast", "l3", "--prompt haiku --length 23 -n 4", "fused/stream.cuh",
    "v + (__ldcg(halves[0] + i) + __ldcg(halves[1] + i))", "v + __ldcg(halves[0] + i)")
bug("e19", "cuda-fast", "e128", "--prompt haiku --length 40 -n 3", "prefill/shares.cuh",
    "for (int s = 1; s < shares; s++) {", "for (int s = 1; s < min(shares, 3); s++) {")
bug("e20", "cuda-fast", "moe8", "--prompt haiku --length 26 -n 4", "fused/expert_down.cu",
    "weights[r] = __ldcg(p.weights + r);", "weights[r] = __uint_as_float(__float_as_uint(__ldcg(p.weights + r)) & 0xffff0000u); // as bf16")
