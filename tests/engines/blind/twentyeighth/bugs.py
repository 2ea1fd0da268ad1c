"""Twenty bugs in qdiff's CUDA kernels, of the kinds that kernels ship with: models, commands and changes of sources. key.py is the answer key."""

MODELS = {
    "eps": "--arch qwen2 --weights BF16 --heads 4 --kv-heads 2 --head-dim 64 --ffn 384 --eps 1e-5 --seed 281",
    "q5k": "--arch qwen3 --weights Q5_K --tensor token_embd.weight=Q6_K --heads 4 --kv-heads 2 --head-dim 64 --seed 282",
    "q41": "--arch qwen2 --weights Q4_1 --tensor token_embd.weight=Q8_0 --heads 4 --kv-heads 2 --head-dim 64 --ffn 320 --seed 283",
    "yarn": "--arch qwen3 --weights Q8_0 --heads 4 --kv-heads 2 --head-dim 64 --set rope.scaling.type=yarn --set rope.scaling.factor=4.0 "
            "--set rope.scaling.original_context_length=512 --seed 284",
    "q8": "--arch qwen3 --weights Q8_0 --heads 4 --kv-heads 2 --head-dim 64 --ffn 384 --seed 285",
    "f16": "--arch qwen2 --weights F16 --heads 4 --kv-heads 1 --head-dim 64 --seed 286",
    "q2q4": "--arch qwen2 --weights Q4_0 --heads 4 --kv-heads 2 --head-dim 64 --ffn 320 --seed 287",
    "moe": "--arch qwen3moe --weights Q8_0 --heads 4 --kv-heads 2 --head-dim 64 --seed 288",
    "moe5": "--arch qwen3moe --weights Q5_0 --heads 4 --kv-heads 2 --head-dim 64 --seed 289",
    "q35": "--arch qwen35 --weights Q8_0 --layers 4 --seed 290",
    "q35b": "--arch qwen35 --weights Q4_0 --layers 4 --seed 291",
    "six": "--arch qwen3 --weights Q8_0 --heads 6 --kv-heads 2 --embedding 192 --head-dim 64 --ffn 320 --seed 292",
    "odd": "--arch qwen3 --weights Q8_0 --heads 4 --kv-heads 2 --head-dim 64 --ffn 352 --seed 293",
    "q6k": "--arch qwen3 --weights Q6_K --heads 4 --kv-heads 2 --head-dim 64 --layers 3 --seed 294",
}
BUGS = []


def bug(name, subject, model, run, *changes):
    BUGS.append(dict(name=name, subject=subject, model=model, run=run, changes=list(changes)))


bug("m01", "cuda", "eps", "--prompt haiku --length 26 -n 3",
    ("rms_norm.cu", "(float)p.n + p.eps)", "(float)p.n + 1e-6f)"))
bug("m02", "cuda", "q5k", "--prompt haiku --length 23 -n 3",
    ("blocks.cuh", "i % 16) >> j) & 1) << 4;", "i % 16) >> (j & ~1)) & 1) << 4;"))
bug("m03", "cuda", "q41", "--prompt haiku --length 28 -n 3",
    ("blocks.cuh", "const u32 byte = byte_of(r.q, i % 16);\n            u32 q = i < 16 ? byte & 15 : byte >> 4;",
     "const u32 byte = byte_of(r.q, i / 2);\n            u32 q = i % 2 == 0 ? byte & 15 : byte >> 4;"))
bug("m04", "cuda", "yarn", "--prompt haiku --length 25 -n 3",
    ("rope.cu", "s *= p.magnitude, c *= p.magnitude;", "s *= p.magnitude * p.magnitude, c *= p.magnitude * p.magnitude;"))
bug("m05", "cuda", "q8", "--prompt haiku --length 40 --ubatch 17 -n 3",
    ("attn_weights.cu", "min(p.keys, p.batch.position(p.first, t) + 1)", "p.tokens > 1 ? min(p.keys, t + 1) : p.keys"))
bug("m06", "cuda", "f16", "--prompt haiku --length 29 -n 3",
    ("attn_scores.cu", "* p.keys + n] = sum;", "* p.keys + n] = KvF16::get(KvF16::put(sum));"))
bug("m07", "cuda", "q8", "--prompt haiku --length 27 -n 4 --kv-type q4_0",
    ("kv_types.cuh", "codes[i] = min(__float2int_rz(__fadd_rn(__fmul_rn(x[i], inverse), (float)HALF + 0.5f)), Codes::TOP);",
     "codes[i] = __float2int_rz(__fadd_rn(__fmul_rn(x[i], inverse), (float)HALF + 0.5f));"))
