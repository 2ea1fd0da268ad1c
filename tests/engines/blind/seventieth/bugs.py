"""The bugs of the seventieth round: patches of qdiff's CUDA kernels (engine/kernels), each of the way that an engine serves batches.

The tapped engine `cuda` runs `--sequences` on the emulated card. What a real engine keeps between launches (the buffers of a recorded
graph, pages that were freed) is a static variable of the patched kernel here; the emulated card runs threads one after another."""

MODELS = {
    "q2": "--arch qwen2 --weights F32",
    "q3": "--arch qwen3 --weights F32",
    "moe": "--arch qwen3moe --weights F32",
    "q35": "--arch qwen35 --weights F32",
}
PLANS = {
    # a prefill that another sequence joins, a prefix, a draft of two tokens that is rejected, decode steps
    "serve": ("11,5+7,1+1+9@0,1+3+1,1+1~2+1,2x1+1+1", 48),
    # two sequences, of which one has two rejected drafts
    "draft": ("8,1+10,4+1,1~2+1,5+1,1~4+1,3x1+1", 40),
    # two prefills in one pass, decode steps, a part beside decode, decode steps
    "decode": ("7+12,4x1+1,6+1,2x1+1", 38),
    # a sequence that takes the prefix of one that goes on in the same pass
    "fork": ("10,1+6@0+9,1+1+1,5+1+2,3x1+1+1", 46),
    # chunked prefills of three sequences
    "three": ("13,2+9+3,1+1+1,3+2+4,3x1+1+1", 48),
}


def bug(name, model, plan, *changes, more=""):
    sequences, length = PLANS[plan]
    run = f"--prompt long --length {length} --sequences {sequences} --color never{more}"
    return {"name": name, "model": model, "plan": plan, "run": run, "subject": "cuda", "changes": list(changes)}


# The first and the last row of the sequence of row t in a pass; rows of a sequence follow each other.
PART = """
    auto first_of = [&](int t) {
        if (!p.batch.starts) return 0;
        while (t > 0 && p.batch.starts[t - 1] == p.batch.starts[t]) t--;
        return t;
    };
    auto last_of = [&](int t) {
        if (!p.batch.starts) return p.tokens - 1;
        while (t + 1 < p.tokens && p.batch.starts[t + 1] == p.batch.starts[t]) t++;
        return t;
    };
"""
ROPE_PLANES = "    const int planes = p.rotated / 2, units = p.d - planes;\n"
ROPE_POSITION = "sincosf((float)p.batch.position(p.first, t) * p.frequency[i], &s, &c);"
SCORES_HEAD = "    if (n >= p.keys) return;\n"
SCORES_SEES = "if (n <= p.batch.position(p.first, t)) {"
SCORES_SLOT = "const size_t slot = p.batch.slot(t, n);"
WEIGHTS_SEEN = "    const int seen = min(p.keys, p.batch.position(p.first, t) + 1);\n"
CONTEXT_SEEN = "    const int seen = min(p.keys, p.batch.position(p.first, t) + 1);\n"
CONTEXT_AT = "auto at = [&](int n) { return ((size_t)p.batch.slot(t, n) * p.kv_heads + kv) * p.d + i; };"
KV_HEAD = "    if (i >= p.tokens * p.width) return;\n"
KV_PLAIN = "((typename Kv::Type *)p.cache)[p.batch.element(p.first, p.width, i)] = Kv::put(p.rows[i]);"
KV_STORE = "Kv::store(p.rows + i, ((typename Kv::Type *)p.cache)[p.batch.element(p.first, p.width, i) / KV_UNIT<Kv>]);"
LINEAR_ROW = "(p.x + (size_t)(first + t) * p.n + 32 * g);"

SEEN_BY_LAST = PART + "    const int seen = min(p.keys, p.batch.position(p.first, last_of(t)) + 1);\n"

