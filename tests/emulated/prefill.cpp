// The kernels of a step of many tokens against their definitions in double precision,
// thread by thread on a CPU: what other cards than Hopper run, or (__CUDA_ARCH_FEAT_SM90_ALL)
// products and attention as Hopper makes them.
#include "fixtures.h"

#include "fused/rows.cuh"
#include "prefill/cache.cuh"
#include "prefill/pieces.cuh"
#include "prefill/shares.cuh"
#include "prefill/warpgroups.cuh"
#include "prefill/act_rows.cu"
#include "prefill/cache_tiles.cu"
#include "prefill/head_rows.cu"
#include "prefill/norm_rows.cu"
#include "prefill/prepare_rows.cu"
#include "prefill/widen.cu"
namespace halved {
#include "prefill/wide_products.cu"
}
namespace made {
#include "prefill/products.cu"
}
namespace attending {
#include "prefill/attention_rows.cu"
}
namespace widely {
#include "prefill/wide_attention.cu"
}

template <class Part>
static Operand operand(int tokens, int n) {
    const size_t rows = (tokens + OPERAND_TOKENS - 1) / OPERAND_TOKENS * OPERAND_TOKENS, groups = rows * padded_groups(n);
    const size_t sums = rows * ((n + 255) / 256) * EIGHT_SUMS;
    return {(u8 *)unwritten(groups * PartsOf<Part>::COUNT * PART_BYTES / 4), unwritten(tokens), (u8 *)unwritten(sums / 4)};
}

// An element's shares, added up.
static float added(const float *at, const float *rest, size_t stride, int shares, size_t i) {
    float sum = at[i];
    for (int s = 1; s < shares; s++) sum += rest[s * stride + i];
    return sum;
}

// The shares of a product of prepared rows, added up.
template <class F, class Part, int STAGES = 3>
static std::vector<float> product(const Operand &x, const Matrix &w, int tokens, int shares) {
    typedef made::Stage<Piece<F, Part>, Part> S;
    constexpr int STAGE = S::BYTES, SHARED = STAGES * STAGE + (S::EIGHTS ? 2 * made::MINIMA : 0);
    made::ProductsParams p{};
    p.x = x, p.w[0] = w.planes, p.m[0] = w.m, p.n = w.n, p.tokens = tokens;
    const size_t count = (size_t)tokens * w.m;
    p.y[0] = unwritten(count * shares);
    launch({(unsigned)(tokens + TOKENS - 1) / TOKENS, (unsigned)(w.m + made::OUTPUTS - 1) / made::OUTPUTS, (unsigned)shares},
           made::THREADS, SHARED, [&] { made::products<Part, F, F, F, STAGE, STAGES>(p); });
    std::vector<float> sum(count);
    for (size_t i = 0; i < count; i++) sum[i] = added(p.y[0], p.y[0], count, shares, i);
    return sum;
}

static void compare_products(const char *what, const std::vector<float> &y, const Matrix &w, const Doubles &x, int tokens) {
    Doubles right, size;
    for (int t = 0; t < tokens; t++) {
        Doubles y, s;
        w.times(Doubles(x.begin() + (size_t)t * w.n, x.begin() + (size_t)(t + 1) * w.n), y, s);
        right.insert(right.end(), y.begin(), y.end()), size.insert(size.end(), s.begin(), s.end());
    }
    compare(what, y.data(), right, size, PRODUCT);
}

template <class F, class Part, int STAGES = 3>
static void products(int n, int m, int tokens, int shares) {
    printf("products<%s> of %d x %d, %d tokens, %d shares\n", format<F>().name, n, m, tokens, shares);
    const Matrix w = matrix<F>(n, m);
    const auto x = vector_of(tokens * n);
    PrepareRowsParams p{copied(x), operand<Part>(tokens, n), n};
    launch({(unsigned)tokens}, 64, 4 * n, [&] { prepare_rows<Part>(p); });
    compare_products("product", product<F, Part, STAGES>(p.to, w, tokens, shares), w, Doubles(x.begin(), x.end()), tokens);
}

