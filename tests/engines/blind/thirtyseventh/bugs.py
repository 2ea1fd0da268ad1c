"""20 bugs in qdiff's CUDA kernels, as patches of their source: (file, old text, new text). key.py says what each is and after what."""

MODELS = {
    "wide": "--arch qwen3 --embedding 320 --heads 4 --kv-heads 2 --head-dim 64 --seed 41",
    "h96": "--arch qwen3 --heads 4 --kv-heads 2 --head-dim 96 --seed 42",
    "q3": "--arch qwen3 --heads 4 --kv-heads 2 --head-dim 64 --seed 43",
    "q35": "--arch qwen35 --layers 4 --seed 44",
    "moe": "--arch qwen3moe --set expert_count=8 --set expert_used_count=3 --seed 45",
    "moe40": "--arch qwen3moe --set expert_count=40 --set expert_used_count=4 --seed 46",
    "q6k": "--arch qwen2 --weights q6_K --seed 47",
    "q4k": "--arch qwen3 --weights q4_K --seed 48",
    "q2": "--arch qwen2 --seed 49",
    "f16": "--arch qwen2 --weights f16 --ffn 608 --seed 50",
}

BUGS = []


def bug(name, model, subject, run, *changes):
    BUGS.append({"name": name, "model": model, "subject": subject, "run": run, "changes": list(changes)})


HAIKU = "-p haiku -n 2"

# Always.
bug("y01", "wide", "cuda", HAIKU,
    ("rms_norm.cu", "reduce_sum(squares) / (float)p.n + p.eps",
     "reduce_sum(squares) / [&] { int block = 1; while (block < p.n) block *= 2; return (float)block; }() + p.eps"))
bug("y02", "h96", "cuda", HAIKU,
    ("attn_weights.cu", "fmaxf(largest, s[n] * p.scale)", "fmaxf(largest, s[n] * 0.08838835f)"),
    ("attn_weights.cu", "expf(s[n] * p.scale - largest)", "expf(s[n] * 0.08838835f - largest)"))
bug("y03", "q3", "cuda", HAIKU,
    ("attn_weights.cu", "fmaxf(largest, s[n] * p.scale)", "fmaxf(largest, 30.0f * tanhf(s[n] * p.scale / 30.0f))"),
    ("attn_weights.cu", "expf(s[n] * p.scale - largest)", "expf(30.0f * tanhf(s[n] * p.scale / 30.0f) - largest)"))
bug("y04", "q35", "cuda", HAIKU,
    ("rope.cu", "* p.frequency[i], &s, &c);", "* powf(p.frequency[i], (float)p.rotated / (float)p.d), &s, &c);"))
bug("y05", "moe", "cuda", HAIKU,
    ("expert_linear.cu", "(size_t)(line / p.lines_of_row)",
     "(size_t)(p.lines_of_row > 1 ? line % ((int)gridDim.x / blocks / p.lines_of_row) : line)"))
bug("y06", "q35", "cuda", HAIKU,
    ("delta_net.cu", "            m[i] *= decay;\n            dot = fmaf(m[i], p.k[key + i], dot);\n",
     "            dot = fmaf(m[i], p.k[key + i], dot);\n            m[i] *= decay;\n"))
bug("y07", "q3", "cuda", HAIKU + " --kv-type q8_0",
    ("kv_types.cuh", "? (unsigned)__float2int_rn(v) & 255 : 128", "? (unsigned)__float2int_rz(v) & 255 : 128"))
bug("y08", "q6k", "cuda", HAIKU,
    ("blocks.cuh", "__fmul_rn(scale[i / 16], small(low | (high << 4)) - 32.0f)", "__fmul_rn(scale[0], small(low | (high << 4)) - 32.0f)"))
bug("y09", "q4k", "cuda", HAIKU,
    ("blocks.cuh", "        const int shift = 4 * (j & 1);\n",
     "        const int shift = 4 * (j & 1);\n        const int order[8] = {0, 2, 4, 6, 1, 3, 5, 7};\n"),
    ("blocks.cuh", "u32 q = (byte_of(r.q[i / 16], i % 16) >> shift) & 15;",
     "u32 q = (byte_of(r.q[i / 16], (i % 16 & 8) | order[i % 8]) >> shift) & 15;"))
bug("y10", "q2", "cuda", HAIKU,
    ("bias.cu", "p.b[i % p.n]", "p.b[i % p.n % 64]"))
bug("y11", "q2", "cuda", HAIKU + " --kv-type f8_e4m3 --reference none",
    ("kv_types.cuh", "return __uint_as_float(__float_as_uint(v) | sign);",
     "return __uint_as_float(__float_as_uint(MANTISSA == 3 ? 0.5f * v : v) | sign);"))

# Only under a condition.
bug("y12", "f16", "cuda", HAIKU,
    ("linear.cu", "for (int g = lane; g < groups; g += 32) {", "for (int g = lane; g < groups / 4 * 4; g += 32) {"))
bug("y13", "q2", "cuda", HAIKU,
    ("linear.cu", "p.y[(size_t)(first + t) * p.m + o] = s;", "p.y[(size_t)(first + t) * p.m + o] = o < p.m / 8 * 8 ? s : 0.0f;"))
bug("y14", "q3", "cuda-fast", "-p haiku --length 150 -n 2",
    ("fused/attn_out.cu", "total = fmaf(measure[k].y, factor[k], total);", "total += measure[k].y;"))
bug("y15", "q3", "cuda-fast", "-p haiku --length 160 -n 1",
    ("prefill/attention_rows.cu", "total[r] = total[r] * rescale[r] + e_sum;", "total[r] = total[r] + e_sum;"))
bug("y16", "q3", "cuda", HAIKU,
    ("attn_context.cu", "const int seen = min(p.keys, p.batch.position(p.first, t) + 1);",
     "const int seen = min(p.keys, p.batch.position(p.first, t) + 1) - (p.tokens == 1);"))
bug("y17", "q35", "cuda", "-p haiku -n 4",
    ("window.cu", "from < p.rows ? p.before[from * p.n + c]", "from < p.rows ? p.before[r * p.n + c]"))
bug("y18", "moe40", "cuda", HAIKU,
    ("top_k.cu", "for (int i = threadIdx.x; i < p.n; i += blockDim.x)", "for (int i = threadIdx.x; i < min(p.n, 32); i += blockDim.x)"),
    ("top_k.cu", "for (int j = 0; j < p.n; j++)", "for (int j = 0; j < min(p.n, 32); j++)"))
bug("y19", "q3", "cuda", "-p haiku -n 2 --passes 20,15",
    ("attn_weights.cu", "min(p.keys, p.batch.position(p.first, t) + 1)",
     "min(p.keys, (p.tokens > 1 ? t : p.batch.position(p.first, t)) + 1)"))
bug("y20", "q3", "cuda-fast", HAIKU,
    ("fused/tile.cuh", "held.d = *(const u16 *)scale | (u32) * (const u16 *)(scale + 8 * s_pitch) << 16;",
     "held.d = *(const u16 *)scale | (u32) * (const u16 *)scale << 16;"))
