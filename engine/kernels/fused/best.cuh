#pragma once

#include "fused/decode.cuh"

// The id of the largest logit, the lowest among equals. The last block to finish writes it, and leaves `largest` and `arrived`
// at 0 as it found them.

struct Best {
    unsigned long long *largest;
    u32 *arrived, *token; // the token in host memory; null if not wanted
};

// A logit and its id as one number that orders as they do: larger logits above
// smaller, lower ids above higher; NaN below everything.
__device__ __forceinline__ unsigned long long key_of(float v, u32 id) {
    u32 bits = __float_as_uint(v);
    bits = v != v ? 0 : (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
    return ((unsigned long long)bits << 32) | (0xffffffffu - id);
}

// The largest number of all threads of all blocks, each of which brings the largest that it has seen.
__device__ __forceinline__ void tell_best(unsigned long long most, const Best &best) {
    __shared__ unsigned long long warps[32];
    for (int step = 16; step > 0; step /= 2) {
        const unsigned long long other = __shfl_xor_sync(0xffffffffu, most, step);
        most = other > most ? other : most;
    }
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = most;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int i = 1; i < (int)blockDim.x / 32; i++) most = warps[i] > most ? warps[i] : most;
    atomicMax(best.largest, most);
    __threadfence();
    if (atomicAdd(best.arrived, 1) == gridDim.x - 1) {
        __threadfence();
        *best.token = 0xffffffffu - (u32)atomicExch(best.largest, 0);
        *best.arrived = 0;
        __threadfence_system();
    }
}