// Three matrices of two formats at once, of which the second's stages are the larger.
template <class A, class B>
static void three_products(int n, int tokens) {
    printf("products<%s, %s, %s>\n", format<A>().name, format<A>().name, format<B>().name);
    const Matrix w[3] = {matrix<A>(n, 130), matrix<A>(n, 40), matrix<B>(n, 200)};
    const auto x = vector_of(tokens * n);
    PrepareRowsParams prepare{copied(x), operand<HalfPart>(tokens, n), n};
    launch({(unsigned)tokens}, 64, 4 * n, [&] { prepare_rows<HalfPart>(prepare); });
    typedef made::Stage<Piece<A, HalfPart>, HalfPart> First;
    constexpr int STAGE = made::Stage<Piece<B, HalfPart>, HalfPart>::BYTES;
    made::ProductsParams p{};
    p.x = prepare.to, p.n = n, p.tokens = tokens;
    for (int i = 0; i < 3; i++) p.w[i] = w[i].planes, p.m[i] = w[i].m, p.y[i] = unwritten((size_t)tokens * w[i].m);
    launch({(unsigned)(tokens + TOKENS - 1) / TOKENS, 5}, made::THREADS, 3 * STAGE + (First::EIGHTS ? 2 * made::MINIMA : 0),
           [&] { made::products<HalfPart, A, A, B, STAGE, 3>(p); });
    for (int i = 0; i < 3; i++) {
        const std::vector<float> y(p.y[i], p.y[i] + (size_t)tokens * w[i].m);
        compare_products("one of three", y, w[i], Doubles(x.begin(), x.end()), tokens);
    }
}

// A matrix as halves.
template <class F>
static WidenParams widened(const Matrix &w) {
    typedef ImageOf<Piece<F, HalfPart>> I;
    const unsigned pieces = padded_groups(w.n) / PIECE, tiles = (w.m + WIDE_ROWS - 1) / WIDE_ROWS;
    const size_t minima = (size_t)tiles * ((w.n / 32 + 7) / 8) * WIDE_MINIMA;
    WidenParams p{w.planes, (u8 *)unwritten(tiles * pieces * I::BYTES / 4), (u8 *)unwritten(minima / 4), w.n, w.m};
    launch({pieces, tiles}, WIDE_ROWS, 0, [&] { widen<F>(p); });
    return p;
}
// Products of up to three matrices as halves; of a step whose tokens' parts of the last tile nobody wrote.
// `whole`: tiles that are made at once; the others in shares.
template <class A, class B, class C>
static void wide_products(int n, std::vector<int> m, int tokens, int shares, int whole = 0) {
    printf("wide_products<%s, %s, %s> of %d, %d tokens, %d shares after %d tiles\n", format<A>().name, format<B>().name, format<C>().name, n,
           tokens, shares, whole);
    const auto x = vector_of(tokens * n);
    PrepareRowsParams prepare{copied(x), operand<HalfPart>(tokens, n), n};
    launch({(unsigned)tokens}, 64, 4 * n, [&] { prepare_rows<HalfPart>(prepare); });
    halved::WideProductsParams p{};
    p.x = prepare.to, p.n = n, p.tokens = tokens, p.whole = whole, p.shares = shares;
    std::vector<Matrix> w = {matrix<A>(n, m[0])};
    if (m.size() > 1) w.push_back(matrix<B>(n, m[1]));
    if (m.size() > 2) w.push_back(matrix<C>(n, m[2]));
    int tiles = 0, first[3];
    for (int i = 0; i < (int)w.size(); i++) first[i] = tiles, tiles += (m[i] + WIDE_ROWS - 1) / WIDE_ROWS;
    p.token0 = whole / tiles * OPERAND_TOKENS;
    std::vector<Shared> made;
    for (int i = 0; i < (int)w.size(); i++) {
        const WidenParams wide = i == 0 ? widened<A>(w[i]) : i == 1 ? widened<B>(w[i]) : widened<C>(w[i]);
        const size_t stride = (size_t)(tokens - p.token0) * m[i];
        p.images[i] = wide.images, p.minima[i] = wide.minima, p.m[i] = m[i], p.y[i] = unwritten((size_t)tokens * m[i]);
        p.rest[i] = unwritten((shares - 1) * stride) - stride - (size_t)p.token0 * m[i];
        made.push_back({p.y[i], p.rest[i], stride, shares, p.token0, std::min(m[i], std::max(0, whole % tiles - first[i]) * WIDE_ROWS)});
    }
    const unsigned all = tiles * ((tokens + OPERAND_TOKENS - 1) / OPERAND_TOKENS), items = whole + (all - whole) * shares;
    launch({std::min(items, 2u)}, halved::THREADS, WIDE_STAGES * (WIDE_STAGE + WIDE_EIGHT),
           [&] { halved::wide_products<ImageOf<Piece<A, HalfPart>>, ImageOf<Piece<B, HalfPart>>, ImageOf<Piece<C, HalfPart>>>(p); });
    for (int i = 0; i < (int)w.size(); i++) {
        std::vector<float> y;
        for (int t = 0; t < tokens; t++) {
            for (int o = 0; o < m[i]; o++) y.push_back(made[i].two(t, m[i], o, o).x);
        }
        compare_products("wide product", y, w[i], Doubles(x.begin(), x.end()), tokens);
    }
}

