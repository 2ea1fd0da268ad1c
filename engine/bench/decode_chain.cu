// The kernels of a decode step in a row, as the engine captures them, on weights
// that are noise: where the time of a step goes, kernel by kernel, inside the replay.
//
// nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -DMARKS -I engine/kernels engine/bench/decode_chain.cu -o decode_chain
// decode_chain [LAYERS [POSITION]]
//
// The shape is that of Qwen2.5 0.5B in Q4_K_M, with -DWEIGHTS_IN_F16 in F16; with -DLARGE that of the 1.5B, with -DHUGE that of the 7B, whose ffn_act, ffn_down and
// head come through rings of at most -DRING_STAGES (4) stages of -DOF_RINGS (16) warps, and those of attn_qkv and attn_out, unless
// PLAIN is in the environment. Without -DMARKS only the step is timed. What
// `qdiff-lab bench --measure cuda` prints for a real model this prints in more detail: the step of each block too. With HOT in the
// environment all layers have the weights of the first, which are then in the second-level cache: what is no faster so does not wait
// for memory. With TAPS in the environment a step is also timed that writes stages, by which of them; or with -DMARKS one that writes
// all. Whether taps change the step, or one is not written, it says, too. With -DSTEPS steps are timed as the engine runs them, with
// taps and without (`tapped_steps.cuh`).
//
// First both kernels of attention are held against f64: their taps, and what they leave for attn_out, at which a tap changes
// no bit; with LAYERS 0 that is all, of few keys (for compute-sanitizer), and rings against what PLAIN takes. Then a step is timed by
// type of the cache and kernel of attention. Where any of it is wrong, the program says so and fails.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "fused/best.cuh"
#include "fused/shares.cuh"
#include "fused/ring.cuh"
#include "kv.cuh"
namespace qkv {
#include "fused/attn_qkv.cu"
}
namespace att {
#include "fused/attention.cu"
}
namespace halved {
#include "fused/attention_halves.cu"
}
namespace out {
#include "fused/attn_out.cu"
}
namespace down {
#include "fused/half_linear.cu"
}
namespace ffn {
#include "fused/ffn_act.cu"
}
namespace head {
#include "fused/lm_head.cu"
}

