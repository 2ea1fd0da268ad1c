// The kernels of a decode step against their definitions in double precision, thread
// by thread on a CPU.
#include "fixtures.h"

#include <array>

#include "fused/ring.cuh"
#include "fused/best.cuh"
#include "fused/shares.cuh"
#include "kv.cuh"
namespace qkv {
#include "fused/attn_qkv.cu"
}
namespace shares {
#include "fused/attention.cu"
}
namespace halved {
#include "fused/attention_halves.cu"
}
namespace together {
#include "fused/attn_out.cu"
}
namespace halves {
#include "fused/half_linear.cu"
}
namespace ffn {
#include "fused/ffn_act.cu"
}
namespace head {
#include "fused/lm_head.cu"
}

namespace newest {
#include "fused/cache_rows.cu"
}

// What a tile takes at most: `tile_bytes` of engine/src/cuda/tiles.rs.
template <class F>
static int tile_bytes(int groups) {
    int sum = 0;
    for (int bytes : format<F>().bytes) {
        const int width = (bytes * 32 * groups + format<F>().block - 1) / format<F>().block;
        sum += TILE * ((width + 15) / 16 | 1) * 16;
    }
    return sum;
}
template <class A, class B>
static Walk walk(int tiles, int sets, int chunk, int stages) {
    return {tiles, sets, chunk, stages, std::max(tile_bytes<A>(chunk), tile_bytes<B>(chunk))};
}
static size_t bytes_of(const Walk &walk) { return (size_t)walk.stages * walk.tiles * walk.stride; }

// A ring of so many stages for each warp, the sums of `tiles` tiles of a block, and the bytes of both: `ring` of engine/src/cuda/tiles.rs.
template <class F>
static Walk ring(int warps, int stages) {
    int stride = 0;
    for (int bytes : format<F>().bytes) stride += TILE * (bytes % 16 ? 4 : (bytes / 16 | 1) * 16);
    return {warps, 1, PIECE, stages, stride};
}
static size_t bytes_of_ring(const Walk &walk, int tiles) { return bytes_of(walk) + (size_t)(tiles + walk.tiles) * TILE * 4; }

// Whether both have the same bits, of as many numbers.
static bool same(const float *a, const float *b, size_t count) { return memcmp(a, b, 4 * count) == 0; }

template <class F, int HELD, int N = 0, int FIRST = 0>
static void half_linear(int n, int m, int piece = 1 << 30, int sets = 1) {
    printf("half_linear<%s, %d> of %d x %d, %d to a block\n", format<F>().name, HELD, n, m, sets);
    const Matrix w = matrix<F>(n, m);
    const auto x = vector_of(n);
    Doubles y, size;
    w.times(Doubles(x.begin(), x.end()), y, size);
    const int groups = n / 32, block = std::max(format<F>().block / 32, 1);
    const int first = std::min(((groups + 1) / 2 + block - 1) / block * block, groups);
    const Walk way = walk<F, F>(1, sets, std::min(first, piece), piece < first || sets > 1 ? 2 : 1);
    const int tiles = (m + 15) / 16, blocks = (tiles + sets - 1) / sets;
    std::vector<Stamp> stamps(blocks * 2 + 1);
    halves::HalfLinearParams p{copied(x), w.planes, {unwritten(m), unwritten(m)}, way, n, m, first, stamps.data()};
    launch({(unsigned)blocks, 2}, 32 * MOST_WARPS, vector_bytes<F, F>(32 * first) + bytes_of(way),
           [&] { halves::half_linear<F, HELD, 0, N, FIRST>(p); });
    std::vector<float> sum(m);
    for (int i = 0; i < m; i++) sum[i] = p.y[0][i] + p.y[1][i];
    compare("product", sum.data(), y, size, PRODUCT);
    // Every block has said when, and none for another.
    for (size_t i = 0; i < stamps.size(); i++) {
        const unsigned long long said = i + 1 < stamps.size();
        if (stamps[i].began == said && stamps[i].waited == said && stamps[i].ended == said) continue;
        printf("  stamp %zu is another's\n", i), wrong++;
    }
}

template <class F, int RING>
static void half_linear_in_rings(int n, int m, int blocks, int warps) {
    printf("half_linear<%s, %d stages> of %d x %d by %d blocks of %d\n", format<F>().name, RING, n, m, blocks, warps);
    const Matrix w = matrix<F>(n, m);
    const auto x = vector_of(n);
    Doubles y, size;
    w.times(Doubles(x.begin(), x.end()), y, size);
    const Walk way = ring<F>(warps, RING);
    halves::HalfLinearParams p{copied(x), w.planes, {unwritten(m), unwritten(m)}, way, n, m, 0, nullptr};
    launch({(unsigned)blocks}, 32 * warps, vector_bytes<F, F>(n) + bytes_of_ring(way, m / TILE / blocks + 2),
           [&] { halves::half_linear<F, 0, RING, 0, 0>(p); });
    std::vector<float> sum(m);
    for (int i = 0; i < m; i++) sum[i] = p.y[0][i] + p.y[1][i];
    compare("product", sum.data(), y, size, PRODUCT);
}