// Rows that become operands: seen by what a product makes of them.
template <class Part>
static void rows(int n, int tokens, int shares, int threads) {
    printf("norm_rows and act_rows of %d, %d shares\n", n, shares);
    const Matrix w = matrix<Q8_0>(n, 24);
    const size_t count = (size_t)tokens * n;
    const auto base = vector_of(count), parts = vector_of(count * shares), second = vector_of(count * shares), weight = vector_of(n);
    // The first token's in one share, of the second elements from 32 on in all: only operands of halves come with such a cut.
    const int token0 = PartsOf<Part>::COUNT == 2 ? 1 : 0, row0 = token0 ? 32 : 0;
    auto shared = [&](const std::vector<float> &all) {
        const float *at = copied(all);
        return Shared{at, at, count, shares, token0, row0};
    };
    const Shared a = shared(parts), b = shared(second);
    NormRowsParams norm{copied(base), a, unwritten(count), copied(weight), operand<Part>(tokens, n), unwritten(count),
                        unwritten(count), n, 1e-6f};
    launch({(unsigned)tokens}, threads, 4 * n, [&] { norm_rows<Part>(norm); });
    Doubles normed, sums, product_of;
    for (int t = 0; t < tokens; t++) {
        std::vector<float> x(n);
        for (int i = 0; i < n; i++) {
            const float product = a.two(t, n, i, i).x;
            x[i] = base[t * n + i] + product, sums.push_back(x[i]), product_of.push_back(product);
        }
        const Doubles y = norm_of(x, weight);
        normed.insert(normed.end(), y.begin(), y.end());
    }
    compare("product", norm.product_tap, product_of, magnitudes(product_of), 1e-9);
    compare("sum", norm.sum, sums, Doubles(count, 1e-3), 1e-9);
    compare("norm", norm.norm_tap, normed, magnitudes(normed), PRODUCT);
    compare_products("of the norm", product<Q8_0, Part>(norm.to, w, tokens, 1), w, normed, tokens);

    ActRowsParams act{a, b, operand<Part>(tokens, n), unwritten(count), unwritten(count), unwritten(count), n};
    launch({(unsigned)tokens}, threads, 4 * n, [&] { act_rows<Part>(act); });
    Doubles y;
    for (size_t i = 0; i < count; i++) y.push_back((double)act.gate_tap[i] / (1 + std::exp(-(double)act.gate_tap[i])) * act.up_tap[i]);
    Doubles size = magnitudes(y);
    for (double &s : size) s += 1e-20; // below it an exponential is infinite
    compare("act", act.tap, y, size, 1e-5);
    compare_products("of the act", product<Q8_0, Part>(act.to, w, tokens, 1), w, Doubles(act.tap, act.tap + count), tokens);
}

