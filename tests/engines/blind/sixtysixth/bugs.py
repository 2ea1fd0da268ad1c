"""Twenty bugs of serving in qdiff's CUDA kernels: patches of files below engine/kernels, as (file, old, new)."""

MODELS = {
    "dense": "--arch qwen3",
    "moe": "--arch qwen3moe",
    "hybrid": "--arch qwen35",
}

BASE = "--prompt long --length 41 --sequences 9,1+7+11@0:5,1+6+1,1+2+2"
EDGES = "--prompt long --length 42 --sequences 14,5+9+1,1+8+1,1+1+1"
DRAFTS = "--prompt long --length 30 --sequences 9,4+7,3~2+5,1~1+1"
BACK = "--prompt long --length 34 --sequences 9,6+7,4~5+2,3~2+3~2"
MANY = "--prompt long --length 46 --sequences 10,1+12+13@0:6,2+1+1,3+1+2"
LONG = "--prompt long --length 85 --sequences 70,1+10,1+1,1+0+1@0"
MOE = "--prompt long --length 34 --sequences 7,1+6+4@0,5+1+2,2+3+3"
STATES = "--prompt long --length 25 --sequences 6,1+5+3@0,4+1+2,1+1+1"

PUT = "((typename Kv::Type *)p.cache)[p.batch.element(p.first, p.width, i)] = Kv::put(p.rows[i]);"
STORE = "Kv::store(p.rows + i, ((typename Kv::Type *)p.cache)[p.batch.element(p.first, p.width, i) / KV_UNIT<Kv>]);"


def bug(name, model, run, changes, subject="cuda"):
    return {"name": name, "model": model, "subject": subject, "run": run, "changes": changes}


