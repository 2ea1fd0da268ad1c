"""20 bugs in qdiff's CUDA kernels, as patches of their source: (file, old text, new text). key.py says what each is and after what."""

MODELS = {
    "out5k": "--arch qwen2 --tensor blk.0.attn_output.weight=q5_K --tensor blk.1.attn_output.weight=q5_K --seed 501",
    "q4k": "--arch qwen3 --weights q4_K --seed 502",
    "q3": "--arch qwen3 --heads 4 --kv-heads 2 --head-dim 64 --seed 503",
    "q2": "--arch qwen2 --seed 504",
    "yarn": "--arch qwen2 --context 4096 --set rope.scaling.type=yarn --set rope.scaling.factor=4.0"
            " --set rope.scaling.original_context_length=1024 --seed 505",
    "d80": "--arch qwen3 --heads 4 --kv-heads 2 --head-dim 80 --seed 506",
    "q35": "--arch qwen35 --layers 4 --seed 507",
    "moe": "--arch qwen3moe --set expert_count=8 --set expert_used_count=2 --seed 508",
    "shared": "--arch qwen2moe --seed 509",
    "massive": "--arch qwen3 --massive --heads 4 --kv-heads 2 --head-dim 64 --seed 517",
}

BUGS = []


def bug(name, model, subject, run, *changes):
    BUGS.append({"name": name, "model": model, "subject": subject, "run": run, "changes": list(changes)})


HAIKU = "-p haiku -n 2"
BF16 = "[](float v) { const unsigned b = __float_as_uint(v); return __uint_as_float((b + 0x7fffu + (b >> 16 & 1)) & 0xffff0000u); }"

# Always.
bug("y01", "out5k", "cuda", HAIKU,
    ("blocks.cuh", "if (HIGH) q |= ((byte_of(r.high[HIGH ? i / 16 : 0], i % 16) >> j) & 1) << 4;",
     "if (HIGH) q |= ((head_byte(r.high[HIGH ? j / 4 : 0], 4 * (j & 3) + i / 8) >> (i % 8)) & 1) << 4;"))
bug("y02", "q3", "cuda", HAIKU,
    ("rms_norm.cu", "const float scale = 1.0f / sqrtf(reduce_sum(squares) / (float)p.n + p.eps);",
     "const auto bf16 = " + BF16 + ";\n    const float scale = bf16(1.0f / sqrtf(reduce_sum(squares) / (float)p.n + p.eps));"))
bug("y03", "q2", "cuda", HAIKU,
    ("bias.cu", "p.y[i] = p.x[i] + p.b[i % p.n];", "p.y[i] = p.x[i] + p.b[i % p.n] + p.b[i % p.n];"))
bug("y04", "yarn", "cuda", HAIKU,
    ("rope.cu", "s *= p.magnitude, c *= p.magnitude;", "s *= p.magnitude * p.magnitude, c *= p.magnitude * p.magnitude;"))
bug("y05", "d80", "cuda", HAIKU,
    ("attn_scores.cu", "for (int i = lane; i < p.d; i += 32)", "for (int i = lane; i < p.d / 32 * 32; i += 32)"))
bug("y06", "q3", "cuda", HAIKU + " --kv-type q8_0",
    ("kv_types.cuh", "(unsigned)__float2int_rn(v) & 255", "(unsigned)__float2int_rz(v) & 255"))
bug("y07", "q35", "cuda", HAIKU,
    ("columns.cu", "p.first + i / p.run * p.stride + i % p.run];",
     "(p.stride == 2 * p.run && 2 * p.width == p.n ? (p.first > 0 ? p.width : 0) + i : p.first + i / p.run * p.stride + i % p.run)];"))
bug("y08", "q35", "cuda", HAIKU,
    ("delta_net.cu", "            m[i] *= decay;\n            dot = fmaf(m[i], p.k[key + i], dot);",
     "            dot = fmaf(m[i], p.k[key + i], dot);\n            m[i] *= decay;"))
bug("y09", "q35", "cuda", HAIKU,
    ("l2_norm.cu", "sqrtf(reduce_sum(squares) + p.eps)", "sqrtf(reduce_sum(squares) / (float)p.d + p.eps)"))
bug("y10", "moe", "cuda", HAIKU,
    ("weighted_sum.cu", "const float *w = p.w + t * p.terms, *x", "const float *w = p.w + t, *x"))
bug("y11", "shared", "cuda", HAIKU,
    ("unary.cu", "{ return 1.0f / (1.0f + expf(-x)); }", "{ return x; }"))
bug("y12", "q3", "cuda", HAIKU,
    ("swiglu.cu", "(1.0f + expf(-p.gate[i])) * p.up[i];", "(1.0f + expf(-p.gate[i])) * (p.up[i] + 1.0f);"))

# Only under a condition.
bug("y13", "q4k", "cuda", HAIKU,
    ("blocks.cuh", "(top >> 4) | ((mid >> 6) << 4)", "top >> 4"),
    ("blocks.cuh", "(top & 15) | ((low >> 6) << 4)", "top & 15"))
bug("y14", "q35", "cuda", HAIKU,
    ("convolution.cu", "sum = fmaf(p.w[c * p.taps + j], x, sum);", "sum = fmaf(p.w[c * p.taps + (p.count == p.n ? (j + 1) % p.taps : j)], x, sum);"))
bug("y15", "q3", "cuda", "--prompt long --length 36 --passes 17,12,7 -n 2",
    ("attn_weights.cu", "const int seen = min(p.keys, p.batch.position(p.first, t) + 1);",
     "const int seen = p.tokens > 1 ? t + 1 : min(p.keys, p.batch.position(p.first, t) + 1);"))
bug("y16", "massive", "cuda", "--prompt long --length 250 -n 2 --kv-type f8_e4m3 --reference none",
    ("kv_types.cuh", "(code < MOST ? code : MOST)", "(code < (MANTISSA == 3 ? 0x78 : MOST) ? code : MOST)"))
bug("y17", "q2", "cuda", HAIKU,
    ("linear.cu", "if (lane == 0 && first + t < p.tokens) p.y[(size_t)(first + t) * p.m + o] = s;",
     "if (lane == 0 && first + t < p.tokens) p.y[(size_t)(first + t) * p.m + o] = o < p.m / 32 * 32 ? s : 0.0f;"))
bug("y18", "q3", "cuda-fast", "--prompt long --length 150 -n 3",
    ("fused/attn_out.cu", "total = fmaf(measure[k].y, factor[k], total);", "total += measure[k].y;"))
bug("y19", "q35", "cuda-fast", "-p haiku -n 4",
    ("fused/delta_step.cu", "if (has(i)) p.state[at] = tap(p.state_tap, at, m[r][i]);",
     "const auto bf16 = " + BF16 + ";\n            if (has(i)) p.state[at] = tap(p.state_tap, at, bf16(m[r][i]));"))
bug("y20", "q35", "cuda-fast", HAIKU,
    ("fused/gated_heads.cu", "const float other = normed[i < half ? i + half : i - half];",
     "const float other = normed[head % 2 == 1 ? (i + D / 2) % D : i < half ? i + half : i - half];"))
