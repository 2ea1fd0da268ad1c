#pragma once

#include "blocks.cuh"

// What cards have from Hopper on: copies in bulk, of which barriers in shared memory tell; and what Hopper alone has:
// instructions of four warps.

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define ON_HOPPER(instruction) instruction
constexpr bool WARPGROUPS = true;
#else
#define ON_HOPPER(instruction)
constexpr bool WARPGROUPS = false; // and nobody calls what follows
#endif
#if __CUDA_ARCH__ >= 900
#define FROM_HOPPER(instruction) instruction
#else
#define FROM_HOPPER(instruction)
#endif

// A barrier in shared memory that counts arrivals and bytes that copies bring.
typedef unsigned long long Barrier;
__device__ __forceinline__ void make_barrier(Barrier *at, u32 arrivals) {
    FROM_HOPPER(asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"((u32)__cvta_generic_to_shared(at)), "r"(arrivals)
                           : "memory"));
}
// What was made is seen by copies and by the whole block after its next barrier.
__device__ __forceinline__ void show_barriers() { FROM_HOPPER(asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory")); }
__device__ __forceinline__ void arrive(Barrier *at) {
    FROM_HOPPER(asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"((u32)__cvta_generic_to_shared(at)) : "memory"));
}
// Arrives, and has the barrier wait for so many bytes besides.
__device__ __forceinline__ void arrive_and_expect(Barrier *at, u32 bytes) {
    FROM_HOPPER(asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"((u32)__cvta_generic_to_shared(at)),
                           "r"(bytes)
                           : "memory"));
}
// Whether the barrier's round of this parity is over.
__device__ __forceinline__ bool is_over(Barrier *at, u32 parity) {
    u32 over = 1;
    FROM_HOPPER(asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                           : "=r"(over)
                           : "r"((u32)__cvta_generic_to_shared(at)), "r"(parity)
                           : "memory"));
    return over;
}
__device__ __forceinline__ void wait_for(Barrier *at, u32 parity) {
    while (!is_over(at, parity)) {}
}
// Copies a multiple of 16 bytes, and tells the barrier when they are there.
__device__ __forceinline__ void copy_in_bulk(u8 *to, const u8 *from, u32 bytes, Barrier *at) {
    FROM_HOPPER(asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                               (u32)__cvta_generic_to_shared(to)),
                           "l"(from), "r"(bytes), "r"((u32)__cvta_generic_to_shared(at))
                           : "memory"));
}
