// What the card gives at most to the kernels of the fast path: the limits that REPORT.md's tables of kernels are held against.
//
// nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -I engine/kernels engine/bench/limits.cu -o limits
//
// 1. Memory: weights that every block brings into shared memory in bulk and nobody looks at, from memory and from the
//    second-level cache.
// 2. A hand-over: kernels in a row, captured as the engine captures a decode step, of which each block reads a vector of 896 floats
//    that the kernel before wrote, and writes its part of the next. Alone; with a norm of the vector; with weights brought before the
//    turn, as many as make 0.39 GB in 120 kernels, or 0.97 GB: those of the 0.5B in Q4_K_M and in F16. A layer of a decode step has
//    five.
// 3. Taps: the last of these chains again and again, the host waiting for each, as it does for a token. Beside it a second stream
//    clears a slot, and brings what the replay before wrote there to pinned memory of the host. And what the host adds to a step: the
//    chain again as the card takes it in a row, as the host waits for it, and with new parameters for the first kernel each time.
// 4. Launches of a prefill: kernels of some microseconds in a row, one launched after the other, and as one graph.
// 5. Products: matrix instructions on operands in shared memory, on all multiprocessors at once. The engine makes two of
//    halves for one product of the model.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "fused/stream.cuh"
#include "tensor_cores.cuh"