#define CK(x)                                                                                    \
    do {                                                                                         \
        cudaError_t e_ = (x);                                                                    \
        if (e_) {                                                                                \
            printf("%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(e_));                    \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

#ifdef HUGE
#define LARGE
#ifndef RING_STAGES
#define RING_STAGES 4
#endif
#ifndef OF_RINGS
#define OF_RINGS 16
#endif
constexpr int E = 3584, F = 18944, H = 28, G = 4, D = 128, V = 152064, LAYERS = 28;
#elif !defined(LARGE)
constexpr int E = 896, F = 4864, H = 14, G = 2, D = 64, V = 151936, LAYERS = 24;
#else
constexpr int E = 1536, F = 8960, H = 12, G = 2, D = 128, V = 151936, LAYERS = 28;
#endif
constexpr int CAPACITY = 33000, GROUP = H / G;
// How `attention_halves` is made for the shape: stages of a warp's ring, and blocks of a cluster. As `attention_halves` of
// engine/src/cuda/attend.rs says, or as HALVES in the environment does ("6 2").
struct MadeOf {
    int stages, cluster;
    int shared() const { return halved::WARPS * stages * 4 * halved::CHUNK * D + halved::MEASURED; }
};
static MadeOf made_of = {384 / D, D > 64 ? 8 : 2};
// `run` with the kernel that is made so, for taps or not.
template <class Run>
static void with_halves(bool tapped, Run run) {
#define OF(s, c)                                                                                                                   \
    if (made_of.stages == s && made_of.cluster == c) {                                                                             \
        return run(tapped ? halved::attention_halves<D, GROUP, s, c, true> : halved::attention_halves<D, GROUP, s, c, false>);     \
    }
    if constexpr (D == 64) {
        OF(6, 2); OF(4, 2); OF(4, 4); OF(3, 2); OF(3, 4);
    } else {
        OF(3, 8); OF(2, 8); OF(2, 4);
    }
#undef OF
    printf("no such attention_halves\n"), exit(1);
}

static char *arena;
static size_t used;
template <typename T = u8>
static T *take(size_t bytes) {
    T *at = (T *)(arena + used);
    used += (bytes + 255) / 256 * 256;
    return at;
}

struct Format {
    int planes;
    int bytes[4]; // of a plane for 8 groups
};
[[maybe_unused]] static const Format Halves{1, {512, 0, 0, 0}}, Q5{3, {128, 32, 16, 0}}, Q8{2, {256, 16, 0, 0}}, Q4K{2, {128, 16, 0, 0}}, Q6K{4, {128, 64, 16, 2}};

static Weights weights(const Format &f, int n, int m) {
    Weights w = {};
    for (int i = 0; i < f.planes; i++) w.plane[i] = take((size_t)f.bytes[i] * n / 256 * m);
    return w;
}
static int tile_bytes(const Format &f, int groups) {
    int sum = 0;
    for (int i = 0; i < f.planes; i++) {
        const int width = f.bytes[i] * groups / 8, pitch = width % 16 == 0 ? (width / 16 | 1) * 16 : width;
        sum += (TILE * pitch + 15) / 16 * 16;
    }
    return sum;
}
struct Walked {
    Walk walk;
    int threads, shared;
};
#ifdef HUGE
static int processors;
// A ring of the stages that there are room for, at most RING_STAGES, for a vector of n and `tiles` tiles of a block: `ring` of engine/src/cuda/tiles.rs.
static Walked ring(const Format &f, int n, int tiles, int &stages) {
    int stride = 0;
    for (int i = 0; i < f.planes; i++) stride += TILE * (f.bytes[i] % 16 ? 4 : (f.bytes[i] / 16 | 1) * 16);
    const int vector = n / 32 * INTEGER_GROUP, parts = (tiles + OF_RINGS) * TILE * 4, room = (222 << 10) - vector - parts;
    stages = std::min(room / (OF_RINGS * stride), RING_STAGES);
    return {{OF_RINGS, 1, PIECE, stages, stride}, 32 * OF_RINGS, vector + stages * OF_RINGS * stride + parts};
}
#define BY_STAGES(stages, kernel) (stages == 1 ? kernel(1) : stages == 2 ? kernel(2) : stages == 3 ? kernel(3) : stages == 4 ? kernel(4) : stages == 5 ? kernel(5) : kernel(6))
#endif
static Walked walk(std::vector<Format> formats, int n, int tiles, int sets, int besides, int stages = 1) {
    const int groups = n / 32;
    int stride = 0;
    for (auto &f : formats) stride = std::max(stride, tile_bytes(f, groups));
    const int team = std::min(MOST_WARPS / tiles, (groups + 1) / 2);
#ifdef WEIGHTS_IN_F16
    constexpr int GROUP_BYTES = FLOAT_GROUP;
#else
    constexpr int GROUP_BYTES = INTEGER_GROUP;
#endif
    const int vector = (besides + groups * GROUP_BYTES + 15) / 16 * 16;
    return {{tiles, sets, groups, stages, stride}, 32 * tiles * team, vector + stages * tiles * stride};
}

struct Launch {
    std::string name;
    int blocks;
    const void *kernel;
    std::vector<u8> params;
    dim3 grid;
    int threads, shared;
};

// Of how many elements the caches are, and which kernel makes the attention.
enum Way { FLOATS, HALVES, HALVES_ON_TENSOR_CORES };
static const char *const WAYS[] = {"a cache of f32", "a cache of f16", "a cache of f16, attention_halves"};

#ifndef HUGE
static int processors;
#endif
static bool rings = E > 2048; // of attn_qkv and attn_out
static int early; // blocks of attention, where others begin late
struct Attended {
    const float *q;
    const void *k, *v;
    Partial partial;
    const int *position_at;
    float *scores_tap, *weights_tap;
    bool tapped() const { return scores_tap || weights_tap; }
};
// Shares of a head of the cache.
static int splits_of(Way way) {
    if (way != HALVES_ON_TENSOR_CORES) return std::min(processors / G, SPLITS);
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3(G, made_of.cluster), c.blockDim = dim3(halved::THREADS), c.dynamicSmemBytes = made_of.shared();
    int clusters;
    with_halves(false, [&](auto *kernel) {
        CK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, made_of.shared()));
        CK(cudaOccupancyMaxActiveClusters(&clusters, kernel, &c));
    });
    clusters = std::min(clusters, processors / made_of.cluster); // a block a multiprocessor
    return std::min(std::max(clusters / G, 1), SPLITS);
}
// Launches attention, as `launch(name, kernel, parameters, grid, threads, shared memory)` does.
template <class Launch>
static void attend(Way way, const Attended &a, Launch launch) {
    const float scale = 1.0f / std::sqrt((float)D);
    const dim3 grid(G, splits_of(way));
    const att::AttentionParams p = {a.q, a.k, a.v, a.partial, a.position_at, a.scores_tap, a.weights_tap, scale, early};
    auto shared = [](int size) {
        const int stage = 2 * KEYS * D * size;
        return stage + std::max(stage, att::THREADS * 16 * GROUP);
    };
#define OF(kv, tapped) rings ? att::attention<kv, D, GROUP, KEYS, true, tapped> : att::attention<kv, D, GROUP, KEYS, false, tapped>
    auto any = [&](auto kernel, int size) { launch("attention", kernel, p, grid, att::THREADS, shared(size)); };
    if (way == FLOATS) any(a.tapped() ? OF(KvF32, true) : OF(KvF32, false), 4);
    else if (way == HALVES) any(a.tapped() ? OF(KvF16, true) : OF(KvF16, false), 2);
#undef OF
    else {
        const halved::AttentionHalvesParams h = {a.q, (const u16 *)a.k, (const u16 *)a.v, a.partial, a.position_at, a.scores_tap,
                                                 a.weights_tap, scale};
        with_halves(a.tapped(), [&](auto *kernel) { launch("attention", kernel, h, dim3(G, grid.y * made_of.cluster), halved::THREADS, made_of.shared()); });
    }
}

static float float_of_half(u16 h) {
    const int e = h >> 10 & 31, m = h & 1023;
    const float v = e ? std::ldexp(1024.0f + m, e - 25) : std::ldexp((float)m, -24);
    return h & 0x8000 ? -v : v;
}
static u16 half_of_float(float f) { // for numbers of moderate size
    u32 b;
    memcpy(&b, &f, 4);
    const int e = (int)(b >> 23 & 255) - 112;
    if (e <= 0) return (u16)(b >> 16 & 0x8000);
    return (u16)((b >> 16 & 0x8000) | ((e << 10) + (((b & 0x7fffff) + 0xfff + (b >> 13 & 1)) >> 13)));
}
template <typename T>
static std::vector<T> read(const T *at, size_t count) {
    std::vector<T> v(count);
    CK(cudaMemcpy(v.data(), at, count * sizeof(T), cudaMemcpyDeviceToHost));
    return v;
}

static std::vector<u16> noise_of_halves(size_t count) {
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    std::vector<u16> v(count);
    for (u16 &h : v) h = half_of_float(normal(random) * (random() % 499 == 0 ? 6.0f : 1.0f));
    return v;
}

// Attention of this many keys by each kernel against f64; whether it is right.
static bool held(int keys, const std::vector<u16> &noise) {
    used = 0;
    std::mt19937 random(keys);
    std::normal_distribution<float> normal;
    const size_t count = (size_t)keys * G * D;
    const u16 *host[2] = {noise.data(), noise.data() + noise.size() - count};
    std::vector<float> q(H * D), floats[2];
    for (float &f : q) f = normal(random);
    for (int c = 0; c < 2; c++) {
        for (size_t i = 0; i < count; i++) floats[c].push_back(float_of_half(host[c][i]));
    }
    const double scale = 1.0f / std::sqrt((float)D);
    std::vector<double> score((size_t)H * keys), score_size(score), weight(score), context(H * D), context_size(H * D);
    for (int h = 0; h < H; h++) {
        double most = -1e300, total = 0;
        double *s = &score[(size_t)h * keys], *w = &weight[(size_t)h * keys];
        for (int n = 0; n < keys; n++) {
            const float *k = &floats[0][((size_t)n * G + h / GROUP) * D];
            for (int d = 0; d < D; d++) s[n] += (double)q[h * D + d] * k[d], score_size[(size_t)h * keys + n] += std::fabs((double)q[h * D + d] * k[d]);
            most = std::max(most, s[n] * scale);
        }
        for (int n = 0; n < keys; n++) total += w[n] = std::exp(s[n] * scale - most);
        for (int n = 0; n < keys; n++) {
            w[n] /= total;
            const float *v = &floats[1][((size_t)n * G + h / GROUP) * D];
            for (int d = 0; d < D; d++) context[h * D + d] += w[n] * v[d], context_size[h * D + d] += std::fabs(w[n] * v[d]);
        }
    }
    auto copied = [](const auto &v) {
        auto *at = take<std::remove_const_t<std::remove_reference_t<decltype(v[0])>>>(v.size() * sizeof(v[0]));
        CK(cudaMemcpy(at, v.data(), v.size() * sizeof(v[0]), cudaMemcpyHostToDevice));
        return at;
    };
    const int position = keys - 1;
    int *position_at = copied(std::vector<int>{position});
    const float *q_at = copied(q), *as_floats[2] = {copied(floats[0]), copied(floats[1])};
    const u16 *as_halves[2] = {copied(std::vector<u16>(host[0], host[0] + count)), copied(std::vector<u16>(host[1], host[1] + count))};
    float *scores = take<float>(4 * score.size()), *weights = take<float>(4 * score.size());
    const size_t sums_count = (size_t)H * SPLITS * D, measures_count = 2 * H * SPLITS;
    bool right = true;
    for (Way way : {FLOATS, HALVES, HALVES_ON_TENSOR_CORES}) {
        std::vector<float> sums[2], measures[2];
        const void *k = way == FLOATS ? (const void *)as_floats[0] : as_halves[0];
        const void *v = way == FLOATS ? (const void *)as_floats[1] : as_halves[1];
        const Partial partial = {take<float>(4 * sums_count), take<float2>(4 * measures_count)};
        for (int tapped = 0; tapped < 2; tapped++) {
            CK(cudaMemset(partial.sums, 0xff, 4 * sums_count)); CK(cudaMemset(partial.measures, 0xff, 4 * measures_count));
            CK(cudaMemset(scores, 0xff, 4 * score.size())); CK(cudaMemset(weights, 0xff, 4 * score.size()));
            const Attended a = {q_at, k, v, partial, position_at, tapped ? scores : nullptr, tapped ? weights : nullptr};
            attend(way, a, [](const char *, auto kernel, auto params, dim3 grid, int threads, int shared) {
                CK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
                kernel<<<grid, threads, shared>>>(params);
                CK(cudaGetLastError());
            });
            CK(cudaDeviceSynchronize());
            sums[tapped] = read(partial.sums, sums_count);
            measures[tapped] = read((float *)partial.measures, measures_count);
        }
        const bool same = !memcmp(sums[0].data(), sums[1].data(), 4 * sums_count) &&
                          !memcmp(measures[0].data(), measures[1].data(), 4 * measures_count);
        // As `Shares` has it.
        const int shares = splits_of(way);
        const int share = std::max((keys + shares - 1) / shares, KEYS), live = (keys + share - 1) / share;
        const std::vector<float> s = read(scores, score.size()), w = read(weights, score.size());
        double off[3] = {};
        auto worse = [](double &worst, double by) { worst = std::max(worst, std::isnan(by) ? INFINITY : by * 16777216.0); };
        for (int h = 0; h < H; h++) {
            const float *measure = &measures[0][(size_t)2 * h * SPLITS];
            double most = -1e300, total = 0;
            for (int n = 0; n < live; n++) most = std::max(most, (double)measure[2 * n]);
            for (int n = 0; n < live; n++) total += std::exp(measure[2 * n] - most) * measure[2 * n + 1];
            for (int n = 0; n < keys; n++) {
                const size_t i = (size_t)h * keys + n;
                worse(off[0], std::fabs(s[i] - score[i]) / score_size[i]);
                worse(off[1], std::fabs(w[i] * std::exp(measure[2 * (n / share)] - most) / total - weight[i]) / weight[i]);
            }
            for (int d = 0; d < D; d++) {
                double sum = 0;
                for (int n = 0; n < live; n++) sum += std::exp(measure[2 * n] - most) * sums[0][((size_t)h * SPLITS + n) * D + d];
                worse(off[2], std::fabs(sum / total - context[h * D + d]) / context_size[h * D + d]);
            }
        }
        // An error of a score of some tens is that of a weight.
        const bool close = same && off[0] < 8 && off[1] < 500 && off[2] < 100;
        printf("%6d keys, %-34s scores, weights, context off by %5.2f, %6.2f, %5.2f u%s%s\n", keys, WAYS[way], off[0], off[1],
               off[2], same ? "" : ", another where tapped", close ? "" : "  WRONG");
        right = right && close;
    }
    return right;
}

static const char *card;
// What the last step left of its last layer: queries, the newest row of each cache, and the residual.
static std::vector<float> left[4];

// Stages of a layer that a step writes besides: together where the same lines of a kernel write them.
enum : int {
    NORMED = 1,    // attn_norm and final_norm: the first block of attn_qkv and of the head
    PROJECTED = 2, // q, k and v with their biases, and turned
    SCORES = 4,
    WEIGHTS = 8,   // attention, and blocks of attn_out that scale them
    CONTEXT = 16,  // with attn_out and attn_residual
    FFN = 32,      // all of ffn_act
    DOWN = 64,     // with layer_out the first block of the kernel that puts the halves of a product together
    LAYER_OUT = 128,
    EVERY = 255,
    LOGITS = 256, // which the head writes there alone; in steps as the engine runs them
    BY_QKV = NORMED | PROJECTED | DOWN | LAYER_OUT, // but that the head writes the last layer's
};

// A step that writes these, to two slots in turn, as the engine has them: a graph each.
struct Tapped {
    const char *what;
    int taps, graphs = 2;
    bool clears = false; // the other slot, beside a step that the host waits for
    cudaGraphExec_t graph[2] = {};
    std::vector<float> us, waited; // of a step in a row of steps, and of one that the host waits for
};

static double median(std::vector<float> v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}

#ifdef STEPS
#include "tapped_steps.cuh"
#endif

// Times a step; whether taps change nothing, and all of them are written.
static bool chain(int layers, int position, Way way, const std::vector<u16> &noise) {
    used = 0;
    int *position_at = take<int>(4);
    CK(cudaMemcpy(position_at, &position, 4, cudaMemcpyHostToDevice));
    float *x[2] = {take<float>(4 * E), take<float>(4 * E)}, *q = take<float>(4 * H * D), *act = take<float>(4 * F);
    float *norm = take<float>(4 * E), *bias = take<float>(4 * E), *frequency = take<float>(4 * D);
    float *logits = take<float>(4 * V);
    float *halves[2] = {take<float>(4 * E), take<float>(4 * E)};
    Partial partial = {take<float>(4 * H * SPLITS * D), take<float2>(8 * H * SPLITS)};
    const int cache_bytes = CAPACITY * G * D * (way == FLOATS ? 4 : 2);
    std::vector<void *> caches;
    for (int i = 0; i < 2 * layers; i++) {
        CK(cudaMalloc(&caches.emplace_back(), cache_bytes));
        // Floats of noise are two halves of it.
        for (int at = 0; at < cache_bytes; at += 2 * noise.size()) {
            CK(cudaMemcpy((char *)caches.back() + at, noise.data(), std::min((size_t)(cache_bytes - at), 2 * noise.size()),
                          cudaMemcpyHostToDevice));
        }
    }
    cudaStream_t s;
    CK(cudaStreamCreate(&s));
    std::vector<Launch> launches;
#ifdef MARKS
    constexpr int MOST_BLOCKS = 1 << 17;
    Stamp *stamps;
    int blocks = 0;
    CK(cudaMalloc(&stamps, sizeof(Stamp) * MOST_BLOCKS));
#endif
    auto launch = [&](const char *name, auto kernel, auto params, dim3 grid, int threads, int shared) {
#ifdef MARKS
        params.stamps = stamps + blocks;
        blocks += grid.x * grid.y;
        if (blocks > MOST_BLOCKS) exit(1);
#endif
        CK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
        if (const char *carved = getenv("CARVED")) CK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, atoi(carved)));
        cudaLaunchConfig_t c = {};
        c.gridDim = grid, c.blockDim = dim3(threads), c.stream = s, c.dynamicSmemBytes = shared;
        cudaLaunchAttribute early[1];
        early[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        early[0].val.programmaticStreamSerializationAllowed = 1;
        c.attrs = early, c.numAttrs = launches.empty() ? 0 : 1;
        CK(cudaLaunchKernelEx(&c, kernel, params));
        const u8 *from = (const u8 *)&params;
        launches.push_back({name, (int)(grid.x * grid.y), (const void *)kernel, {from, from + sizeof(params)}, grid, threads, shared});
    };
    size_t step_bytes = 0;
    // Two slots as the engine lays them out: the tapped values of a step, node after node; a context's part has room for some more keys.
    const int keys = position + 1, room = (keys + 127) / 128 * 128;
    const size_t slot_bytes = 4 * ((size_t)layers * (10 * E + 3 * (H + 2 * G) * D + 2 * H * room + 4 * F) + 2 * E + V);
    float *slots[2];
    for (float *&slot : slots) CK(cudaMalloc(&slot, slot_bytes));
#ifdef STEPS
    Best best = {take<unsigned long long>(8), take<u32>(4), nullptr};
    Weights embedding; // which is the head's matrix
    CK(cudaMemset(best.largest, 0, 8)); CK(cudaMemset(best.arrived, 0, 4)); CK(cudaMallocHost(&best.token, 4));
#endif
    const size_t first_weights = used;
    size_t filled = 0, spare = 0; // of the slot of the last step that was captured, in floats
    // A step that writes these stages to a slot.
    auto captured = [&](int taps, float *slot) {
        auto place = [&](int of, int count, int written) {
            if (!(taps & of)) return (float *)nullptr;
            float *at = slot + filled;
            filled += count, spare += count - written;
            return at;
        };
        auto tap = [&](int of, int count) { return place(of, count, count); };
        used = first_weights, step_bytes = filled = spare = 0;
        launches.clear();
#ifdef MARKS
        blocks = 0;
#endif
        CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
        for (int l = 0; l < layers; l++) {
            const size_t before = used;
#ifdef WEIGHTS_IN_F16
            const Format fq = Halves, fv = fq, fd = fq;
#elif !defined(LARGE)
            const Format fq = Q5, fv = l % 2 ? Q5 : Q8, fd = l % 2 ? Q4K : Q6K;
#else
            const Format fq = Q4K, fv = l % 2 ? Q4K : Q6K, fd = fv;
#endif
            const Weights wq = weights(fq, E, E), wk = weights(fq, E, G * D), wv = weights(fv, E, G * D);
            const Weights wo = weights(fq, E, E), gate = weights(fq, E, F), up = weights(fq, E, F), wd = weights(fd, F, E);
            step_bytes += used - before;
            void *cache[2] = {caches[2 * l], caches[2 * l + 1]};
            const Stream stream = l == 0 ? Stream{x[0]} : Stream{x[1], {halves[0], halves[1]}};
            Stream tapped = stream;
            if (l > 0) tapped.product_tap = tap(DOWN, E), tapped.sum_tap = tap(LAYER_OUT, E);
            {
#ifdef HUGE
                // As `qkv_ring` of engine/src/cuda/fast.rs says.
                const int tiles[3] = {H * D / TILE, G * D / TILE, G * D / TILE};
                int makers[3], most = 0, blocks, stages;
                do {
                    blocks = 0, most++;
                    for (int i = 0; i < 3; i++) blocks += makers[i] = (tiles[i] - 1) / (i == 0 ? most : (most + 1) / 2) + 1;
                } while (blocks > processors);
                early = processors - blocks;
                const Walked w = rings ? ring(l % 2 ? fq : fv, E, most, stages) : walk({fq, fv}, E, 2, 1, 0);
                if (!rings) blocks = (H + 2 * G) * D / 2 / TILE;
#else
                const int makers[3] = {}, blocks = (H + 2 * G) * D / 2 / TILE;
                const Walked w = walk({fq, fv}, E, 2, 1, 0);
#endif
                qkv::AttnQkvParams p = {tapped, norm, {bias, bias, bias}, {}, frequency, {wq, wk, wv}, position_at, q,
                                        cache[0], cache[1], tap(NORMED, E), {}, {}, {}, {}, w.walk, E, H, G, 1e-6f, {makers[0], makers[1], makers[2]}};
                for (auto *taps_of : {p.proj_tap, p.biased_tap, p.rope_tap}) {
                    for (int i = 0; i < (taps_of == p.rope_tap ? 2 : 3); i++) taps_of[i] = tap(PROJECTED, (i == 0 ? H : G) * D);
                }
                const dim3 grid(blocks);
                auto project = [&](auto of_floats, auto of_halves) {
                    launch("attn_qkv", way == FLOATS ? of_floats : of_halves, p, grid, w.threads, w.shared);
                };
                // The kernels for both types of cache; others where what they make is tapped.
#define OF(kv, q, v, pairs, held, held_v, tapped) qkv::attn_qkv<q, q, v, kv, D, pairs, false, held, held, held_v, E, tapped>
#define PROJECT(...)                                                                                                               \
    (taps & BY_QKV ? project(OF(KvF32, __VA_ARGS__, true), OF(KvF16, __VA_ARGS__, true))                                           \
                   : project(OF(KvF32, __VA_ARGS__, false), OF(KvF16, __VA_ARGS__, false)))
#ifdef WEIGHTS_IN_F16
                PROJECT(F16, F16, 1, 7, 7);
#elif !defined(LARGE)
                if (l % 2) PROJECT(Q5_0, Q5_0, 1, 4, 4);
                else PROJECT(Q5_0, Q8_0, 1, 4, 7);
#elif defined(HUGE)
                if (!rings) l % 2 ? PROJECT(Q4_K, Q4_K, 1, 0, 0) : PROJECT(Q4_K, Q6_K, 1, 0, 0);
                else if (l % 2) stages == 2 ? PROJECT(Q4_K, Q4_K, 0, 2, 2) : stages == 3 ? PROJECT(Q4_K, Q4_K, 0, 3, 3) : PROJECT(Q4_K, Q4_K, 0, 4, 4);
                else stages == 2 ? PROJECT(Q4_K, Q6_K, 0, 2, 2) : PROJECT(Q4_K, Q6_K, 0, 3, 3);
                if (rings && stages > (l % 2 ? 4 : 3)) exit(1);
#else
                if (l % 2) PROJECT(Q4_K, Q4_K, 1, 2, 2);
                else PROJECT(Q4_K, Q6_K, 1, 2, 2);
#endif
#undef OF
#undef PROJECT
            }
            float *scores_tap = place(SCORES, H * room, H * keys), *weights_tap = place(WEIGHTS, H * room, H * keys);
            attend(way, {q, cache[0], cache[1], partial, position_at, scores_tap, weights_tap}, launch);
            {
#ifdef HUGE
                int stages;
                const int each = (E / TILE + processors - 1) / processors, makers = rings ? (E / TILE + each - 1) / each : E / TILE;
                const Walked w = rings ? ring(fq, E, each, stages) : walk({fq}, E, 1, 1, 0);
#else
                const int makers = E / TILE;
                const Walked w = walk({fq}, E, 1, 1, 0);
#endif
                out::AttnOutParams p = {partial, wo, stream, x[1], position_at, weights_tap, tap(CONTEXT, E), tap(CONTEXT, E), tap(CONTEXT, E), w.walk, E, E, H,
                                        splits_of(way), makers};
#define OF(w, held, ring) (taps & (WEIGHTS | CONTEXT) ? out::attn_out<w, D, held, ring, E, true> : out::attn_out<w, D, held, ring, E, false>)
#ifdef WEIGHTS_IN_F16
                auto *kernel = OF(F16, 0, 0);
#elif !defined(LARGE)
                auto *kernel = OF(Q5_0, 2, 0);
#elif defined(HUGE)
                auto *kernel = !rings ? OF(Q4_K, 0, 0) : stages == 2 ? OF(Q4_K, 0, 2) : stages == 3 ? OF(Q4_K, 0, 3) : OF(Q4_K, 0, 4);
                if (rings && stages > 4) exit(1);
#else
                auto *kernel = OF(Q4_K, 1, 0);
#endif
#undef OF
                launch("attn_out", kernel, p, dim3(makers + (weights_tap ? H * ((keys + 4095) / 4096) : 0)), w.threads, w.shared);
            }
            {
#define OF(w, tiles, held) (taps & FFN ? ffn::ffn_act<w, w, tiles, held, E, true> : ffn::ffn_act<w, w, tiles, held, E, false>)
#if !defined(LARGE) && !defined(WEIGHTS_IN_F16)
                const int pairs = 2, blocks = (F / TILE + pairs - 1) / pairs;
                const Walked w = walk({fq}, E, 2 * pairs, 1, 0);
                auto *kernel = OF(Q5_0, 4, 7);
#elif defined(HUGE)
                int blocks = processors, stages;
                const Walked w = ring(fq, E, F / 8 / blocks + 1, stages);
#define KERNEL(n) OF(Q4_K, 0, n)
                auto *kernel = BY_STAGES(stages, KERNEL);
#undef KERNEL
#else
                // All rows of a block in shared memory, three blocks to a multiprocessor.
#ifdef WEIGHTS_IN_F16
                typedef F16 Shared;
#else
                typedef Q4_K Shared;
#endif
                const int tiles = F / (TILE / 2), count = (tiles + 3 * processors - 1) / (3 * processors);
                const int blocks = (tiles + count - 1) / count, atoms = E / 32 / Tile<Shared>::ATOM;
                Walked w = walk({fq}, E, 1, 1, 0);
                w.walk.tiles = count, w.threads = 32 * ffn::SHARING_WARPS;
                w.shared += (count - 1) * w.walk.stride + count * atoms * TILE * 4;
                auto *kernel = OF(Shared, 1, 1);
#endif
#undef OF
                ffn::FfnActParams p = {x[1], norm, gate, up, act, tap(FFN, E), tap(FFN, F), tap(FFN, F), tap(FFN, F), w.walk, E, F, 1e-6f};
                launch("ffn_act", kernel, p, dim3(blocks), w.threads, w.shared);
            }
            {
                constexpr int FIRST = (F / 256 + 1) / 2 * 8;
#ifdef HUGE
                int blocks = std::min(processors, E / TILE), stages;
                const Walked w = ring(fd, F, E / TILE / blocks + 2, stages);
#else
                const Walked w = walk({fd}, FIRST * 32, 1, 1, 0);
#endif
                down::HalfLinearParams p = {act, wd, {halves[0], halves[1]}, w.walk, F, E, FIRST};
#ifdef WEIGHTS_IN_F16
                const dim3 grid(E / TILE, 2);
                auto *of_q4 = down::half_linear<F16, 0, 0, F, FIRST>, *of_q6 = of_q4;
#elif !defined(LARGE)
                const dim3 grid(E / TILE, 2);
                auto *of_q4 = down::half_linear<Q4_K, 2, 0, F, FIRST>, *of_q6 = down::half_linear<Q6_K, 2, 0, F, FIRST>;
#elif defined(HUGE)
                const dim3 grid(blocks);
#define KERNEL(n) down::half_linear<Q4_K, 0, n, F, FIRST>
                auto *of_q4 = BY_STAGES(stages, KERNEL);
#undef KERNEL
#define KERNEL(n) down::half_linear<Q6_K, 0, n, F, FIRST>
                auto *of_q6 = BY_STAGES(stages, KERNEL);
#undef KERNEL
#else
                const dim3 grid(E / TILE, 2);
                auto *of_q4 = down::half_linear<Q4_K, 0, 0, F, FIRST>, *of_q6 = down::half_linear<Q6_K, 0, 0, F, FIRST>;
#endif
                launch("half_linear", l % 2 ? of_q4 : of_q6, p, grid, w.threads, w.shared);
            }
            if (getenv("HOT")) used = before;
        }
        {
#ifdef WEIGHTS_IN_F16
            const Format f = Halves;
            typedef F16 OfHead;
#elif !defined(LARGE)
            const Format f = Q8;
            typedef Q8_0 OfHead;
#else
            const Format f = Q6K;
            typedef Q6_K OfHead;
#endif
            const size_t before = used;
            const Weights w = weights(f, E, V);
            step_bytes += used - before;
#ifdef HUGE
            int stages;
            const Walked k = ring(f, E, V / TILE / processors + 1, stages);
#define KERNEL(n) head::lm_head<OfHead, false, n, E>
            auto *kernel = BY_STAGES(stages, KERNEL);
#undef KERNEL
#else
            Walked k = walk({f}, E, 1, 1, 0);
            const int vector = k.shared - k.walk.stride, room = (227 << 10) - (5 << 10) - vector;
            const int warps = std::min(room / k.walk.stride, head::OWN_WARPS), stages = std::min(room / k.walk.stride / warps, OWN_STAGES);
            const int sets = (V / TILE + processors * warps - 1) / (processors * warps);
            k = {{warps, sets, E / 32, stages, k.walk.stride}, 32 * warps, vector + stages * warps * k.walk.stride};
            auto *kernel = head::lm_head<OfHead, true, 0, E>;
#endif
            head::LmHeadParams p = {Stream{x[1], {halves[0], halves[1]}, tap(DOWN, E), tap(LAYER_OUT, E)}, norm, w, logits, {}, tap(NORMED, E), k.walk, E, V, 1e-6f};
            if (taps & LOGITS) p.logits = tap(LOGITS, V);
#ifdef STEPS
            p.best = best, embedding = w;
#endif
            launch("lm_head", kernel, p, dim3(processors), k.threads, k.shared);
        }
        cudaGraph_t g;
        cudaGraphExec_t e;
        CK(cudaStreamEndCapture(s, &g));
        CK(cudaGraphInstantiate(&e, g, 0));
        CK(cudaGraphDestroy(g));
        return e;
    };
#ifdef STEPS
    bool steps_right = true;
    for (int taps : {(int)LOGITS, EVERY | LOGITS}) {
        // The launches of a step that writes nothing, and of those that write to either slot; a slot's bytes, and those written.
        std::vector<Launch> of[3];
        for (int i = 0; i < 3; i++) {
            CK(cudaGraphExecDestroy(captured(i == 0 ? 0 : taps, slots[i == 2])));
            of[i] = launches;
        }
        if (taps == LOGITS) {
            printf("%s, %d layers after %d, %s: steps as the engine runs them, %.1f MB of weights\n", card, layers, position, WAYS[way],
                   step_bytes * 1e-6);
        }
        const steps::Slots where = {{slots[0], slots[1]}, 4 * filled, spare};
        const steps::EmbedTokenParams first = {embedding, x[0], position_at, E, 0, position, nullptr};
        steps_right = steps::timed(taps == LOGITS ? "the logits" : "every stage", of, first, where, best.token, s) && steps_right;
    }
    CK(cudaFreeHost(best.token)); CK(cudaStreamDestroy(s));
    for (float *slot : slots) CK(cudaFree(slot));
    for (void *cache : caches) CK(cudaFree(cache));
    return steps_right;
#else
    cudaStream_t beside;
    CK(cudaStreamCreate(&beside));
    cudaEvent_t a, b;
    CK(cudaEventCreate(&a));
    CK(cudaEventCreate(&b));
    std::vector<Tapped> steps = {{"none", 0, 1}};
    if (getenv("TAPS")) {
#ifdef MARKS
        steps = {{"every stage", EVERY}};
#else
        steps.insert(steps.end(), {{"none, of two graphs", 0}, {"every stage", EVERY}, {"all that attn_qkv writes", BY_QKV},
                                   {"all but these", EVERY & ~BY_QKV}, {"q, k and v", PROJECTED},
                                   {"the norm, the product and the sum before", BY_QKV & ~PROJECTED}, {"what leaves a layer", LAYER_OUT},
                                   {"scores", SCORES}, {"weights", WEIGHTS}, {"context, attn_out and its sum", CONTEXT}, {"ffn_act", FFN},
                                   {"every stage, the other slot cleared", EVERY, 2, true}});
#endif
    }
    bool right = true;
    for (Tapped &step : steps) {
        for (int i = 0; i < step.graphs; i++) {
            step.graph[i] = captured(step.taps, slots[i]);
            if (filled * 4 > slot_bytes) printf("a slot is too small\n"), exit(1);
            // What it leaves, and what of the slot it does not write.
            CK(cudaMemset(slots[i], 0xff, slot_bytes));
            CK(cudaGraphLaunch(step.graph[i], s));
            CK(cudaStreamSynchronize(s));
            size_t unwritten = 0;
            for (float v : read(slots[i], filled)) unwritten += std::isnan(v);
            const auto of_q = read(q, H * D), of_x = read(x[1], E);
            if (&step == &steps[0] && i == 0) left[0] = of_q, left[3] = of_x;
            const bool same = !memcmp(of_q.data(), left[0].data(), 4 * H * D) && !memcmp(of_x.data(), left[3].data(), 4 * E);
            if (same && unwritten == spare) continue;
            printf("taps: %s: %s, %zu not written where %zu are no stage's  WRONG\n", step.what, same ? "the same step" : "another step",
                   unwritten, spare);
            right = false;
        }
    }
    std::map<std::string, std::vector<double>> spent, marked;
    for (int i = 0, count = (int)steps.size(); i < 24 * count; i++) {
        Tapped &step = steps[i % count];
#ifdef MARKS
        CK(cudaMemset(stamps, 0, sizeof(Stamp) * blocks));
#endif
        const int replays =
#ifdef MARKS
            1;
#else
            20;
#endif
        CK(cudaDeviceSynchronize());
        CK(cudaEventRecord(a, s));
        for (int k = 0; k < replays; k++) CK(cudaGraphLaunch(step.graph[k % step.graphs], s));
        CK(cudaEventRecord(b, s));
        CK(cudaEventSynchronize(b));
        float ms;
        CK(cudaEventElapsedTime(&ms, a, b));
        if (i < 4 * count) continue;
        step.us.push_back(ms * 1e3f / replays);
        const int waits = count > 1 ? 8 : 0;
        const auto start = std::chrono::steady_clock::now();
        for (int k = 0; k < waits; k++) {
            CK(cudaGraphLaunch(step.graph[k % step.graphs], s));
            if (step.clears) CK(cudaMemsetAsync(slots[(k + 1) % 2], 0xff, slot_bytes, beside));
            CK(cudaStreamSynchronize(s));
        }
        step.waited.push_back(std::chrono::duration<float, std::micro>(std::chrono::steady_clock::now() - start).count() / std::max(waits, 1));
#ifdef MARKS
        std::vector<Stamp> all(blocks);
        CK(cudaMemcpy(all.data(), stamps, sizeof(Stamp) * blocks, cudaMemcpyDeviceToHost));
        int first = 0;
        unsigned long long before = 0;
        for (auto &l : launches) {
            unsigned long long began = ~0ull, began_last = 0, waited = ~0ull, waited_last = 0, ended = 0, ended_first = ~0ull;
            for (int k = first; k < first + l.blocks; k++) {
                if (!all[k].waited) continue; // it had nothing to do
                began = std::min(began, all[k].began), began_last = std::max(began_last, all[k].began);
                waited = std::min(waited, all[k].waited), waited_last = std::max(waited_last, all[k].waited);
                ended = std::max(ended, all[k].ended), ended_first = std::min(ended_first, all[k].ended);
            }
            if (before) {
                for (int m = 0; m < 7; m++) {
                    std::vector<double> cycles;
                    for (int k = first; k < first + l.blocks; k++) {
                        const auto *at = all[k].marks;
                        int next = m + 1;
                        while (next < 7 && !at[next]) next++;
                        if (at[m] && at[next]) cycles.push_back((double)(at[next] - at[m]));
                    }
                    if (cycles.empty()) continue;
                    std::sort(cycles.begin(), cycles.end());
                    marked[l.name + ", mark " + (char)('0' + m)].push_back(cycles[cycles.size() / 2]);
                }
            }
            first += l.blocks;
            if (before) {
                auto add = [&](const char *what, double v) { spent[l.name + " " + what].push_back(v * 1e-3); };
                add("1 whole (from end to end)", (double)ended - (double)before);
                add("2 first began after the end before", (double)began - (double)before);
                add("3 last began after the end before", (double)began_last - (double)before);
                add("4 first waited after the end before", (double)waited - (double)before);
                add("5 last waited after the end before", (double)waited_last - (double)before);
                add("6 first ended after its wait", (double)ended_first - (double)waited);
                add("7 last ended after the first wait", (double)ended - (double)waited);
            }
            before = ended;
        }
#endif
    }
    std::vector<float> us = steps[0].us;
    std::sort(us.begin(), us.end());
    printf("%s, %d layers after %d, %s: min %.1f median %.1f max %.1f us a step, %.1f MB of weights\n", card, layers, position,
           WAYS[way], us[0], us[us.size() / 2], us.back(), step_bytes * 1e-6);
    for (auto &[name, v] : spent) {
        std::sort(v.begin(), v.end());
        printf("  %-60s median %7.2f  p95 %7.2f us\n", name.c_str(), v[v.size() / 2], v[v.size() * 95 / 100]);
    }
    for (auto &[name, v] : marked) {
        std::sort(v.begin(), v.end());
        printf("  %-40s median %7.0f cycles\n", name.c_str(), v[v.size() / 2]);
    }
    for (Tapped &step : steps) {
        for (int i = 0; i < step.graphs; i++) CK(cudaGraphExecDestroy(step.graph[i]));
        if (steps.size() == 1) continue;
        const double us = median(step.us), waited = median(step.waited);
        printf("  taps: %-40s median %6.1f us a step, %+5.1f; as the host waits for it %6.1f, %+5.1f\n", step.what, us,
               us - median(steps[0].us), waited, waited - median(steps[0].waited));
    }
    for (float *slot : slots) CK(cudaFree(slot));
    CK(cudaStreamDestroy(s)); CK(cudaStreamDestroy(beside));
#ifdef MARKS
    CK(cudaFree(stamps));
#endif
    left[0] = read(q, H * D), left[3] = read(x[1], E);
    for (int i = 0; i < 2; i++) {
        const size_t at = (size_t)position * G * D;
        if (way == FLOATS) left[1 + i] = read((const float *)caches[2 * layers - 2 + i] + at, G * D);
    }
    unsigned long long bits = 14695981039346656037ull;
    double sizes[2] = {};
    for (int i : {0, 3}) {
        for (float v : left[i]) {
            u32 of;
            memcpy(&of, &v, 4);
            bits = (bits ^ of) * 1099511628211ull, sizes[i / 3] += (double)v * v;
        }
    }
    printf("  left: bits %016llx, queries of norm %.8e, residual of norm %.8e\n", bits, std::sqrt(sizes[0]), std::sqrt(sizes[1]));
    for (void *cache : caches) CK(cudaFree(cache));
    return right;
#endif
}