bug("m08", "cuda", "q2q4", "--prompt long --length 40 --sequences 9+6,1+1+8,5+1+1,1+4+3",
    ("batch.cuh", "tables[starts[t] + n]", "tables[starts[0] + n]"))
bug("m09", "cuda", "moe", "--prompt haiku --length 24 -n 3",
    ("weighted_sum.cu", "*x = p.x + t * p.terms * p.n + at % p.n;", "*x = p.x + t * p.n + at % p.n;"),
    ("weighted_sum.cu", "p.x + t * p.n + at % p.n;\n    float sum = 0.0f;\n", "p.x + t * p.n + at % p.n;\n    const size_t rows = p.count / p.n;\n    float sum = 0.0f;\n"),
    ("weighted_sum.cu", "x[(size_t)j * p.n]", "x[j * rows * p.n]"))
bug("m10", "cuda-fast", "moe5", "--prompt haiku --length 22 -n 5",
    ("fused/experts.cuh", "weight / fmaxf(total, 6.103515625e-5f)", "weight"))
bug("m11", "cuda-fast", "q35b", "--prompt haiku --length 24 -n 5",
    ("fused/delta_step.cu", "tap(p.state_tap, at, m[r][i])",
     "tap(p.state_tap, at, __uint_as_float((__float_as_uint(m[r][i]) + 0x7fffu + (__float_as_uint(m[r][i]) >> 16 & 1)) & 0xffff0000u))"))
bug("m12", "cuda", "q35", "--prompt haiku --length 23 -n 3",
    ("delta_net.cu", "h % p.key_heads) * p.d", "h / (p.heads / p.key_heads)) * p.d"))
bug("m13", "cuda-fast", "q8", "--prompt long --length 170 -n 2",
    ("prefill/attention_rows.cu", "            for (int e = 0; e < 4; e++) sum[j][e] *= rescale[e / 2];\n#pragma unroll\n", ""))
bug("m14", "cuda-fast", "six", "--prompt haiku --length 31 -n 3",
    ("prefill/attention_rows.cu", "head[r] = kv_head * group + row % group;", "head[r] = row % group * p.kv_heads + kv_head;"))
bug("m15", "cuda-fast", "odd", "--prompt haiku --length 27 -n 3",
    ("prefill/products.cu", "pieces = (groups + PIECE - 1) / PIECE;", "pieces = groups / PIECE;"))
bug("m16", "cuda-fast", "q2q4", "--prompt haiku --length 26 -n 3",
    ("prefill/head_rows.cu", """            if (p.bias[part]) {
                a[j] = tap(p.biased_tap[part], row + i, a[j] + p.bias[part][i]);
                b[j] = tap(p.biased_tap[part], row + k, b[j] + p.bias[part][k]);
""", """            const float *bias = p.bias[(3 - part) % 3];
            if (bias) {
                a[j] = tap(p.biased_tap[part], row + i, a[j] + bias[i]);
                b[j] = tap(p.biased_tap[part], row + k, b[j] + bias[k]);
"""))
bug("m17", "cuda-fast", "six", "--prompt haiku --length 38 --ubatch 15 -n 3",
    ("prefill/head_rows.cu", "sincosf((float)position * ", "sincosf((float)t * "))
bug("m18", "cuda-fast", "q6k", "--prompt haiku --length 25 -n 3",
    ("prefill/norm_rows.cu", "            made[k] = tap4(p.sum, at + 4 * i, make_float4(v.x + a.x, v.y + a.y, v.z + a.z, v.w + a.w));",
     "            tap4(p.sum, at + 4 * i, make_float4(v.x + a.x, v.y + a.y, v.z + a.z, v.w + a.w));\n            made[k] = a;"))
bug("m19", "cuda-fast", "q35", "--prompt haiku --length 25 -n 5",
    ("fused/gated_heads.cu", "p.both + (size_t)2 * head * D + i", "p.both + (size_t)head * D + i"),
    ("fused/gated_heads.cu", "p.both + (size_t)(2 * head + 1) * D + i", "p.both + (size_t)(p.heads + head) * D + i"))
bug("m20", "cuda-fast", "odd", "--prompt haiku --length 30 -n 5",
    ("fused/lm_head.cu", "row < p.m) p.logits[row] = sums(0, threadIdx.x);",
     "row < p.m) p.logits[row] = row < p.m / TILE * TILE ? sums(0, threadIdx.x) : 0.0f;"))