// Of elements before `cut` the first share is all there is: tiles that are made at once may end within a head.
template <class Kv, int D, bool NORM>
static void heads(int heads, int kv_heads, int tokens, int first, int shares, int cut = 0) {
    printf("head_rows<%d bytes, %d> of %d heads\n", (int)sizeof(typename Kv::Type), D, heads);
    typedef typename Kv::Type Type;
    HeadRowsParams p{};
    std::vector<float> frequency, bias[3], head_norm[2] = {vector_of(D), vector_of(D)}, parts[3];
    for (int i = 0; i < D / 2; i++) frequency.push_back((float)std::pow(1e6, -2.0 * i / D));
    const int capacity = first + tokens + 1, width[3] = {heads * D, kv_heads * D, kv_heads * D};
    Type *cache[2] = {room<Type>((size_t)capacity * width[1]), room<Type>((size_t)capacity * width[1])};
    for (int i = 0; i < 3; i++) {
        parts[i] = vector_of(tokens * width[i] * shares), bias[i] = vector_of(width[i]);
        const float *at = copied(parts[i]);
        p.product[i] = {at, at, (unsigned long long)tokens * width[i], shares, 0, cut};
        p.proj_tap[i] = unwritten(tokens * width[i]);
        if (!NORM) p.bias[i] = copied(bias[i]);
        else if (i < 2) p.head_norm[i] = copied(head_norm[i]);
    }
    p.frequency = copied(frequency), p.q = unwritten(tokens * width[0]), p.k_cache = cache[0], p.v_cache = cache[1];
    p.heads = heads, p.kv_heads = kv_heads, p.first = first, p.eps = 1e-6f;
    launch({(unsigned)tokens}, 256, 0, [&] { head_rows<Kv, D>(p); });
    for (int part = 0; part < 3; part++) {
        Doubles y(p.proj_tap[part], p.proj_tap[part] + tokens * width[part]), size, sums;
        for (int i = 0; i < tokens * width[part]; i++) {
            double sum = parts[part][i];
            for (int s = 1; s < shares && i % width[part] >= cut; s++) sum += parts[part][s * tokens * width[part] + i];
            sums.push_back(sum);
        }
        compare("product", p.proj_tap[part], sums, Doubles(sums.size(), 1e3), 1e-6);
        for (int h = 0; h < tokens * width[part] / D; h++) {
            const int t = h / (width[part] / D), of_token = h % (width[part] / D);
            double *of = &y[h * D], squares = 0;
            for (int i = 0; i < D; i++) of[i] += NORM ? 0 : bias[part][of_token * D + i], squares += of[i] * of[i];
            for (int i = 0; NORM && part < 2 && i < D; i++) of[i] *= head_norm[part][i] / std::sqrt(squares / D + 1e-6);
            for (int i = 0; part < 2 && i < D / 2; i++) {
                const double angle = (float)(first + t) * frequency[i], a = of[i], b = of[i + D / 2];
                of[i] = a * std::cos(angle) - b * std::sin(angle);
                of[i + D / 2] = a * std::sin(angle) + b * std::cos(angle);
            }
            double largest = 0;
            for (int i = 0; i < D; i++) largest = std::max(largest, std::fabs(of[i]));
            size.insert(size.end(), D, largest);
        }
        std::vector<float> made;
        for (int i = 0; i < tokens * width[part]; i++) {
            made.push_back(part == 0 ? p.q[i] : Kv::get(cache[part - 1][(size_t)first * width[part] + i]));
        }
        compare(part == 0 ? "q" : part == 1 ? "k" : "v", made.data(), y, size, sizeof(Type) == 4 ? PRODUCT : 1e-3);
    }
}