template <class A, class B, int TILES, int HELD, int N = 0>
static void ffn_act(int n, int m, int blocks, int sets, unsigned threads = 32 * MOST_WARPS) {
    printf("ffn_act<%s, %s, %d, %d> of %d x %d\n", format<A>().name, format<B>().name, TILES, HELD, n, m);
    const Matrix gate = matrix<A>(n, m), up = matrix<B>(n, m);
    const auto x = vector_of(n), weight = vector_of(n);
    const Doubles normed = norm_of(x, weight);
    Doubles g, g_size, u, u_size, y;
    gate.times(normed, g, g_size), up.times(normed, u, u_size);
    Walk way = walk<A, B>(TILES, sets, n / 32, sets > 1 ? 2 : 1);
    if (TILES == 1) way.tiles = ((m + 7) / 8 + blocks - 1) / blocks, threads = 32 * ffn::SHARING_WARPS;
    if (TILES == 0) way = ring<A>(threads / 32, HELD);
    const size_t parts = TILES == 0 ? bytes_of_ring(way, m / 8 / blocks + 1) - bytes_of(way) : TILES == 1 ? (size_t)way.tiles * ((n / 32 + Tile<A>::ATOM - 1) / Tile<A>::ATOM) * TILE * 4 : 0;
    ffn::FfnActParams p{copied(x), copied(weight), gate.planes, up.planes, unwritten(m), unwritten(n), unwritten(m),
                          unwritten(m), nullptr, way, n, m, 1e-6f};
    launch({(unsigned)blocks}, threads, vector_bytes<A, B>(n) + bytes_of(way) + parts,
           [&] { ffn::ffn_act<A, B, TILES, HELD, N, true>(p); });
    const float *made = p.y;
    p.y = unwritten(m);
    launch({(unsigned)blocks}, threads, vector_bytes<A, B>(n) + bytes_of(way) + parts,
           [&] { ffn::ffn_act<A, B, TILES, HELD, N, false>(p); });
    if (!same(made, p.y, m)) printf("  a tap changes what is left\n"), wrong++;
    compare("norm", p.norm_tap, normed, magnitudes(normed), PRODUCT);
    compare("gate", p.gate_tap, g, g_size, PRODUCT);
    compare("up", p.up_tap, u, u_size, PRODUCT);
    for (int i = 0; i < m; i++) y.push_back((double)p.gate_tap[i] / (1 + std::exp(-(double)p.gate_tap[i])) * p.up_tap[i]);
    Doubles act_size = magnitudes(y);
    for (double &s : act_size) s += 1e-20; // below it an exponential is infinite
    compare("act", p.y, y, act_size, 1e-5);
}

template <class F, bool OWN, int RING = 0, int N = 0>
static void lm_head(int n, int m, int tiles, int blocks, int stages = 2) {
    printf("lm_head<%s, %d, %d> of %d x %d\n", format<F>().name, OWN, RING, n, m);
    const Matrix w = matrix<F>(n, m);
    const auto x = vector_of(n), weight = vector_of(n);
    Doubles y, size;
    w.times(norm_of(x, weight), y, size);
    const int sets = ((m + TILE * tiles - 1) / (TILE * tiles) + blocks - 1) / blocks;
    constexpr bool TELLS = OWN || RING > 0;
    const Walk way = RING > 0 ? ring<F>(tiles, RING) : walk<F, F>(tiles, sets, n / 32, stages);
    unsigned long long largest = 0;
    u32 arrived = 0, token = ~0u;
    head::LmHeadParams p{Stream{copied(x), {}, nullptr, nullptr}, copied(weight), w.planes, unwritten(m),
                         {&largest, &arrived, TELLS ? &token : nullptr}, nullptr, way, n, m, 1e-6f};
    launch({(unsigned)blocks}, 32 * (TELLS ? tiles : MOST_WARPS), vector_bytes<F, F>(n) + bytes_of_ring(way, m / TILE / blocks + 1),
           [&] { head::lm_head<F, OWN, RING, N>(p); });
    compare("logits", p.logits, y, size, PRODUCT);
    const bool told = token == (u32)(std::max_element(p.logits, p.logits + m) - p.logits);
    if (TELLS && (!told || largest || arrived)) printf("  the best is not %u\n", token), wrong++;
}

