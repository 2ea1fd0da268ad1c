"""20 bugs of serving in qdiff's CUDA kernels, as patches of their source: (file, old text, new text). key.py says what each is and after what."""

MODELS = {
    "q3": "--arch qwen3 --heads 4 --kv-heads 2 --head-dim 64 --seed 71",
    "q3b": "--arch qwen3 --heads 6 --kv-heads 2 --head-dim 64 --seed 72",
    "q2": "--arch qwen2 --seed 73",
    "q35": "--arch qwen35 --layers 4 --seed 74",
    "moe": "--arch qwen3moe --set expert_count=6 --set expert_used_count=3 --seed 75",
    "moe8": "--arch qwen3moe --set expert_count=8 --set expert_used_count=2 --seed 76",
}

BUGS = []


def bug(name, model, run, *changes):
    BUGS.append({"name": name, "model": model, "subject": "cuda", "run": "--prompt long " + run, "changes": list(changes)})


# The rows of a pass that are of the sequence of row t: the first, and one past the last. A row that is its sequence's only one is a decode row.
ROWS = ("batch.cuh", "    // The place of element i", """\
    __device__ __forceinline__ int begin(int t) const {
        int r = starts ? t : 0;
        while (r > 0 && starts[r - 1] == starts[t]) r--;
        return r;
    }
    __device__ __forceinline__ int end(int t, int tokens) const {
        int r = starts ? t + 1 : tokens;
        while (r < tokens && starts[r] == starts[t]) r++;
        return r;
    }
    __device__ __forceinline__ bool decodes(int t, int tokens) const { return end(t, tokens) - begin(t) == 1; }
    // Whether the pass has decode rows alone.
    __device__ __forceinline__ bool only_decodes(int tokens) const {
        for (int t = 0; t < tokens; t++) {
            if (!decodes(t, tokens)) return false;
        }
        return true;
    }
    // How many slots the sequence of row t begins with that the sequence of the pass's first row begins with too.
    __device__ __forceinline__ int common(int t, int tokens) const {
        if (!tables || starts[t] == starts[0]) return 0;
        const int first = positions[end(0, tokens) - 1] + 1, own = positions[end(t, tokens) - 1] + 1;
        int n = 0;
        while (n < first && n < own && tables[starts[0] + n] == tables[starts[t] + n]) n++;
        return n;
    }
    // The place of element i""")

SEEN = "const int seen = min(p.keys, p.batch.position(p.first, t) + 1);"

# In every run that batches.
bug("z01", "q3", "--length 44 --sequences 13+9,1+1+11,3x1+1+1",
    ("rope.cu", "p.batch.position(p.first, t) * p.frequency[i]", "((p.batch.positions ? p.batch.positions[0] : p.first) + t) * p.frequency[i]"))
bug("z03", "q2", "--length 45 --sequences 10+14,1+1+10,3x1+1+1",
    ("attn_context.cu", "p.batch.slot(t, n)", "p.batch.slot(t / 4 * 4, n)"))
bug("z07", "q3", "--length 47 --sequences 15+17,1+1+4,3x1+1+1", ROWS,
    ("attn_context.cu", "        float sum[4] =", """\
        if (p.batch.decodes(t, p.tokens) && seen > 1) {
            const int half = (seen + 1) / 2;
            float merged = 0.0f;
            for (int split = 0; split < 2; split++) {
                float values = 0.0f, total = 0.0f;
                for (int n = split * half; n < min(seen, (split + 1) * half); n++) {
                    values = fmaf(w[n], Kv::get(v[at(n)]), values);
                    total += w[n];
                }
                merged += values / total;
            }
            p.c[((size_t)t * p.heads + h) * p.d + i] = merged / 2.0f;
            continue;
        }
        float sum[4] ="""))
bug("z08", "q3", "--length 63 --sequences 6+38,1+1+11,2x1+1+1", ROWS,
    ("attn_weights.cu", SEEN, """\
    const int longest = p.batch.positions ? (p.batch.positions[p.batch.end(0, p.tokens) - 1] / 16 + 1) * 16 : p.keys;
    const int seen = min(min(p.keys, longest), p.batch.position(p.first, t) + 1);"""[4:]))
bug("z11", "q3", "--kv-type q8_0 --length 44 --sequences 19+9,1+1+5,3x1+1+1",
    ("attn_scores.cu", "for (int i = lane; i < p.d; i += 32) sum = fmaf(query[i], Kv::get(key[i]), sum);", """\
for (int i = lane; i < p.d; i += 32) {
            float value = Kv::get(key[i]);
            if constexpr (KV_UNIT<Kv> > 1) {
                const size_t page = p.batch.slot(t, n / 16 * 16);
                const auto of_page = kv_elements<Kv>(p.k, (page * p.kv_heads + h / (p.heads / p.kv_heads)) * p.d);
                value = value / KvF16::get(key.all[(key.first + i) / 32].words[0]) * KvF16::get(of_page.all[(of_page.first + i) / 32].words[0]);
            }
            sum = fmaf(query[i], value, sum);
        }"""))