// `broken`: a key, or a value, that holds no number, or a key 1e9 times as large as others: it is seen by
// its own and later tokens alone.
enum Broken { NOTHING, KEY, VALUE, HUGE };
template <class Kv, int D, bool TAPPED, int TILES = 2>
static void attention(int heads, int kv_heads, int tokens, int first, Broken broken = NOTHING) {
    printf("attention<%d bytes, %d, %d> of %d heads by %d, %d tokens after %d\n", (int)sizeof(typename Kv::Type), D, TILES, heads,
           kv_heads, tokens, first);
    typedef typename Kv::Type Type;
    const int keys = first + tokens, group = heads / kv_heads, tiles = (keys + CacheTile<D>::KEYS - 1) / CacheTile<D>::KEYS;
    const auto q = vector_of(tokens * heads * D, 0.3f);
    std::normal_distribution<float> normal;
    Type *cache[2];
    std::vector<float> kept[2];
    for (int c = 0; c < 2; c++) {
        cache[c] = room<Type>((size_t)keys * kv_heads * D);
        for (int i = 0; i < keys * kv_heads * D; i++) kept[c].push_back(Kv::get(cache[c][i] = Kv::put(normal(noise))));
    }
    const int at = first + tokens / 2;
    for (int h = 0; broken && h < kv_heads; h++) {
        const int c = broken == VALUE, i = (at * kv_heads + h) * D + h % D;
        const float v = broken == HUGE ? 1e9f : h % 2 ? INFINITY : NAN;
        kept[c][i] = Kv::get(cache[c][i] = Kv::put(v));
    }
    CacheTilesParams cut{cache[0], cache[1], room<u8>((size_t)kv_heads * tiles * CacheTile<D>::BYTES), kv_heads, keys};
    launch({(unsigned)tiles, (unsigned)kv_heads}, CacheTile<D>::KEYS * D / 4, 0, [&] { cache_tiles<Kv, D, CacheTile<D>::KEYS>(cut); });
    const size_t pairs = (size_t)heads * tokens * keys;
    attending::AttentionRowsParams p{copied(q), cut.tiles, unwritten(tokens * heads * D),
                                     TAPPED ? unwritten(pairs) : nullptr, TAPPED ? unwritten(pairs) : nullptr,
                                     heads, kv_heads, first, tokens, 1.0f / std::sqrt((float)D), tokens, keys};
    const dim3 grid = {(unsigned)(tokens * group + attending::ROWS - 1) / attending::ROWS, (unsigned)kv_heads};
    constexpr int BYTES = CacheTile<D>::BYTES;
    if constexpr (WARPGROUPS) {
        const widely::WideAttentionParams w{p.q, p.tiles, p.out, p.scores_tap, p.weights_tap, heads, kv_heads, first, tokens, p.scale, tokens, keys};
        constexpr int GROUPS = widely::GROUPS;
        launch(grid, 128 * GROUPS, widely::STAGES * GROUPS * BYTES, [&] { widely::wide_attention<D, TAPPED, BYTES>(w); });
    } else {
        launch(grid, TILES * attending::THREADS, 2 * TILES * BYTES, [&] { attending::attention_rows<D, TAPPED, BYTES, TILES>(p); });
    }
    Doubles scores, score_size, weights, context;
    for (int h = 0; h < heads; h++) {
        for (int t = 0; t < tokens; t++) {
            auto at = [&](int c, int n) { return &kept[c][((size_t)n * kv_heads + h / group) * D]; };
            for (int n = 0; n < keys; n++) {
                double s = 0, size = 1e-20;
                for (int i = 0; n <= first + t && i < D; i++) {
                    const double product = (double)q[(t * heads + h) * D + i] * at(0, n)[i];
                    s += product, size += std::fabs(product);
                }
                scores.push_back(s), score_size.push_back(size);
            }
        }
    }
    context.assign(tokens * heads * D, 0);
    for (int h = 0; h < heads; h++) {
        for (int t = 0; t < tokens; t++) {
            const double *row = &scores[((size_t)h * tokens + t) * keys];
            double most = -INFINITY, total = 0;
            for (int n = 0; n <= first + t; n++) most = std::max(most, row[n] * p.scale);
            for (int n = 0; n < keys; n++) weights.push_back(n <= first + t ? std::exp(row[n] * p.scale - most) : 0), total += weights.back();
            for (int n = 0; n < keys; n++) {
                double &w = weights[weights.size() - keys + n];
                w /= total;
                for (int i = 0; i < D; i++) context[(t * heads + h) * D + i] += w * kept[1][((size_t)n * kv_heads + h / group) * D + i];
            }
        }
    }
    if (broken) { // before it all is as it was; from it on there is no number, or what is said of the huge one alone
        for (int h = 0; h < heads; h++) {
            for (int t = 0; t < tokens; t++) {
                const bool before = first + t < at, number = broken == HUGE || before;
                double worst = 0, most = 0;
                for (int i = 0; i < D; i++) {
                    const int k = (t * heads + h) * D + i;
                    if (number != (p.out[k] == p.out[k])) printf("  token %d: %g\n", t, p.out[k]), wrong++, i = D;
                    worst = std::max(worst, std::fabs(p.out[k] - context[k])), most = std::max(most, std::fabs(context[k]));
                }
                if (before && !(worst < 2e-5 * (most + 1))) printf("  token %d is off by %g\n", t, worst), wrong++;
            }
        }
        return;
    }
    if (TAPPED) {
        compare("scores", p.scores_tap, scores, score_size, PRODUCT);
        compare("weights", p.weights_tap, weights, Doubles(pairs, 1), 2e-5);
    }
    compare("context", p.out, context, Doubles(context.size(), 1), 2e-5);
}

