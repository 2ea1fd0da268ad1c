#pragma once

#include "barriers.cuh"
#include "matrices.cuh"

// Hopper multiplies 64 rows of weights at once, 16 of each of four warps, with TOKENS rows
// of x in shared memory, while the warps go on. A thread has of the sums what it
// has of those of `multiply_f16`, eight tokens after another.

constexpr int TOKENS = 64;

// What copies have brought is seen by the products that begin after the next barrier.
__device__ __forceinline__ void show_to_products() {
    ON_HOPPER(asm volatile("fence.proxy.async.shared::cta;" ::: "memory"));
}
// Of 512 threads, which begin with 128 registers each, four warps keep 32, so that the others have 160.
__device__ __forceinline__ void give_registers() { ON_HOPPER(asm volatile("setmaxnreg.dec.sync.aligned.u32 32;")); }
__device__ __forceinline__ void take_registers() { ON_HOPPER(asm volatile("setmaxnreg.inc.sync.aligned.u32 160;")); }

// Sums s are made by the products that follow.
template <int SUMS = TOKENS / 2>
__device__ __forceinline__ void begin_products(float *s) {
#pragma unroll
    for (int i = 0; i < SUMS; i++) asm volatile("" : "+f"(s[i])::"memory");
    ON_HOPPER(asm volatile("wgmma.fence.sync.aligned;" ::: "memory"));
}
__device__ __forceinline__ void end_products() {
    ON_HOPPER(asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"));
}
template <int LATER, int SUMS = TOKENS / 2>
__device__ __forceinline__ void wait_for_products(float *s) {
    ON_HOPPER(asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LATER) : "memory"));
#pragma unroll
    for (int i = 0; i < SUMS; i++) asm volatile("" : "+f"(s[i])::"memory");
}
// s = a times 16 halves of each of 64 rows of 128 bytes, of which sixteen are turned by the row, or s plus that. The first
// stands `offset` bytes after `stage`.
__device__ __forceinline__ void multiply_group(float *s, const u32 *a, const u8 *stage, int offset, bool plus) {
    const unsigned long long eight = 1024 / 16, turned = 1; // bytes of eight rows; sixteens of 128 bytes are turned
    // Shared memory has fewer sixteens than the place has bits: no carry.
    const u32 place = (u32)__cvta_generic_to_shared(stage) / 16 + offset / 16;
    const unsigned long long at = place | eight << 32 | turned << 62;
    ON_HOPPER(asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
                 "{%32,%33,%34,%35}, %36, p, 1, 1, 0; }"
                 : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]), "+f"(s[4]), "+f"(s[5]), "+f"(s[6]), "+f"(s[7]),
                   "+f"(s[8]), "+f"(s[9]), "+f"(s[10]), "+f"(s[11]), "+f"(s[12]), "+f"(s[13]), "+f"(s[14]), "+f"(s[15]),
                   "+f"(s[16]), "+f"(s[17]), "+f"(s[18]), "+f"(s[19]), "+f"(s[20]), "+f"(s[21]), "+f"(s[22]), "+f"(s[23]),
                   "+f"(s[24]), "+f"(s[25]), "+f"(s[26]), "+f"(s[27]), "+f"(s[28]), "+f"(s[29]), "+f"(s[30]), "+f"(s[31])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(at), "r"((int)plus)
                 : "memory"));
}

#define FOUR_SUMS(i) "+f"(s[i]), "+f"(s[i + 1]), "+f"(s[i + 2]), "+f"(s[i + 3])
#define SIXTEEN_SUMS(i) FOUR_SUMS(i), FOUR_SUMS(i + 4), FOUR_SUMS(i + 8), FOUR_SUMS(i + 12)
// Rows of 128 bytes in shared memory, whose sixteens are turned by the row, from `offset` bytes after `stage` on: `eight`
// bytes from eight to eight.
__device__ __forceinline__ unsigned long long rows_at(const u8 *stage, int offset, int eight = 1024) {
    const u32 apart = eight / 16, place = (u32)__cvta_generic_to_shared(stage) / 16 + (offset / 16 | apart << 16);
    return place | (unsigned long long)(apart | 1u << 30) << 32; // no carry, as in `multiply_group`
}
// s = a times 16 halves of each of 32 rows, or s plus that.
__device__ __forceinline__ void multiply_keys(float *s, const u32 *a, const u8 *stage, int offset, int eight, bool plus) {
    ON_HOPPER(asm volatile("{ .reg .pred p; setp.ne.b32 p, %21, 0;\n"
                           "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
                           "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, p, 1, 1, 0; }"
                           : SIXTEEN_SUMS(0)
                           : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(rows_at(stage, offset, eight)), "r"((int)plus)
                           : "memory"));
}
// s = a times 64 halves of each of 16 rows, or s plus that: what they have in a row is summed over the rows.
__device__ __forceinline__ void multiply_values(float *s, const u32 *a, const u8 *stage, int offset, int eight, bool plus) {
    ON_HOPPER(asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0;\n"
                           "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                           "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                           "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
                           "{%32,%33,%34,%35}, %36, p, 1, 1, 1; }"
                           : SIXTEEN_SUMS(0), SIXTEEN_SUMS(16)
                           : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(rows_at(stage, offset, eight)), "r"((int)plus)
                           : "memory"));
}