bug("z12", "q2", "--kv-type q8_0 --length 41 --sequences 12+9,1+1+9,3x1+1+1",
    ("kv_cache.cu", "        Kv::store(p.rows + i, ((typename Kv::Type *)p.cache)[p.batch.element(p.first, p.width, i) / KV_UNIT<Kv>]);", """\
        auto &to = ((typename Kv::Type *)p.cache)[p.batch.element(p.first, p.width, i) / KV_UNIT<Kv>];
        Kv::store(p.rows + i % p.width, to);
        if constexpr (sizeof(to) == 34) {
            const float inverse = 1.0f / KvF16::get(to.words[0]);
            auto code = [&](int j) { return (unsigned)__float2int_rn(fminf(fmaxf(p.rows[i + j] * inverse, -127.0f), 127.0f)) & 255; };
            for (int j = 0; j < 32; j += 2) to.words[1 + j / 2] = (unsigned short)(code(j) | code(j + 1) << 8);
        }"""))
bug("z13", "moe8", "--length 35 --sequences 9+8,1+1+7,3x1+1+1",
    ("gather.cu", "    const int at = place_of(p.chosen[i], p.n);\n    p.y[i] = at < 0 ? unknown() : p.x[(size_t)(i / p.k) * p.n + at];", """\
    int line = i;
    for (int l = 0; l < p.count; l++) {
        int before = 0;
        for (int m = 0; m < p.count; m++) before += p.chosen[m] < p.chosen[l] || (p.chosen[m] == p.chosen[l] && m < l);
        if (before == i) line = l;
    }
    const int at = place_of(p.chosen[line], p.n);
    p.y[i] = at < 0 ? unknown() : p.x[(size_t)(line / p.k) * p.n + at];"""))
bug("z14", "moe", "--length 45 --sequences 14+11,1+1+9,3x1+1+1",
    ("expert_linear.cu", "    if (expert >= 0) {", """\
    int earlier = 0;
    for (int l = 0; l < line; l++) earlier += p.chosen[l] == p.chosen[line];
    if (expert >= 0 && earlier < 8) {"""))
bug("z15", "q35", "--length 36 --sequences 9+7,1+1+8,2x1+1+1,1+3",
    ("delta_net.cu", "__global__ void delta_net(", """\
struct Launch {
    const float *from, *k;
};
static Launch now, last; // of a pass: sequences are launched one after another, their states lie beside each other

__global__ void delta_net("""),
    ("delta_net.cu", "    for (int i = lane; i < p.d; i += 32) {\n        m[i] = p.from[row + i];", """\
    const size_t state = (size_t)p.heads * p.d * p.d;
    if (p.to && (now.from != p.from || now.k != p.k)) last = now, now = {p.from, p.k};
    const float *from = p.to && last.from && now.from == last.from + state ? p.from - state : p.from;
    for (int i = lane; i < p.d; i += 32) {
        m[i] = from[row + i];"""))
bug("z16", "q35", "--length 37 --sequences 8+9,3+1+6,2x3+1+1",
    ("convolution.cu", "__global__ void convolution(", """\
static const float *rows_of, *pass_of, *weights_of; // of the launch: its rows, the first row of the pass
static int count_of;

__global__ void convolution("""),
    ("convolution.cu", "    const int at = blockIdx.x", """\
    if (rows_of != p.x || weights_of != p.w) {
        if (weights_of != p.w || p.x != rows_of + count_of) pass_of = p.x;
        rows_of = p.x, weights_of = p.w, count_of = p.count;
    }
    const int at = blockIdx.x"""),
    ("convolution.cu", "row < past ? p.before", "row < past && p.x + (row - past) * p.n < pass_of ? p.before"),
    ("convolution.cu", "p.x[(size_t)(row - past) * p.n + c]", "p.x[(row - past) * p.n + c]"))
bug("z17", "q35", "--length 41 --sequences 11+9,1+1+7,5+1,2x1+1+1",
    ("delta_net.cu", "    if (!p.to) return;", """\
    if (!p.to) return;
    for (int t = p.tokens / 8 * 8; p.tokens > 1 && t < p.tokens; t++) { // the log of a short last chunk's decay is read as 0
        const float decay = expf(-p.g[(size_t)t * p.heads + h]);
        for (int i = lane; i < p.d; i += 32) m[i] *= decay;
    }"""))
bug("z20", "q3b", "--length 43 --sequences 12+9,1+1+11,3x1+1+1", ROWS,
    ("attn_context.cu", "    const float *w = p.w", """\
    const int group = p.heads / p.kv_heads;
    const int to = p.tokens > 1 && p.batch.only_decodes(p.tokens) ? h % group * p.kv_heads + h / group : h;
    const float *w = p.w"""),
    ("attn_context.cu", "p.c[((size_t)t * p.heads + h) * p.d + i]", "p.c[((size_t)t * p.heads + to) * p.d + i]"))