template <class Q, class K, class V, class Kv, int D, int PAIRS, bool NORM, int HELD_Q, int HELD_K, int HELD_V, int N = 0>
static void attn_qkv(int n, int heads, int kv_heads, int position, [[maybe_unused]] std::array<int, 3> makers = {}, [[maybe_unused]] int warps = 0) {
    printf("attn_qkv<%s, %s, %s, %d> of %d heads of %d\n", format<Q>().name, format<K>().name, format<V>().name, PAIRS, heads, D);
    const Matrix w[3] = {matrix<Q>(n, heads * D), matrix<K>(n, kv_heads * D), matrix<V>(n, kv_heads * D)};
    const auto x = vector_of(n), weight = vector_of(n);
    const Doubles normed = norm_of(x, weight);
    std::vector<float> frequency, bias[3], head_norm[2] = {vector_of(D), vector_of(D)};
    for (int i = 0; i < D / 2; i++) frequency.push_back((float)std::pow(1e6, -2.0 * i / D));
    for (int i = 0; i < 3; i++) bias[i] = vector_of(w[i].m);
    unsigned blocks = (heads + 2 * kv_heads) * D / 2 / (TILE * std::max(PAIRS, 1)), threads = 32 * MOST_WARPS;
    Walk way = walk<Q, K>(2 * PAIRS, 1, n / 32, 1);
    way.stride = std::max(way.stride, tile_bytes<V>(n / 32));
    size_t stages = bytes_of(way);
    if constexpr (PAIRS == 0) {
        way = ring<Q>(warps, HELD_Q), way.stride = std::max({way.stride, ring<K>(1, 1).stride, ring<V>(1, 1).stride});
        blocks = makers[0] + makers[1] + makers[2], threads = 32 * warps;
        stages = bytes_of_ring(way, std::max(heads * D / TILE / makers[0], kv_heads * D / TILE / std::min(makers[1], makers[2])) + 1);
    }
    const int capacity = position + 2;
    qkv::AttnQkvParams p{};
    p.x.base = copied(x), p.norm = copied(weight), p.frequency = copied(frequency), p.position_at = &position;
    p.norm_tap = unwritten(n);
    p.q = unwritten(heads * D), p.walk = way, p.n = n, p.heads = heads, p.kv_heads = kv_heads, p.eps = 1e-6f;
    typename Kv::Type *cache[2];
    for (auto &c : cache) c = room<typename Kv::Type>((size_t)capacity * kv_heads * D);
    p.k_cache = cache[0], p.v_cache = cache[1];
    for (int i = 0; i < 3; i++) {
        p.w[i] = w[i].planes, p.proj_tap[i] = unwritten(w[i].m);
        if (!NORM) p.bias[i] = copied(bias[i]);
        else if (i < 2) p.head_norm[i] = copied(head_norm[i]);
    }
    for (int i = 0; i < 3; i++) p.makers[i] = makers[i];
    const size_t vector = std::max({vector_bytes<Q, Q>(n), vector_bytes<K, K>(n), vector_bytes<V, V>(n)});
    launch({blocks}, threads, vector + stages,
           [&] { qkv::attn_qkv<Q, K, V, Kv, D, PAIRS, NORM, HELD_Q, HELD_K, HELD_V, N, true>(p); });
    // Without taps it leaves the same.
    qkv::AttnQkvParams bare = p;
    const size_t width = (size_t)kv_heads * D;
    typename Kv::Type *bare_cache[2];
    for (auto &c : bare_cache) c = room<typename Kv::Type>(capacity * width);
    bare.q = unwritten(heads * D), bare.k_cache = bare_cache[0], bare.v_cache = bare_cache[1];
    launch({blocks}, threads, vector + stages,
           [&] { qkv::attn_qkv<Q, K, V, Kv, D, PAIRS, NORM, HELD_Q, HELD_K, HELD_V, N, false>(bare); });
    bool alike = same(p.q, bare.q, heads * D);
    for (int c = 0; c < 2; c++) {
        alike = alike && !memcmp(cache[c] + position * width, bare_cache[c] + position * width, width * sizeof(typename Kv::Type));
    }
    if (!alike) printf("  a tap changes what is left\n"), wrong++;
    compare("norm", p.norm_tap, normed, magnitudes(normed), PRODUCT);
    for (int part = 0; part < 3; part++) {
        Doubles y, size;
        w[part].times(normed, y, size);
        compare("projection", p.proj_tap[part], y, size, PRODUCT);
        // From what the kernel made of it on, so that each step is held by itself.
        y.assign(p.proj_tap[part], p.proj_tap[part] + w[part].m);
        for (int h = 0; h < w[part].m / D; h++) {
            double *of = &y[h * D], squares = 0;
            for (int i = 0; i < D; i++) of[i] += NORM ? 0 : bias[part][h * D + i], squares += of[i] * of[i];
            if (part == 2) continue;
            for (int i = 0; NORM && i < D; i++) of[i] *= head_norm[part][i] / std::sqrt(squares / D + 1e-6);
            for (int i = 0; i < D / 2; i++) {
                const double angle = (float)position * frequency[i], a = of[i], b = of[i + D / 2];
                of[i] = a * std::cos(angle) - b * std::sin(angle);
                of[i + D / 2] = a * std::sin(angle) + b * std::cos(angle);
            }
        }
        std::vector<float> made(p.q, p.q + (part == 0 ? y.size() : 0));
        for (size_t i = 0; part > 0 && i < y.size(); i++) {
            made.push_back(Kv::get(cache[part - 1][(size_t)position * kv_heads * D + i]));
        }
        double largest = 0;
        for (double v : y) largest = std::max(largest, std::fabs(v));
        compare(part == 0 ? "q" : part == 1 ? "k" : "v", made.data(), y, Doubles(y.size(), largest),
                sizeof(typename Kv::Type) == 4 ? PRODUCT : 1e-3);
    }
}

