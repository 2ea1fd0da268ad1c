"""20 bugs in qdiff's CUDA kernels, as patches of their source: (file, old text, new text). key.py says what each is and after what."""

MODELS = {
    "emb5": "--arch qwen3 --weights q4_K --tensor token_embd.weight=q5_0 --head-dim 64 --seed 611",
    "q2": "--arch qwen2 --seed 612",
    "q35": "--arch qwen35 --layers 4 --seed 613",
    "yarn": "--arch qwen2 --set rope.scaling.type=yarn --set rope.scaling.factor=4.0 --set rope.scaling.original_context_length=512 --seed 614",
    "q3": "--arch qwen3 --heads 4 --kv-heads 2 --head-dim 64 --seed 615",
    "d80": "--arch qwen3 --heads 4 --kv-heads 2 --head-dim 80 --seed 616",
    "q2k": "--arch qwen2 --weights q6_K --tensor token_embd.weight=q8_0 --seed 617",
    "moe": "--arch qwen3moe --set expert_count=8 --set expert_used_count=3 --seed 618",
    "moe6": "--arch qwen3moe --set expert_count=16 --set expert_used_count=4 --seed 619",
    "six": "--arch qwen3 --heads 6 --kv-heads 2 --head-dim 64 --seed 620",
}

BUGS = []


def bug(name, model, subject, run, *changes):
    BUGS.append({"name": name, "model": model, "subject": subject, "run": run, "changes": list(changes)})


HAIKU = "-p haiku -n 2"
BF16 = "[](float v) { const unsigned b = __float_as_uint(v); return __uint_as_float((b + 0x7fffu + (b >> 16 & 1)) & 0xffff0000u); }"
TF32 = "[](float v) { return __uint_as_float(__float_as_uint(v) & 0xffffe000u); }"

# Always.
bug("y01", "emb5", "cuda", HAIKU,
    ("blocks.cuh", "const u32 byte = byte_of(r.q, i % 16);\n            u32 q = i < 16 ? byte & 15 : byte >> 4;\n            if (HIGH)",
     "const u32 byte = byte_of(r.q, i / 2);\n            u32 q = i % 2 == 0 ? byte & 15 : byte >> 4;\n            if (HIGH)"))
bug("y02", "q2", "cuda", HAIKU,
    ("rms_norm.cu", "    const float scale = 1.0f / sqrtf(", "    const auto bf16 = " + BF16 + ";\n    const float scale = 1.0f / sqrtf("),
    ("rms_norm.cu", "y[i] = x[i] * scale * p.w[i];", "y[i] = bf16(x[i] * scale) * p.w[i];"))
bug("y03", "q35", "cuda", HAIKU,
    ("columns.cu", "    p.y[at] = p.x[", "    if (p.stride == 2 * p.run && p.n == 2 * p.width) {\n"
     "        p.y[at] = p.x[(size_t)r * p.n + p.first / p.run * p.width + i];\n        return;\n    }\n    p.y[at] = p.x["))
bug("y04", "yarn", "cuda", HAIKU,
    ("rope.cu", "s *= p.magnitude, c *= p.magnitude;", "s *= p.magnitude * p.magnitude, c *= p.magnitude * p.magnitude;"))
bug("y05", "q3", "cuda", HAIKU + " --kv-type q8_0",
    ("kv_types.cuh", "(unsigned)__float2int_rn(v) & 255 : 128;", "(unsigned)__float2int_rz(v) & 255 : 128;"))
bug("y06", "six", "cuda", HAIKU,
    ("attn_weights.cu", "largest = fmaxf(largest, s[n] * p.scale);", "largest = fmaxf(largest, tanhf(s[n] * p.scale));"),
    ("attn_weights.cu", "const float e = expf(s[n] * p.scale - largest);", "const float e = expf(tanhf(s[n] * p.scale) - largest);"))
bug("y07", "q3", "cuda", HAIKU,
    ("residual.cu", "p.y[i] = p.a[i] + p.b[i];", "p.y[i] = __uint_as_float(__float_as_uint(p.a[i] + p.b[i]) & 0xffff0000u);"))
bug("y08", "q2k", "cuda", HAIKU,
    ("swiglu.cu", "* p.up[i];", "* (p.up[i] + 1.0f);"))
bug("y09", "d80", "cuda", HAIKU,
    ("attn_scores.cu", "for (int i = lane; i < p.d; i += 32)", "for (int i = lane; i < p.d / 32 * 32; i += 32)"))
