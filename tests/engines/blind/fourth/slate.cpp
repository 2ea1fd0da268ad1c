// slate: a small CPU engine for Qwen2, Qwen3 and Qwen3-MoE on GGUF files, built as larger ones are: weights repacked in panels of
// eight rows, tiled products for a prefill and split-K products for a decode step, gate and up in one matrix, a paged KV cache
// behind a block table, flash attention with split keys, fused kernels for what is small.
//
//     slate MODEL --tokens FILE [--decoded FILE | --n N] [--ubatch N | --passes N,N] [--attn flash|eager] [--dump all|few]
#include "qdiff_tap.h"
#include <algorithm>
#include <cmath>
#include <fcntl.h>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <sys/mman.h>
#include <vector>

using std::min;
using std::max;
using std::string;
using std::vector;
typedef uint8_t u8;

// ---- number formats -------------------------------------------------------------------------------------------------------
static float f16(const u8 *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    const int e = h >> 10 & 31, m = h & 1023;
    const float v = e == 0 ? ldexpf(m, -24) : e == 31 ? (m ? NAN : INFINITY) : ldexpf(1024 + m, e - 25);
    return h >> 15 ? -v : v;
}
static float bf16(const u8 *p) {
    const uint32_t bits = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 24;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
[[maybe_unused]] static float round_to(float v, int bits) { // to a mantissa of so many bits
    int e;
    const float m = frexpf(v, &e);
    return ldexpf(nearbyintf(ldexpf(m, bits)), e - bits);
}

// ---- the file -------------------------------------------------------------------------------------------------------------
struct Tensor {
    vector<int64_t> dims;
    int type;
    const u8 *data;
};
struct File {
    const u8 *base, *p;
    std::map<string, double> numbers;
    std::map<string, string> texts;
    std::map<string, Tensor> tensors;
    template <class T> T take() {
        T v;
        memcpy(&v, p, sizeof v);
        return p += sizeof v, v;
    }
    string text() {
        const auto n = take<uint64_t>();
        string s((const char *)p, n);
        return p += n, s;
    }
    double value(int kind, string *s) {
        switch (kind) {
        case 0: return take<uint8_t>();
        case 1: return take<int8_t>();
        case 2: return take<uint16_t>();
        case 3: return take<int16_t>();
        case 4: return take<uint32_t>();
        case 5: return take<int32_t>();
        case 6: return take<float>();
        case 7: return take<uint8_t>();
        case 8: return *s = text(), 0;
        case 9: {
            const int inner = take<uint32_t>();
            for (auto n = take<uint64_t>(); n; n--) value(inner, s);
            return 0;
        }
        case 10: return take<uint64_t>();
        case 11: return take<int64_t>();
        default: return take<double>();
        }
    }
    explicit File(const char *path) {
        const int fd = open(path, O_RDONLY);
        struct stat st;
        if (fd < 0 || fstat(fd, &st)) perror(path), exit(1);
        base = p = (const u8 *)mmap(nullptr, st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        p += 8;
        const auto count = take<uint64_t>(), fields = take<uint64_t>();
        for (uint64_t i = 0; i < fields; i++) {
            const string name = text();
            string s;
            numbers[name] = value(take<uint32_t>(), &s), texts[name] = s;
        }
        for (uint64_t i = 0; i < count; i++) {
            const string name = text();
            Tensor &t = tensors[name];
            for (int n = take<uint32_t>(); n; n--) t.dims.push_back(take<uint64_t>());
            t.type = take<uint32_t>(), t.data = (const u8 *)take<uint64_t>();
        }
        const size_t unit = numbers.count("general.alignment") ? numbers["general.alignment"] : 32, at = p - base;
        for (auto &t : tensors) t.second.data = base + (at + unit - 1) / unit * unit + (size_t)t.second.data;
    }
    bool has(const string &name) const { return tensors.count(name); }
    const float *vec(const string &name) { return (const float *)tensors.at(name).data; }
};

// ---- weights --------------------------------------------------------------------------------------------------------------
// Panels of eight rows. Of integers: a byte for each weight, a scale for 16 of them and a minimum for 32; else floats.
constexpr int PANEL = 8, GROUP = 32;
static const int IQ4_NL[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

struct Group { // 32 weights of a row as they are kept
    int8_t q[GROUP];
    float scale[2], least;
    float f[GROUP]; // of floats alone
};
struct Packed {
    int rows = 0, cols = 0;
    bool floats = false;
    vector<Group> groups; // [panels, cols / 32, 8]
    Group &at(int row, int g) { return groups[((size_t)(row / PANEL) * (cols / GROUP) + g) * PANEL + row % PANEL]; }
    // The weights of a row of a panel, of one group.
    void unpack(int panel, int lane, int g, float *w) const {
        const Group &from = groups[((size_t)panel * (cols / GROUP) + g) * PANEL + lane];
        for (int i = 0; i < GROUP; i++) w[i] = floats ? from.f[i] : from.scale[i / 16] * from.q[i] - from.least;
    }
    void reserve(int all, int width) {
        rows = all, cols = width;
        groups.resize((size_t)(all + PANEL - 1) / PANEL * PANEL * (width / GROUP));
    }
    void row(int to, const Tensor &t, int64_t from);
};

// Scale and minimum j of the twelve bytes of a Q4_K or Q5_K block.
static void scale_min(const u8 *s, int j, int *scale, int *least) {
    *scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    *least = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
}
// Row `from` of a tensor becomes row `to`.
void Packed::row(int to, const Tensor &t, int64_t from) {
    const int n = cols / GROUP;
    for (int g = 0; g < n; g++) {
        Group &o = at(to, g);
        const int64_t flat = from * n + g; // of all groups of the tensor
        o.least = 0;
        switch (t.type) {
        case 0: case 1: case 30:
            floats = true;
            for (int i = 0; i < GROUP; i++) {
                const u8 *p = t.data + (flat * GROUP + i) * (t.type == 0 ? 4 : 2);
                if (t.type == 0) memcpy(&o.f[i], p, 4);
                else o.f[i] = t.type == 1 ? f16(p) : bf16(p);
            }
            break;
        case 2: case 20: { // Q4_0, IQ4_NL
            const u8 *b = t.data + flat * 18;
            o.scale[0] = o.scale[1] = f16(b);
            for (int i = 0; i < GROUP; i++) {
                const int q = i < 16 ? b[2 + i] & 15 : b[2 + i - 16] >> 4;
                o.q[i] = t.type == 2 ? q - 8 : IQ4_NL[q];
            }
            break;
        }
        case 8: { // Q8_0
            const u8 *b = t.data + flat * 34;
            o.scale[0] = o.scale[1] = f16(b);
            memcpy(o.q, b + 2, GROUP);
            break;
        }
        case 12: case 13: { // Q4_K, Q5_K
            const bool five = t.type == 13;
            const u8 *b = t.data + flat / 8 * (five ? 176 : 144), *qs = b + (five ? 48 : 16);
            const int j = flat % 8;
            int scale, least;
            scale_min(b + 4, j, &scale, &least);
            o.scale[0] = o.scale[1] = f16(b) * scale, o.least = f16(b + 2) * least;
            for (int i = 0; i < GROUP; i++) {
                o.q[i] = qs[j / 2 * 32 + i] >> (j % 2 * 4) & 15;
                if (five) o.q[i] |= (b[16 + i] >> j & 1) << 4;
            }
            break;
        }
        case 14: { // Q6_K
            const u8 *b = t.data + flat / 8 * 210;
            const int j = flat % 8, half = j / 4, part = j % 4;
            const float d = f16(b + 208);
            for (int k = 0; k < 2; k++) o.scale[k] = d * (int8_t)b[192 + 2 * j + k];
            for (int i = 0; i < GROUP; i++) {
                const int low = b[64 * half + part % 2 * 32 + i] >> (part / 2 * 4) & 15, high = b[128 + 32 * half + i] >> (2 * part) & 3;
                o.q[i] = (low | high << 4) - 32;
            }
            break;
        }
        default: fprintf(stderr, "no kernel for type %d\n", t.type), exit(1);
        }
    }
}

// ---- products -------------------------------------------------------------------------------------------------------------
constexpr int TILE = 4, DEPTH = 128; // tokens of a tile, columns of a step

// Rows of a tile, column by column.
static float packed_rows[8192 * TILE];
static void pack_rows(const float *x, int cols, int here) {
    for (int k = 0; k < cols; k++)
        for (int t = 0; t < TILE; t++) packed_rows[k * TILE + t] = t < here ? x[(size_t)t * cols + k] : 0;
}
// y[t, row] = w[row] . x[t], of several tokens; panels from `first` on.
static void product_tiles(const Packed &w, const float *x, float *y, int tokens, int first, int rows, int pitch) {
    for (int t0 = 0; t0 < tokens; t0 += TILE) {
        const int here = min(TILE, tokens - t0);
        pack_rows(x + (size_t)t0 * w.cols, w.cols, here);
        for (int r0 = 0; r0 < rows; r0 += PANEL) {
            float sum[PANEL][TILE] = {};
            for (int k0 = 0; k0 < w.cols; k0 += DEPTH) {
                const int depth = min(DEPTH, w.cols - k0);
                for (int lane = 0; lane < PANEL; lane++) {
                    float part[TILE] = {};
                    for (int g = 0; g < depth / GROUP; g++) {
                        float v[GROUP];
                        w.unpack((first + r0) / PANEL, lane, k0 / GROUP + g, v);
                        for (int i = 0; i < GROUP; i++)
                            for (int t = 0; t < TILE; t++) part[t] += v[i] * packed_rows[(k0 + g * GROUP + i) * TILE + t];
                    }
                    for (int t = 0; t < TILE; t++) sum[lane][t] += part[t];
                }
            }
            for (int t = 0; t < here; t++)
                for (int lane = 0; lane < min(PANEL, rows - r0); lane++) y[(size_t)(t0 + t) * pitch + r0 + lane] = sum[lane][t];
        }
    }
}
// Of one token: two halves of the columns, added at the end.
static void product_split(const Packed &w, const float *x, float *y, int first, int rows, [[maybe_unused]] bool narrow) {
    const int groups = w.cols / GROUP, middle = groups / 2;
    vector<float> half(2 * rows);
    for (int split = 0; split < 2; split++) {
        const int begin = split ? middle : 0, end = split ? groups : middle;
        for (int r = 0; r < rows; r++) {
            float sum = 0;
            for (int g = begin; g < end; g++) {
                float v[GROUP], part = 0;
                w.unpack((first + r) / PANEL, (first + r) % PANEL, g, v);
                for (int i = 0; i < GROUP; i++) part += v[i] * x[g * GROUP + i];
                sum += part;
            }
            half[split * rows + r] = sum;
        }
    }
    for (int r = 0; r < rows; r++) y[r] = half[r] + half[rows + r];
}
static void product(const Packed &w, const float *x, float *y, int tokens, bool narrow = false) {
    if (tokens == 1) product_split(w, x, y, 0, w.rows, narrow);
    else product_tiles(w, x, y, tokens, 0, w.rows, w.rows);
}

// ---- small kernels --------------------------------------------------------------------------------------------------------
constexpr int LANES = 8;
// y = x / rms(x) * w, of n elements.
static void rms_norm(const float *x, const float *w, float *y, int n, float eps) {
    float lanes[LANES] = {}, squares = 0;
    for (int i = 0; i < n; i += LANES)
        for (int l = 0; l < LANES; l++) lanes[l] += x[i + l] * x[i + l];
    for (float l : lanes) squares += l;
    const float scale = 1 / sqrtf(squares / n + eps);
    for (int i = 0; i < n; i++) y[i] = x[i] * scale * w[i];
}
struct Rope { // cosines and sines by position
    int half;
    vector<float> cos, sin;
    Rope(int d, double base, int context) : half(d / 2), cos((size_t)context * half), sin(cos) {
        for (int p = 0; p < context; p++)
            for (int i = 0; i < half; i++) {
                const double angle = p * pow(base, -(double)i / half);
                cos[p * half + i] = ::cos(angle), sin[p * half + i] = ::sin(angle);
            }
    }
    void rotate(const float *x, float *y, int position) const {
        const float *c = &cos[(size_t)position * half], *s = &sin[(size_t)position * half];
        for (int i = 0; i < half; i++) {
            const float a = x[i], b = x[i + half];
            y[i] = a * c[i] - b * s[i], y[i + half] = a * s[i] + b * c[i];
        }
    }
};

// ---- the cache ------------------------------------------------------------------------------------------------------------
// Pages of 16 tokens. Keys lie in units of eight elements, [page, head, d / 8, 16, 8]; values [page, head, 16, d].
constexpr int PAGE = 16, UNIT = 8;
struct Cache {
    int kv_heads, d;
    vector<float> k, v;
    void make(int pages, int heads, int width) {
        kv_heads = heads, d = width;
        k.assign((size_t)pages * PAGE * heads * width, 0), v = k;
    }
    float *key(int page, int head, int slot, int i) {
        return &k[((((size_t)page * kv_heads + head) * (d / UNIT) + i / UNIT) * PAGE + slot) * UNIT + i % UNIT];
    }
    float *value(int page, int head, int slot) { return &v[(((size_t)page * kv_heads + head) * PAGE + slot) * d]; }
};

// ---- attention ------------------------------------------------------------------------------------------------------------
constexpr int QUERIES = 8, SPLIT = 2 * PAGE; // rows of a tile; keys of a share

struct Attention {
    Cache &cache;
    const vector<int> &table;
    int heads, layer;
    float scale;
    int group() const { return heads / cache.kv_heads; }
    float score(const float *q, int head, int n) const {
        float sum = 0;
        const int page = table[n / PAGE];
        for (int i = 0; i < cache.d; i += UNIT) {
            const float *k = cache.key(page, head / group(), n % PAGE, i);
            for (int j = 0; j < UNIT; j++) sum += q[i + j] * k[j];
        }
        return sum;
    }
    const float *value(int head, int n) const { return cache.value(table[n / PAGE], head / group(), n % PAGE); }
    // Whether the row at `position` sees key n.
    bool sees(int position, int n) const { return n <= position; }

    // Several rows from position `first` on: a tile of rows goes through the pages with a running maximum.
    void prefill(const float *q, float *out, int first, int tokens) const {
        const int d = cache.d;
        for (int h = 0; h < heads; h++)
            for (int t0 = 0; t0 < tokens; t0 += QUERIES) {
                const int here = min(QUERIES, tokens - t0), last = first + t0 + here - 1;
                float most[QUERIES], total[QUERIES] = {};
                vector<float> o(QUERIES * d, 0.0f);
                std::fill(most, most + QUERIES, -INFINITY);
                for (int n0 = 0; n0 <= last; n0 += PAGE)
                    for (int r = 0; r < here; r++) {
                        const int position = first + t0 + r;
                        float s[PAGE], before = most[r];
                        for (int j = 0; j < PAGE; j++) {
                            s[j] = sees(position, n0 + j) ? scale * score(q + ((size_t)(t0 + r) * heads + h) * d, h, n0 + j) : -INFINITY;
                            most[r] = max(most[r], s[j]);
                        }
                        if (most[r] == -INFINITY) continue;
                        const float less = expf(before - most[r]);
                        total[r] *= less;
                        for (int i = 0; i < d; i++) o[r * d + i] *= less;
                        for (int j = 0; j < PAGE; j++) {
                            if (s[j] == -INFINITY) continue;
                            const float w = expf(s[j] - most[r]), *v = value(h, n0 + j);
                            total[r] += w;
                            for (int i = 0; i < d; i++) o[r * d + i] += w * v[i];
                        }
                    }
                for (int r = 0; r < here; r++)
                    for (int i = 0; i < d; i++) out[((size_t)(t0 + r) * heads + h) * d + i] = o[r * d + i] / total[r];
            }
    }
    // One row: shares of the keys, each with its own maximum and sum, put together at the end.
    void decode(const float *q, float *out, int position) const {
        const int d = cache.d, keys = position + 1, splits = (keys + SPLIT - 1) / SPLIT;
        for (int h = 0; h < heads; h++) {
            vector<float> o(splits * d, 0.0f), most(splits, -INFINITY), total(splits, 0.0f);
            for (int p = 0; p < splits; p++) {
                const int begin = p * SPLIT, end = min(keys, begin + SPLIT);
                vector<float> s(SPLIT, -INFINITY);
                for (int n = begin; n < end; n++) {
                    if (sees(position, n)) s[n - begin] = scale * score(q + (size_t)h * d, h, n);
                    most[p] = max(most[p], s[n - begin]);
                }
                if (most[p] == -INFINITY) continue;
                for (int n = begin; n < end; n++) {
                    const float w = expf(s[n - begin] - most[p]), *v = value(h, n);
                    total[p] += w;
                    for (int i = 0; i < d; i++) o[p * d + i] += w * v[i];
                }
            }
            const float all = *std::max_element(most.begin(), most.end());
            float sum = 0;
            for (int p = 0; p < splits; p++) sum += total[p] * expf(most[p] - all);
            for (int i = 0; i < d; i++) {
                float c = 0;
                for (int p = 0; p < splits; p++) c += o[p * d + i] * expf(most[p] - all);
                out[(size_t)h * d + i] = c / sum;
            }
        }
    }
    // With scores and weights in memory.
    void eager(const float *q, float *out, int first, int tokens, vector<float> &scores, vector<float> &weights) const {
        const int d = cache.d, keys = first + tokens;
        scores.assign((size_t)heads * tokens * keys, 0.0f), weights = scores;
        for (int h = 0; h < heads; h++)
            for (int t = 0; t < tokens; t++) {
                float *s = &scores[((size_t)h * tokens + t) * keys], *w = &weights[((size_t)h * tokens + t) * keys];
                float most = -INFINITY, total = 0;
                for (int n = 0; n < keys; n++) s[n] = score(q + ((size_t)t * heads + h) * d, h, n);
                for (int n = 0; n < keys; n++)
                    if (sees(first + t, n)) most = max(most, scale * s[n]);
                for (int n = 0; n < keys; n++) total += w[n] = sees(first + t, n) ? expf(scale * s[n] - most) : 0;
                for (int n = 0; n < keys; n++) w[n] /= total;
                for (int i = 0; i < d; i++) {
                    float c = 0;
                    for (int n = 0; n < keys; n++) c += w[n] * value(h, n)[i];
                    out[((size_t)t * heads + h) * d + i] = c;
                }
            }
    }
};

// ---- the model ------------------------------------------------------------------------------------------------------------
constexpr int FUSED = 64; // rows of gate, then as many of up

struct Layer {
    Packed qkv, out, gate_up, down, router;
    const float *attn_norm, *ffn_norm, *q_norm, *k_norm;
    vector<float> bias;
    Cache cache;
};
struct Slate {
    File file;
    string arch;
    int layers, heads, kv_heads, d, width, ffn, vocab, experts = 0, used = 0;
    float eps;
    Packed embedding, output;
    vector<Layer> layer;
    Rope rope;
    vector<int> table; // pages of the sequence
    int pages, done = 0;
    bool flash = true, few = false;
    qdiff_tap *qd;

    int number(const string &key, double otherwise = -1) {
        const auto at = file.numbers.find(arch + "." + key);
        if (at == file.numbers.end() && otherwise < 0) fprintf(stderr, "no %s\n", key.c_str()), exit(1);
        return at == file.numbers.end() ? otherwise : at->second;
    }
    void whole(Packed &to, const string &name) {
        const Tensor &t = file.tensors.at(name);
        to.reserve(t.dims[1], t.dims[0]);
        for (int r = 0; r < to.rows; r++) to.row(r, t, r);
    }
    // Gate and up of all experts, or of the one network, in turns of 64 rows; the last turn of each may be shorter.
    void fuse(Packed &to, const Tensor &gate, const Tensor &up, int count) {
        to.reserve(2 * ffn * count, width);
        for (int e = 0; e < count; e++)
            for (int j = 0; j < ffn; j++) {
                to.row(2 * ffn * e + gate_at(j), gate, (int64_t)e * ffn + j);
                to.row(2 * ffn * e + up_at(j), up, (int64_t)e * ffn + j);
            }
    }
    int turn(int j) const { return min(FUSED, ffn - j / FUSED * FUSED); }
    int gate_at(int j) const { return j / FUSED * 2 * FUSED + j % FUSED; }
    int up_at(int j) const { return gate_at(j) + turn(j); }

    Slate(const char *path)
        : file(path), arch(file.texts["general.architecture"]), layers(number("block_count")), heads(number("attention.head_count")),
          kv_heads(number("attention.head_count_kv")),
          d(number("attention.key_length", number("embedding_length") / heads)), width(number("embedding_length")),
          ffn(number("feed_forward_length", 0)), vocab(file.tensors.at("token_embd.weight").dims[1]),
          eps(file.numbers[arch + ".attention.layer_norm_rms_epsilon"]), layer(layers),
          rope(d, file.numbers[arch + ".rope.freq_base"], number("context_length")) {
        experts = number("expert_count", 0), used = number("expert_used_count", 0);
        if (experts) ffn = number("expert_feed_forward_length");
        whole(embedding, "token_embd.weight");
        whole(output, file.has("output.weight") ? "output.weight" : "token_embd.weight");
        pages = (number("context_length") + PAGE - 1) / PAGE;
        for (int l = 0; l < layers; l++) {
            Layer &to = layer[l];
            const string b = "blk." + std::to_string(l) + ".";
            to.qkv.reserve((heads + 2 * kv_heads) * d, width);
            int row = 0;
            for (const char *name : {"attn_q", "attn_k", "attn_v"}) {
                const Tensor &t = file.tensors.at(b + name + ".weight");
                const string bias = b + name + ".bias";
                for (int r = 0; r < t.dims[1]; r++) {
                    if (file.has(bias)) to.bias.push_back(file.vec(bias)[r]);
                    to.qkv.row(row++, t, r);
                }
            }
            to.attn_norm = file.vec(b + "attn_norm.weight"), to.ffn_norm = file.vec(b + "ffn_norm.weight");
            const bool normed = file.has(b + "attn_q_norm.weight");
            to.q_norm = normed ? file.vec(b + "attn_q_norm.weight") : nullptr;
            to.k_norm = normed ? file.vec(b + "attn_k_norm.weight") : nullptr;
            whole(to.out, b + "attn_output.weight");
            const string x = experts ? "_exps" : "";
            fuse(to.gate_up, file.tensors.at(b + "ffn_gate" + x + ".weight"), file.tensors.at(b + "ffn_up" + x + ".weight"), max(1, experts));
            if (experts) whole(to.router, b + "ffn_gate_inp.weight");
            const Tensor &down = file.tensors.at(b + "ffn_down" + x + ".weight");
            to.down.reserve(width * max(1, experts), ffn);
            for (int r = 0; r < to.down.rows; r++) to.down.row(r, down, r);
            to.cache.make(pages, kv_heads, d);
        }
    }
    // A page that is free: the pool is not handed out in order.
    void grow(int keys) {
        while ((int)table.size() * PAGE < keys) table.push_back(((int)table.size() * 5 + 3) % pages);
    }
    void tap(const char *name, int l, const float *x, int rows, int n, int pitch, int heads_of = 0) {
        const string s = name;
        if (!qd || (few && s != "embed" && s != "layer_out" && s != "logits")) return;
        const int64_t dims[3] = {rows, heads_of ? heads_of : n, n / max(1, heads_of)}, strides[3] = {pitch, heads_of ? n / heads_of : 1, 1};
        QDIFF_TAP(qd, name, l, x, QDIFF_F32, heads_of ? 3 : 2, dims, strides);
    }
    void tap_square(const char *name, int l, const vector<float> &x, int tokens, int keys) {
        const int64_t dims[3] = {heads, tokens, keys};
        if (!few) QDIFF_TAP(qd, name, l, x.data(), QDIFF_F32, 3, dims, (const int64_t *)nullptr);
    }
    void tap_cache(int l, int keys) {
        if (!qd || few) return;
        Cache &c = layer[l].cache;
        vector<float> k, v;
        for (int n = 0; n < keys; n++)
            for (int g = 0; g < kv_heads; g++)
                for (int i = 0; i < d; i++) {
                    k.push_back(*c.key(table[n / PAGE], g, n % PAGE, i));
                    v.push_back(c.value(table[n / PAGE], g, n % PAGE)[i]);
                }
        tap("k_cache", l, k.data(), keys, kv_heads * d, kv_heads * d, kv_heads);
        tap("v_cache", l, v.data(), keys, kv_heads * d, kv_heads * d, kv_heads);
    }

    // Bias or norms, rotation and the write to the cache.
    void prepare(int l, vector<float> &qkv, vector<float> &q, int first, int tokens) {
        Layer &of = layer[l];
        const int all = (heads + 2 * kv_heads) * d, qw = heads * d, kw = kv_heads * d;
        vector<float> k((size_t)tokens * kw);
        for (int t = 0; t < tokens; t++) {
            float *row = &qkv[(size_t)t * all];
            if (!of.bias.empty()) {
                for (int i = 0; i < all; i++) row[i] += of.bias[i];
            }
            if (of.q_norm) {
                for (int h = 0; h < heads; h++) rms_norm(row + h * d, of.q_norm, row + h * d, d, eps);
                for (int g = 0; g < kv_heads; g++) rms_norm(row + qw + g * d, of.k_norm, row + qw + g * d, d, eps);
            }
        }
        const char *after = of.q_norm ? "normed" : "biased";
        tap((string("q_") + after).c_str(), l, &qkv[0], tokens, qw, all);
        tap((string("k_") + after).c_str(), l, &qkv[qw], tokens, kw, all);
        if (!of.q_norm) tap("v_biased", l, &qkv[qw + kw], tokens, kw, all);
        for (int t = 0; t < tokens; t++) {
            const float *row = &qkv[(size_t)t * all];
            const int position = first + t, page = table[position / PAGE], slot = position % PAGE;
            for (int h = 0; h < heads; h++) rope.rotate(row + h * d, &q[(size_t)t * qw + h * d], position);
            for (int g = 0; g < kv_heads; g++) {
                float *key = &k[(size_t)t * kw + g * d];
                rope.rotate(row + qw + g * d, key, position);
                for (int i = 0; i < d; i++) *of.cache.key(page, g, slot, i) = key[i];
                memcpy(of.cache.value(page, g, slot), row + qw + kw + g * d, d * sizeof(float));
            }
        }
        tap("q_rope", l, q.data(), tokens, qw, qw, heads);
        tap("k_rope", l, k.data(), tokens, kw, kw, kv_heads);
    }
    // SiLU of gate times up: rows of 2 ffn in turns become rows of ffn.
    void activate(const vector<float> &fused, vector<float> &act, int rows) {
        for (int t = 0; t < rows; t++)
            for (int j = 0; j < ffn; j++) {
                const float *row = &fused[(size_t)t * 2 * ffn];
                const float g = row[gate_at(j)];
                act[(size_t)t * ffn + j] = g / (1 + expf(-g)) * row[up_at(j)];
            }
    }
    void tap_fused(const char *gate, const char *up, int l, const vector<float> &fused, int rows, int of) {
        if (!qd || few) return;
        vector<float> g, u;
        for (int t = 0; t < rows; t++)
            for (int j = 0; j < ffn; j++) g.push_back(fused[(size_t)t * 2 * ffn + gate_at(j)]), u.push_back(fused[(size_t)t * 2 * ffn + up_at(j)]);
        const int n = of * ffn;
        tap(gate, l, g.data(), rows / of, n, n, of > 1 ? of : 0), tap(up, l, u.data(), rows / of, n, n, of > 1 ? of : 0);
    }
    void network(int l, const vector<float> &h, vector<float> &x, int tokens) {
        vector<float> fused((size_t)(tokens + 1) * 2 * ffn), act((size_t)tokens * ffn), down((size_t)tokens * width);
        product(layer[l].gate_up, h.data(), fused.data(), tokens);
        tap_fused("ffn_gate", "ffn_up", l, fused, tokens, 1);
        activate(fused, act, tokens);
        tap("ffn_act", l, act.data(), tokens, ffn, ffn);
        product(layer[l].down, act.data(), down.data(), tokens);
        tap("ffn_down", l, down.data(), tokens, width, width);
        for (size_t i = 0; i < down.size(); i++) x[i] += down[i];
    }
    // Pairs of a token and an expert are sorted by expert and go through its weights in blocks of four.
    void mixture(int l, const vector<float> &h, vector<float> &x, int tokens) {
        Layer &of = layer[l];
        const int pairs = tokens * used;
        vector<float> scores((size_t)tokens * experts), probs(scores), chosen(pairs), weights(pairs), shares(pairs);
        product(of.router, h.data(), scores.data(), tokens);
        for (int t = 0; t < tokens; t++) {
            const float *s = &scores[(size_t)t * experts];
            float *p = &probs[(size_t)t * experts], total = 0, sum = 0;
            const float most = *std::max_element(s, s + experts);
            for (int e = 0; e < experts; e++) total += p[e] = expf(s[e] - most);
            for (int e = 0; e < experts; e++) p[e] /= total;
            vector<int> order(experts);
            for (int e = 0; e < experts; e++) order[e] = e;
            std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return p[a] > p[b]; });
            for (int k = 0; k < used; k++) {
                chosen[t * used + k] = order[k], weights[t * used + k] = p[order[k]];
                sum += p[order[k]];
            }
            for (int k = 0; k < used; k++) shares[t * used + k] = weights[t * used + k] / sum;
        }
        tap("router", l, scores.data(), tokens, experts, experts);
        tap("router_probs", l, probs.data(), tokens, experts, experts);
        tap("router_experts", l, chosen.data(), tokens, used, used);
        tap("router_weights", l, weights.data(), tokens, used, used);
        tap("router_shares", l, shares.data(), tokens, used, used);
        vector<float> fused((size_t)(pairs + 1) * 2 * ffn), act((size_t)pairs * ffn), down((size_t)pairs * width);
        const auto blocks = [&](auto run) {
            for (int e = 0; e < experts; e++) {
                vector<int> sorted;
                for (int i = 0; i < pairs; i++)
                    if (chosen[i] == e) sorted.push_back(i);
                const int real = sorted.size();
                while (sorted.size() % TILE) sorted.push_back(pairs); // nobody's
                for (int b = 0; b < (int)sorted.size(); b += TILE) run(e, &sorted[b], min(TILE, real - b));
            }
        };
        blocks([&](int e, const int *ids, int) {
            vector<float> rows(TILE * width), out(TILE * 2 * ffn);
            for (int i = 0; i < TILE; i++)
                if (ids[i] < pairs) memcpy(&rows[i * width], &h[(size_t)(ids[i] / used) * width], width * sizeof(float));
            product_tiles(of.gate_up, rows.data(), out.data(), TILE, 2 * ffn * e, 2 * ffn, 2 * ffn);
            for (int i = 0; i < TILE; i++)
                if (ids[i] < pairs) memcpy(&fused[(size_t)ids[i] * 2 * ffn], &out[i * 2 * ffn], 2 * ffn * sizeof(float));
        });
        tap_fused("expert_gate", "expert_up", l, fused, pairs, used);
        activate(fused, act, pairs);
        tap("expert_act", l, act.data(), tokens, used * ffn, used * ffn, used);
        blocks([&](int e, const int *ids, int) {
            vector<float> rows(TILE * ffn), out(TILE * width);
            for (int i = 0; i < TILE; i++)
                if (ids[i] < pairs) memcpy(&rows[i * ffn], &act[(size_t)ids[i] * ffn], ffn * sizeof(float));
            product_tiles(of.down, rows.data(), out.data(), TILE, width * e, width, width);
            for (int i = 0; i < TILE; i++)
                if (ids[i] < pairs) memcpy(&down[(size_t)ids[i] * width], &out[i * width], width * sizeof(float));
        });
        tap("expert_down", l, down.data(), tokens, used * width, used * width, used);
        vector<float> sum((size_t)tokens * width);
        for (int t = 0; t < tokens; t++)
            for (int i = 0; i < width; i++)
                for (int k = 0; k < used; k++) sum[(size_t)t * width + i] += shares[t * used + k] * down[((size_t)t * used + k) * width + i];
        tap("experts_out", l, sum.data(), tokens, width, width);
        for (size_t i = 0; i < sum.size(); i++) x[i] += sum[i];
    }
    int forward(const vector<int> &ids) {
        const int tokens = ids.size(), first = done, keys = first + tokens, qw = heads * d, kw = kv_heads * d, all = qw + 2 * kw;
        QDIFF_STEP(qd, first, ids.data(), tokens);
        grow(keys);
        vector<float> x((size_t)tokens * width), h(x), q((size_t)tokens * qw), context(q), qkv((size_t)tokens * all), attn(x), scores, weights;
        for (int t = 0; t < tokens; t++)
            for (int g = 0; g < width / GROUP; g++) embedding.unpack(ids[t] / PANEL, ids[t] % PANEL, g, &x[(size_t)t * width + g * GROUP]);
        tap("embed", -1, x.data(), tokens, width, width);
        for (int l = 0; l < layers; l++) {
            Layer &of = layer[l];
            for (int t = 0; t < tokens; t++) rms_norm(&x[(size_t)t * width], of.attn_norm, &h[(size_t)t * width], width, eps);
            tap("attn_norm", l, h.data(), tokens, width, width);
            product(of.qkv, h.data(), qkv.data(), tokens);
            tap("q_proj", l, &qkv[0], tokens, qw, all);
            tap("k_proj", l, &qkv[qw], tokens, kw, all);
            tap("v_proj", l, &qkv[qw + kw], tokens, kw, all);
            prepare(l, qkv, q, first, tokens);
            tap_cache(l, keys);
            const Attention attention{of.cache, table, heads, l, 1 / sqrtf(d)};
            if (!flash) attention.eager(q.data(), context.data(), first, tokens, scores, weights);
            else if (tokens == 1) attention.decode(q.data(), context.data(), first);
            else attention.prefill(q.data(), context.data(), first, tokens);
            if (!flash) tap_square("attn_scores", l, scores, tokens, keys), tap_square("attn_weights", l, weights, tokens, keys);
            tap("attn_context", l, context.data(), tokens, qw, qw);
            product(of.out, context.data(), attn.data(), tokens, true);
            tap("attn_out", l, attn.data(), tokens, width, width);
            for (size_t i = 0; i < x.size(); i++) x[i] += attn[i];
            tap("attn_residual", l, x.data(), tokens, width, width);
            for (int t = 0; t < tokens; t++) rms_norm(&x[(size_t)t * width], of.ffn_norm, &h[(size_t)t * width], width, eps);
            tap("ffn_norm", l, h.data(), tokens, width, width);
            if (experts) mixture(l, h, x, tokens);
            else network(l, h, x, tokens);
            tap("layer_out", l, x.data(), tokens, width, width);
        }
        for (int t = 0; t < tokens; t++) rms_norm(&x[(size_t)t * width], file.vec("output_norm.weight"), &h[(size_t)t * width], width, eps);
        tap("final_norm", -1, h.data(), tokens, width, width);
        vector<float> logits((size_t)tokens * vocab);
        product(output, h.data(), logits.data(), tokens);
        tap("logits", -1, logits.data(), tokens, vocab, vocab);
        done = keys;
        const float *last = &logits[(size_t)(tokens - 1) * vocab];
        return std::max_element(last, last + vocab) - last;
    }
};

static vector<int> numbers(std::istream &&in) {
    vector<int> all;
    for (int v; in >> v; in.peek() == ',' ? (void)in.get() : (void)0) all.push_back(v);
    return all;
}
int main(int argc, char **argv) {
    std::map<string, string> option;
    for (int i = 2; i + 1 < argc; i += 2) option[argv[i]] = argv[i + 1];
    Slate slate(argv[1]);
    slate.flash = option["--attn"] != "eager", slate.few = option["--dump"] == "few";
    slate.qd = QDIFF_BEGIN("slate");
    const vector<int> prompt = numbers(std::ifstream(option["--tokens"]));
    vector<int> passes;
    if (option.count("--passes")) passes = numbers(std::istringstream(option["--passes"]));
    const int most = option.count("--ubatch") ? std::stoi(option["--ubatch"]) : prompt.size();
    int begin = 0, chosen = 0;
    for (size_t i = 0; begin < (int)prompt.size(); i++) {
        const int count = min(passes.empty() ? most : passes[i], (int)prompt.size() - begin);
        chosen = slate.forward(vector<int>(prompt.begin() + begin, prompt.begin() + begin + count));
        begin += count;
    }
    if (option.count("--decoded"))
        for (int id : numbers(std::ifstream(option["--decoded"]))) slate.forward({id});
    else
        for (int n = option.count("--n") ? std::stoi(option["--n"]) : 0; n; n--) chosen = slate.forward({chosen});
    QDIFF_END(slate.qd);
}