// What stands where of the attention of one token.
template <class Kv, int D, int GROUP>
struct Attended {
    typedef typename Kv::Type Type;
    int kv_heads, keys, heads = kv_heads * GROUP, position = keys - 1;
    std::vector<float> q;
    Type *cache[2];
    Partial partial;
    float *scores, *weights, scale = 1.0f / std::sqrt((float)D);
    Attended(int kv_heads, int keys) : kv_heads(kv_heads), keys(keys), q(vector_of(heads * D, 0.3f)) {
        std::normal_distribution<float> normal;
        for (auto &c : cache) {
            c = room<Type>(count());
            for (size_t i = 0; i < count(); i++) c[i] = Kv::put(normal(noise));
        }
        forget();
    }
    size_t count() const { return (size_t)keys * kv_heads * D; }
    // Room for results that are not there yet.
    void forget() {
        partial = {unwritten((size_t)heads * SPLITS * D), (float2 *)unwritten(2 * (size_t)heads * SPLITS)};
        scores = unwritten((size_t)heads * keys), weights = unwritten((size_t)heads * keys);
    }
    Type *row(int c, int head, int key) const { return cache[c] + ((size_t)key * kv_heads + head / GROUP) * D; }
};

// The kernel that takes every cache; where keys are many, some of its blocks begin late.
constexpr int EARLY = 3;
template <int TILE_KEYS = KEYS, class Kv, int D, int GROUP>
static void by_any(const Attended<Kv, D, GROUP> &of, int splits, bool taps = true) {
    shares::AttentionParams p{copied(of.q), of.cache[0], of.cache[1], of.partial, &of.position, taps ? of.scores : nullptr,
                              taps ? of.weights : nullptr, of.scale, EARLY};
    const size_t stage = 2 * TILE_KEYS * D * sizeof(typename Kv::Type), sums = (size_t)shares::THREADS * 16 * GROUP;
    launch({(unsigned)of.kv_heads, (unsigned)splits}, shares::THREADS, stage + std::max(stage, sums),
           [&] {
               if (taps) of.keys > 600 ? shares::attention<Kv, D, GROUP, TILE_KEYS, true, true>(p) : shares::attention<Kv, D, GROUP, TILE_KEYS, false, true>(p);
               else of.keys > 600 ? shares::attention<Kv, D, GROUP, TILE_KEYS, true, false>(p) : shares::attention<Kv, D, GROUP, TILE_KEYS, false, false>(p);
           });
}
// The kernel for halves.
template <int STAGES, int CLUSTER, int D, int GROUP>
static void by_halves(const Attended<KvF16, D, GROUP> &of, int shares, bool taps = true) {
    halved::AttentionHalvesParams p{copied(of.q), of.cache[0], of.cache[1], of.partial, &of.position,
                                    taps ? of.scores : nullptr, taps ? of.weights : nullptr, of.scale};
    launch({(unsigned)of.kv_heads, (unsigned)(shares * CLUSTER)}, halved::THREADS, halved::WARPS * STAGES * 4 * halved::CHUNK * D + halved::MEASURED,
           [&] { taps ? halved::attention_halves<D, GROUP, STAGES, CLUSTER, true>(p) : halved::attention_halves<D, GROUP, STAGES, CLUSTER, false>(p); }, CLUSTER);
}

// attn_out of what a kernel of attention left.
template <class F, int HELD, int RING, int N, class Kv, int D, int GROUP>
static together::AttnOutParams put_together(const Attended<Kv, D, GROUP> &of, int splits, const Matrix &w,
                                            const std::vector<float> &a) {
    const int n = w.n, m = w.m;
    // Through rings blocks of more than two tiles each.
    const int tiles = (m + TILE - 1) / TILE, makers = RING > 0 ? (tiles + 2) / 3 : tiles, warps = RING > 0 ? 12 : MOST_WARPS;
    const Walk way = RING > 0 ? ring<F>(warps, RING) : walk<F, F>(1, 1, n / 32, 1);
    together::AttnOutParams o{of.partial, w.planes, Stream{copied(a), {}, nullptr, nullptr}, unwritten(m), &of.position,
                              of.weights, unwritten(n), unwritten(m), nullptr, way, n, m, of.heads, splits, makers};
    const unsigned scaling = of.heads * (1 + of.keys / 1000);
    launch({makers + scaling}, 32 * warps, vector_bytes<F, F>(n) + (RING > 0 ? bytes_of_ring(way, 4) : bytes_of(way)),
           [&] { together::attn_out<F, D, HELD, RING, N, true>(o); });
    together::AttnOutParams bare = o;
    bare.y = unwritten(m);
    launch({(unsigned)makers}, 32 * warps, vector_bytes<F, F>(n) + (RING > 0 ? bytes_of_ring(way, 4) : bytes_of(way)),
           [&] { together::attn_out<F, D, HELD, RING, N, false>(bare); });
    if (!same(o.y, bare.y, m)) printf("  a tap changes what is left\n"), wrong++;
    return o;
}

