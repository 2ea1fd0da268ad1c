#pragma once

#include "blocks.cuh"
#include "matrices.cuh"
#include "reduce.cuh"

// What the fused kernels share. Those of a decode step run one token; its
// position is in device memory, so that a captured graph stays valid.
//
// Kernels overlap (programmatic dependent launch): each lets the next begin as
// soon as it has begun itself, and fetches weights and constants, which nobody
// writes, before it waits for the kernels before it. A row of kernels may so
// stand ready on the card. Whatever stands before a kernel's wait may read what
// was written before the step and the step's position, and nothing else: the
// first kernel after the one that writes the position begins when that has ended.

// On its turn a kernel runs most of its code once, and a multiprocessor's cache of instructions holds less than a layer's kernels: what is
// not run costs time too, since it is fetched before the code behind it. A jump over it takes 200 cycles and more. So a kernel is
// compiled for the length of its vector, and with taps or without (TAPPED); and what can be done before the turn is. That is also where
// parameters are read: a function that is called on the turn reads those of its caller one after another, 200 cycles and more each.

// When a block's first thread began, had waited, and ended, in ns; 0 where it did not.
struct Stamp {
    unsigned long long began, waited, ended;
#ifdef MARKS
    long long marks[8]; // of its turn, in cycles: what a benchmark has compiled in
#endif
};

__device__ __forceinline__ unsigned long long now() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)::"memory");
    return t;
}

// Lets the next kernel begin.
__device__ __forceinline__ void let_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Waits until all kernels before this one are done and their writes seen.
__device__ __forceinline__ void wait_for_turn() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// A kernel's turn in the row.
struct Turn {
    Stamp *const stamps; // of the launch, a block each; null if not wanted
    __device__ __forceinline__ Turn(Stamp *stamps) : stamps(stamps) {
        let_begin();
        if (asked()) mine().began = now();
    }
    __device__ __forceinline__ bool asked() const { return stamps && threadIdx.x == 0; }
    __device__ __forceinline__ Stamp &mine() const { return stamps[blockIdx.y * gridDim.x + blockIdx.x]; }
    __device__ __forceinline__ void wait() {
        wait_for_turn();
        if (asked()) mine().waited = now();
    }
    // Where a block has come to, for the benchmark.
    __device__ __forceinline__ void mark([[maybe_unused]] int i) {
#ifdef MARKS
        if (asked()) mine().marks[i] = clock64();
#endif
    }
    __device__ __forceinline__ ~Turn() {
        if (asked()) mine().ended = now();
    }
};

// Where a stage is written besides, read before the turn; null where it is not wanted, and in a kernel that is not made for taps.
template <bool TAPPED>
__device__ __forceinline__ float *tap_of(float *to) {
    if (TAPPED) asm volatile("" : "+l"(to));
    return TAPPED ? to : nullptr;
}

// Writes v out if it is tapped and returns it, opaque to the compiler, so
// that no later operation is fused with the one that made it: the tapped value is
// the one that is used.
__device__ __forceinline__ float tap(float *to, size_t i, float v) {
    asm("" : "+f"(v));
    if (to) to[i] = v;
    return v;
}

// Four, at a multiple of four.
__device__ __forceinline__ float4 tap4(float *to, size_t i, float4 v) {
    asm("" : "+f"(v.x), "+f"(v.y), "+f"(v.z), "+f"(v.w));
    if (to) *(float4 *)(to + i) = v;
    return v;
}

// SiLU of the gate, times up.
__device__ __forceinline__ float gated(float g, float u) {
    return g / (1.0f + expf(-g)) * u;
}

__device__ __forceinline__ float warp_sum(float v) {
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}

// One by the root, without a branch.
__device__ __forceinline__ float factor_of(float v) {
    const float near = rsqrtf(v);
    return fmaf(0.5f * near, fmaf(-v * near, near, 1.0f), near);
}

__device__ __forceinline__ float warp_max(float v) {
    for (int step = 16; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, step));
    return v;
}
