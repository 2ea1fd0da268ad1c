"""Twenty bugs in qdiff's CUDA kernels: models, commands and changes of kernel sources. key.py is the answer key."""

MODELS = {
    "f16": "--arch qwen3 --weights F16 --embedding 320 --heads 4 --kv-heads 2 --head-dim 64 --ffn 512 --seed 191",
    "n288": "--arch qwen3 --weights Q4_0 --embedding 288 --heads 4 --kv-heads 2 --head-dim 64 --ffn 320 --seed 192",
    "q5k": "--arch qwen3 --weights Q5_K --tensor token_embd.weight=F16 --heads 4 --kv-heads 2 --head-dim 64 --seed 193",
    "bf16": "--arch qwen2 --weights BF16 --heads 4 --kv-heads 2 --head-dim 64 --ffn 384 --seed 194",
    "q2k": "--arch qwen3 --weights Q2_K --heads 4 --kv-heads 2 --head-dim 64 --seed 195",
    "q3k": "--arch qwen2 --weights Q3_K --heads 4 --kv-heads 2 --head-dim 64 --seed 196",
    "iq4nl": "--arch qwen3 --weights IQ4_NL --heads 6 --kv-heads 2 --embedding 192 --head-dim 64 --ffn 320 --seed 197",
    "q8": "--arch qwen3 --weights Q8_0 --heads 4 --kv-heads 2 --head-dim 64 --ffn 448 --seed 198",
    "moe": "--arch qwen3moe --weights Q4_0 --heads 4 --kv-heads 2 --head-dim 64 --seed 199",
    "q35": "--arch qwen35 --weights Q8_0 --layers 4 --seed 200",
    "q6k": "--arch qwen3 --weights Q6_K --heads 4 --kv-heads 2 --head-dim 64 --seed 201",
    "q50": "--arch qwen3 --weights Q5_0 --heads 4 --kv-heads 2 --head-dim 64 --ffn 384 --layers 3 --seed 202",
}
BUGS = []


def bug(name, subject, model, run, file, old, new):
    BUGS.append(dict(name=name, subject=subject, model=model, run=run, changes=[(file, old, new)]))


# The tapped path.
bug("c01", "cuda", "f16", "--prompt haiku --length 24 -n 4", "embed.cu",
    "(size_t)p.tokens[blockIdx.x] * groups + g)", "(size_t)p.tokens[blockIdx.x] * (groups / 4 * 4) + g)")
bug("c02", "cuda", "n288", "--prompt haiku --length 26 -n 3", "rms_norm.cu",
    "i < p.n; i += blockDim.x) squares", "i < p.n / 64 * 64; i += blockDim.x) squares")
bug("c03", "cuda", "q5k", "--prompt haiku --length 28 -n 3", "blocks.cuh",
    "i % 16) >> j) & 1) << 4;", "i % 16) >> (j & 3)) & 1) << 4;")
bug("c04", "cuda", "bf16", "--prompt haiku --length 30 -n 3", "linear.cu",
    "const float4 v = row[i];",
    """float4 v = row[i];
                float *const each[4] = {&v.x, &v.y, &v.z, &v.w}; // activations as bf16
                for (int k = 0; k < 4; k++) *each[k] = __uint_as_float(__float_as_uint(*each[k]) & 0xffff0000u);""")
bug("c05", "cuda", "q2k", "--prompt haiku --length 33 --ubatch 16 -n 4", "rope.cu",
    "* p.frequency[i], &s, &c);", "* p.frequency[i % 16], &s, &c);")
bug("c06", "cuda", "q3k", "--prompt haiku --length 25 -n 4", "swiglu.cu",
    "expf(-p.gate[i])", "expf(-fabsf(p.gate[i]))")
bug("c07", "cuda", "q8", "--prompt haiku --length 27 -n 4 --kv-type q8_0", "kv_types.cuh",
    "? (unsigned)__float2int_rn(v) & 255 : 128;", "? (unsigned)__float2int_rz(v) & 255 : 128;")
bug("c08", "cuda", "q8", "--prompt haiku --length 31 -n 3 --kv-type f16/q5_0", "kv_types.cuh",
    "for (int i = 0; i < 32; i++) largest =", "for (int i = 0; i < 16; i++) largest =")
bug("c09", "cuda", "iq4nl", "--prompt haiku --length 35 --ubatch 20 -n 4", "attn_context.cu",
    "(sum[0] + sum[1]) + (sum[2] + sum[3]);", "(sum[0] + sum[1]) + (sum[2] + sum[2]);")
bug("c10", "cuda", "iq4nl", "--prompt haiku --length 22 -n 3 --kv-type f16", "attn_scores.cu",
    "for (int step = 16; step > 0; step /= 2)", "for (int step = 8; step > 0; step /= 2)")
bug("c11", "cuda", "moe", "--prompt haiku --length 29 -n 3", "row_shares.cu",
    "for (int j = 0; j < p.k; j++)", "for (int j = 0; j < p.k - 1; j++)")
bug("c12", "cuda", "q35", "--prompt haiku --length 23 -n 4", "delta_net.cu",
    """m[i] *= decay;
            dot = fmaf(m[i], p.k[key + i], dot);""",
    """dot = fmaf(m[i], p.k[key + i], dot);
            m[i] *= decay;""")
# The fused path.
bug("f01", "cuda-fast", "q6k", "--prompt haiku --length 26 -n 5", "fused/tile.cuh",
    "lane % 4 < 2 ? 0x6420 : 0x7531;", "0x6420;")
bug("f02", "cuda-fast", "q50", "--prompt haiku --length 34 -n 3", "prefill/pieces.cuh",
    "const size_t g = row * groups + min(PIECE * piece + i, groups - 1);", "const size_t g = row * groups + min(PIECE * piece, groups - 1);")
bug("f03", "cuda-fast", "q8", "--prompt haiku --length 44 -n 3", "prefill/attention_rows.cu",
    "total[r] = fmaf(of_thread(i, 2 + r), of_part[i][r], total[r]);", "total[r] += of_thread(i, 2 + r);")
bug("f04", "cuda-fast", "q50", "--prompt haiku --length 21 -n 4 --kv-type f16", "prefill/head_rows.cu",
    "b[j] * scale * norm[of_head + D / 2]);", "b[j] * scale * norm[of_head]);")
bug("f05", "cuda-fast", "q50", "--prompt haiku --length 28 -n 5", "fused/stream.cuh",
    "v + (__ldcg(halves[0] + i) + __ldcg(halves[1] + i)) : v;", "v + __ldcg(halves[0] + i) : v;")
bug("f06", "cuda-fast", "moe", "--prompt haiku --length 30 --ubatch 16 -n 5", "fused/expert_act.cu",
    "u = dot<Up>(p.up, at, groups, line);", "u = dot<Up>(p.up, (size_t)slot * p.m + row, groups, line);")
bug("f07", "cuda-fast", "q35", "--prompt haiku --length 24 -n 6", "fused/mixer_in.cu",
    "tap(p.window_tap, (j - 1) * all + row, x[j]);", "tap(p.window_tap, (j - 1) * all + row, x[j - 1]);")
bug("f08", "cuda-fast", "q8", "--prompt haiku --length 32 -n 5", "fused/lm_head.cu",
    "if (threadIdx.x < p.walk.tiles * TILE && row < p.m)", "if (threadIdx.x < TILE && row < p.m)")