// What is put together of what a kernel left, against its definition.
template <class F, int HELD, int RING = 0, int N = 0, class Kv, int D, int GROUP>
static void attended(const Attended<Kv, D, GROUP> &of, int splits, int m) {
    const int heads = of.heads, keys = of.keys, n = heads * D;
    const auto a = vector_of(m);
    Doubles score, score_size, context(n), weights, y, size;
    for (int h = 0; h < heads; h++) {
        double total = 0, most = -INFINITY;
        for (int t = 0; t < keys; t++) {
            double s = 0, magnitude = 0;
            for (int i = 0; i < D; i++) {
                const double product = (double)of.q[h * D + i] * Kv::get(of.row(0, h, t)[i]);
                s += product, magnitude += std::fabs(product);
            }
            score.push_back(s), score_size.push_back(magnitude);
            most = std::max(most, s * of.scale);
        }
        const double *scores = &score[(size_t)h * keys];
        for (int t = 0; t < keys; t++) total += std::exp(scores[t] * of.scale - most);
        for (int t = 0; t < keys; t++) {
            weights.push_back(std::exp(scores[t] * of.scale - most) / total);
            for (int i = 0; i < D; i++) context[h * D + i] += weights.back() * Kv::get(of.row(1, h, t)[i]);
        }
    }
    const Matrix w = matrix<F>(n, m);
    const auto o = put_together<F, HELD, RING, N>(of, splits, w, a);
    compare("scores", of.scores, score, score_size, PRODUCT);
    // Scores of some tens, whose rounding the exponential turns into errors of weights.
    compare("weights", of.weights, weights, Doubles(weights.size(), 1), 2e-5);
    compare("context", o.context_tap, context, Doubles(n, 1), 2e-5);
    w.times(Doubles(o.context_tap, o.context_tap + n), y, size);
    compare("product", o.product_tap, y, size, PRODUCT);
    for (int i = 0; i < m; i++) y[i] = a[i] + (double)o.product_tap[i], size[i] = std::fabs(y[i]) + 1e-3;
    compare("residual", o.y, y, size, PRODUCT);
}

// Whether attention leaves the same if `run` makes it without taps.
template <class Kv, int D, int GROUP, class Run>
static void unchanged(const Attended<Kv, D, GROUP> &of, Run run) {
    auto again = of;
    again.forget();
    run(again);
    const size_t shares = (size_t)of.heads * SPLITS;
    if (!same(of.partial.sums, again.partial.sums, shares * D) ||
        !same((float *)of.partial.measures, (float *)again.partial.measures, 2 * shares)) {
        printf("  a tap changes what is left\n"), wrong++;
    }
}

template <class Kv, int D, int GROUP, class F, int HELD, int TILE_KEYS = KEYS, int RING = 0, int N = 0>
static void attention(int kv_heads, int keys, int splits, int m) {
    printf("attention<%d bytes, %d, %d> of %d keys, attn_out<%s, %d, %d>\n", (int)sizeof(typename Kv::Type), D, GROUP, keys,
           format<F>().name, HELD, RING);
    const Attended<Kv, D, GROUP> of(kv_heads, keys);
    by_any<TILE_KEYS>(of, splits);
    attended<F, HELD, RING, N>(of, splits, m);
    unchanged(of, [&](auto &again) { by_any<TILE_KEYS>(again, splits, false); });
}

template <int D, int GROUP, int STAGES, int CLUSTER>
static void attention_halves(int kv_heads, int keys, int shares_at_most) {
    printf("attention_halves<%d, %d, %d, %d> of %d keys in %d shares\n", D, GROUP, STAGES, CLUSTER, keys, shares_at_most);
    Attended<KvF16, D, GROUP> of(kv_heads, keys);
    by_halves<STAGES, CLUSTER>(of, shares_at_most);
    attended<Q8_0, 0>(of, shares_at_most, 16);
    unchanged(of, [&](auto &again) { by_halves<STAGES, CLUSTER>(again, shares_at_most, false); });
}

