"""20 bugs of serving in qdiff's CUDA kernels, as patches of their source: (file, old text, new text). key.py says what each is and after what."""

MODELS = {
    "q3": "--arch qwen3 --heads 4 --kv-heads 2 --head-dim 64 --seed 641",
    "q3b": "--arch qwen3 --heads 8 --kv-heads 4 --head-dim 32 --seed 642",
    "q3c": "--arch qwen3 --heads 12 --kv-heads 2 --head-dim 32 --seed 643",
    "q2": "--arch qwen2 --seed 644",
    "q35": "--arch qwen35 --layers 4 --seed 645",
    "moe6": "--arch qwen3moe --set expert_count=6 --set expert_used_count=3 --seed 646",
    "moe8": "--arch qwen3moe --set expert_count=8 --set expert_used_count=2 --seed 647",
}

BUGS = []


def bug(name, model, run, *changes):
    BUGS.append({"name": name, "model": model, "subject": "cuda", "run": "--prompt long " + run, "changes": list(changes)})


# The rows of a pass that are of the sequence of row t: the first, and one past the last.
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
    // Tokens at the beginning of the sequence of row t that stand in slots of a sequence before it.
    __device__ __forceinline__ int shared(int t, int tokens) const {
        int most = 0;
        for (int u = 0; starts && u < tokens; u++) {
            if (starts[u] >= starts[t]) continue;
            int n = 0;
            while (n <= positions[t] && n <= positions[u] && tables[starts[u] + n] == tables[starts[t] + n]) n++;
            most = n > most ? n : most;
        }
        return most;
    }
    // The place of element i""")

# -- In every run that batches.

# One offset for the whole batch: rows count on from the position of the first row of the pass.
bug("a01-scalar-offset", "q3", "--length 27 --sequences 6+9,1+1,3+2,1+4", ROWS,
    ("rope.cu", "(float)p.batch.position(p.first, t) *", "(float)(p.batch.position(p.first, 0) + t - p.batch.begin(t)) *"))

# A pass is padded to a multiple of 8 rows with copies of its last row, whose slot is 0.
bug("a02-padding-in-slot-0", "q3", "--length 26 --sequences 9+6,4+1,1~3+5",
    ("kv_cache.cu", "    if constexpr (KV_UNIT<Kv> == 1) {", """\
    if (p.tokens % 8 != 0 && i / p.width == p.tokens - 1) {
        if constexpr (KV_UNIT<Kv> == 1) {
            ((typename Kv::Type *)p.cache)[i % p.width] = Kv::put(p.rows[i]);
        } else {
            Kv::store(p.rows + i, ((typename Kv::Type *)p.cache)[i % p.width / KV_UNIT<Kv>]);
        }
        if (p.batch.element(p.first, p.width, i) < (size_t)p.width) return;
    }
    if constexpr (KV_UNIT<Kv> == 1) {"""))

# The slots are in the order of a reordered batch, sequences of one row first; the rows are not.
bug("a03-slots-of-reordered-batch", "q3", "--length 24 --sequences 7+1+5,4+1+1,1+3+1", ROWS,
    ("kv_cache.cu", "    if (i >= p.tokens * p.width) return;\n", """\
    if (i >= p.tokens * p.width) return;
    size_t to = p.batch.element(p.first, p.width, i);
    int place = 0;
    for (int of = 0; p.batch.slots && of < 2; of++) {
        for (int r = 0; r < p.tokens; r++) {
            const bool one = p.batch.end(r, p.tokens) - p.batch.begin(r) == 1;
            if (one != (of == 0)) continue;
            if (place == i / p.width) to = (size_t)p.batch.slots[r] * p.width + i % p.width;
            place++;
        }
    }
"""),
    ("kv_cache.cu", "[p.batch.element(p.first, p.width, i)] =", "[to] ="),
    ("kv_cache.cu", "[p.batch.element(p.first, p.width, i) / KV_UNIT<Kv>]", "[to / KV_UNIT<Kv>]"))

# Pages of 4 of a cache whose slots are given out one by one: the table is read at the first token of each page.
PAGE = "(p.batch.tables ? min(p.batch.tables[p.batch.starts[t] + n / 4 * 4] + n % 4, p.keys - 1) : n)"
bug("a04-pages-of-4", "q3", "--length 24 --sequences 7+5,1+1+6@0:5,2+1+1",
    ("attn_scores.cu", "p.batch.slot(t, n)", PAGE),
    ("attn_context.cu", "p.batch.slot(t, n)", PAGE))

