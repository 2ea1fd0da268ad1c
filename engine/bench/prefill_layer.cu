// The kernels of a layer of a prefill, each many times in a row, on weights that are noise: microseconds, TFLOP/s that
// the products need (the tensor cores do two or three times as much), and how far the products are from their
// definition in f64. Of products both kernels, alternately: that of the blocks as they are, and that of halves; weights
// come from memory, for copies of them take turns. And all products of a prefill of the 0.5B in F16 in a row, as the engine launches
// them, beside what the tensor cores give at most.
//
// nvcc -O3 -std=c++17 -arch=sm_90a -I engine/kernels engine/bench/prefill_layer.cu -o prefill_layer
// prefill_layer [TOKENS]; with ALL in the environment every format as well; with LARGE alone the shapes of a 7B and of a 32B; with
// ODD alone shapes that are not whole, for compute-sanitizer. Fails where a product is wrong.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "prefill/products.cu"
#include "prefill/norm_rows.cu"
#include "prefill/act_rows.cu"
#include "prefill/prepare_rows.cu"
#include "kv.cuh"
#include "prefill/head_rows.cu"
#include "prefill/cache_tiles.cu"
#include "prefill/widen.cu"
namespace halved {
#include "prefill/wide_products.cu"
}
#include "tensor_cores.cuh"
#ifndef KEY_TILES
#define KEY_TILES 2 // tiles of keys
#endif
namespace rows {
#include "prefill/attention_rows.cu"
}
namespace widely {
#include "prefill/wide_attention.cu"
}
template <typename P>
static P widely_params(void (*)(P));

