#pragma once

#include "blocks.cuh"

// Blocks on neighbouring multiprocessors that read each other's shared memory: from Hopper on. For other cards a
// kernel of them compiles, which is never launched there.

// The cluster of a kernel: `blocks` of them, next to each other along y.
#if __CUDA_ARCH__ >= 900
#define OF_CLUSTERS(blocks) __cluster_dims__(1, blocks, 1)
#else
#define OF_CLUSTERS(blocks)
#endif

// All threads of all blocks have come here, and what they wrote is seen.
__device__ __forceinline__ void cluster_barrier() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    __syncthreads();
#endif
}

// All have come here: orders nothing. Whoever read another block's memory has what it read.
__device__ __forceinline__ void cluster_meet() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// The value at the place of `mine` in the shared memory of the cluster's block `rank`.
__device__ __forceinline__ float4 of_rank(const float4 *mine, int rank) {
    float4 v = *mine;
#if __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .u32 at; mapa.shared::cluster.u32 at, %4, %5; ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [at]; }"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"((u32)__cvta_generic_to_shared(mine)), "r"(rank)
                 : "memory");
#endif
    return v;
}