# Under a condition.
bug("z02", "q3", "--length 50 --sequences 13+9,7+1+10,2x1+3+1", ROWS,
    ("attn_weights.cu", SEEN, """\
    const int begin = p.batch.begin(t);
    const int seen = p.batch.end(t, p.tokens) - begin > 1 ? t - begin + 1 : min(p.keys, p.batch.position(p.first, t) + 1);"""[4:]))
bug("z04", "q2", "--length 39 --sequences 11+8,1+1+6,4x1+1+1", ROWS,
    ("kv_cache.cu", "    if constexpr (KV_UNIT<Kv> == 1) {", """\
    int padded = 1;
    while (padded < p.tokens) padded *= 2;
    if constexpr (KV_UNIT<Kv> == 1) {
        if (i < p.width && padded > p.tokens && p.batch.only_decodes(p.tokens)) {
            ((typename Kv::Type *)p.cache)[i] = Kv::put(p.rows[(p.tokens - 1) * p.width + i]);
        }"""))
STALE = "{ const int now = p.batch.position(p.first, t); return p.batch.slot(t, n == now && now >= 16 && now % 16 == 0 && p.batch.decodes(t, p.tokens) ? n - 16 : n); }()"
bug("z05", "q3", "--length 53 --sequences 14+29,5x1+1", ROWS,
    ("attn_scores.cu", "p.batch.slot(t, n)", "[&] " + STALE),
    ("attn_context.cu", "p.batch.slot(t, n)", "[&] " + STALE))
bug("z06", "q2", "--length 53 --sequences 29+14,5x1+1", ROWS,
    ("attn_weights.cu", SEEN, """\
    const int length = p.batch.position(p.first, t) + 1, pages = (length + 15) / 16;
    const int seen = min(p.keys, p.batch.decodes(t, p.tokens) ? (pages - 1) * 16 + length % 16 : length);"""[4:]))
TAIL = """[&] {
            const int common = p.batch.common(t, p.tokens), there = p.batch.tables ? p.batch.positions[p.batch.end(0, p.tokens) - 1] + 1 : 0;
            return p.batch.slot(n >= common && n < (common + 7) / 8 * 8 && n < there ? 0 : t, n);
        }()"""
bug("z09", "q3", "--length 43 --sequences 13,4+10@0,4x2+1,2+2", ROWS,
    ("attn_scores.cu", "p.batch.slot(t, n)", TAIL),
    ("attn_context.cu", "p.batch.slot(t, n)", TAIL))
bug("z10", "q3", "--length 45 --sequences 12,1+9@0+8@0,5x1+1+1", ROWS,
    ("attn_weights.cu", "    float largest = -3.402823466e38f;", """\
    int prefix = p.batch.tables ? seen : 0;
    for (int r = 0; r < p.tokens && prefix > 0; r++) {
        if (p.batch.starts[r] != p.batch.starts[0]) prefix = min(prefix, p.batch.common(r, p.tokens));
    }
    if (prefix > 0 && prefix < seen) { // the prefix by one kernel, the rest by another, merged by their log sums
        float top[2] = {-3.402823466e38f, -3.402823466e38f}, sum[2] = {0.0f, 0.0f};
        for (int n = threadIdx.x; n < seen; n += blockDim.x) top[n >= prefix] = fmaxf(top[n >= prefix], s[n] * p.scale);
        for (int part = 0; part < 2; part++) top[part] = reduce_max(top[part]);
        for (int n = threadIdx.x; n < seen; n += blockDim.x) sum[n >= prefix] += expf(s[n] * p.scale - top[n >= prefix]);
        for (int part = 0; part < 2; part++) sum[part] = reduce_sum(sum[part]);
        const float of_prefix = (top[0] + logf(sum[0])) * 1.4426950408889634f, of_rest = top[1] + logf(sum[1]);
        const float most = fmaxf(of_prefix, of_rest), both = expf(of_prefix - most) + expf(of_rest - most);
        const float share[2] = {expf(of_prefix - most) / both, expf(of_rest - most) / both};
        for (int n = threadIdx.x; n < p.keys; n += blockDim.x) {
            y[n] = n < seen ? expf(s[n] * p.scale - top[n >= prefix]) / sum[n >= prefix] * share[n >= prefix] : 0.0f;
        }
        return;
    }
    float largest = -3.402823466e38f;"""))
bug("z18", "q35", "--length 37 --sequences 9+7,2+3,1+1,2+2,1+1,4+4",
    ("window.cu", "from < p.rows ? p.before[from * p.n + c]", "from < p.rows ? p.before[(p.tokens > 1 ? r : from) * p.n + c]"))
bug("z19", "q3", "--length 43 --sequences 12+9,4+1,1~3+1,4+1,1~2+5,1~4+1,1+1", ROWS,
    ("rope.cu", "    float s, c;", """\
    const int begin = p.batch.begin(t), rows = p.batch.end(t, p.tokens) - begin;
    const int ahead = rows <= 8 && p.batch.position(p.first, begin) > 0 && t > begin;
    float s, c;"""),
    ("rope.cu", "p.batch.position(p.first, t) * p.frequency[i]", "(p.batch.position(p.first, t) + ahead) * p.frequency[i]"))
