#pragma once

#include "blocks.cuh"
#include "matrices.cuh"
#include "reduce.cuh"

// What the fused kernels of a decode step share. All run one token; its
// position stands in device memory, so that a captured graph stays valid.
//
// Kernels overlap (programmatic dependent launch): each lets the next begin as
// soon as it has begun itself, and fetches weights and constants, which nobody
// writes, before it waits for the kernels before it. A row of kernels may so
// stand ready on the card. Whatever stands before a kernel's wait may read what
// was written before the step and the step's position, and nothing else: the
// first kernel after the one that writes the position begins when that has ended.

// When a block began, had waited, and ended, in ns: what a benchmark has compiled in to be told.
#ifdef STAMPS
struct Stamp {
    unsigned long long began, waited, ended;
    long long marks[8]; // of its turn, in cycles
};
__device__ Stamp *stamps;
__device__ unsigned stamped;
__device__ __forceinline__ unsigned long long now() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)::"memory");
    return t;
}
#endif

// A kernel's turn in the row.
struct Turn {
#ifdef STAMPS
    Stamp stamp;
#endif
    // Lets the next kernel begin.
    __device__ __forceinline__ Turn() {
#if __CUDA_ARCH__ >= 900
        asm volatile("griddepcontrol.launch_dependents;");
#endif
#ifdef STAMPS
        stamp = {now(), 0, 0, {}};
#endif
    }
    // Waits until all kernels before this one are done and their writes seen.
    __device__ __forceinline__ void wait() {
#if __CUDA_ARCH__ >= 900
        asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
#ifdef STAMPS
        stamp.waited = now();
#endif
    }
    // Where a block has come to, for the benchmark.
    __device__ __forceinline__ void mark([[maybe_unused]] int i) {
#ifdef STAMPS
        stamp.marks[i] = clock64();
#endif
    }
#ifdef STAMPS
    __device__ __forceinline__ ~Turn() {
        if (stamp.waited == 0) return;
        __syncthreads();
        stamp.ended = now();
        if (threadIdx.x == 0) stamps[atomicAdd(&stamped, 1)] = stamp;
    }
#endif
};

// Writes v out where it is asked for and gives it on, opaque to the compiler, so
// that no later operation is fused with the one that made it: what is tapped is
// what is used.
__device__ __forceinline__ float tap(float *to, size_t i, float v) {
    asm("" : "+f"(v));
    if (to) to[i] = v;
    return v;
}

__device__ __forceinline__ float4 tap4(float *to, size_t i, float4 v) {
    asm("" : "+f"(v.x), "+f"(v.y), "+f"(v.z), "+f"(v.w));
    if (to) to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
    return v;
}

__device__ __forceinline__ float warp_sum(float v) {
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}

__device__ __forceinline__ float warp_max(float v) {
    for (int step = 16; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, step));
    return v;
}