// What is no number, or huge, is seen by those who see it alone, as by the kernel that takes every cache.
template <int D>
static void what_is_no_number() {
    printf("attention_halves<%d> of what is no number\n", D);
    constexpr int GROUP = 3, KEY = 41, SHARES = 2;
    constexpr u16 INFINITE = 0x7c00, NEGATIVE = 0xfc00, NONE = 0x7e00, LARGEST = 0x7bff;
    struct Case {
        const char *what;
        int cache, element; // 2 for a query, of its second head
        u16 is;
    };
    const Case cases[] = {{"an infinite key", 0, 3, INFINITE},  {"a key of less than all", 0, 3, NEGATIVE},
                          {"a key of NaN", 0, 9, NONE},         {"a huge key", 0, 5, LARGEST},
                          {"an infinite value", 1, 7, INFINITE}, {"a value of less than all", 1, 0, NEGATIVE},
                          {"a value of NaN", 1, 31, NONE},      {"a huge value", 1, 30, LARGEST},
                          {"an infinite query", 2, 2, INFINITE}, {"a query of NaN", 2, 2, NONE}};
    for (const Case &c : cases) {
        Attended<KvF16, D, GROUP> of(2, 130);
        std::normal_distribution<float> normal; // an infinity stays one where its weight is no less than 2^-39
        for (float &e : of.q) e = normal(noise);
        if (c.cache < 2) of.row(c.cache, 0, KEY)[c.element] = c.is;
        else of.q[D + c.element] = KvF16::get(c.is);
        const Matrix w = matrix<F16>(of.heads * D, 16);
        const auto a = vector_of(16);
        by_any<>(of, SHARES);
        const auto right = of;
        const float *right_context = put_together<F16, 0, 0, 0>(right, SHARES, w, a).context_tap;
        of.forget();
        by_halves<2, 2>(of, SHARES);
        const float *context = put_together<F16, 0, 0, 0>(of, SHARES, w, a).context_tap;
        auto differ = [&](const char *which, const float *a, const float *b, size_t count) {
            for (size_t i = 0; i < count; i++) {
                const bool close = std::fabs((double)a[i] - b[i]) <= 1e-4 * std::max(1.0, std::fabs((double)b[i]));
                if (close || a[i] == b[i] || (a[i] != a[i] && b[i] != b[i])) continue;
                printf("  %s: %s %d is %g and not %g\n", c.what, which, (int)i, a[i], b[i]), wrong++;
                return;
            }
        };
        differ("score", of.scores, right.scores, (size_t)of.heads * of.keys);
        differ("weight", of.weights, right.weights, (size_t)of.heads * of.keys);
        differ("context", context, right_context, of.heads * D);
    }
}

// The newest row travels, and the first earlier one that changed is told, whichever element it is.
template <class Kv>
static void cache_rows(int width, int rows) {
    printf("cache_rows<%d bytes> of %d x %d\n", (int)sizeof(typename Kv::Type), rows, width);
    typedef typename Kv::Type Type;
    std::vector<newest::TappedCache> table;
    std::vector<Type *> caches;
    const int count = 2, room_of = width + 3;
    float *out = unwritten(count * room_of);
    for (int c = 0; c < count; c++) {
        caches.push_back(room<Type>((size_t)rows * width));
        for (int i = 0; i < rows * width; i++) caches[c][i] = Kv::put((float)(noise() % 1000) / 8);
        auto *sums = room<unsigned long long>(rows);
        table.push_back({caches[c], sums, (unsigned long long)c * room_of});
    }
    // What is told of the last cache.
    auto told = [&](int at, int known) {
        newest::CacheRowsParams p{table.data(), out, width, at, known};
        for (int c = 0; c < count; c++) {
            memset(out + c * room_of, 0xff, room_of * 4);
            launch({1, (unsigned)(at / newest::ROWS + 1)}, newest::THREADS, 0, [&] {
                blockIdx.x = c;
                newest::cache_rows<Kv>(p);
            });
            for (int i = 0; i < width; i++) wrong += out[c * room_of + i] != Kv::get(caches[c][(size_t)at * width + i]);
        }
        return __float_as_uint(out[(count - 1) * room_of + width]);
    };
    auto expect = [&](const char *what, uint32_t is, uint32_t right) {
        if (is != right) printf("  %s: %u and not %u\n", what, is, right), wrong++;
    };
    const uint32_t none = 0xffffffffu;
    const int last = rows - 1;
    expect("no row is known", told(last - 1, 0), none);
    expect("none changed", told(last, last), none);
    for (int element = 0; element < width; element += 7) {
        Type &one = caches[1][(size_t)(element % last) * width + element];
        one = Kv::put(Kv::get(one) + 0.125f);
        expect("one changed", told(last, last), element % last);
        expect("it is known now", told(last, last), none);
    }
    std::swap(caches[1][0], caches[1][width - 1]);
    caches[1][2 * width] = Kv::put(-1.0f);
    expect("two rows changed", told(last, last), caches[1][0] == caches[1][width - 1] ? 2 : 0);
    caches[1][0] = Kv::put(-2.0f);
    expect("the newest may change", told(last, 0), none);
}

