// The kernels of a decode step in a row, as the engine captures them, on weights
// that are noise: where the time of a step goes, kernel by kernel, inside the replay.
//
// nvcc -O3 -std=c++17 -arch=sm_90a -DMARKS -I engine/kernels engine/bench/decode_chain.cu -o decode_chain
// decode_chain [LAYERS [POSITION]]
//
// The shape is that of Qwen2.5 0.5B in Q4_K_M. Without -DMARKS only the step is timed. What `qdiff bench --measure cuda`
// tells of a real model this tells in more detail: where a block is in its turn, too.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "fused/shares.cuh"
#include "fused/stream.cuh"
#include "kv.cuh"
namespace qkv {
#include "fused/attn_qkv.cu"
}
namespace att {
#include "fused/attention.cu"
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

constexpr int E = 896, F = 4864, H = 14, G = 2, D = 64, V = 151936, CAPACITY = 33000;

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
static const Format Q5{3, {128, 32, 16, 0}}, Q8{2, {256, 16, 0, 0}}, Q4K{2, {128, 16, 0, 0}}, Q6K{4, {128, 64, 16, 2}};

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
static Walked walk(std::vector<Format> formats, int n, int tiles, int sets, int besides, int stages = 1) {
    const int groups = n / 32;
    int stride = 0;
    for (auto &f : formats) stride = std::max(stride, tile_bytes(f, groups));
    const int team = std::min(MOST_WARPS / tiles, (groups + 1) / 2);
    const int vector = (besides + groups * INTEGER_GROUP + 15) / 16 * 16;
    return {{tiles, sets, groups, stages, stride}, 32 * tiles * team, vector + stages * tiles * stride};
}

struct Launch {
    std::string name;
    int blocks;
};

int main(int argc, char **argv) {
    setvbuf(stdout, nullptr, _IONBF, 0);
    const int layers = argc > 1 ? atoi(argv[1]) : 24, position = argc > 2 ? atoi(argv[2]) : 640;
    cudaDeviceProp about;
    CK(cudaGetDeviceProperties(&about, 0));
    const int processors = about.multiProcessorCount;
    const size_t bytes = (size_t)900 << 20;
    CK(cudaMalloc(&arena, bytes + ((size_t)CAPACITY * G * D * 4 * 2 * layers)));
    {
        std::vector<unsigned short> noise(8 << 20);
        std::mt19937 random(1);
        for (auto &v : noise) v = random() & 0x3bff; // halves from 0 to 1, bytes of all kinds
        for (size_t at = 0; at < bytes; at += noise.size() * 2) {
            CK(cudaMemcpy(arena + at, noise.data(), std::min(noise.size() * 2, bytes - at), cudaMemcpyHostToDevice));
        }
    }
    int *position_at = take<int>(4);
    CK(cudaMemcpy(position_at, &position, 4, cudaMemcpyHostToDevice));
    float *x[2] = {take<float>(4 * E), take<float>(4 * E)}, *q = take<float>(4 * E), *act = take<float>(4 * F);
    float *norm = take<float>(4 * E), *bias = take<float>(4 * E), *frequency = take<float>(4 * D);
    float *logits = take<float>(4 * V);
    float *halves[2] = {take<float>(4 * E), take<float>(4 * E)};
    Partial partial = {take<float>(4 * H * SPLITS * D), take<float2>(8 * H * SPLITS)};
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
        cudaLaunchConfig_t c = {};
        c.gridDim = grid, c.blockDim = dim3(threads), c.stream = s, c.dynamicSmemBytes = shared;
        cudaLaunchAttribute early[1];
        early[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        early[0].val.programmaticStreamSerializationAllowed = 1;
        c.attrs = early, c.numAttrs = launches.empty() ? 0 : 1;
        CK(cudaLaunchKernelEx(&c, kernel, params));
        launches.push_back({name, (int)(grid.x * grid.y)});
    };
    const int splits = std::min(processors / G, (int)SPLITS);
    size_t step_bytes = 0;
    CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    for (int l = 0; l < layers; l++) {
        const size_t before = used;
        const Format fv = l % 2 ? Q5 : Q8, fd = l % 2 ? Q4K : Q6K;
        const Weights wq = weights(Q5, E, E), wk = weights(Q5, E, G * D), wv = weights(fv, E, G * D);
        const Weights wo = weights(Q5, E, E), gate = weights(Q5, E, F), up = weights(Q5, E, F), wd = weights(fd, F, E);
        step_bytes += used - before;
        float *cache[2] = {take<float>((size_t)CAPACITY * G * D * 4), take<float>((size_t)CAPACITY * G * D * 4)};
        const Stream stream = l == 0 ? Stream{x[0]} : Stream{x[1], {halves[0], halves[1]}};
        {
            const Walked w = walk({Q5, fv}, E, 2, 1, 0);
            qkv::AttnQkvParams p = {stream, norm, {bias, bias, bias}, {}, frequency, {wq, wk, wv}, position_at, q,
                                    cache[0], cache[1], nullptr, {}, {}, {}, {}, w.walk, E, H, G, 1e-6f};
            const dim3 grid((H + 2 * G) * D / 2 / TILE);
            if (l % 2) launch("attn_qkv", qkv::attn_qkv<Q5_0, Q5_0, Q5_0, KvF32, D, 1, false, 4, 4, 4>, p, grid, w.threads, w.shared);
            else launch("attn_qkv", qkv::attn_qkv<Q5_0, Q5_0, Q8_0, KvF32, D, 1, false, 4, 4, 7>, p, grid, w.threads, w.shared);
        }
        {
            att::AttentionParams p = {q, cache[0], cache[1], partial, position_at, nullptr, nullptr, 0.125f};
            const int stage = 2 * KEYS * D * 4, shared = stage + std::max(stage, att::THREADS * 16 * (H / G));
            launch("attention", att::attention<KvF32, D, H / G, KEYS>, p, dim3(G, splits), att::THREADS, shared);
        }
        {
            const Walked w = walk({Q5}, E, 1, 1, 0);
            out::AttnOutParams p = {partial, wo, stream, x[1], position_at, nullptr, nullptr, nullptr, nullptr, w.walk, E, E, H, splits};
            launch("attn_out", out::attn_out<Q5_0, D, 2>, p, dim3(E / TILE), w.threads, w.shared);
        }
        {
                        const int pairs = 2;
            const Walked w = walk({Q5}, E, 2 * pairs, 1, 0);
            ffn::FfnActParams p = {Stream{x[1]}, norm, gate, up, act, nullptr, nullptr, nullptr, nullptr, w.walk, E, F, 1e-6f};
            launch("ffn_act", ffn::ffn_act<Q5_0, Q5_0, 4, 7>, p, dim3((F / TILE + pairs - 1) / pairs), w.threads, w.shared);
        }
        {
            const int first = (F / 256 + 1) / 2 * 8;
            const Walked w = walk({fd}, first * 32, 1, 1, 0);
            down::HalfLinearParams p = {act, wd, {halves[0], halves[1]}, w.walk, F, E, first};
            const dim3 grid(E / TILE, 2);
            if (l % 2) launch("half_linear", down::half_linear<Q4_K, 5>, p, grid, w.threads, w.shared);
            else launch("half_linear", down::half_linear<Q6_K, 3>, p, grid, w.threads, w.shared);
        }
    }
    {
        const Weights w = weights(Q8, E, V);
        step_bytes += (size_t)E * V / 32 * 34;
                const int tiles = 2, sets_all = (V / TILE + tiles - 1) / tiles, sets = (sets_all + 3 * processors - 1) / (3 * processors);
        const Walked k = walk({Q8}, E, tiles, sets, 0, 2);
        head::LmHeadParams p = {Stream{x[1], {halves[0], halves[1]}}, norm, w, logits, nullptr, k.walk, E, V, 1e-6f};
        launch("lm_head", head::lm_head<Q8_0>, p, dim3((sets_all + sets - 1) / sets), k.threads, k.shared);
    }
    cudaGraph_t g;
    cudaGraphExec_t e;
    CK(cudaStreamEndCapture(s, &g));
    CK(cudaGraphInstantiate(&e, g, 0));
    cudaEvent_t a, b;
    CK(cudaEventCreate(&a));
    CK(cudaEventCreate(&b));
    std::vector<float> us;
    std::map<std::string, std::vector<double>> spent, marked;
    for (int i = 0; i < 24; i++) {
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
        for (int k = 0; k < replays; k++) CK(cudaGraphLaunch(e, s));
        CK(cudaEventRecord(b, s));
        CK(cudaEventSynchronize(b));
        float ms;
        CK(cudaEventElapsedTime(&ms, a, b));
        if (i >= 4) us.push_back(ms * 1e3f / replays);
#ifdef MARKS
        if (i < 4) continue;
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
    std::sort(us.begin(), us.end());
    printf("%s, %d layers at position %d: min %.1f median %.1f max %.1f us a step, %.1f MB, %.2f TB/s\n", about.name, layers,
           position, us[0], us[us.size() / 2], us.back(), step_bytes * 1e-6, step_bytes / us[us.size() / 2] * 1e-6);
    for (auto &[name, v] : spent) {
        std::sort(v.begin(), v.end());
        printf("  %-60s median %7.2f  p95 %7.2f us\n", name.c_str(), v[v.size() / 2], v[v.size() * 95 / 100]);
    }
    for (auto &[name, v] : marked) {
        std::sort(v.begin(), v.end());
        printf("  %-40s median %7.0f cycles\n", name.c_str(), v[v.size() / 2]);
    }
    return 0;
}