int main() {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    // An odd number of groups, tiles that are not full, shares of which the last is shorter.
    products<Q4_0, HalfPart>(96, 130, 5, 1), products<Q4_1, HalfPart>(160, 20, 65, 2), products<Q5_0, HalfPart>(224, 129, 9, 1);
    products<Q5_1, HalfPart>(32, 40, 3, 1), products<Q8_0, HalfPart>(352, 24, 10, 3), products<Q4_K, HalfPart>(512, 33, 12, 1);
    products<Q5_K, HalfPart>(256, 16, 70, 2), products<Q6_K, HalfPart>(768, 17, 6, 2), products<F16, HalfPart>(96, 40, 7, 1);
    products<F16, BrainPart>(96, 24, 4, 1), products<BF16, BrainPart>(160, 24, 4, 2), products<F32, BrainPart>(96, 40, 5, 1);
    products<Q6_K, BrainPart>(256, 16, 4, 1), products<Q8_0, BrainPart>(64, 16, 4, 1);
    // Shares that end within eight groups, and minima of which there are more stages than one.
    products<Q4_K, HalfPart, 4>(1280, 20, 66, 7), products<Q5_1, HalfPart, 2>(864, 20, 5, 5), products<Q5_K, HalfPart, 4>(768, 130, 4, 1);
    products<Q4_K, BrainPart>(512, 16, 4, 3), products<Q4_1, BrainPart>(352, 16, 66, 2);
    products<Q5_0, HalfPart, 4>(352, 24, 10, 4), products<BF16, BrainPart, 2>(160, 24, 4, 1);
    three_products<Q5_0, Q8_0>(160, 6), three_products<Q4_K, Q6_K>(512, 5);
#ifdef PRODUCTS_ALONE
    static_assert(WARPGROUPS, "products as Hopper makes them");
    // Odd numbers of groups, two tiles of rows and of tokens, more pieces than stages, shares that end within eight groups,
    // and more of all these than blocks.
    wide_products<Q4_0, Q4_0, Q4_0>(96, {200}, 5, 1), wide_products<Q5_0, Q5_0, Q8_0>(352, {40, 20, 24}, 130, 1);
    wide_products<Q8_0, Q8_0, Q8_0>(1120, {24}, 9, 3), wide_products<F16, F16, F16>(160, {40}, 7, 1);
    wide_products<Q6_K, Q6_K, Q6_K>(768, {17}, 6, 2), wide_products<Q4_K, Q4_K, Q6_K>(512, {33, 16, 16}, 12, 1);
    wide_products<Q4_K, Q4_K, Q4_K>(1280, {20}, 131, 7), wide_products<Q5_K, Q6_K, Q4_1>(768, {200, 9, 9}, 4, 1);
    // Tiles at once, then a cut within a matrix, between two, at a tile of tokens, and of all tiles but one token's.
    wide_products<Q5_0, Q5_0, Q8_0>(352, {200, 20, 24}, 130, 2, 5), wide_products<Q4_K, Q4_K, Q4_K>(1280, {200, 200}, 131, 3, 6);
    wide_products<Q8_0, Q8_0, Q8_0>(1120, {24}, 131, 3, 1), wide_products<Q6_K, Q6_K, Q6_K>(768, {200, 17}, 130, 2, 1);
    wide_products<Q5_1, Q5_1, Q5_1>(864, {20}, 5, 5), wide_products<Q4_1, Q5_0, Q5_1>(160, {20, 20, 20}, 3, 1);
    // Fewer tiles than warpgroups, and more than these have places for.
    attention<KvF32, 64, true>(7, 1, 20, 50), attention<KvF32, 64, false>(2, 2, 3, 530), attention<KvF16, 128, true>(6, 1, 12, 40);
    attention<KvF32, 128, false>(2, 1, 35, 0), attention<KvF16, 64, true>(14, 2, 10, 0), attention<KvF32, 128, true>(2, 1, 40, 150);
    attention<KvF32, 64, true>(7, 1, 20, 50, KEY), attention<KvF32, 64, false>(4, 2, 40, 30, VALUE);
    attention<KvF32, 128, false>(4, 2, 20, 10, VALUE), attention<KvF32, 128, true>(2, 1, 40, 150, KEY);
    attention<KvF32, 64, true>(2, 1, 20, 450, HUGE);
#else
    rows<HalfPart>(896, 2, 3, 128), rows<BrainPart>(96, 3, 1, 32), rows<HalfPart>(1568, 2, 2, 64);
    heads<KvF32, 64, false>(4, 2, 3, 17, 2), heads<KvF16, 128, true>(2, 1, 2, 0, 1), heads<KvF32, 32, true>(3, 3, 2, 5, 3);
    heads<KvF32, 128, false>(2, 2, 3, 4, 3, 192), heads<KvF16, 64, true>(3, 1, 2, 9, 2, 32); // cuts within a head
    attention<KvF32, 64, true>(7, 1, 20, 50), attention<KvF32, 64, false>(2, 2, 3, 130), attention<KvF16, 128, true>(6, 1, 12, 40);
    attention<KvF32, 128, false>(2, 1, 35, 0), attention<KvF32, 32, true>(4, 2, 33, 64), attention<KvF32, 64, true>(14, 2, 10, 0);
    attention<KvF32, 64, true>(7, 1, 20, 50, KEY), attention<KvF32, 64, false>(4, 2, 20, 30, VALUE);
    attention<KvF32, 128, false>(4, 2, 20, 10, VALUE), attention<KvF32, 64, true>(2, 1, 20, 50, HUGE);
    attention<KvF32, 64, true, 1>(7, 1, 20, 150), attention<KvF16, 128, false, 1>(6, 1, 12, 40), attention<KvF32, 32, true, 1>(4, 2, 33, 64);
    attention<KvF32, 64, true>(7, 1, 20, 330), attention<KvF32, 128, true>(2, 1, 40, 150, VALUE);
    attention<KvF16, 32, true>(16, 1, 40, 3, KEY), attention<KvF32, 32, false>(16, 1, 40, 3);
#endif
    printf("%d wrong\n", wrong);
    return wrong != 0;
}