#define CK(x)                                                                                    \
    do {                                                                                         \
        cudaError_t e_ = (x);                                                                    \
        if (e_) {                                                                                \
            printf("%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(e_));                    \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

static std::mt19937_64 noise(7);
static int processors;

template <typename T>
static T *room(size_t count) {
    void *at;
    CK(cudaMalloc(&at, count * sizeof(T) + 256));
    CK(cudaMemset(at, 0, count * sizeof(T) + 256));
    return (T *)at;
}
static float *normal(size_t count, float size) {
    std::normal_distribution<float> d;
    std::vector<float> v(count);
    for (float &e : v) e = d(noise) * size * (noise() % 997 == 0 ? 100.0f : 1.0f);
    float *at = room<float>(count);
    CK(cudaMemcpy(at, v.data(), 4 * count, cudaMemcpyHostToDevice));
    return at;
}

// Bytes of a block by plane, its weights, and which planes are halves.
template <typename F> struct About;
#define ABOUT(F, block, scales, ...)                       \
    template <> struct About<F> {                          \
        static constexpr int BLOCK = block, SCALES = scales; \
        static std::vector<int> bytes() { return {__VA_ARGS__}; } \
        static const char *name() { return #F; }           \
    };
ABOUT(F32, 1, -1, 4) ABOUT(F16, 1, 0, 2) ABOUT(BF16, 1, -1, 2) ABOUT(Q4_0, 32, 1, 16, 2) ABOUT(Q4_1, 32, 1, 16, 4)
ABOUT(Q5_0, 32, 2, 16, 4, 2) ABOUT(Q5_1, 32, 2, 16, 4, 4) ABOUT(Q8_0, 32, 1, 32, 2) ABOUT(Q4_K, 256, 1, 128, 16)
ABOUT(Q5_K, 256, 2, 128, 32, 16) ABOUT(Q6_K, 256, 3, 128, 64, 16, 2)

template <typename F>
static Weights matrix(int n, int m) {
    Weights w = {};
    auto bytes = About<F>::bytes();
    for (size_t i = 0; i < bytes.size(); i++) {
        std::vector<uint64_t> raw(((size_t)n * m / About<F>::BLOCK * bytes[i] + 7) / 8);
        for (auto &r : raw) r = noise();
        u16 *halves = (u16 *)raw.data();
        const size_t count = raw.size() * 4;
        if ((int)i == About<F>::SCALES) {
            const bool head = bytes[i] == 16;
            for (size_t k = 0; k < count; k++) if (!head || k % 8 < 2) halves[k] = (halves[k] & 0x83ff) | 0x2000;
        } else if (About<F>::SCALES < 0) { // floats of about 1
            const int each = bytes[i] / 2;
            for (size_t k = each - 1; k < count; k += each) halves[k] = (halves[k] & 0x80ff) | 0x3f00;
        }
        u8 *at = room<u8>(raw.size() * 8);
        CK(cudaMemcpy(at, raw.data(), raw.size() * 8, cudaMemcpyHostToDevice));
        w.plane[i] = at;
    }
    return w;
}

template <typename F>
__global__ void defined(Weights w, const float *x, int n, int m, int tokens, const int *rows, int count, double *y, double *all) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count * tokens) return;
    const int t = i / count, o = rows[i % count];
    double sum = 0, abs = 0;
    for (int g = 0; g < n / 32; g++) {
        float v[32];
        F::unpack(F::load(w, (size_t)o * (n / 32) + g), g % 8, v);
        for (int k = 0; k < 32; k++) {
            const double p = (double)v[k] * x[(size_t)t * n + 32 * g + k];
            sum += p, abs += fabs(p);
        }
    }
    y[i] = sum, all[i] = abs;
}

template <typename Run>
static double time_of(Run run) {
    cudaEvent_t a, b;
    CK(cudaEventCreate(&a));
    CK(cudaEventCreate(&b));
    for (int i = 0; i < 3; i++) run();
    CK(cudaEventRecord(a));
    for (int i = 0; i < 50; i++) run();
    CK(cudaEventRecord(b));
    CK(cudaEventSynchronize(b));
    CK(cudaGetLastError());
    float ms;
    CK(cudaEventElapsedTime(&ms, a, b));
    return ms / 50 * 1e3;
}

static Operand operand_of(int tokens, int n, int parts) {
    const size_t rows = (tokens + OPERAND_TOKENS - 1) / OPERAND_TOKENS * OPERAND_TOKENS;
    return {room<u8>(rows * (n + 63) / 64 * 2 * parts * PART_BYTES), room<float>(tokens), room<u8>(rows * ((n + 255) / 256) * EIGHT_SUMS)};
}
constexpr int SHARE_COST = 3; // what a share costs besides its pieces, in pieces
static int shares_of(int tiles, int slots, int pieces) {
    // As many as end soonest: in so many rounds of so many pieces each, and what begins and ends a share.
    int shares = 1, least = 1 << 30;
    for (int s = 1; s <= std::min(8, (pieces + 2) / 3); s++) {
        const int rounds = (tiles * s + slots - 1) / slots, cost = rounds * ((pieces + s - 1) / s + 4);
        if (cost < least) least = cost, shares = s;
    }
    if (const char *asked = getenv("SHARES")) shares = atoi(asked);
    return shares;
}
static int wrong = 0;
// How far shares that are added up are from their definition, in u of the sum of magnitudes.
struct Off {
    double most = 0, mean = 0;
};
static Off off_of(const float *at, size_t stride, int shares, int m, const std::vector<int> &rows, const std::vector<double> &want,
                  const std::vector<double> &all) {
    std::vector<float> y(stride * shares);
    CK(cudaMemcpy(y.data(), at, 4 * y.size(), cudaMemcpyDeviceToHost));
    Off off;
    for (size_t i = 0; i < want.size(); i++) {
        float sum = 0;
        for (int s = 0; s < shares; s++) sum += y[s * stride + i / rows.size() * m + rows[i % rows.size()]];
        const double u = fabs(sum - want[i]) / all[i] * 16777216.0;
        off.most = std::max(off.most, std::isnan(u) ? INFINITY : u), off.mean += u * u;
    }
    off.mean = sqrt(off.mean / want.size());
    if (!(off.most < 16)) wrong++, printf("WRONG: ");
    return off;
}
template <typename F>
static size_t plane_bytes(int plane, int n, int m) {
    return ((size_t)n * m / About<F>::BLOCK * About<F>::bytes()[plane] + 7) / 8 * 8;
}
template <typename F>
static Weights copy_of(const Weights &w, int n, int m) {
    Weights copy = {};
    for (size_t i = 0; i < About<F>::bytes().size(); i++) {
        u8 *at = room<u8>(plane_bytes<F>(i, n, m));
        CK(cudaMemcpy(at, w.plane[i], plane_bytes<F>(i, n, m), cudaMemcpyDeviceToDevice));
        copy.plane[i] = at;
    }
    return copy;
}
static void forget(const void *at) { CK(cudaFree((void *)at)); }

// How tiles are made, as `cut` of engine/src/cuda/prefill.rs has it: so many at once, the others in shares.
struct Cut {
    int whole, shares;
};
static Cut cut_of(int tiles, int slots, int pieces) {
    Cut best = {tiles, 1};
    int least = (tiles + slots - 1) / slots * (pieces + SHARE_COST);
    for (int whole = 0; whole < tiles; whole += slots) {
        for (int shares = 2; shares <= std::min(8, (pieces + SHARE_COST - 1) / SHARE_COST); shares++) {
            const int rest = ((tiles - whole) * shares + slots - 1) / slots * ((pieces + shares - 1) / shares + SHARE_COST);
            const int cost = whole / slots * (pieces + SHARE_COST) + rest;
            if (cost < least) least = cost, best = {whole, shares};
        }
    }
    if (const char *asked = getenv("SHARES")) best = {atoi(asked) > 1 ? 0 : tiles, atoi(asked)};
    return best;
}
static __global__ void add_up(Shared shared, int m, float *sum) {
    for (int i = threadIdx.x; i < m; i += blockDim.x) sum[(size_t)blockIdx.x * m + i] = shared.two(blockIdx.x, m, i, i).x;
}

// The same from halves: microseconds.
template <typename F>
static double wide_of(const char *what, const Operand &x, const std::vector<ProductsParams> &turns, int copies, double before,
                      const std::vector<int> &rows, const std::vector<double> &want, const std::vector<double> &all, bool same) {
    typedef ImageOf<Piece<F, HalfPart>> I;
    auto *kernel = halved::wide_products<I, I, I>;
    const ProductsParams &first = turns[0];
    const int n = first.n, m = first.m[0], tokens = first.tokens, pieces = (n / 32 + 1) / 2, tiles = (m + WIDE_ROWS - 1) / WIDE_ROWS;
    std::vector<halved::WideProductsParams> wide;
    for (const ProductsParams &turn : turns) {
        halved::WideProductsParams p = {};
        p.x = x, p.n = n, p.tokens = tokens;
        for (int i = 0; i < copies; i++) {
            WidenParams made = {turn.w[i], room<u8>((size_t)tiles * pieces * I::BYTES),
                                room<u8>((size_t)tiles * ((n / 32 + 7) / 8) * WIDE_MINIMA), n, m};
            widen<F><<<dim3(pieces, tiles), WIDE_ROWS>>>(made);
            p.images[i] = made.images, p.minima[i] = made.minima, p.m[i] = m;
        }
        wide.push_back(p);
    }
    const int bytes = WIDE_STAGES * (WIDE_STAGE + WIDE_EIGHT), of_tokens = (tokens + OPERAND_TOKENS - 1) / OPERAND_TOKENS;
    CK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    const int row_tiles = copies * tiles, all_tiles = row_tiles * of_tokens;
    const Cut cut = same ? Cut{all_tiles, 1} : cut_of(all_tiles, processors, pieces);
    const size_t stride = (size_t)tokens * m;
    const int token0 = cut.whole / row_tiles * OPERAND_TOKENS;
    Shared shared[3];
    float *parts[3];
    for (int i = 0; i < copies; i++) {
        const size_t of_share = (size_t)std::max(0, tokens - token0) * m;
        float *y = room<float>(stride), *rest = (parts[i] = room<float>((cut.shares - 1) * of_share + 1)) - of_share - (size_t)token0 * m;
        for (auto &p : wide) p.y[i] = y, p.rest[i] = rest, p.whole = cut.whole, p.shares = cut.shares, p.token0 = token0;
        shared[i] = {y, rest, of_share, cut.shares, token0, std::min(m, std::max(0, cut.whole % row_tiles - i * tiles) * WIDE_ROWS)};
    }
    const int grid = std::min(cut.whole + (all_tiles - cut.whole) * cut.shares, processors);
    size_t turn = 0;
    auto run = [&] { kernel<<<grid, halved::THREADS, bytes>>>(wide[turn++ % wide.size()]); };
    run();
    CK(cudaDeviceSynchronize());
    double us = 0;
    if (same) { // one share of either
        std::vector<float> y[2] = {std::vector<float>(stride), std::vector<float>(stride)};
        CK(cudaMemcpy(y[0].data(), wide[0].y[0], 4 * stride, cudaMemcpyDeviceToHost));
        CK(cudaMemcpy(y[1].data(), first.y[0], 4 * stride, cudaMemcpyDeviceToHost));
        size_t others = 0;
        for (size_t i = 0; i < stride; i++) others += memcmp(&y[0][i], &y[1][i], 4) != 0;
        printf("%-9s %-5s %5d x %6d, %d tokens: %zu of %zu bits of one share are others than from blocks\n", what, About<F>::name(), n, m,
               tokens, others, stride);
    } else {
        // Its shares added up by the kernel that reads them, as a row with every element its own.
        float *sum = room<float>(stride);
        add_up<<<tokens, 256>>>(shared[0], m, sum);
        const Off off = off_of(sum, stride, 1, m, rows, want, all);
        forget(sum);
        us = time_of(run);
        cudaFuncAttributes about;
        CK(cudaFuncGetAttributes(&about, kernel));
        printf("%-9s %-5s %5d x %6d x%d  %4d tiles, %3d of them in %d shares, of halves, %3d registers, %4zu spilt  %8.1f us  %6.1f "
               "TFLOP/s  off by %.3f u of the sum of magnitudes at most, %.3f in the mean; %.2f times as fast\n",
               what, About<F>::name(), n, m, copies, all_tiles, all_tiles - cut.whole, cut.shares, about.numRegs, about.localSizeBytes, us,
               2.0 * n * m * copies * tokens / us / 1e6, off.most, off.mean, before / us);
    }
    for (int i = 0; i < copies; i++) {
        forget(wide[0].y[i]), forget(parts[i]);
        for (auto &p : wide) forget(p.images[i]), forget(p.minima[i]);
    }
    return us;
}

// Microseconds of both kernels.
struct Took {
    double blocks = 0, halves = 0;
};
template <typename F, typename Part>
static Took products_of(const char *what, int n, int m, int copies, int tokens) {
    const int groups = n / 32;
    float *x = normal((size_t)tokens * n, 1.0f);
    const Operand to = operand_of(tokens, n, PartsOf<Part>::COUNT);
    PrepareRowsParams prepare = {x, to, n};
    CK(cudaFuncSetAttribute(prepare_rows<Part>, cudaFuncAttributeMaxDynamicSharedMemorySize, 4 * n));
    prepare_rows<Part><<<tokens, 256, 4 * n>>>(prepare);
    typedef Stage<Piece<F, Part>, Part> S;
    constexpr int EACH = S::BYTES, MORE = S::EIGHTS ? 2 * MINIMA : 0, STAGES = 2 * (4 * EACH + MORE + 1024) <= 222 << 10 ? 4 : 3;
    auto *kernel = products<Part, F, F, F, EACH, STAGES>;
    const int bytes = STAGES * EACH + MORE;
    CK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    int blocks = 0;
    CK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, THREADS, bytes));
    cudaFuncAttributes about;
    CK(cudaFuncGetAttributes(&about, kernel));
    size_t all_bytes = 0;
    for (size_t i = 0; i < About<F>::bytes().size(); i++) all_bytes += copies * plane_bytes<F>(i, n, m);
    std::vector<ProductsParams> turns(std::min<size_t>(16, (128u << 20) / all_bytes + 1));
    const int tiles = copies * ((m + OUTPUTS - 1) / OUTPUTS);
    const int of_tokens = (tokens + TOKENS - 1) / TOKENS, slots = blocks * processors, pieces = (groups + PIECE - 1) / PIECE;
    const int shares = shares_of(tiles * of_tokens, slots, pieces);
    const size_t stride = (size_t)tokens * m;
    for (int i = 0; i < copies; i++) {
        const Weights w = matrix<F>(n, m);
        float *y = room<float>(stride * shares);
        for (ProductsParams &p : turns) {
            p.x = to, p.n = n, p.tokens = tokens;
            p.w[i] = &p == &turns[0] ? w : copy_of<F>(w, n, m), p.m[i] = m, p.y[i] = y;
        }
    }
    dim3 grid(of_tokens, tiles, shares);
    size_t turn = 0;
    auto run = [&] { kernel<<<grid, THREADS, bytes>>>(turns[turn++ % turns.size()]); };
    run();
    CK(cudaDeviceSynchronize());
    std::vector<int> rows = {0, 1, 7, 8, 15, 16, 63, 64, 100, 127, m / 2, m - 2, m - 1};
    for (int &row : rows) row %= m;
    int *at = room<int>(rows.size());
    CK(cudaMemcpy(at, rows.data(), 4 * rows.size(), cudaMemcpyHostToDevice));
    const size_t count = rows.size() * tokens;
    double *want = room<double>(count), *all = room<double>(count);
    defined<F><<<(count + 127) / 128, 128>>>(turns[0].w[0], x, n, m, tokens, at, rows.size(), want, all);
    std::vector<double> w(count), a(count);
    CK(cudaMemcpy(w.data(), want, 8 * count, cudaMemcpyDeviceToHost));
    CK(cudaMemcpy(a.data(), all, 8 * count, cudaMemcpyDeviceToHost));
    const Off off = off_of(turns[0].y[0], stride, shares, m, rows, w, a);
    Took took;
    took.blocks = took.halves = time_of(run);
    printf("%-9s %-5s %5d x %6d x%d  %4d tiles x %d shares, %d blocks a multiprocessor, %3d registers, %4zu spilt  %8.1f us  %6.1f "
           "TFLOP/s  off by %.3f u of the sum of magnitudes at most, %.3f in the mean\n",
           what, About<F>::name(), n, m, copies, tiles * of_tokens, shares, blocks, about.numRegs, about.localSizeBytes, took.blocks,
           2.0 * n * m * copies * tokens / took.blocks / 1e6, off.most, off.mean);
    if constexpr (same_type<Part, HalfPart>) {
        took.halves = wide_of<F>(what, to, turns, copies, took.blocks, rows, w, a, false);
        kernel<<<dim3(of_tokens, tiles), THREADS, bytes>>>(turns[0]);
        wide_of<F>(what, to, {turns[0]}, copies, took.blocks, rows, w, a, true);
    }
    for (const void *p : {(const void *)x, (const void *)to.parts, (const void *)to.inverse, (const void *)to.sums, (const void *)at,
                          (const void *)want, (const void *)all}) forget(p);
    for (int i = 0; i < copies; i++) {
        forget(turns[0].y[i]);
        for (ProductsParams &p : turns) for (size_t k = 0; k < About<F>::bytes().size(); k++) forget(p.w[i].plane[k]);
    }
    return took;
}
// Products of a whole prefill, whose matrix of the feed-forward network's end is of one format in half of the layers.
static void prefill_of(const char *model, int layers, int tokens, std::vector<Took> of_layer, Took down, Took other_down) {
    Took sum;
    for (const Took &took : of_layer) sum.blocks += layers * took.blocks, sum.halves += layers * took.halves;
    sum.blocks += layers / 2.0 * (down.blocks + other_down.blocks), sum.halves += layers / 2.0 * (down.halves + other_down.halves);
    printf("%s, %d tokens: products of %d layers %.3f ms from blocks, %.3f ms from halves: %.2f times as fast\n", model, tokens, layers,
           sum.blocks * 1e-3, sum.halves * 1e-3, sum.blocks / sum.halves);
}