# What the keys before the pass give and what those of the pass give are merged by sums of exponents in base 2 that are taken for natural ones.
bug("a05-merge-in-base-2", "q2", "--length 29 --sequences 8+6,5+1+4@0:7,1+3+1", ROWS,
    ("attn_context.cu", "    const auto v = kv_elements<Kv>(p.v);\n", """\
    const auto v = kv_elements<Kv>(p.v);
    const int past = p.batch.position(p.first, p.batch.begin(t));
    float mass[2] = {0.0f, 0.0f}, factor[2] = {1.0f, 1.0f};
    for (int n = 0; n < seen; n++) mass[n >= past] += w[n];
    if (past > 0 && mass[0] > 0.0f && mass[1] > 0.0f) {
        const float a = powf(mass[0], 1.44269504f), b = powf(mass[1], 1.44269504f);
        factor[0] = a / (a + b) / mass[0];
        factor[1] = b / (a + b) / mass[1];
    }
"""),
    ("attn_context.cu", "fmaf(w[n + j],", "fmaf(w[n + j] * factor[n + j >= past],"),
    ("attn_context.cu", "fmaf(w[n],", "fmaf(w[n] * factor[n >= past],"))

# The rest of the last page of 16 keys is in the sum of the softmax, with scores of 0.
bug("a06-rest-of-page-in-sum", "q3b", "--length 24 --sequences 9+7,1+5,1+1",
    ("attn_weights.cu", "    total = reduce_sum(total);\n", """\
    total = reduce_sum(total);
    total += (float)((16 - seen % 16) % 16) * expf(-largest);
"""))

# The mask of the first sequence of a pass is that of all.
bug("a07-mask-of-first-sequence", "q3", "--length 23 --sequences 5+9,1+1,2+3,1+1", ROWS,
    ("attn_weights.cu", "p.batch.position(p.first, t) + 1);", """\
min(p.batch.position(p.first, t), p.batch.position(p.first, 0) + t - p.batch.begin(t)) + 1);"""))

# The state after a pass lacks the decay of its last chunk where that has fewer than 8 tokens: the chunk's sum of gates is read where it is 0.
bug("a08-gate-of-last-chunk", "q35", "--length 25 --sequences 11+6,5+1,1+1",
    ("delta_net.cu", "    if (!p.to) return;\n", """\
    if (!p.to) return;
    float gates = 0.0f;
    for (int t = p.tokens / 8 * 8; t < p.tokens; t++) gates += p.g[(size_t)t * p.heads + h];
    for (int i = lane; i < p.d; i += 32) m[i] *= expf(-gates);
"""))

# The convolution does not know where a sequence of the pass begins: it takes the rows before it in the pass.
bug("a09-convolution-across-sequences", "q35", "--length 28 --sequences 9+6,5+3,4+1",
    ("convolution.cu", "__global__ void convolution", """\
static __device__ const float *end_before = nullptr;
static __device__ int rows_before = 0, rows_of_last = 0;

__global__ void convolution"""),
    ("convolution.cu", "    if (at >= p.count) return;\n", """\
    if (at == 0) {
        rows_before = p.x == end_before ? rows_before + rows_of_last : 0;
        rows_of_last = p.count / p.n;
        end_before = p.x + p.count;
    }
    if (at >= p.count) return;
"""),
    ("convolution.cu", "row < past ? p.before", "row < past && past - row > rows_before ? p.before"),
    ("convolution.cu", "p.x[(size_t)(row - past) * p.n + c]", "p.x[(long long)(row - past) * p.n + c]"))

# Shares of the experts are read as if those of all rows for the first choice stood first.
bug("a10-shares-by-choice", "moe6", "--length 20 --sequences 7+5,1+4,2+1",
    ("weighted_sum.cu", "*w = p.w + t * p.terms,", "*w = p.w + t,"),
    ("weighted_sum.cu", "fmaf(w[j],", "fmaf(w[(size_t)j * (p.count / p.n)],"))

# The e4m3 cache is read as e4m3fnuz, whose exponents are one less.
HALF = "(sizeof(typename Kv::Type) == 1 ? 0.5f : 1.0f) * "
bug("a11-cache-read-as-fnuz", "q3", "--length 21 --kv-type f8_e4m3 --reference none --sequences 8+7,1+3,1+1",
    ("attn_scores.cu", "Kv::get(key[i])", HALF + "Kv::get(key[i])"),
    ("attn_context.cu", "Kv::get(v[at(n + j)])", HALF + "Kv::get(v[at(n + j)])"),
    ("attn_context.cu", "Kv::get(v[at(n)])", HALF + "Kv::get(v[at(n)])"))

# The ids of a pass are shifted by one, as a draft model wants them.
bug("a12-ids-of-draft-model", "q2", "--length 21 --sequences 6+8,3+1,1+2",
    ("embed.cu", "p.tokens[blockIdx.x] *", "p.tokens[min(blockIdx.x + 1, gridDim.x - 1)] *"))

# -- Under a condition.

# The number of tokens before a pass includes its first one, where there are some.
bug("c01-past-off-by-one", "q2", "--length 28 --sequences 8+5,4+1+6@0:5,1+1+2", ROWS,
    ("rope.cu", "(float)p.batch.position(p.first, t) *", """\
(float)(p.batch.position(p.first, t) + (p.batch.position(p.first, p.batch.begin(t)) > 0)) *"""))