int main() {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    // Held or not, whole or in pieces, with an odd number of groups or tiles that are not full.
    half_linear<Q6_K, 1>(2560, 40), half_linear<Q6_K, 0>(1280, 16, 8), half_linear<Q6_K, 1>(256, 16), half_linear<Q6_K, 2>(4864, 16);
    half_linear<Q5_K, 1>(2560, 16), half_linear<Q5_K, 3>(8960, 16), half_linear<Q4_K, 2>(4864, 16), half_linear<Q4_K, 0>(8960, 16);
    half_linear<Q6_K, 0>(1280, 72, 8, 2), half_linear<Q4_K, 0>(2560, 56, 1 << 30, 4), half_linear<Q5_0, 0>(1024, 40, 6, 3);
    half_linear<Q8_0, 12>(1568, 24), half_linear<Q8_0, 0>(1568, 16, 8), half_linear<Q4_0, 7>(1024, 16);
    half_linear<Q4_0, 0>(96, 16, 2), half_linear<Q4_1, 5>(96, 16), half_linear<Q5_0, 7>(1024, 24);
    half_linear<Q5_1, 5>(544, 20), half_linear<F16, 7>(512, 16), half_linear<BF16, 0>(512, 33), half_linear<F32, 3>(704, 16);
    // Through rings: tiles that two blocks share, warps with pieces of two tiles and more, of one alone, and with none.
    half_linear_in_rings<Q6_K, 2>(1280, 80, 3, 3), half_linear_in_rings<Q4_K, 4>(512, 48, 3, 16), half_linear_in_rings<Q5_K, 3>(768, 112, 2, 4);
    half_linear_in_rings<Q6_K, 4>(256, 64, 1, 8), half_linear_in_rings<Q4_K, 1>(2816, 16, 1, 5);
    ffn_act<Q4_K, Q4_K, 0, 4>(768, 80, 3, 1, 32 * 5), ffn_act<Q6_K, Q6_K, 0, 3>(1280, 48, 2, 1, 32 * 16), ffn_act<Q5_K, Q5_K, 0, 2>(256, 32, 3, 1, 32 * 7);
    lm_head<Q6_K, false, 3>(1536, 208, 5, 2), lm_head<Q4_K, false, 4>(512, 96, 16, 3), lm_head<Q5_K, false, 2>(256, 64, 3, 2);
    ffn_act<Q5_0, Q5_0, 4, 7>(896, 72, 3, 1), ffn_act<Q4_K, Q4_K, 2, 2>(1536, 32, 2, 1);
    ffn_act<Q4_K, Q4_K, 2, 0>(512, 200, 4, 4), ffn_act<Q4_K, Q4_K, 2, 0>(1536, 100, 3, 3, 192), ffn_act<F16, F16, 2, 7>(896, 16, 1, 1);
    ffn_act<F16, Q8_0, 2, 0>(256, 80, 2, 3), ffn_act<Q4_K, Q6_K, 2, 0>(512, 48, 3, 1), ffn_act<Q8_0, Q4_K, 2, 0>(2816, 16, 1, 1);
    // Whole: more rows than blocks and fewer, some that are not there.
    ffn_act<Q4_K, Q4_K, 1, 1>(1536, 100, 3, 1), ffn_act<Q5_0, Q5_0, 1, 5>(896, 72, 5, 1), ffn_act<Q6_K, Q6_K, 1, 0>(512, 12, 3, 1);
    lm_head<Q8_0, false>(896, 97, 2, 3), lm_head<Q6_K, false>(1536, 72, 2, 2), lm_head<BF16, false>(128, 64, 1, 3);
    lm_head<Q8_0, true>(896, 96, 3, 2), lm_head<Q6_K, true>(1536, 208, 2, 2, 1), lm_head<Q5_0, true>(96, 208, 4, 2), lm_head<BF16, true>(128, 64, 1, 3);
    attn_qkv<Q5_0, Q5_0, Q8_0, KvF32, 64, 1, false, 4, 4, 7>(896, 2, 1, 640);
    attn_qkv<Q4_K, Q4_K, Q6_K, KvF16, 128, 1, false, 2, 2, 2>(1536, 1, 1, 5);
    attn_qkv<Q5_0, Q5_0, Q5_0, KvF32, 64, 1, false, 2, 2, 2>(416, 4, 2, 3);
    attn_qkv<F16, F16, F16, KvF32, 128, 4, true, 0, 0, 0>(256, 2, 1, 17);
    attn_qkv<Q8_0, Q8_0, Q8_0, KvF32, 32, 1, false, 1, 1, 1>(96, 4, 2, 9);
    attn_qkv<Q8_0, Q4_0, F32, KvF32, 64, 2, true, 0, 0, 0>(128, 2, 2, 11);
    // Through rings: blocks whose pairs are of two heads, more warps than pieces, formats side by side.
    attn_qkv<Q4_K, Q4_K, Q6_K, KvF32, 64, 0, false, 3, 3, 3>(768, 3, 1, 19, {5, 2, 1}, 16);
    attn_qkv<Q4_K, Q4_K, Q4_K, KvF16, 128, 0, false, 2, 2, 2>(512, 2, 1, 640, {3, 3, 2}, 4);
    attn_qkv<Q6_K, Q5_K, Q4_K, KvF32, 32, 0, false, 1, 1, 1>(256, 4, 2, 0, {3, 1, 4}, 8);
    attention<KvF32, 64, 7, Q5_0, 4>(2, 641, 64, 16), attention<KvF32, 64, 7, Q5_0, 4>(2, 16, 64, 32);
    attention<KvF16, 128, 6, Q4_K, 0>(1, 300, 64, 16), attention<KvF32, 128, 6, Q8_0, 0>(1, 1, 64, 16);
    attention<KvF16, 128, 6, Q4_K, 0>(1, 2700, 64, 16);
    attention<KvF32, 128, 6, Q8_0, 0, 32>(1, 150, 2, 16);
    attention<KvF32, 32, 2, Q8_0, 1>(2, 1300, 64, 16), attention<KvF32, 64, 16, F16, 0>(1, 77, 3, 16);
    attention<KvF32, 64, 1, F32, 0>(2, 700, 5, 16), attention<KvF16, 64, 7, Q5_0, 2>(1, 2500, 64, 16);
    attention<KvF32, 128, 4, Q4_K, 0, KEYS, 2>(1, 700, 64, 112), attention<KvF16, 64, 4, Q6_K, 0, KEYS, 3>(1, 130, 64, 48);
    // Compiled for the length of the vector, as the engine does it: where all is kept, and where not.
    half_linear<Q6_K, 2, 4864, 80>(4864, 16), half_linear<Q4_K, 0, 8960, 144>(8960, 16), half_linear<Q5_1, 5, 544, 9>(544, 20);
    ffn_act<Q5_0, Q5_0, 4, 7, 896>(896, 72, 3, 1), ffn_act<Q4_K, Q4_K, 1, 1, 1536>(1536, 100, 3, 1), ffn_act<Q4_K, Q4_K, 0, 4, 768>(768, 80, 3, 1, 32 * 5);
    ffn_act<F16, Q8_0, 2, 0, 256>(256, 80, 2, 3), ffn_act<Q4_0, Q4_0, 2, 7, 1792>(1792, 16, 1, 1);
    lm_head<Q8_0, true, 0, 896>(896, 96, 3, 2), lm_head<Q6_K, false, 3, 1536>(1536, 208, 5, 2);
    attn_qkv<Q5_0, Q5_0, Q8_0, KvF32, 64, 1, false, 4, 4, 7, 896>(896, 2, 1, 640);
    attn_qkv<Q4_K, Q4_K, Q6_K, KvF16, 128, 1, false, 2, 2, 2, 1536>(1536, 1, 1, 5);
    attn_qkv<Q8_0, Q4_0, F32, KvF32, 64, 2, true, 0, 0, 0, 128>(128, 2, 2, 11);
    // No multiple of 128: some threads of a block keep nothing.
    ffn_act<Q5_0, Q5_0, 4, 3, 320>(320, 72, 3, 1), attn_qkv<Q8_0, Q8_0, Q8_0, KvF32, 32, 1, false, 2, 2, 2, 160>(160, 4, 2, 9);
    attn_qkv<Q4_K, Q4_K, Q6_K, KvF32, 64, 0, false, 3, 3, 3, 768>(768, 3, 1, 19, {5, 2, 1}, 16);
    attention<KvF32, 64, 7, Q5_0, 4, KEYS, 0, 896>(2, 641, 64, 16), attention<KvF16, 64, 4, Q6_K, 0, KEYS, 3, 256>(1, 130, 64, 48);
    // A ring that goes round and one that does not, a newest key in a chunk of its own, rows that are not there, shares and
    // blocks of a cluster that are left without keys.
    attention_halves<64, 7, 3, 4>(2, 641, 7), attention_halves<64, 7, 2, 1>(1, 1025, 2);
    attention_halves<128, 6, 3, 2>(1, 300, 4), attention_halves<32, 1, 2, 1>(3, 1, 8);
    attention_halves<64, 8, 2, 4>(1, 65, 64), attention_halves<64, 2, 2, 2>(1, 1153, 1);
    what_is_no_number<64>(), what_is_no_number<128>();
    cache_rows<KvF32>(128, 6), cache_rows<KvF16>(96, 130), cache_rows<KvF32>(1024, 3);
    printf("%d wrong\n", wrong);
    return wrong != 0;
}