// The products of a prefill of a model in F16 as the engine launches them: q, k and v as one, gate and up as one, and each while the
// one before ends; each layer has weights of its own. And at the rate of the tensor cores alone, which make two products for one.
static void prefill_in_f16(const char *model, int layers, int e, int kv, int f, int tokens) {
    typedef ImageOf<Piece<F16, HalfPart>> I;
    auto *kernel = halved::wide_products<I, I, I>;
    const int bytes = WIDE_STAGES * (WIDE_STAGE + WIDE_EIGHT), of_tokens = (tokens + OPERAND_TOKENS - 1) / OPERAND_TOKENS;
    CK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    struct Product {
        const char *what;
        int n;
        std::vector<int> m;
        int grid = 0;
        std::vector<halved::WideProductsParams> layers = {};
    };
    std::vector<Product> all = {{"qkv", e, {e, kv, kv}}, {"out", e, {e}}, {"gate, up", e, {f, f}}, {"down", f, {e}}};
    cudaLaunchAttribute early[1];
    early[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early[0].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t c = {};
    c.blockDim = dim3(halved::THREADS), c.dynamicSmemBytes = bytes, c.attrs = early, c.numAttrs = 1;
    auto launch = [&](const Product &product, int layer) {
        c.gridDim = dim3(product.grid);
        CK(cudaLaunchKernelEx(&c, kernel, product.layers[layer]));
    };
    std::vector<void *> taken;
    double flops = 0, apart = 0;
    for (Product &product : all) {
        const int n = product.n, pieces = (n / 32 + 1) / 2;
        int row_tiles = 0, outputs = 0;
        for (int m : product.m) row_tiles += (m + WIDE_ROWS - 1) / WIDE_ROWS, outputs += m;
        float *x = normal((size_t)tokens * n, 1.0f);
        const Operand to = operand_of(tokens, n, 2);
        CK(cudaFuncSetAttribute(prepare_rows<HalfPart>, cudaFuncAttributeMaxDynamicSharedMemorySize, 4 * n));
        prepare_rows<HalfPart><<<tokens, 256, 4 * n>>>({x, to, n});
        const Cut cut = cut_of(row_tiles * of_tokens, processors, pieces);
        const int token0 = std::min(cut.whole / row_tiles * OPERAND_TOKENS, tokens);
        product.grid = std::min(cut.whole + (row_tiles * of_tokens - cut.whole) * cut.shares, processors);
        halved::WideProductsParams p = {};
        p.x = to, p.n = n, p.tokens = tokens, p.whole = cut.whole, p.shares = cut.shares, p.token0 = token0;
        Shared shared[3];
        Weights weights[3];
        auto images_of = [&](int m) { return (size_t)(m + WIDE_ROWS - 1) / WIDE_ROWS * pieces * I::BYTES; };
        int first = 0; // tile of rows
        for (size_t i = 0; i < product.m.size(); i++) {
            const int m = product.m[i], tiles = (m + WIDE_ROWS - 1) / WIDE_ROWS;
            const size_t of_share = (size_t)(tokens - token0) * m;
            weights[i] = matrix<F16>(n, m);
            p.images[i] = room<u8>(images_of(m)), p.m[i] = m, p.y[i] = room<float>((size_t)tokens * m);
            widen<F16><<<dim3(pieces, tiles), WIDE_ROWS>>>({weights[i], (u8 *)p.images[i], nullptr, n, m});
            float *parts = room<float>((cut.shares - 1) * of_share + 1);
            p.rest[i] = parts - of_share - (size_t)token0 * m;
            shared[i] = {p.y[i], p.rest[i], of_share, cut.shares, token0, std::min(m, std::max(0, cut.whole % row_tiles - first) * WIDE_ROWS)};
            first += tiles;
            taken.insert(taken.end(), {(void *)p.y[i], (void *)parts});
        }
        for (int l = 0; l < layers; l++) {
            halved::WideProductsParams of = p;
            for (size_t i = 0; l > 0 && i < product.m.size(); i++) {
                u8 *at = room<u8>(images_of(p.m[i]));
                CK(cudaMemcpy(at, p.images[i], images_of(p.m[i]), cudaMemcpyDeviceToDevice));
                of.images[i] = at;
            }
            for (size_t i = 0; i < product.m.size(); i++) taken.push_back((void *)of.images[i]);
            product.layers.push_back(of);
        }
        CK(cudaDeviceSynchronize()); // a block brings weights before its turn
        launch(product, 0);
        CK(cudaDeviceSynchronize());
        Off worst;
        for (size_t i = 0; i < product.m.size(); i++) {
            const int m = p.m[i];
            std::vector<int> rows = {0, 1, 7, 8, 63, 64, 127, m / 2, m - 2, m - 1};
            int *at = room<int>(rows.size());
            CK(cudaMemcpy(at, rows.data(), 4 * rows.size(), cudaMemcpyHostToDevice));
            const size_t count = rows.size() * tokens;
            double *want = room<double>(count), *sizes = room<double>(count);
            float *sum = room<float>((size_t)tokens * m);
            defined<F16><<<(count + 127) / 128, 128>>>(weights[i], x, n, m, tokens, at, rows.size(), want, sizes);
            add_up<<<tokens, 256>>>(shared[i], m, sum);
            std::vector<double> w(count), a(count);
            CK(cudaMemcpy(w.data(), want, 8 * count, cudaMemcpyDeviceToHost));
            CK(cudaMemcpy(a.data(), sizes, 8 * count, cudaMemcpyDeviceToHost));
            const Off off = off_of(sum, (size_t)tokens * m, 1, m, rows, w, a);
            worst.most = std::max(worst.most, off.most), worst.mean = std::max(worst.mean, off.mean);
            for (const void *of : {(const void *)at, (const void *)want, (const void *)sizes, (const void *)sum, (const void *)weights[i].plane[0]}) forget(of);
        }
        int turn = 0;
        const double us = time_of([&] { launch(product, turn++ % layers); });
        flops += 2.0 * n * outputs * tokens * layers, apart += us * layers;
        printf("%-9s %-5s %5d x %6d in %zu  %4d tiles, %3d of them in %d shares, of halves, as the engine launches it  %8.1f us  %6.1f TFLOP/s  off by "
               "%.3f u of the sum of magnitudes at most, %.3f in the mean\n", product.what, "F16", n, outputs, product.m.size(), row_tiles * of_tokens,
               row_tiles * of_tokens - cut.whole, cut.shares, us, 2.0 * n * outputs * tokens / us / 1e6, worst.most, worst.mean);
        taken.insert(taken.end(), {(void *)x, (void *)to.parts, (void *)to.inverse, (void *)to.sums});
    }
    const double us = time_of([&] {
        for (int l = 0; l < layers; l++) for (const Product &product : all) launch(product, l);
    });
    float *sums = room<float>(256 * processors);
    CK(cudaFuncSetAttribute(tensor_cores, cudaFuncAttributeMaxDynamicSharedMemorySize, MULTIPLIED));
    const double rate = operations_of(4000, processors) / time_of([&] { tensor_cores<<<processors, 256, MULTIPLIED>>>(4000, sums); }) * 1e6;
    printf("%s, %d tokens: products of %d layers %.3f ms from halves as the engine launches them, %.3f ms one product again and again; %.1f TFLOP/s, where the "
           "tensor cores make %.0f of halves: at that rate %.3f ms, %.0f %% of it\n", model, tokens, layers, us * 1e-3, apart * 1e-3, flops / us * 1e-6,
           rate * 1e-12, 2e3 * flops / rate, 100 * 2e6 * flops / rate / us);
    taken.push_back(sums);
    for (void *at : taken) forget(at);
}

template <int D>
static void attention_of(int heads, int kv_heads, int tokens, int first) {
    const int keys = first + tokens, tiles = (keys + CacheTile<D>::KEYS - 1) / CacheTile<D>::KEYS, group = heads / kv_heads;
    float *q = normal((size_t)tokens * heads * D, 1), *k = normal((size_t)keys * kv_heads * D, 1);
    float *v = normal((size_t)keys * kv_heads * D, 1);
    CacheTilesParams cut = {k, v, room<u8>((size_t)kv_heads * tiles * CacheTile<D>::BYTES), kv_heads, keys};
    auto prepare = [&] { cache_tiles<KvF32, D, CacheTile<D>::KEYS><<<dim3(tiles, kv_heads), CacheTile<D>::KEYS * D / 4>>>(cut); };
    rows::AttentionRowsParams p = {q, cut.tiles, room<float>((size_t)tokens * heads * D), nullptr, nullptr,
                                   heads, kv_heads, first, tokens, 0.125f};
    if (first == 0 || tokens < 64) p.scores_tap = room<float>((size_t)heads * tokens * keys), p.weights_tap = room<float>((size_t)heads * tokens * keys);
    constexpr int BYTES = CacheTile<D>::BYTES;
    prepare();
    auto host = [&](const float *at, size_t count) {
        std::vector<float> h(count);
        CK(cudaMemcpy(h.data(), at, 4 * count, cudaMemcpyDeviceToHost));
        return h;
    };
    auto hq = host(q, (size_t)tokens * heads * D), hk = host(k, (size_t)keys * kv_heads * D), hv = host(v, (size_t)keys * kv_heads * D);
    const float *scores_tap = p.scores_tap, *weights_tap = p.weights_tap;
    const double prepared = time_of(prepare);
    auto show = [&](const char *name, auto tapped, auto plain, int threads, int bytes) {
        p.scores_tap = (float *)scores_tap, p.weights_tap = (float *)weights_tap;
        CK(cudaFuncSetAttribute(plain, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
        CK(cudaFuncSetAttribute(tapped, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
        CK(cudaMemset(p.out, 255, (size_t)tokens * heads * D * 4));
        decltype(widely_params(plain)) of;
        auto run = [&] {
            memcpy(&of, &p, sizeof(of));
            (p.scores_tap ? tapped : plain)<<<dim3((tokens * group + rows::ROWS - 1) / rows::ROWS, kv_heads), threads, bytes>>>(of);
        };
        run();
        CK(cudaDeviceSynchronize());
        auto out = host(p.out, (size_t)tokens * heads * D);
        std::vector<float> st, wt;
        if (p.scores_tap) st = host(p.scores_tap, (size_t)heads * tokens * keys), wt = host(p.weights_tap, (size_t)heads * tokens * keys);
        double off_s = 0, off_w = 0, off_c = 0;
        auto worst = [](double &most, double v) { most = std::max(most, std::isnan(v) ? INFINITY : v * 16777216.0); };
        for (int t : {0, 1, tokens / 2, tokens - 1}) {
            for (int h = 0; h < heads; h += 3) {
                const int seen = first + t + 1;
                std::vector<double> s(seen), w(seen);
                double most = -1e300, total = 0;
                for (int n = 0; n < seen; n++) {
                    double sum = 0, all = 0;
                    for (int d = 0; d < D; d++) {
                        const double x = (double)hq[((size_t)t * heads + h) * D + d] * hk[((size_t)n * kv_heads + h / group) * D + d];
                        sum += x, all += fabs(x);
                    }
                    if (p.scores_tap) worst(off_s, fabs(st[((size_t)h * tokens + t) * keys + n] - sum) / all);
                    s[n] = (p.scores_tap ? st[((size_t)h * tokens + t) * keys + n] : sum) * 0.125;
                    most = std::max(most, s[n]);
                }
                for (int n = 0; n < seen; n++) total += w[n] = exp(s[n] - most);
                for (int n = 0; n < seen; n++) {
                    w[n] /= total;
                    if (p.weights_tap) {
                        const double shown = wt[((size_t)h * tokens + t) * keys + n];
                        worst(off_w, fabs(shown - w[n]) / (w[n] + 1e-12));
                        w[n] = shown;
                    }
                }
                for (int d = 0; d < D; d++) {
                    double sum = 0, all = 0;
                    for (int n = 0; n < seen; n++) {
                        const double x = w[n] * hv[((size_t)n * kv_heads + h / group) * D + d];
                        sum += x, all += fabs(x);
                    }
                    worst(off_c, fabs(out[((size_t)t * heads + h) * D + d] - sum) / all);
                }
            }
        }
        cudaFuncAttributes about;
        CK(cudaFuncGetAttributes(&about, plain));
        const double tapped_us = p.scores_tap ? time_of(run) : 0;
        p.scores_tap = p.weights_tap = nullptr;
        printf("attention    %s, %d x %d heads of %d, %d tokens after %d: %3d registers, %zu spilt, %8.1f us, tapped %8.1f, tiles %6.1f; off by u: "
               "scores %.2f, weights %.2f, context %.2f\n", name, heads, kv_heads, D, tokens, first, about.numRegs, about.localSizeBytes,
               time_of(run), tapped_us, prepared, off_s, off_w, off_c);
        if (!(off_s < 30 && off_w < 300 && off_c < 300)) wrong++;
    };
    constexpr int TILES = D == 64 ? KEY_TILES : 1;
    show("of all cards", rows::attention_rows<D, true, BYTES, TILES>, rows::attention_rows<D, false, BYTES, TILES>, TILES * rows::THREADS, 2 * TILES * BYTES);
    if constexpr (D >= 64) {
        show("of Hopper", widely::wide_attention<D, true, BYTES>, widely::wide_attention<D, false, BYTES>, 128 * widely::GROUPS,
             widely::STAGES * widely::GROUPS * BYTES);
    }
}

int main(int count, char **words) {
    const int T = count > 1 ? atoi(words[1]) : 512;
    CK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
    auto odd = [&] {
        products_of<Q4_0, HalfPart>("odd", 96, 130, 1, 67);
        products_of<Q4_1, HalfPart>("odd", 96, 130, 1, 67);
        products_of<Q5_0, HalfPart>("odd", 32, 70, 1, 3);
        products_of<Q5_0, HalfPart>("odd", 608, 130, 2, 131);
        products_of<Q5_1, HalfPart>("odd", 352, 130, 1, 67);
        products_of<Q8_0, HalfPart>("odd", 96, 130, 1, 67);
        products_of<Q4_K, HalfPart>("odd", 1280, 130, 3, 131);
        products_of<Q5_K, HalfPart>("odd", 256, 130, 1, 67);
        products_of<Q6_K, HalfPart>("odd", 768, 130, 1, 67);
        products_of<F16, HalfPart>("odd", 96, 130, 1, 67);
        products_of<F16, BrainPart>("odd", 96, 130, 1, 67);
        products_of<Q6_K, BrainPart>("odd", 256, 130, 1, 67);
        products_of<Q8_0, BrainPart>("odd", 96, 130, 1, 67);
        attention_of<64>(7, 1, 40, 100);
        attention_of<128>(6, 1, 35, 0);
    };
    if (getenv("ODD")) {
        odd();
        return wrong != 0;
    }
    // A model of Q4_K and Q6_K, `qkv` rows of queries, keys and values.
    auto of_blocks = [&](const char *model, int layers, int n, int qkv, int f) {
        const Took all[] = {products_of<Q4_K, HalfPart>("qkv", n, qkv, 1, T), products_of<Q4_K, HalfPart>("out", n, n, 1, T),
                            products_of<Q4_K, HalfPart>("gate, up", n, f, 2, T)};
        const Took down[] = {products_of<Q6_K, HalfPart>("down", f, n, 1, T), products_of<Q4_K, HalfPart>("down", f, n, 1, T)};
        prefill_of(model, layers, T, {all[0], all[1], all[2]}, down[0], down[1]);
    };
    if (getenv("LARGE")) {
        of_blocks("7B", 28, 3584, 4608, 18944);
        of_blocks("32B", 64, 5120, 7168, 27648);
        attention_of<128>(28, 4, T, 0);
        attention_of<128>(40, 8, T, 0);
        printf(wrong ? "%d products are WRONG\n" : "all products are right\n", wrong);
        return wrong != 0;
    }
    const Took small[] = {products_of<Q5_0, HalfPart>("qkv", 896, 1152, 1, T), products_of<Q5_0, HalfPart>("out", 896, 896, 1, T),
                          products_of<Q5_0, HalfPart>("gate, up", 896, 4864, 2, T)};
    const Took small_down[] = {products_of<Q6_K, HalfPart>("down", 4864, 896, 1, T), products_of<Q4_K, HalfPart>("down", 4864, 896, 1, T)};
    prefill_of("0.5B", 24, T, {small[0], small[1], small[2]}, small_down[0], small_down[1]);
    of_blocks("1.5B", 28, 1536, 2048, 8960);
    products_of<Q8_0, HalfPart>("down", 4864, 896, 1, T);
    products_of<F16, HalfPart>("gate, up", 896, 4864, 2, T);
    prefill_in_f16("0.5B in F16", 24, 896, 128, 4864, T);
    if (getenv("ALL")) {
        odd();
        products_of<BF16, BrainPart>("gate, up", 896, 4864, 2, T);
        products_of<F32, BrainPart>("gate, up", 896, 4864, 2, T);
    }
    const int n = 896, f = 4864, H = 14, G = 2, D = 64;
    const Operand to = operand_of(T, f, 2);
    float *base = normal((size_t)T * n, 1), *shares = normal((size_t)8 * T * n, 1), *sum = room<float>((size_t)T * n);
    NormRowsParams norm = {base, {shares, shares, (unsigned long long)T * n, 4, 0, 0}, sum, normal(n, 1), to, nullptr, nullptr, n, 1e-6f};
    printf("norm_rows    %8.1f us\n", time_of([&] { norm_rows<HalfPart><<<T, 128, 4 * n>>>(norm); }));
    ActRowsParams act = {{normal((size_t)T * f, 1), nullptr, 0, 1, T, 0}, {normal((size_t)T * f, 1), nullptr, 0, 1, T, 0}, to, nullptr, nullptr, nullptr, f};
    printf("act_rows     %8.1f us\n", time_of([&] { act_rows<HalfPart><<<T, 256, 4 * f>>>(act); }));
    PrepareRowsParams prepare = {base, to, n};
    printf("prepare_rows %8.1f us\n", time_of([&] { prepare_rows<HalfPart><<<T, 128, 4 * n>>>(prepare); }));
    float *q = room<float>((size_t)T * H * D), *k = room<float>((size_t)T * G * D), *v = room<float>((size_t)T * G * D);
    HeadRowsParams heads = {};
    const float *p[3] = {normal((size_t)4 * T * H * D, 1), normal((size_t)4 * T * G * D, 1), normal((size_t)4 * T * G * D, 1)};
    for (int i = 0; i < 3; i++) heads.product[i] = {p[i], p[i], (unsigned long long)T * D * (i ? G : H), 4, 0, 0}, heads.bias[i] = normal(H * D, 1);
    heads.frequency = normal(D / 2, 0.1f), heads.q = q, heads.k_cache = k, heads.v_cache = v;
    heads.heads = H, heads.kv_heads = G;
    printf("head_rows    %8.1f us\n", time_of([&] { head_rows<KvF32, 64><<<T, 288>>>(heads); }));
    attention_of<64>(14, 2, T, 0);
    attention_of<64>(14, 2, T, 8192 - T);
    attention_of<128>(12, 2, T, 0);
    attention_of<32>(4, 4, 37, 50);
    printf(wrong ? "%d products are WRONG\n" : "all products are right\n", wrong);
    return wrong != 0;
}