#define CK(x)                                                                                    \
    do {                                                                                         \
        cudaError_t e_ = (x);                                                                    \
        if (e_) {                                                                                \
            printf("%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(e_));                    \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

constexpr int STAGES = 6, STAGE = 32 << 10;

// Brings a block's part of `bytes`, a stage at a time.
__global__ void __launch_bounds__(32) bring(const u8 *from, size_t bytes) {
    extern __shared__ __align__(1024) u8 shared[];
    __shared__ __align__(8) Barrier there[STAGES];
    if (threadIdx.x != 0) return;
    for (int i = 0; i < STAGES; i++) make_barrier(&there[i], 1);
    show_barriers();
    const int all = (int)(bytes / STAGE), mine = (all - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
    for (int i = 0; i < mine + STAGES; i++) {
        if (i >= STAGES) wait_for(&there[i % STAGES], (i / STAGES - 1) & 1);
        if (i >= mine) continue;
        arrive_and_expect(&there[i % STAGES], STAGE);
        copy_in_bulk(shared + i % STAGES * STAGE, from + ((size_t)i * gridDim.x + blockIdx.x) * STAGE, STAGE, &there[i % STAGES]);
    }
}

constexpr int N = 896, PHASES = 120, BROUGHT = 6, MORE = 15; // 16 bytes that a thread brings
constexpr size_t SLOT = 4340864; // bytes that every stage of a decode step of the 0.5B brings to the host after 512 tokens

// NORM: whether the vector is measured. WEIGHTS: whether a block brings some first, and multiplies.
template <bool NORM, int BROUGHT>
__global__ void __launch_bounds__(256) hand_over(const float *x, float *next, const float4 *weights) {
    constexpr bool WEIGHTS = BROUGHT > 0;
    __shared__ float4 held[N / 4];
    __shared__ float sums[8];
    let_begin();
    float4 w[WEIGHTS ? BROUGHT : 1];
    if (WEIGHTS) {
#pragma unroll
        for (int i = 0; i < BROUGHT; i++) w[i] = __ldcs(weights + ((size_t)blockIdx.x * BROUGHT + i) * 256 + threadIdx.x);
#pragma unroll
        for (int i = 0; i < BROUGHT; i++) asm volatile("" : "+f"(w[i].x), "+f"(w[i].y), "+f"(w[i].z), "+f"(w[i].w));
    }
    wait_for_turn();
    const int i = threadIdx.x;
    const float4 v = i < N / 4 ? __ldcg((const float4 *)x + i) : make_float4(0, 0, 0, 0);
    float scale = 1.0f;
    if (NORM) scale = __frsqrt_rn(block_sum<8>(v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w) / N + 1e-6f);
    if (i < N / 4) held[i] = make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale);
    __syncthreads();
    float sum = held[i % (N / 4)].x;
    if (WEIGHTS) {
#pragma unroll
        for (int k = 0; k < BROUGHT; k++) {
            const float4 e = held[(i + 19 * k) % (N / 4)];
            sum = fmaf(w[k].x, e.x, fmaf(w[k].y, e.y, fmaf(w[k].z, e.z, fmaf(w[k].w, e.w, sum))));
        }
        sum = warp_sum(sum);
    }
    if (i % 32 == 0) sums[i / 32] = sum;
    __syncthreads();
    if (i < 7 && blockIdx.x < N / 7) next[7 * blockIdx.x + i] = sums[i] * 1e-3f;
}

// Takes so many cycles when it is its turn.
__global__ void __launch_bounds__(256) take_time(int cycles) {
    let_begin();
    wait_for_turn();
    const long long began = clock64();
    while (clock64() - began < cycles) {}
}

// Microseconds of `run`, the median of many.
template <class Run>
static double timed(cudaStream_t s, Run run) {
    cudaEvent_t a, b;
    CK(cudaEventCreate(&a)); CK(cudaEventCreate(&b));
    std::vector<float> us;
    for (int i = 0; i < 35; i++) {
        CK(cudaEventRecord(a, s));
        run();
        CK(cudaEventRecord(b, s));
        CK(cudaEventSynchronize(b));
        float ms;
        CK(cudaEventElapsedTime(&ms, a, b));
        if (i >= 4) us.push_back(1e3f * ms);
    }
    std::sort(us.begin(), us.end());
    return us[us.size() / 2];
}

int main() {
    cudaDeviceProp about;
    CK(cudaGetDeviceProperties(&about, 0));
    const int processors = about.multiProcessorCount;
    cudaStream_t s;
    CK(cudaStreamCreate(&s));
    constexpr size_t BYTES = 1024 << 20, WARM = 24 << 20;
    u8 *memory;
    float *x[2], *to;
    CK(cudaMalloc(&memory, BYTES)); CK(cudaMalloc(&to, processors * 1024));
    for (float *&v : x) CK(cudaMalloc(&v, 4 * N));
    std::vector<u32> noise(16 << 20);
    for (size_t i = 0; i < noise.size(); i++) noise[i] = (u32)(i * 2654435761u) & 0x3f7fffffu; // floats from 0 to 1
    for (size_t at = 0; at < BYTES; at += 4 * noise.size()) CK(cudaMemcpy(memory + at, noise.data(), 4 * noise.size(), cudaMemcpyHostToDevice));
    CK(cudaMemcpy(x[0], noise.data(), 4 * N, cudaMemcpyHostToDevice));
    printf("%s, %d multiprocessors\n", about.name, processors);

    CK(cudaFuncSetAttribute(bring, cudaFuncAttributeMaxDynamicSharedMemorySize, STAGES * STAGE));
    for (size_t bytes : {BYTES, WARM}) {
        const double us = timed(s, [&] { bring<<<processors, 32, STAGES * STAGE, s>>>(memory, bytes); });
        printf("memory: %4zu MB brought into shared memory, %-28s %7.0f GB/s\n", bytes >> 20,
               bytes == BYTES ? "from memory" : "from the second-level cache", bytes / us * 1e-3);
    }

    // Captures a chain for `then`.
    auto chain = [&](auto kernel, int brought, auto then) {
        cudaLaunchConfig_t c = {};
        cudaLaunchAttribute early[1];
        early[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        early[0].val.programmaticStreamSerializationAllowed = 1;
        c.gridDim = dim3(processors), c.blockDim = dim3(256), c.stream = s, c.attrs = early;
        CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
        const size_t each = (size_t)processors * brought * 256;
        for (int i = 0; i < PHASES; i++) {
            c.numAttrs = i > 0;
            CK(cudaLaunchKernelEx(&c, kernel, (const float *)x[i % 2], x[1 - i % 2], (const float4 *)memory + i * each));
        }
        cudaGraph_t g;
        cudaGraphExec_t e;
        CK(cudaStreamEndCapture(s, &g)); CK(cudaGraphInstantiate(&e, g, 0));
        size_t count = 1;
        cudaGraphNode_t first;
        CK(cudaGraphGetRootNodes(g, &first, &count));
        then(e, first);
        CK(cudaGraphExecDestroy(e)); CK(cudaGraphDestroy(g));
    };
    auto told = [&](const char *what) {
        return [&, what](cudaGraphExec_t e, cudaGraphNode_t) {
            const double us = timed(s, [&] { CK(cudaGraphLaunch(e, s)); });
            printf("hand-over: %d kernels in a row, %-44s %6.2f us each, %6.1f us in all\n", PHASES, what, us / PHASES, us);
        };
    };
    chain(hand_over<false, 0>, 0, told("the vector alone"));
    chain(hand_over<true, 0>, 0, told("with a norm"));
    chain(hand_over<true, BROUGHT>, 0, told("with a norm, weights from the cache"));
    chain(hand_over<true, BROUGHT>, BROUGHT, told("with a norm, weights from memory"));
    chain(hand_over<true, MORE>, 0, told("with a norm, 2.5 times as many from the cache"));
    chain(hand_over<true, MORE>, MORE, told("with a norm, 2.5 times as many from memory"));

    cudaStream_t beside;
    cudaEvent_t done;
    u8 *slots[2], *host;
    CK(cudaStreamCreateWithFlags(&beside, cudaStreamNonBlocking));
    CK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    for (u8 *&slot : slots) CK(cudaMalloc(&slot, SLOT));
    CK(cudaMallocHost(&host, SLOT));
    chain(hand_over<true, BROUGHT>, BROUGHT, [&](cudaGraphExec_t e, cudaGraphNode_t) {
        static const char *const WHAT[] = {"alone", "beside a slot that is cleared", "beside that and one that is brought to the host"};
        for (int much : {0, 1, 2}) {
            std::vector<double> us;
            for (int i = 0; i < 600; i++) {
                const auto began = std::chrono::steady_clock::now();
                CK(cudaGraphLaunch(e, s));
                if (much > 0) CK(cudaMemsetAsync(slots[i % 2], 0, SLOT, beside));
                if (much > 1) {
                    CK(cudaEventRecord(done, s));
                    CK(cudaStreamWaitEvent(beside, done));
                    CK(cudaMemcpyAsync(host, slots[1 - i % 2], SLOT, cudaMemcpyDeviceToHost, beside));
                }
                CK(cudaStreamSynchronize(s));
                us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - began).count());
            }
            CK(cudaDeviceSynchronize());
            std::sort(us.begin(), us.end());
            printf("taps: that chain as the host waits for it, %-50s %6.1f us\n", WHAT[much], us[us.size() / 2]);
        }
    });

    // Microseconds of a step whose end the host waits for.
    auto waited = [&](const char *what, auto step) {
        std::vector<double> us;
        for (int i = 0; i < 600; i++) {
            const auto began = std::chrono::steady_clock::now();
            step();
            CK(cudaStreamSynchronize(s));
            us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - began).count());
        }
        std::sort(us.begin(), us.end());
        printf("host: that chain %-70s %6.1f us\n", what, us[us.size() / 2]);
    };
    chain(hand_over<true, BROUGHT>, BROUGHT, [&](cudaGraphExec_t e, cudaGraphNode_t first) {
        cudaEvent_t a, b;
        CK(cudaEventCreate(&a)); CK(cudaEventCreate(&b));
        CK(cudaDeviceSynchronize());
        CK(cudaEventRecord(a, s));
        for (int i = 0; i < 300; i++) CK(cudaGraphLaunch(e, s));
        CK(cudaEventRecord(b, s));
        CK(cudaEventSynchronize(b));
        float ms;
        CK(cudaEventElapsedTime(&ms, a, b));
        printf("host: that chain %-70s %6.1f us\n", "300 times in a row, as if a step told the next its token", ms / 0.3);
        waited("as the host waits for it", [&] { CK(cudaGraphLaunch(e, s)); });
        cudaKernelNodeParams params;
        CK(cudaGraphKernelNodeGetParams(first, &params));
        waited("as the host waits for it, with new parameters for the first kernel", [&] {
            CK(cudaGraphExecKernelNodeSetParams(e, first, &params));
            CK(cudaGraphLaunch(e, s));
        });
    });

    {
        constexpr int LAUNCHES = 240; // of a prefill of the 0.5B
        auto in_a_row = [&](int cycles) {
            cudaLaunchConfig_t c = {};
            cudaLaunchAttribute early[1];
            early[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
            early[0].val.programmaticStreamSerializationAllowed = 1;
            c.gridDim = dim3(processors), c.blockDim = dim3(256), c.stream = s, c.attrs = early;
            for (int i = 0; i < LAUNCHES; i++) {
                c.numAttrs = i > 0;
                CK(cudaLaunchKernelEx(&c, take_time, cycles));
            }
        };
        for (int cycles : {1000, 5000, 15000}) {
            const double apart = timed(s, [&] { in_a_row(cycles); });
            cudaGraph_t g;
            cudaGraphExec_t e;
            CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
            in_a_row(cycles);
            CK(cudaStreamEndCapture(s, &g)); CK(cudaGraphInstantiate(&e, g, 0));
            const double whole = timed(s, [&] { CK(cudaGraphLaunch(e, s)); });
            CK(cudaGraphExecDestroy(e)); CK(cudaGraphDestroy(g));
            printf("launches: %d kernels of %5d cycles: %7.1f us launched one after the other, %7.1f us as one graph\n", LAUNCHES, cycles, apart, whole);
        }
    }

    CK(cudaFuncSetAttribute(tensor_cores, cudaFuncAttributeMaxDynamicSharedMemorySize, MULTIPLIED));
    constexpr int ROUNDS = 4000;
    const double us = timed(s, [&] { tensor_cores<<<processors, 256, MULTIPLIED, s>>>(ROUNDS, to); });
    const double made = operations_of(ROUNDS, processors) / us * 1e-6;
    CK(cudaGetLastError());
    printf("products: %.0f TFLOP/s of halves: %.0f of the model's, each of which is two of them\n", made, made / 2);
}