#ifdef HUGE
// Whether rings and what they replace leave the same, but for the order of sums.
static bool alike(int layers, const std::vector<u16> &noise) {
    std::vector<float> before[4];
    rings = false;
    chain(layers, 640, FLOATS, noise);
    for (int i = 0; i < 4; i++) before[i] = left[i];
    rings = true;
    chain(layers, 640, FLOATS, noise);
    bool right = true;
    for (int i = 0; i < 4; i++) {
        double off = 0, all = 0;
        for (size_t k = 0; k < left[i].size(); k++) {
            off += std::pow((double)left[i][k] - before[i][k], 2), all += std::pow((double)before[i][k], 2);
        }
        const double by = std::sqrt(off / all);
        const bool close = by < (layers == 1 && i < 3 ? 1e-6 : 1e-2) && all > 0;
        printf("rings, %d layers, %s: off by %.1e of the norm%s\n", layers, i == 0 ? "queries" : i == 1 ? "keys" : i == 2 ? "values" : "residual", by, close ? "" : "  WRONG");
        right = right && close;
    }
    return right;
}
#endif

int main(int argc, char **argv) {
    setvbuf(stdout, nullptr, _IONBF, 0);
    const int layers = argc > 1 ? atoi(argv[1]) : LAYERS;
    cudaDeviceProp about;
    CK(cudaGetDeviceProperties(&about, 0));
    processors = about.multiProcessorCount, card = about.name;
    if (const char *halves = getenv("HALVES")) {
        if (sscanf(halves, "%d %d", &made_of.stages, &made_of.cluster) != 2) exit(1);
    }
    printf("attention_halves: %d shares of %d blocks for each head of the cache, rings of %d stages\n", splits_of(HALVES_ON_TENSOR_CORES),
           made_of.cluster, made_of.stages);
    const size_t bytes = (size_t)(E > 2048 ? 5000 : 1500) << 20;
    CK(cudaMalloc(&arena, bytes));
    const std::vector<u16> rows = noise_of_halves((size_t)CAPACITY * G * D);
    std::vector<int> depths = {1, 64, 65, 640, 2049};
    if (layers > 0 && argc <= 2) depths.insert(depths.end(), {4999, 8192, 32000});
    bool right = true;
    for (int keys : depths) right = held(keys, rows) && right;
    std::vector<u16> noise(8 << 20);
    std::mt19937 random(1);
    for (u16 &v : noise) v = random() & 0x3bff; // halves from 0 to 1, bytes of all kinds
    for (size_t at = 0; at < bytes; at += noise.size() * 2) {
        CK(cudaMemcpy(arena + at, noise.data(), std::min(noise.size() * 2, bytes - at), cudaMemcpyHostToDevice));
    }
#ifdef HUGE
    for (int count = 1; layers == 0 && count <= 2; count++) right = alike(count, rows) && right;
    rings = !getenv("PLAIN");
#endif
#ifdef STEPS
    right = chain(layers, 640, HALVES, rows) && right;
#else
    for (int position : {640, 2048, 3072, 8192, 32000}) {
        if (layers == 0 || (argc > 2 && position != atoi(argv[2]))) continue;
        for (Way way : {FLOATS, HALVES, HALVES_ON_TENSOR_CORES}) {
            if (argc <= 2 || way == (position < 3072 ? FLOATS : HALVES_ON_TENSOR_CORES)) right = chain(layers, position, way, rows) && right;
        }
    }
#endif
    printf(right ? "all is right\n" : "something is WRONG\n");
    return !right;
}
