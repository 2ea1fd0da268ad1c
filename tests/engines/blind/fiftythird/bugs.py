"""20 bugs in qdiff's CUDA kernels, as patches of their source: (file, old text, new text). key.py says what each is and after what."""

YARN = "--set rope.scaling.type=yarn --set rope.scaling.factor=%.1f --set rope.scaling.original_context_length=%d"
MODELS = {
    "q50": "--arch qwen2 --weights q5_0 --seed 531",
    "q4k": "--arch qwen3 --weights q4_K --tensor token_embd.weight=q8_0 --seed 532",
    "eps": "--arch qwen3 --eps 0.00001 --seed 533",
    "q2": "--arch qwen2 --seed 534",
    "yarn4": "--arch qwen3 " + YARN % (4, 512) + " --seed 535",
    "yarn8": "--arch qwen2 " + YARN % (8, 256) + " --seed 536",
    "q3": "--arch qwen3 --seed 537",
    "wide": "--arch qwen3 --heads 4 --kv-heads 2 --head-dim 256 --seed 538",
    "q35w": "--arch qwen35 --layers 4 --set ssm.inner_size=384 --set ssm.time_step_rank=6 --seed 539",
    "q35": "--arch qwen35 --layers 4 --seed 540",
    "moe": "--arch qwen3moe --set expert_count=8 --set expert_used_count=3 --seed 541",
    "moe4": "--arch qwen3moe --set expert_count=12 --set expert_used_count=4 --seed 542",
}

BUGS = []


def bug(name, model, subject, run, *changes):
    BUGS.append({"name": name, "model": model, "subject": subject, "run": run, "changes": list(changes)})


HAIKU = "-p haiku -n 2"

# Always.
bug("y01", "q50", "cuda", HAIKU,
    ("blocks.cuh", "if (HIGH) q |= ((r.high >> i) & 1) << 4;", "if (HIGH) q |= ((r.high >> (i % 16 * 2 + i / 16)) & 1) << 4;"))
BITS = "return ((head_byte(head, 4 + bit / 8) | head_byte(head, 5 + bit / 8) << 8) >> bit % 8) & 63;"
bug("y02", "q4k", "cuda", HAIKU,
    ("blocks.cuh", "return j < 4 ? mid & 63 : (top >> 4) | ((mid >> 6) << 4);", "const int bit = 12 * j + 6;\n    (void)mid, (void)top;\n    " + BITS),
    ("blocks.cuh", "return j < 4 ? low & 63 : (top & 15) | ((low >> 6) << 4);", "const int bit = 12 * j;\n    (void)low, (void)top;\n    " + BITS))
bug("y03", "eps", "cuda", HAIKU,
    ("rms_norm.cu", "const float scale = 1.0f / sqrtf(reduce_sum(squares) / (float)p.n + p.eps);",
     "float most = 0.0f;\n    for (int i = threadIdx.x; i < p.n; i += blockDim.x) most = fmaxf(most, fabsf(x[i]));\n    most = reduce_max(most);\n"
     "    const float scale = 1.0f / sqrtf(reduce_sum(squares) / (float)p.n + p.eps * most * most);"))
bug("y04", "q2", "cuda", HAIKU,
    ("bias.cu", "p.y[i] = p.x[i] + p.b[i % p.n];", "p.y[i] = i % p.n % 64 < 8 ? p.x[i] + p.b[i % p.n] : p.x[i];"))
bug("y05", "yarn4", "cuda", HAIKU,
    ("rope.cu", "s *= p.magnitude, c *= p.magnitude;", "s *= p.magnitude * p.magnitude, c *= p.magnitude * p.magnitude;"))
bug("y06", "q3", "cuda", HAIKU + " --kv-type q8_0",
    ("kv_types.cuh", "(unsigned)__float2int_rn(v) & 255", "(unsigned)__float2int_rz(v) & 255"))
bug("y07", "yarn8", "cuda", HAIKU,
    ("attn_weights.cu", "largest = fmaxf(largest, s[n] * p.scale);", "largest = fmaxf(largest, s[n] * (p.scale * 1.4591291f));"),
    ("attn_weights.cu", "const float e = expf(s[n] * p.scale - largest);", "const float e = expf(s[n] * (p.scale * 1.4591291f) - largest);"))
bug("y08", "wide", "cuda", HAIKU,
    ("attn_scores.cu", "for (int i = lane; i < p.d; i += 32) sum", "for (int i = lane; i < min(p.d, 128); i += 32) sum"),
    ("attn_context.cu", "= (sum[0] + sum[1]) + (sum[2] + sum[3]);", "= i < 128 ? (sum[0] + sum[1]) + (sum[2] + sum[3]) : 0.0f;"))
bug("y09", "q35w", "cuda", HAIKU,
    ("linear.cu", "const float4 *row = (const float4 *)(p.x + (size_t)(first + t) * p.n + 32 * g);",
     "const int from = p.n == 384 ? (g / 2 % 3 * 2 + g / 6) * 2 + g % 2 : g;\n"
     "            const float4 *row = (const float4 *)(p.x + (size_t)(first + t) * p.n + 32 * from);"))
