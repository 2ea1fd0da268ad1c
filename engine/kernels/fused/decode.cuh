#pragma once

#include "blocks.cuh"
#include "reduce.cuh"

// What the fused kernels of a decode step share. All run one token; its
// position stands in device memory, so that a captured graph stays valid.
//
// Kernels overlap their neighbours (programmatic dependent launch): each fetches
// weights, which nobody writes, before it waits for the kernel before it, and
// lets the next one begin right after. So whatever stands before a kernel's wait
// may read what was written two kernels before, and nothing younger.

// Waits until all kernels before this one are done and their writes seen, then
// lets the next one begin.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// A vector in shared memory has four floats of padding after every 32: lanes
// that read one group each then share no bank.
constexpr int PADDED_GROUP = 36;
__device__ __forceinline__ int padded(int i) { return i + (PADDED_GROUP - 32) * (i / 32); }

// Writes v out where it is asked for and gives it on, opaque to the compiler, so
// that no later operation is fused with the one that made it: what is tapped is
// what is used.
__device__ __forceinline__ float tap(float *to, size_t i, float v) {
    asm("" : "+f"(v));
    if (to) to[i] = v;
    return v;
}

// RMSNorm of x into shared memory; every block makes its own, block 0 taps it.
__device__ __forceinline__ void norm_to_shared(const float *x, const float *weight, float eps, int n, float *shared,
                                               float *tapped) {
    float squares = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        const float v = x[i];
        shared[padded(i)] = v;
        squares = fmaf(v, v, squares);
    }
    const float scale = 1.0f / sqrtf(reduce_sum(squares) / (float)n + eps);
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        shared[padded(i)] = tap(blockIdx.x == 0 ? tapped : nullptr, i, shared[padded(i)] * scale * weight[i]);
    }
    __syncthreads();
}

__device__ __forceinline__ float warp_sum(float v) {
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}

// One row of a weight against x in shared memory, by `lanes` threads, of which
// this is `lane`. The first group is fetched by start, before any waiting.
template <typename Format>
struct RowDot {
    typename Format::Raw raw;
    __device__ __forceinline__ void start(const Weights &w, int row, int groups, int lane) {
        if (lane < groups) raw = Format::load(w, (size_t)row * groups + lane);
    }
    // The part of this thread, to be summed over the lanes.
    __device__ __forceinline__ float finish(const Weights &w, int row, int groups, int lane, int lanes,
                                            const float *shared) {
        float sum = 0.0f;
        for (int g = lane; g < groups; g += lanes) {
            const typename Format::Raw now = raw;
            if (g + lanes < groups) raw = Format::load(w, (size_t)row * groups + g + lanes);
            sum += Format::dot(now, g % 8, (const float4 *)(shared + PADDED_GROUP * g));
        }
        return sum;
    }
};
