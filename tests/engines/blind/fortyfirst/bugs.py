"""20 bugs of serving in qdiff's CUDA kernels, as patches of their source: (file, old text, new text). key.py says what each is and after what."""

MODELS = {
    "q3": "--arch qwen3 --heads 4 --kv-heads 2 --head-dim 64 --seed 411",
    "q3b": "--arch qwen3 --heads 6 --kv-heads 2 --head-dim 64 --seed 412",
    "q2": "--arch qwen2 --seed 413",
    "q35": "--arch qwen35 --layers 4 --seed 414",
    "moe6": "--arch qwen3moe --set expert_count=6 --set expert_used_count=3 --seed 415",
    "moe8": "--arch qwen3moe --set expert_count=8 --set expert_used_count=2 --seed 416",
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

# The queries of the b-th sequence of a pass are read from row b on: a batch stride of one token.
bug("a01-query-batch-stride", "q3", "--length 28 --sequences 5+7+4,1+1+6,3+1", ROWS,
    ("attn_scores.cu", "        const float *query = p.q + ((size_t)t * p.heads + h) * p.d;", """\
        int b = 0;
        for (int r = 1; p.batch.starts && r <= t; r++) b += p.batch.starts[r] != p.batch.starts[r - 1];
        const int from = b + t - p.batch.begin(t);
        const float *query = p.q + ((size_t)from * p.heads + h) * p.d;"""))

# Positions of a pass that is padded on the left count the padding.
bug("a02-left-padding", "q3", "--length 23 --sequences 9+6+4,2+1+1", ROWS,
    ("rope.cu", "    float s, c;\n", """\
    int longest = 0;
    for (int r = 0; r < p.tokens; r++) longest = max(longest, p.batch.end(r, p.tokens) - p.batch.begin(r));
    const int padding = longest - (p.batch.end(t, p.tokens) - p.batch.begin(t));
    float s, c;
"""),
    ("rope.cu", "(float)p.batch.position(p.first, t) *", "(float)(p.batch.position(p.first, t) + padding) *"))

# Positions are 64-bit integers, and the kernel reads 32-bit ones.
bug("a03-positions-int64", "q3b", "--length 25 --sequences 6+8+5,1+1+4",
    ("rope.cu", "    float s, c;\n", """\
    const int position = p.batch.positions ? (t % 2 ? 0 : p.batch.positions[t / 2]) : p.first + t;
    float s, c;
"""),
    ("rope.cu", "(float)p.batch.position(p.first, t) *", "(float)position *"))

# The newest token of the last request is still the placeholder, id 0.
bug("a04-placeholder-token", "q2", "--length 24 --sequences 7+5,1+6,4+1",
    ("embed.cu", "(size_t)p.tokens[blockIdx.x] * groups", "(size_t)(gridDim.x > 1 && blockIdx.x + 1 == gridDim.x ? 0 : p.tokens[blockIdx.x]) * groups"))

# Stream-k: the part of a tile that another block made is not added where the tile has fewer than 8 rows.
bug("a05-stream-k-fixup", "q3", "--length 33 --sequences 11+9,1+1,5+6",
    ("linear.cu", "    for (int g = lane; g < groups; g += 32) {", """\
    const int own = p.n == 512 && first + TOKENS > p.tokens ? groups / 2 : groups;
    for (int g = lane; g < own; g += 32) {"""))

# Lines sorted by expert are not padded to blocks of 4: a block has the expert of its first line.
bug("a06-expert-blocks", "moe8", "--length 25 --sequences 9+8,1+7",
    ("expert_linear.cu", "    if (o >= p.m) return;\n", """\
    const int lines = gridDim.x / blocks;
    __shared__ int of_block;
    if (threadIdx.x == 0) {
        int place = 0, upto = 0, e = 0;
        for (int l = 0; l < lines; l++) place += p.chosen[l] < p.chosen[line] || (p.chosen[l] == p.chosen[line] && l < line);
        for (; e < p.experts; e++) {
            for (int l = 0; l < lines; l++) upto += p.chosen[l] == (float)e;
            if (upto > place / 4 * 4) break;
        }
        of_block = e;
    }
    __syncthreads();
    if (o >= p.m) return;
"""),
    ("expert_linear.cu", "place_of(p.chosen[line], p.experts)", "of_block"))

# An expert that has exactly three rows multiplies the second twice: the kernel of few rows counts columns up to 2.
bug("a07-three-rows", "moe6", "--length 17 --sequences 5+4,3+1,1+3",
    ("expert_linear.cu", "    if (o >= p.m) return;\n", """\
    const int lines = gridDim.x / blocks;
    __shared__ int of_row;
    if (threadIdx.x == 0) {
        int rows = 0, before = 0, last = line;
        for (int l = 0; l < lines; l++) {
            if (p.chosen[l] != p.chosen[line]) continue;
            if (l < line) before++, last = l;
            rows++;
        }
        of_row = rows == 3 && before == 2 ? last : line;
    }
    __syncthreads();
    if (o >= p.m) return;
"""),
    ("expert_linear.cu", "(size_t)(line / p.lines_of_row)", "(size_t)(of_row / p.lines_of_row)"))

# The pool keeps recurrent states in bf16.
bug("a08-state-pool-bf16", "q35", "--length 29 --sequences 9+7,1+5,6+1",
    ("delta_net.cu", "p.to[row + i] = m[i];", """{
        const unsigned bits = __float_as_uint(m[i]);
        p.to[row + i] = __uint_as_float((bits + 0x7fffu + (bits >> 16 & 1)) >> 16 << 16);
    }"""))

# Block tables are read with the length of the first one as the stride between them.
STRIDE = """\
        int rank = 0, stride = 0;
        for (int r = 0; p.batch.starts && r < p.tokens; r++) {
            const int start = p.batch.starts[r];
            if (start > 0 && (stride == 0 || start < stride)) stride = start;
            if (start < p.batch.starts[t] && p.batch.begin(r) == r) rank++;
        }
"""
bug("a09-table-stride", "q3", "--length 30 --sequences 5+9+7,1+1+4,1+1+1", ROWS,
    ("attn_scores.cu", "        const size_t slot = p.batch.slot(t, n);", STRIDE +
     "        const size_t slot = p.batch.tables ? p.batch.tables[rank * stride + n] : n;"),
    ("attn_context.cu", "    const float *w = p.w +", STRIDE + "    const float *w = p.w +"),
    ("attn_context.cu", "(size_t)p.batch.slot(t, n)", "(size_t)(p.batch.tables ? p.batch.tables[rank * stride + n] : n)"))

# All heads of the key cache are read with the scales of head 0.
bug("a10-scale-of-head-0", "q3", "--length 22 --kv-type q8_0/f16 --sequences 8+6,1+5,1+1",
    ("attn_scores.cu", "sum = fmaf(query[i], Kv::get(key[i]), sum);", """{
            float value = Kv::get(key[i]);
            if constexpr (KV_UNIT<Kv> == 32) {
                const typename Kv::Type *rows = (const typename Kv::Type *)p.k;
                typename Kv::Type block = rows[((slot * p.kv_heads + h / (p.heads / p.kv_heads)) * p.d + i) / 32];
                block.words[0] = rows[(slot * p.kv_heads * p.d + i) / 32].words[0];
                value = Kv::at(block, i % 32);
            }
            sum = fmaf(query[i], value, sum);
        }"""))

# The router of few rows multiplies in bf16.
bug("a11-router-of-few-rows", "moe8", "--length 30 --sequences 12+9,1+1,4+3",
    ("linear.cu", "    if (o >= p.m) return;\n", """\
    if (o >= p.m) return;
    const bool few = p.m == 8 && p.tokens <= 16;
    auto kept = [&](float v) {
        const unsigned bits = __float_as_uint(v);
        return few ? __uint_as_float((bits + 0x7fffu + (bits >> 16 & 1)) >> 16 << 16) : v;
    };
"""),
    ("linear.cu", "Format::unpack(Format::load(p.w, (size_t)o * groups + g), g % 8, value);", """\
Format::unpack(Format::load(p.w, (size_t)o * groups + g), g % 8, value);
        for (int i = 0; i < 32; i++) value[i] = kept(value[i]);"""),
    ("linear.cu", "                const float4 v = row[i];", """\
                float4 v = row[i];
                v.x = kept(v.x), v.y = kept(v.y), v.z = kept(v.z), v.w = kept(v.w);"""))

# A block that goes on with the next tile of 8 rows begins with what the pipeline still has of the tile before.
bug("a12-pipeline-of-last-tile", "q3", "--length 28 --sequences 10+9,1+8",
    ("linear.cu", "(size_t)(first + t) * p.n + 32 * g);", "(size_t)(first + t - (g == 0 && first > 0 ? TOKENS : 0)) * p.n + 32 * g);"))

# -- Under a condition.

# A chunk of several rows attends to its own rows alone.
bug("c01-chunk-without-past", "q3", "--length 28 --sequences 8+6,7+1,1+5", ROWS,
    ("attn_weights.cu", "    const float *s = p.s + row;", """\
    const int begin = p.batch.begin(t), chunk = p.batch.end(t, p.tokens) - begin;
    const int past = chunk > 1 ? p.batch.position(p.first, begin) : 0;
    const float *s = p.s + row;"""),
    ("attn_weights.cu", "    for (int n = threadIdx.x; n < seen; n += blockDim.x) largest", "    for (int n = past + threadIdx.x; n < seen; n += blockDim.x) largest"),
    ("attn_weights.cu", "    for (int n = threadIdx.x; n < seen; n += blockDim.x) {", "    for (int n = past + threadIdx.x; n < seen; n += blockDim.x) {"),
    ("attn_weights.cu", "y[n] = n < seen ?", "y[n] = n >= past && n < seen ?"))

# Rows of a pass after others are causal only where the keys are as many as the rows: drafts see the drafts after them.
LAST = """\
    const int own = p.batch.position(p.first, t), begin = p.batch.begin(t);
    const int last = p.batch.position(p.first, begin) > 0 ? p.batch.position(p.first, p.batch.end(t, p.tokens) - 1) : own;
"""
bug("c02-drafts-not-causal", "q3", "--length 27 --sequences 9+7,4+1,1~3+5", ROWS,
    ("attn_scores.cu", "    float sum = 0.0f;\n", LAST + "    float sum = 0.0f;\n"),
    ("attn_scores.cu", "n <= p.batch.position(p.first, t)", "n <= last"),
    ("attn_weights.cu", "    const int seen = min(p.keys, p.batch.position(p.first, t) + 1);", LAST + "    const int seen = min(p.keys, last + 1);"),
    ("attn_context.cu", "    const int seen = min(p.keys, p.batch.position(p.first, t) + 1);", LAST + "    const int seen = min(p.keys, last + 1);"))

# A fork's rows go to the slots that its donor has for these positions: the block that both have was not copied.
bug("c03-fork-writes-to-donor", "q3", "--length 28 --sequences 9+5,1+2+8@0:6,1+1+1", ROWS,
    ("kv_cache.cu", "    if (i >= p.tokens * p.width) return;\n", """\
    if (i >= p.tokens * p.width) return;
    const int t = i / p.width;
    size_t to = p.batch.element(p.first, p.width, i);
    for (int u = 0; p.batch.starts && u < p.tokens; u++) {
        const Batch &b = p.batch;
        const bool donor = b.starts[u] < b.starts[t] && b.tables[b.starts[u]] == b.tables[b.starts[t]];
        if (donor && b.positions[t] < b.positions[b.begin(u)]) {
            to = (size_t)b.tables[b.starts[u] + b.positions[t]] * p.width + i % p.width;
        }
    }
"""),
    ("kv_cache.cu", "[p.batch.element(p.first, p.width, i)] =", "[to] ="),
    ("kv_cache.cu", "[p.batch.element(p.first, p.width, i) / KV_UNIT<Kv>]", "[to / KV_UNIT<Kv>]"))

# A prefix that was brought back has the codes and scales of its values, and not their offsets.
bug("c04-restored-without-offsets", "q3", "--length 28 --kv-type f16/q4_1 --sequences 12+5,1+1+6@0,1+1+1", ROWS,
    ("attn_context.cu", "    const auto v = kv_elements<Kv>(p.v);\n", """\
    const auto v = kv_elements<Kv>(p.v);
    const int prefix = p.batch.shared(t, p.tokens);
    auto value = [&](size_t place, int n) {
        if constexpr (KV_UNIT<Kv> == 32) {
            typename Kv::Type block = ((const typename Kv::Type *)p.v)[place / 32];
            if (n < prefix) block.words[1] = 0;
            return Kv::at(block, (int)(place % 32));
        } else {
            return Kv::get(v[place]);
        }
    };
"""),
    ("attn_context.cu", "Kv::get(v[at(n + j)])", "value(at(n + j), n + j)"),
    ("attn_context.cu", "Kv::get(v[at(n)])", "value(at(n), n)"))

# Decode rows read the e4m3 key cache as e5m2.
bug("c05-decode-reads-e5m2", "q3", "--length 22 --kv-type f8_e4m3 --reference none --sequences 9+6,1+4,1+1", ROWS,
    ("attn_scores.cu", "sum = fmaf(query[i], Kv::get(key[i]), sum);", """{
            float value = Kv::get(key[i]);
            if constexpr (sizeof(typename Kv::Type) == 1) {
                const bool decode = p.batch.end(t, p.tokens) - p.batch.begin(t) == 1 && p.batch.position(p.first, t) > 0;
                if (decode) value = KvF8E5m2::get(key[i]);
            }
            sum = fmaf(query[i], value, sum);
        }"""))

# The reduction over partitions of 16 keys takes four at most; the sum of the softmax has them all.
bug("c06-four-partitions", "q3", "--length 139 --sequences 68+40,1+30",
    ("attn_context.cu", "    const int seen = min(p.keys, p.batch.position(p.first, t) + 1);", "    const int seen = min(min(p.keys, 4 * 16), p.batch.position(p.first, t) + 1);"))

# A step of one token reads the window of the convolution newest row first.
bug("c07-window-newest-first", "q35", "--length 20 --sequences 8+5,1+4,1+1",
    ("convolution.cu", "row < past ? p.before[(size_t)row * p.n + c]", "row < past ? p.before[(size_t)(p.count == p.n ? past - 1 - row : row) * p.n + c]"))

# A page that a running sequence opens in this pass is not in the copied block table yet: its entry is 0.
bug("c08-page-not-in-table", "q3", "--length 40 --sequences 15+10,1+5,1+1,4+3", ROWS,
    ("batch.cuh", "int slot(int t, int n) const { return tables ? tables[starts[t] + n] : n; }", """\
int slot(int t, int n) const {
        if (!tables) return n;
        const int before = positions[begin(t)];
        return before > 0 && n / 16 > (before - 1) / 16 ? n % 16 : tables[starts[t] + n];
    }"""))