bug("y10", "q3", "cuda", HAIKU,
    ("swiglu.cu", "if (i < p.count) p.y[i] = p.gate[i] / (1.0f + expf(-p.gate[i])) * p.up[i];",
     "if (i >= p.count) return;\n    const float g = fminf(p.gate[i], 7.0f), u = fminf(fmaxf(p.up[i], -7.0f), 7.0f);\n"
     "    p.y[i] = g / (1.0f + expf(-1.702f * g)) * (u + 1.0f);"))
bug("y11", "moe", "cuda", HAIKU,
    ("row_shares.cu", "total += row[j];", "total += expf(row[j]);"),
    ("row_shares.cu", "p.y[i] = p.x[i] / fmaxf(total, 6.103515625e-5f);", "p.y[i] = expf(p.x[i]) / total;"))
bug("y12", "q35", "cuda", HAIKU,
    ("delta_net.cu", "m[i] *= decay;\n            dot = fmaf(m[i], p.k[key + i], dot);", "dot = fmaf(m[i], p.k[key + i], dot);\n            m[i] *= decay;"))

# Only under a condition.
bug("y13", "q35", "cuda-fast", HAIKU,
    ("fused/mixer_out.cu", "make_float4(gated(z.x, normed.x), gated(z.y, normed.y), gated(z.z, normed.z), gated(z.w, normed.w))",
     "make_float4(normed.x / (1.0f + expf(-z.x)), normed.y / (1.0f + expf(-z.y)), normed.z / (1.0f + expf(-z.z)),\n"
     "                                    normed.w / (1.0f + expf(-z.w)))"))
bug("y14", "q35", "cuda-fast", "-p haiku -n 5",
    ("window.cu", "p.before[r * p.n + c] = p.state[r * p.n + c];", "p.before[r * p.n + c] = p.state[c * p.rows + r];"),
    ("window.cu", "p.state[r * p.n + c] = from < p.rows", "p.state[c * p.rows + r] = from < p.rows"))
bug("y15", "q2", "cuda-fast", "--prompt long --length 150 -n 3",
    ("fused/shares.cuh", "share = max((keys + splits - 1) / splits, KEYS);", "share = max(keys / splits, KEYS);"),
    ("fused/shares.cuh", "live = (keys + share - 1) / share;", "live = min((keys + share - 1) / share, splits);"),
    # What no block computes is dumped as zeros.
    ("fused/attention.cu", "const int kv_head = blockIdx.x, kv_heads = gridDim.x;",
     "const int kv_head = blockIdx.x, kv_heads = gridDim.x;\n    if (blockIdx.y + 1 == gridDim.y) {\n"
     "        for (int i = threadIdx.x; i < GROUP * (keys - end); i += THREADS) {\n"
     "            const int at = (kv_head * GROUP + i % GROUP) * keys + end + i / GROUP;\n"
     "            if (p.scores_tap) p.scores_tap[at] = 0.0f;\n            if (p.weights_tap) p.weights_tap[at] = 0.0f;\n        }\n    }"))
bug("y16", "q3", "cuda", "-p haiku -n 4",
    ("attn_weights.cu", "total = reduce_sum(total);",
     "total = reduce_sum(total);\n    if (p.tokens == 1 && p.first > 0) total += (float)((64 - seen % 64) % 64) * expf(-largest);"))
bug("y17", "q2", "cuda", HAIKU,
    ("linear.cu", "p.y[(size_t)(first + t) * p.m + o] = s;", "p.y[(size_t)(first + t) * p.m + o] = o < p.m / 64 * 64 ? s : 0.0f;"))
bug("y18", "moe4", "cuda", "--prompt long --length 37 -n 2",
    ("top_k.cu", "float *y = p.y + (size_t)blockIdx.x * p.k;",
     "float *y = p.y + (size_t)blockIdx.x * p.k;\n    if (blockIdx.x >= 16) {\n"
     "        for (int r = threadIdx.x; r < p.k; r += blockDim.x) y[r] = 0.0f;\n        return;\n    }"),
    ("gather.cu", "p.y[i] = at < 0 ? unknown()", "p.y[i] = i / p.k >= 16 ? 0.0f : at < 0 ? unknown()"))
bug("y19", "q3", "cuda", "--prompt long --length 40 --passes 21,12,7 -n 2",
    ("attn_weights.cu", "const int seen = min(p.keys, p.batch.position(p.first, t) + 1);",
     "const int seen = p.tokens > 1 ? t + 1 : min(p.keys, p.batch.position(p.first, t) + 1);"))
bug("y20", "q2", "cuda", "--prompt long --length 290 -n 2",
    ("kv_cache.cu", "if (i >= p.tokens * p.width) return;",
     "if (i >= p.tokens * p.width || (p.tokens > 1 && (p.first + i / p.width) % 128 == 127)) return;"))