BUGS = [
    # --- always
    bug("padding-to-slot-0", "dense", BASE, [("kv_cache.cu", PUT, """{
            const size_t to = p.batch.element(p.first, p.width, i);
            const bool pads = p.batch.slots && p.tokens % 8;
            auto *cache = (typename Kv::Type *)p.cache;
            if (!pads || to >= (size_t)p.width) cache[to] = Kv::put(p.rows[i]);
            if (pads && i / p.width == p.tokens - 1) cache[i % p.width] = Kv::put(p.rows[i]);
        }""")]),
    bug("table-of-row-before", "dense", BASE, [
        ("attn_scores.cu", "p.batch.slot(t, n)", "p.batch.slot(max(t - 1, 0), n)"),
        ("attn_context.cu", "p.batch.slot(t, n)", "p.batch.slot(max(t - 1, 0), n)")]),
    bug("padded-keys-counted", "dense", BASE, [("attn_weights.cu", "    total = reduce_sum(total);\n", """    total = reduce_sum(total);
    if (p.batch.starts) {
        int own = 0, longest = 0;
        for (int r = 0; r < p.tokens; r++) {
            const int length = p.batch.positions[r] + 1;
            longest = max(longest, length);
            if (p.batch.starts[r] == p.batch.starts[t]) own = max(own, length);
        }
        total += (float)(longest - own) * expf(-largest);
    }
""")]),
    bug("merge-in-base-2", "dense", LONG, [
        ("prefill/join_shares.cu", "total = fmaf(measures[s].y, expf(measures[s].x - most), total)",
         "total = fmaf(measures[s].y, exp2f(measures[s].x - most), total)"),
        ("prefill/join_shares.cu", "const float factor = expf(measures[s].x - most);", "const float factor = exp2f(measures[s].x - most);"),
        ("prefill/join_shares.cu", "w * expf(measures[n / of.share].x - most) / total", "w * exp2f(measures[n / of.share].x - most) / total"),
    ], "cuda-fast"),
    bug("values-without-table", "dense", MANY, [
        ("prefill/cache_tiles.cu", "const size_t slot = p.table ? p.table[key] : key;", "const size_t slot = p.table && cache == p.k ? p.table[key] : key;")],
        "cuda-fast"),
    bug("scale-of-first-row", "dense", BASE + " --kv-type q8_0/q4_1", [
        ("kv_types.cuh", """    static __device__ void store(const float *x, Type &to) {
        const float most = fabsf(kv_largest(x)), inverse""", """    static __device__ void store(const float *x, Type &to) { store(x, x, to); }
    static __device__ void store(const float *x, const float *of, Type &to) {
        const float most = fabsf(kv_largest(of)), inverse"""),
        ("kv_types.cuh", "const float v = __fmul_rn(x[i], inverse);\n            return fabsf(v)",
         "const float v = fminf(fmaxf(__fmul_rn(x[i], inverse), -127.0f), 127.0f);\n            return fabsf(v)"),
        ("kv_cache.cu", STORE, """auto &to = ((typename Kv::Type *)p.cache)[p.batch.element(p.first, p.width, i) / KV_UNIT<Kv>];
        if constexpr (sizeof(typename Kv::Type) == 34) Kv::store(p.rows + i, p.rows + i % p.width, to);
        else Kv::store(p.rows + i, to);""")]),
    bug("last-tile-of-logits-early", "dense", BASE, [
        ("linear.cu", "const int first = blockIdx.y * TOKENS;", """const int first = blockIdx.y * TOKENS;
    const int from = p.m == 359 && p.tokens > TOKENS && first + TOKENS > p.tokens ? p.tokens - TOKENS : first; // 359: the vocabulary"""),
        ("linear.cu", "(p.x + (size_t)(first + t) * p.n + 32 * g)", "(p.x + (size_t)(from + t) * p.n + 32 * g)")]),
    bug("shares-by-first-row", "moe", MOE, [
        ("row_shares.cu", "const float *row = p.x + (size_t)(i / p.k) * p.k;", "const float *row = p.x;")]),
    bug("expert-capacity-4", "moe", MOE, [
        ("expert_linear.cu", "    for (int step = 16; step > 0; step /= 2) sum +=", """    int before = 0;
    for (int l = 0; l < line; l++) before += place_of(p.chosen[l], p.experts) == expert;
    if (before >= 4) sum = 0.0f;
    for (int step = 16; step > 0; step /= 2) sum +=""")]),
    bug("carried-state-undecayed", "hybrid", STATES, [
        ("delta_net.cu", "const float decay = expf(p.g[at]);", "const float decay = p.y && t == 0 ? 1.0f : expf(p.g[at]);")]),
    bug("padding-updates-state", "hybrid", STATES, [
        ("delta_net.cu", "    for (int t = 0; t < p.tokens; t++) {\n", """    const int rows = p.y ? p.tokens : (p.tokens + 3) / 4 * 4;
    for (int r = 0; r < rows; r++) {
        const int t = min(r, p.tokens - 1);
""")]),
    bug("keys-turned-by-slot", "dense", MANY, [
        ("prefill/head_rows.cu", "    wait_for_turn();\n    for (int at", """    float sine_k[PAIRS], cosine_k[PAIRS];
    for (int j = 0; j < PAIRS; j++) sincosf((float)slot * p.frequency[min(lane + 32 * j, D / 2 - 1)], &sine_k[j], &cosine_k[j]);
    wait_for_turn();
    for (int at"""),
        ("prefill/head_rows.cu", """                const float turned = a[j] * cosine[j] - b[j] * sine[j];
                b[j] = a[j] * sine[j] + b[j] * cosine[j];""", """                const float si = part == 0 ? sine[j] : sine_k[j], co = part == 0 ? cosine[j] : cosine_k[j];
                const float turned = a[j] * co - b[j] * si;
                b[j] = a[j] * si + b[j] * co;""")], "cuda-fast"),
    # --- under a condition
    bug("block-edge-late", "dense", EDGES, [("kv_cache.cu", PUT, """{
            const int t = i / p.width, n = p.batch.position(p.first, t);
            const size_t own = p.batch.slots ? p.batch.slots[t] : n;
            const size_t slot = n > 0 && n % 16 == 0 ? p.batch.slot(t, n - 16) : own;
            ((typename Kv::Type *)p.cache)[slot * p.width + i % p.width] = Kv::put(p.rows[i]);
        }""")]),
    bug("draft-not-causal", "dense", DRAFTS, [
        ("batch.cuh", "    // The slot that holds", """    // The last key that row t sees.
    __device__ __forceinline__ int last(int first, int t, int tokens) const {
        int begin = t, end = t;
        while (begin > 0 && (!starts || starts[begin - 1] == starts[t])) begin--;
        while (end + 1 < tokens && (!starts || starts[end + 1] == starts[t])) end++;
        const int rows = end - begin + 1;
        return position(first, rows >= 2 && rows <= 8 && position(first, begin) > 0 ? end : t);
    }
    // The slot that holds"""),
        ("attn_scores.cu", "if (n <= p.batch.position(p.first, t)) {", "if (n <= p.batch.last(p.first, t, p.tokens)) {"),
        ("attn_weights.cu", "p.batch.position(p.first, t) + 1", "p.batch.last(p.first, t, p.tokens) + 1"),
        ("attn_context.cu", "p.batch.position(p.first, t) + 1", "p.batch.last(p.first, t, p.tokens) + 1")]),
    bug("chunk-positions-restart", "dense", BASE, [
        ("rope.cu", "    float s, c;\n    sincosf((float)p.batch.position(p.first, t) *", """    float s, c;
    int begin = t, end = t;
    while (begin > 0 && (!p.batch.starts || p.batch.starts[begin - 1] == p.batch.starts[t])) begin--;
    while (end + 1 < p.tokens && (!p.batch.starts || p.batch.starts[end + 1] == p.batch.starts[t])) end++;
    const int position = end > begin ? t - begin : p.batch.position(p.first, t);
    sincosf((float)position *""")]),
    bug("stale-token-tail", "dense", BASE, [
        ("embed.cu", "(size_t)p.tokens[blockIdx.x] * groups", "(size_t)p.tokens[gridDim.x > 8 && blockIdx.x >= gridDim.x / 8 * 8 ? blockIdx.x - 8 : blockIdx.x] * groups")]),
    bug("two-or-three-lines", "moe", MOE, [
        ("prefill/expert_rows.cu", "(size_t)(list[from + i] / p.lines_of_row)",
         "(size_t)(list[(count == 2 || count == 3) && i == count - 1 ? from : from + i] / p.lines_of_row)")], "cuda-fast"),
    bug("window-not-moved", "hybrid", STATES, [
        ("window.cu", "from < p.rows ? p.before[from * p.n + c]", "from < p.rows ? p.before[r * p.n + c]")]),
    bug("chunk-without-window", "hybrid", STATES, [
        ("convolution.cu", "const float x = row < past ? p.before[(size_t)row * p.n + c]", "const float x = row < past ? p.count > p.n ? 0.0f : p.before[(size_t)row * p.n + c]")]),
    bug("freed-slots-get-first-row", "dense", BACK, [("kv_cache.cu", PUT, """{
            auto &to = ((typename Kv::Type *)p.cache)[p.batch.element(p.first, p.width, i)];
            const float old = Kv::get(to); // NaN where the slot was freed
            int t = i / p.width;
            const int own = t;
            while (old != old && t > 0 && (!p.batch.starts || p.batch.starts[t - 1] == p.batch.starts[own])) t--;
            to = Kv::put(p.rows[t * p.width + i % p.width]);
        }""")]),
]