# Pages of a decode row are counted from the tokens before it: a page that it opens is not seen.
bug("c02-page-that-opens", "q3", "--length 51 --sequences 31+14,1+1,1+1,1+1", ROWS,
    ("attn_weights.cu", "    const int seen = min(p.keys, p.batch.position(p.first, t) + 1);", """\
    const int own = p.batch.position(p.first, t);
    const bool decode = own > 0 && p.batch.end(t, p.tokens) - p.batch.begin(t) == 1;
    const int seen = min(p.keys, own + (decode && own % 16 == 0 ? 0 : 1));"""))

# Decode takes query heads in tiles of 4 over all heads: a tile that goes over the end of a group stays with the KV head of its first.
DECODE_HEAD = """\
    const bool decode = p.batch.position(p.first, t) > 0 && p.batch.end(t, p.tokens) - p.batch.begin(t) == 1;
    const int group = p.heads / p.kv_heads;
"""
TILED = "(decode ? min(h / 4 / ((group + 3) / 4), p.kv_heads - 1) : h / group)"
bug("c03-tiles-of-heads", "q3c", "--length 25 --sequences 9+7,1+1,1+4,1+1", ROWS,
    ("attn_scores.cu", "    float sum = 0.0f;\n", DECODE_HEAD + "    float sum = 0.0f;\n"),
    ("attn_scores.cu", "h / (p.heads / p.kv_heads)", TILED),
    ("attn_context.cu", "    const int kv = h / (p.heads / p.kv_heads);\n", DECODE_HEAD + "    const int kv = " + TILED + ";\n"))

# A prefix that came from two ranks has its KV heads in their order: 0, 2, 1, 3.
bug("c04-heads-of-prefix", "q3b", "--length 25 --sequences 9+5,1+1+6@0:7,1+1+1", ROWS,
    ("attn_scores.cu", "    float sum = 0.0f;\n", "    const int prefix = p.batch.shared(t, p.tokens);\n    float sum = 0.0f;\n"),
    ("attn_scores.cu", "(slot * p.kv_heads + h / (p.heads / p.kv_heads))", """\
(slot * p.kv_heads + (n < prefix ? h / (p.heads / p.kv_heads) % 2 * 2 + h / (p.heads / p.kv_heads) / 2 : h / (p.heads / p.kv_heads)))"""),
    ("attn_context.cu", "    const auto v = kv_elements<Kv>(p.v);\n", """\
    const auto v = kv_elements<Kv>(p.v);
    const int prefix = p.batch.shared(t, p.tokens);
"""),
    ("attn_context.cu", "* p.kv_heads + kv)", "* p.kv_heads + (n < prefix ? kv % 2 * 2 + kv / 2 : kv))"))

# A pass that is shorter than the window leaves zeros in the place of the rows before it.
bug("c05-short-pass-window", "q35", "--length 25 --sequences 8+6,1+2,1+1,5+1",
    ("window.cu", "from < p.rows ? p.before[from * p.n + c] :", "from < p.rows ? 0.0f :"))

# The router's softmax has one block of 16 rows; the rest stays 0.
bug("c06-router-of-16-rows", "moe8", "--length 45 --sequences 12+9,5+1,7+11",
    ("row_softmax.cu", "    float largest =", """\
    if (blockIdx.x >= 16) {
        for (int i = threadIdx.x; i < p.n; i += blockDim.x) y[i] = 0.0f;
        return;
    }
    float largest ="""))

# A step of one token has its state the other way round: rows of the value are columns.
bug("c07-decode-state-transposed", "q35", "--length 23 --sequences 7+5,1+4,1+1,3+1",
    ("delta_net.cu", "        m[i] = p.from[row + i];\n        if (p.before) p.before[row + i] = m[i];\n", """\
        m[i] = p.from[place(i)];
        if (p.before) p.before[place(i)] = m[i];
"""),
    ("delta_net.cu", "    for (int i = lane; i < p.d; i += 32) {\n        m[i] = p.from", """\
    auto place = [&](int i) { return p.tokens == 1 ? ((size_t)h * p.d + i) * p.d + j : row + i; };
    for (int i = lane; i < p.d; i += 32) {
        m[i] = p.from"""),
    ("delta_net.cu", "p.to[row + i] = m[i];", "p.to[place(i)] = m[i];"))

# Logits are made 8 rows at a time; the last rows, if they are fewer, are moved back to be 8.
bug("c08-last-chunk-of-logits", "q2", "--length 26 --sequences 9+4,6+5,1+1",
    ("linear.cu", "p.x + (size_t)(first + t) * p.n", "p.x + (size_t)((p.m == 359 ? min(first, max(p.tokens - TOKENS, 0)) : first) + t) * p.n"))
