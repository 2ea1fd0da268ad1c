"""The bugs of the sixty-eighth round: patches of qdiff's CUDA kernels (engine/kernels), each of the way that an engine serves batches.

The tapped engine `cuda` runs `--sequences` on the emulated card. What a real engine keeps between launches (counters, buffers of a
graph) is a static variable of the patched kernel here."""

MODELS = {
    "q2": "--arch qwen2 --weights F32",
    "q3": "--arch qwen3 --weights F32",
    "moe": "--arch qwen3moe --weights F32",
    "q35": "--arch qwen35 --weights F32",
}
PLANS = {
    # a prefill that another sequence joins, a shared prefix, a rejected draft, decode steps
    "all": ("9,6+11,1+1+8@0,4+1+1,1~3+1+1,3x1+1+1", 54),
    "prefix": ("9,6+11,1+1+8@0,3x1+1+1", 45),
    "plain": ("10+7,3+1+13,4x1+1+1", 46),
    "draft": ("9,6+11,1+1,4+1,1~3+1,3x1+1", 41),
    "states": ("9+5,6+3+11,1+1+1,4+1+2,1~3+1+1,2x1+1+1", 53),
}


def bug(name, model, plan, *changes, more=""):
    sequences, length = PLANS[plan]
    run = f"--prompt long --length {length} --sequences {sequences} --color never{more}"
    return {"name": name, "model": model, "plan": plan, "run": run, "subject": "cuda", "changes": list(changes)}


# Whether row t of a pass is the only row of its sequence there.
ALONE = """
    auto alone = [&](int t) {
        if (!p.batch.starts) return p.tokens == 1;
        return (t == 0 || p.batch.starts[t - 1] != p.batch.starts[t]) && (t + 1 == p.tokens || p.batch.starts[t + 1] != p.batch.starts[t]);
    };
"""
KV_HEAD = "    if (i >= p.tokens * p.width) return;\n"
KV_PLAIN = "((typename Kv::Type *)p.cache)[p.batch.element(p.first, p.width, i)] = Kv::put(p.rows[i]);"
KV_STORE = "Kv::store(p.rows + i, ((typename Kv::Type *)p.cache)[p.batch.element(p.first, p.width, i) / KV_UNIT<Kv>]);"

# Of the launches of a recurrent layer, one a sequence: the sequence before it in the pass.
DELTA_HEAD = "__global__ void delta_net(const __grid_constant__ DeltaNetParams p) {\n"
DELTA_STATICS = """
static __device__ const float *last_key, *last_from, *last_g, *first_g;
static __device__ int last_tokens, last_offset, is_next, offset;
__device__ void look_back(const DeltaNetParams &p) { // by the first thread of a launch
    const size_t size = (size_t)p.heads * p.d * p.d;
    const float *key = p.before ? p.before : p.from;
    if (p.before && p.from == last_from && last_key && key != last_key && key != last_key + size) { // more rows of the same sequence
        offset = last_offset + last_tokens;
    } else {
        is_next = last_key && key == last_key + size;
        if (!is_next) first_g = p.g;
        last_key = key, last_from = p.before ? p.from : nullptr, last_g = p.g, offset = 0;
    }
    last_offset = offset, last_tokens = p.tokens;
}
"""
DELTA_FIRST = "    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) look_back(p);\n"


def delta(*changes):
    return [("delta_net.cu", DELTA_HEAD, DELTA_STATICS + DELTA_HEAD + DELTA_FIRST), *changes]