bug("y10", "moe", "cuda", HAIKU,
    ("top_k.cu", "    for (int i = threadIdx.x; i < p.n; i += blockDim.x) {\n        const float own = x[i];",
     "    const int size = p.n / 4;\n"
     "    auto best = [&](int g) {\n        float most = x[g * size];\n        for (int i = 1; i < size; i++) most = fmaxf(most, x[g * size + i]);\n"
     "        return most;\n    };\n"
     "    auto score = [&](int i) {\n        int above = 0;\n        for (int g = 0; g < 4; g++) above += best(g) > best(i / size) || "
     "(best(g) == best(i / size) && g < i / size);\n"
     "        return above < 2 ? x[i] : 0.0f;\n    };\n"
     "    for (int i = threadIdx.x; i < p.n; i += blockDim.x) {\n        const float own = score(i);"),
    ("top_k.cu", "const float other = x[j];", "const float other = score(j);"))
bug("y11", "q35", "cuda", HAIKU,
    ("factors.cu", "p.y[i] = p.a[i] * p.b[i % p.n];", "p.y[i] = p.a[i] * -expf(p.b[i % p.n]);"))
bug("y12", "q3", "cuda", HAIKU,
    ("linear.cu", "    const int first = blockIdx.y * TOKENS;", "    const int first = blockIdx.y * TOKENS;\n    const auto bf16 = " + BF16 + ";"),
    ("linear.cu", "p.y[(size_t)(first + t) * p.m + o] = s;", "p.y[(size_t)(first + t) * p.m + o] = p.m == 359 ? bf16(s) : s;"))

# Only under a condition.
bug("y13", "moe6", "cuda-fast", HAIKU,
    ("fused/experts.cuh", "tap(c.shares_tap, r, weight / fmaxf(total, 6.103515625e-5f));", "tap(c.shares_tap, r, weight);"))
bug("y14", "q3", "cuda", HAIKU,
    ("linear.cu", "    const int first = blockIdx.y * TOKENS;", "    const int first = blockIdx.y * TOKENS;\n    const auto tf32 = " + TF32 + ";"),
    ("linear.cu", "(size_t)o * groups + g), g % 8, value);",
     "(size_t)o * groups + g), g % 8, value);\n        if (p.tokens > 1)\n            for (int i = 0; i < 32; i++) value[i] = tf32(value[i]);"),
    ("linear.cu", "const float4 v = row[i];",
     "float4 v = row[i];\n                if (p.tokens > 1) v = make_float4(tf32(v.x), tf32(v.y), tf32(v.z), tf32(v.w));"))
bug("y15", "q2", "cuda", "--prompt long --length 40 --passes 23,17 -n 2",
    ("attn_weights.cu", "p.batch.position(p.first, t) + 1);", "(p.tokens > 1 ? t : p.batch.position(p.first, t)) + 1);"))
bug("y16", "q2", "cuda", "--prompt long --length 30 --passes 13,17 -n 2",
    ("bias.cu", "p.y[i] = p.x[i] + p.b[i % p.n];", "p.y[i] = i < p.n ? p.x[i] + p.b[i] : p.x[i];"))
bug("y17", "six", "cuda", "--prompt long --length 46 -n 3",
    ("rope.cu", "    s *= p.magnitude, c *= p.magnitude;",
     "    if (p.batch.position(p.first, t) >= 40) s = 0.0f, c = 1.0f;\n    s *= p.magnitude, c *= p.magnitude;"))
bug("y18", "q35", "cuda", "--prompt long --length 40 --passes 21,19 -n 2",
    ("delta_net.cu", "        if (p.before) p.before[row + i] = m[i];",
     "        if (p.before) p.before[row + i] = m[i];\n        if (p.tokens > 1) m[i] = 0.0f;"))
bug("y19", "q35", "cuda-fast", HAIKU,
    ("fused/delta_step.cu", "            m[r][i] *= decay;\n            dot = fmaf(m[r][i], k[i], dot);",
     "            dot = fmaf(m[r][i], k[i], dot);\n            m[r][i] *= decay;"))
bug("y20", "q3", "cuda-fast", "--prompt long --length 150 -n 2",
    ("fused/attn_out.cu", "factor[k] = expf(measure[k].x - most);", "factor[k] = k * LANES + lane < live ? 1.0f : 0.0f;"))
