// The id of the largest logit, the lowest among equals. The last block to finish
// writes it, and leaves best and arrived at 0 as it found them.
// Grid (blocks), block THREADS. logits [V], best and arrived [1], token in host memory.

#include "fused/decode.cuh"

constexpr int THREADS = 256;

struct ArgmaxParams {
    const float *logits;
    unsigned long long *best;
    u32 *arrived, *token;
    int m;
    Stamp *stamps; // null where it is not timed
};

// A logit and its id as one number that orders as they do: larger logits above
// smaller, lower ids above higher; NaN below everything.
__device__ __forceinline__ unsigned long long key_of(float v, u32 id) {
    u32 bits = __float_as_uint(v);
    bits = v != v ? 0 : (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
    return ((unsigned long long)bits << 32) | (0xffffffffu - id);
}

__global__ void __launch_bounds__(THREADS) argmax(const __grid_constant__ ArgmaxParams p) {
    __shared__ unsigned long long warps[THREADS / 32];
    Turn turn(p.stamps);
    turn.wait();
    unsigned long long most = 0;
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < p.m; i += gridDim.x * THREADS) {
        const unsigned long long k = key_of(p.logits[i], i);
        most = k > most ? k : most;
    }
    for (int step = 16; step > 0; step /= 2) {
        const unsigned long long other = __shfl_xor_sync(0xffffffffu, most, step);
        most = other > most ? other : most;
    }
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = most;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int i = 1; i < THREADS / 32; i++) most = warps[i] > most ? warps[i] : most;
    atomicMax(p.best, most);
    __threadfence();
    if (atomicAdd(p.arrived, 1) == gridDim.x - 1) {
        __threadfence();
        *p.token = 0xffffffffu - (u32)atomicExch(p.best, 0);
        *p.arrived = 0;
        __threadfence_system();
    }
}