BUGS = [
    # ---- always
    bug("rope-of-chunk", "q2", "three",
        ("rope.cu", ROPE_PLANES, ROPE_PLANES + PART),
        ("rope.cu", ROPE_POSITION, "sincosf((float)(t - first_of(t)) * p.frequency[i], &s, &c);")),
    bug("table-of-first", "q3", "decode",
        ("attn_scores.cu", SCORES_SLOT, "const size_t slot = p.batch.slot(0, n);")),
    bug("slots-of-next-row", "q2", "three",
        ("kv_cache.cu", KV_PLAIN, """const int next = (i / p.width + 1) % p.tokens * p.width + i % p.width;
        ((typename Kv::Type *)p.cache)[p.batch.element(p.first, p.width, next)] = Kv::put(p.rows[i]);""")),
    bug("sees-whole-part", "q3", "draft",
        ("attn_scores.cu", SCORES_HEAD, SCORES_HEAD + PART),
        ("attn_scores.cu", SCORES_SEES, "if (n <= p.batch.position(p.first, last_of(t))) {"),
        ("attn_weights.cu", WEIGHTS_SEEN, SEEN_BY_LAST),
        ("attn_context.cu", CONTEXT_SEEN, SEEN_BY_LAST)),
    bug("own-key-missed", "moe", "decode",
        ("attn_weights.cu", WEIGHTS_SEEN, "    const int seen = max(1, min(p.keys, p.batch.position(p.first, t)));\n")),
    bug("values-of-first-page", "q2", "serve",
        ("attn_context.cu", CONTEXT_AT, "auto at = [&](int n) { return ((size_t)p.batch.slot(t, n % 8) * p.kv_heads + kv) * p.d + i; };")),
    bug("scale-of-first-row", "q2", "three",
        ("kv_cache.cu", KV_STORE, """auto &to = ((typename Kv::Type *)p.cache)[p.batch.element(p.first, p.width, i) / KV_UNIT<Kv>];
        if constexpr (sizeof(to) == 34) {
            const float *of = p.rows + i % p.width; // of the first row of the pass
            float largest = 0.0f;
            for (int j = 0; j < 32; j++) largest = fmaxf(largest, fabsf(of[j]));
            const float scale = largest / 127.0f, inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
            to.words[0] = KvF16::put(scale);
            for (int j = 0; j < 32; j += 2) {
                const int a = max(-127, min(127, __float2int_rn(p.rows[i + j] * inverse)));
                const int b = max(-127, min(127, __float2int_rn(p.rows[i + j + 1] * inverse)));
                to.words[1 + j / 2] = (unsigned short)((a & 255) | (b & 255) << 8);
            }
        } else {
            Kv::store(p.rows + i, to);
        }"""), more=" --kv-type q8_0 --reference none"),
    bug("scale-of-key-before", "q3", "serve",
        ("attn_context.cu", CONTEXT_AT, CONTEXT_AT + """
        auto value = [&](int n) {
            if constexpr (KV_UNIT<Kv> == 32) {
                auto block = v.all[at(n) / 32];
                block.words[0] = v.all[at(max(n - 1, 0)) / 32].words[0];
                return Kv::at(block, (int)(at(n) % 32));
            } else {
                return Kv::get(v[at(n)]);
            }
        };"""),
        ("attn_context.cu", "sum[j] = fmaf(w[n + j], Kv::get(v[at(n + j)]), sum[j]);", "sum[j] = fmaf(w[n + j], value(n + j), sum[j]);"),
        ("attn_context.cu", "sum[0] = fmaf(w[n], Kv::get(v[at(n)]), sum[0]);", "sum[0] = fmaf(w[n], value(n), sum[0]);"),
        more=" --kv-type f32/q8_0 --reference none"),
    bug("first-row-undecayed", "q35", "three",
        ("delta_net.cu", "const float decay = expf(p.g[at]);", "const float decay = t == 0 ? 1.0f : expf(p.g[at]);")),
    bug("window-of-first", "q35", "serve",
        ("convolution.cu", "__global__ void convolution(", """static __device__ const float *last_window, *first_window; // launches of a pass: one a sequence
__global__ void convolution("""),
        ("convolution.cu", "    if (at >= p.count) return;\n", """    if (at == 0) {
        if (!last_window || p.before != last_window + (p.taps - 1) * p.apart * p.n) first_window = p.before;
        last_window = p.before;
    }
    if (at >= p.count) return;
"""),
        ("convolution.cu", "p.before[(size_t)row * p.n + c]", "first_window[(size_t)row * p.n + c]")),
    bug("expert-capacity", "moe", "serve",
        ("expert_linear.cu", "    for (int step = 16; step > 0; step /= 2) sum +=", """    int earlier = 0; // lines of the pass with the same expert
    for (int l = 0; l < line; l++) earlier += p.chosen[l] == p.chosen[line];
    if (earlier >= 4) sum = 0.0f;
    for (int step = 16; step > 0; step /= 2) sum +=""")),
    bug("shares-of-first-row", "moe", "fork",
        ("row_shares.cu", "const float *row = p.x + (size_t)(i / p.k) * p.k;", "const float *row = p.x;")),

    # ---- only under a condition
    bug("draft-positions", "q3", "draft",
        ("rope.cu", ROPE_PLANES, ROPE_PLANES + PART),
        ("rope.cu", ROPE_POSITION, """const int in_part = last_of(t) - first_of(t) + 1;
    sincosf((float)p.batch.position(p.first, in_part >= 2 && in_part <= 5 ? first_of(t) : t) * p.frequency[i], &s, &c);""")),
    bug("tail-tile", "q2", "serve",
        ("linear.cu", LINEAR_ROW, "(p.x + (size_t)(p.n == 512 && first > 0 && first + TOKENS > p.tokens ? t : first + t) * p.n + 32 * g);")),
    bug("recorded-positions", "q2", "decode",
        ("rope.cu", "__global__ void rope(", """// The positions of this pass and of the pass before, and whether each was a decode step.
static __device__ int now[256], was[256], rows_now, rows_was, decode_now, decode_was;
__global__ void rope("""),
        ("rope.cu", ROPE_PLANES, ROPE_PLANES + PART + """
    if (at == 0) {
        bool same = rows_now == p.tokens;
        for (int u = 0; u < p.tokens && same; u++) same = now[u] == p.batch.position(p.first, u);
        if (!same) { // a pass begins
            rows_was = rows_now, decode_was = decode_now, rows_now = p.tokens, decode_now = 1;
            for (int u = 0; u < 256; u++) was[u] = now[u];
            for (int u = 0; u < p.tokens; u++) now[u] = p.batch.position(p.first, u), decode_now &= first_of(u) == last_of(u);
        }
    }
    const bool replayed = decode_now && decode_was && rows_now == rows_was;
"""),
        ("rope.cu", ROPE_POSITION, "sincosf((float)(replayed ? was[t] : p.batch.position(p.first, t)) * p.frequency[i], &s, &c);")),
    bug("draft-kept", "q2", "draft",
        ("kv_cache.cu", "template <typename Kv>\n", """// What has been written to the slots of each cache in this run.
static __device__ const void *caches[16];
static __device__ int known;
static __device__ float kept[16][1 << 15];
static __device__ unsigned char written[16][1 << 15];
template <typename Kv>
"""),
        ("kv_cache.cu", KV_HEAD, """    if (i == 0) {
        int of = 0;
        while (of < known && caches[of] != p.cache) of++;
        if (of == 16) of = known = 0;
        if (of == known) caches[known++] = p.cache;
        const bool begins = p.batch.slots ? p.batch.slots[0] == 0 && p.batch.positions[0] == 0 : p.first == 0;
        if (begins) {
            for (int e = 0; e < 1 << 15; e++) written[of][e] = 0;
        }
    }
""" + KV_HEAD),
        ("kv_cache.cu", KV_PLAIN, """const size_t e = p.batch.element(p.first, p.width, i);
        int of = 0;
        while (of < known && caches[of] != p.cache) of++;
        float value = p.rows[i];
        if (of < known && e < 1 << 15) {
            if (written[of][e]) value = kept[of][e]; // the slot is taken for one that is written already
            written[of][e] = 1, kept[of][e] = value;
        }
        ((typename Kv::Type *)p.cache)[e] = Kv::put(value);""")),
    bug("short-part-window", "q35", "three",
        ("window.cu", "from < p.rows ? p.before[from * p.n + c] :", "from < p.rows ? p.before[r * p.n + c] :")),
    bug("copy-on-write-missed", "q3", "fork",
        ("kv_cache.cu", KV_PLAIN, """int t = i / p.width, from = t;
        if (p.batch.tables && p.batch.positions[t] > 0) {
            const int before = p.batch.slot(t, p.batch.positions[t] - 1);
            for (int u = t + 1; u < p.tokens; u++) { // another sequence, whose first own row follows the same shared row
                if (p.batch.starts[u] != p.batch.starts[t] && p.batch.positions[u] == p.batch.positions[t] &&
                    p.batch.slot(u, p.batch.positions[u] - 1) == before) from = u;
            }
        }
        ((typename Kv::Type *)p.cache)[p.batch.element(p.first, p.width, i)] = Kv::put(p.rows[from * p.width + i % p.width]);""")),
    bug("splits-not-merged", "q3", "serve",
        ("attn_weights.cu", "    total = reduce_sum(total);\n", """    __syncthreads();
    if (threadIdx.x == 0 && seen > 16) { // each split of 16 keys is divided by its own sum, then all by the number of splits
        for (int n = 0; n < seen; n += 16) {
            float own = 0.0f;
            for (int m = n; m < min(n + 16, seen); m++) own += y[m];
            for (int m = n; m < min(n + 16, seen); m++) y[m] = y[m] / own / (float)((seen + 15) / 16);
        }
    }
    __syncthreads();
    total = seen > 16 ? 1.0f : reduce_sum(total);
""")),
    bug("last-logits-of-row-before", "q2", "fork",
        ("linear.cu", LINEAR_ROW, "(p.x + (size_t)(p.m == 359 && p.tokens > 8 && first + t == p.tokens - 1 ? first + t - 1 : first + t) * p.n + 32 * g);")),
]