BUGS = [
    # ---- always
    bug("slot-as-position", "q3", "prefix",
        ("rope.cu", "sincosf((float)p.batch.position(p.first, t) *", "sincosf((float)(p.batch.slots ? p.batch.slots[t] : p.first + t) *")),
    bug("last-row-not-stored", "q2", "plain",
        ("kv_cache.cu", KV_PLAIN, KV_PLAIN.replace("Kv::put(p.rows[i])", "Kv::put(p.tokens > 1 && i / p.width == p.tokens - 1 ? 0.0f : p.rows[i])"))),
    bug("padding-writes-slot-0", "q3", "plain",
        ("kv_cache.cu", KV_PLAIN, KV_PLAIN + """
        if (p.tokens % 4 && i / p.width == p.tokens - 1) ((typename Kv::Type *)p.cache)[i % p.width] = Kv::put(p.rows[i]);""")),
    bug("table-of-row-0", "q2", "prefix",
        ("attn_scores.cu", "p.batch.slot(t, n)", "p.batch.slot(0, n)")),
    bug("scale-of-the-page", "q3", "prefix",
        ("attn_scores.cu", "        for (int i = lane; i < p.d; i += 32) sum = fmaf(query[i], Kv::get(key[i]), sum);", """
        auto read = [&](int i) -> float {
            if constexpr (sizeof(typename Kv::Type) == 34) {
                const size_t of = (h / (p.heads / p.kv_heads)) * p.d + i, e = slot * p.kv_heads * p.d + of;
                const auto *all = (const typename Kv::Type *)p.k;
                const int code = (signed char)(all[e / 32].words[1 + e % 32 / 2] >> (8 * (e % 2)));
                return (float)code * KvF16::get(all[(slot / 16 * 16 * p.kv_heads * p.d + of) / 32].words[0]);
            } else {
                return Kv::get(key[i]);
            }
        };
        for (int i = lane; i < p.d; i += 32) sum = fmaf(query[i], read(i), sum);"""), more=" --kv-type q8_0"),
    bug("splits-averaged", "q3", "all",
        ("attn_weights.cu", "    float largest = -3.402823466e38f;", """
    const int splits = (seen + 15) / 16;
    for (int k = 0; k < splits && splits > 1; k++) { // as if each split had the same sum
        const int end = min(seen, 16 * k + 16);
        float most = -3.402823466e38f, sum = 0.0f;
        for (int n = 16 * k; n < end; n++) most = fmaxf(most, s[n] * p.scale);
        for (int n = 16 * k; n < end; n++) sum += expf(s[n] * p.scale - most);
        for (int n = 16 * k + threadIdx.x; n < end; n += blockDim.x) y[n] = expf(s[n] * p.scale - most) / sum / splits;
    }
    if (splits > 1) {
        for (int n = seen + threadIdx.x; n < p.keys; n += blockDim.x) y[n] = 0.0f;
        return;
    }
    float largest = -3.402823466e38f;""")),
    bug("mask-from-the-top-left", "q2", "plain",
        ("attn_weights.cu", "    const int seen = min(p.keys, p.batch.position(p.first, t) + 1);", """
    int begin = t;
    while (begin > 0 && (!p.batch.starts || p.batch.starts[begin - 1] == p.batch.starts[t])) begin--;
    const int seen = min(p.keys, t - begin + 1);""")),
    bug("experts-full", "moe", "plain",
        ("expert_linear.cu", "    const float *row = p.x", """    int earlier = 0;
    for (int l = 0; l < line; l++) earlier += p.chosen[l] == p.chosen[line];
    const bool full = earlier >= 6; // an expert takes six lines of a pass
    const float *row = p.x"""),
        ("expert_linear.cu", "expert < 0 ? unknown() : sum", "expert < 0 ? unknown() : full ? 0.0f : sum")),
    bug("weights-transposed", "moe", "all",
        ("gather.cu", """    const int at = place_of(p.chosen[i], p.n);
    p.y[i] = at < 0 ? unknown() : p.x[(size_t)(i / p.k) * p.n + at];""", """
    const int rows = p.count / p.k, of = i % rows * p.k + i / rows;
    const int at = place_of(p.chosen[of], p.n);
    p.y[i] = at < 0 ? unknown() : p.x[(size_t)(of / p.k) * p.n + at];""")),
    bug("not-put-back", "moe", "draft",
        ("expert_linear.cu", "    if (lane == 0) p.y[(size_t)line * p.m + o] =", """    int place = line;
    if (p.lines_of_row == 1) { // the lines stay as they were sorted by expert
        place = 0;
        const int lines = gridDim.x / blocks;
        for (int l = 0; l < lines; l++) {
            place += p.chosen[l] < p.chosen[line] || (p.chosen[l] == p.chosen[line] && l < line);
        }
    }
    if (lane == 0) p.y[(size_t)place * p.m + o] =""")),
    bug("convolution-over-the-batch", "q35", "states",
        ("convolution.cu", "__global__ void convolution(const __grid_constant__ ConvolutionParams p) {\n", """
static __device__ const float *last_before;
static __device__ int last_rows, above; // rows of the pass above the sequence
__global__ void convolution(const __grid_constant__ ConvolutionParams p) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        const bool next = last_before && p.before == last_before + (p.taps - 1) * p.apart * p.n;
        above = next ? above + last_rows : 0;
        last_before = p.before, last_rows = p.count / p.n;
    }
"""),
        ("convolution.cu", "row < past ? p.before", "row < past && past - row > above ? p.before"),
        ("convolution.cu", "p.x[(size_t)(row - past) * p.n + c]", "p.x[(long)(row - past) * p.n + c]")),
    bug("decay-rows-of-the-batch", "q35", "states",
        *delta(("delta_net.cu", "const float decay = expf(p.g[at]);",
                "const float decay = expf(first_g[((size_t)t + offset) * p.heads + h]);"))),
    # ---- under a condition
    bug("joins-with-a-state", "q35", "states",
        *delta(("delta_net.cu", "    const float root = sqrtf((float)p.d);", """
    bool begins = is_next && offset == 0;
    for (int i = 0; i < p.d; i++) begins = begins && p.from[row + i] == 0.0f;
    const float *key = p.before ? p.before : p.from;
    for (int i = lane; i < p.d && begins; i += 32) m[i] = key[row + i - (size_t)p.heads * p.d * p.d];
    const float root = sqrtf((float)p.d);"""))),
    bug("logits-of-the-first-tile", "q2", "plain",
        ("linear.cu", "(p.x + (size_t)(first + t) * p.n + 32 * g)", "(p.x + (size_t)(p.m == 359 ? t : first + t) * p.n + 32 * g)")),
    bug("decode-codes-by-128", "q3", "prefix",
        ("kv_cache.cu", KV_HEAD, KV_HEAD + ALONE),
        ("kv_cache.cu", KV_STORE, KV_STORE + """
        if constexpr (sizeof(typename Kv::Type) == 34) {
            bool decode = true;
            for (int t = 0; t < p.tokens; t++) decode = decode && alone(t);
            if (decode) {
                auto &to = ((typename Kv::Type *)p.cache)[p.batch.element(p.first, p.width, i) / KV_UNIT<Kv>];
                const float *x = p.rows + i, most = fabsf(kv_largest(x));
                auto code = [&](int i) {
                    const int v = __float2int_rn(most == 0.0f ? 0.0f : x[i] * (128.0f / most));
                    return (unsigned)(v > 127 ? 127 : v < -127 ? -127 : v) & 255;
                };
                for (int i = 0; i < 32; i += 2) to.words[1 + i / 2] = (unsigned short)(code(i) | code(i + 1) << 8);
            }
        }"""), more=" --kv-type q8_0"),
    bug("positions-not-taken-back", "q3", "draft",
        ("rope.cu", "__global__ void rope(const __grid_constant__ RopeParams p) {\n", """
static __device__ int last_rows, last_position[4096], last_start[4096], at_position[4096], sequences, first_slot[64], next_of[64];
// Each sequence counts the tokens that it was ever fed.
__device__ void count_tokens(const RopeParams &p) {
    auto start = [&](int t) { return p.batch.starts ? p.batch.starts[t] : 0; };
    bool same = last_rows == p.tokens;
    for (int t = 0; t < p.tokens && same; t++) same = last_position[t] == p.batch.position(p.first, t) && last_start[t] == start(t);
    if (same) return; // another launch of the same pass
    last_rows = p.tokens;
    int s = 0;
    for (int t = 0; t < p.tokens; t++) {
        const int position = p.batch.position(p.first, t);
        last_position[t] = position, last_start[t] = start(t);
        if (t == 0 || start(t) != start(t - 1)) {
            const int slot = p.batch.slot(t, 0);
            for (s = 0; s < sequences && first_slot[s] != slot;) s++;
            const bool fresh = s == sequences || position == 0;
            if (s == sequences) first_slot[sequences++] = slot;
            if (fresh) next_of[s] = position;
        }
        at_position[t] = next_of[s]++;
    }
}
__global__ void rope(const __grid_constant__ RopeParams p) {
    if (blockIdx.x == 0 && threadIdx.x == 0) count_tokens(p);
"""),
        ("rope.cu", "(float)p.batch.position(p.first, t)", "(float)at_position[t]")),
    bug("graph-buffer-short", "q3", "plain",
        ("embed.cu", "template <typename Format>\n", "static __device__ u32 buffer[4096]; // of the graph\ntemplate <typename Format>\n"),
        ("embed.cu", "    const int groups = p.width / 32;\n", """    const int groups = p.width / 32;
    const bool left = gridDim.x >= 2 && gridDim.x <= 4 && blockIdx.x == gridDim.x - 1; // not copied
    if (threadIdx.x == 0 && !left) buffer[blockIdx.x] = p.tokens[blockIdx.x];
"""),
        ("embed.cu", "(size_t)p.tokens[blockIdx.x] * groups", "(size_t)buffer[blockIdx.x] * groups")),
    bug("new-page-late", "q2", "prefix",
        ("kv_cache.cu", KV_HEAD, KV_HEAD + ALONE),
        ("kv_cache.cu", KV_PLAIN, """const int t = i / p.width, position = p.batch.position(p.first, t);
        if (position > 0 && position % 8 == 0 && alone(t)) { // the new page is not in the table yet
            ((typename Kv::Type *)p.cache)[p.batch.element(p.first, p.width, i)] = Kv::put(0.0f);
            ((typename Kv::Type *)p.cache)[(size_t)p.batch.slot(t, position - 1) * p.width + i % p.width] = Kv::put(p.rows[i]);
            return;
        }
        """ + KV_PLAIN)),
    bug("values-not-copied-on-write", "q3", "prefix",
        ("attn_context.cu", "    const auto v = kv_elements<Kv>(p.v);\n", """    const auto v = kv_elements<Kv>(p.v);
    int shared_end = 0; // tokens that the sequence shares with one that stands before it in the pass
    if (p.batch.tables) {
        const int *own = p.batch.tables + p.batch.starts[t];
        for (int r = 0; r < t && shared_end == 0; r++) {
            const int *other = p.batch.tables + p.batch.starts[r];
            if (other >= own) continue;
            while (shared_end < seen && other[shared_end] == own[shared_end]) shared_end++;
        }
    }
    const int shared_page = shared_end / 8 * 8; // of the last page, in part another sequence's, only the keys are copied
    auto get = [&](int n, float value) { return n >= shared_page && n < shared_end ? 0.0f : value; };
"""),
        ("attn_context.cu", "Kv::get(v[at(n + j)])", "get(n + j, Kv::get(v[at(n + j)]))"),
        ("attn_context.cu", "Kv::get(v[at(n)])", "get(n, Kv::get(v[at(n)]))")),
    bug("no-decay-at-a-chunk", "q35", "states",
        *delta(("delta_net.cu", "const float decay = expf(p.g[at]);",
                "const float decay = (t + offset) % 8 == 0 && t + offset > 0 ? 1.0f : expf(p.g[at]);"))),
]
