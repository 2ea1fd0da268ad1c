#pragma once

#include "blocks.cuh"

// What the tensor cores are given, and how it comes into shared memory.

// Four matrices of 8 rows of 16 bytes; this lane names one of the 32 rows.
__device__ __forceinline__ void load_matrices(u32 *r, const u8 *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((u32)__cvta_generic_to_shared(row))
                 : "memory");
}

// Each of the four transposed.
__device__ __forceinline__ void load_transposed(u32 *r, const u8 *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((u32)__cvta_generic_to_shared(row))
                 : "memory");
}

// Where 16 bytes of a row of d halves stand: eight rows, which `ldmatrix` reads at once, share no bank. Of eight rows 64
// elements come after another, as Hopper multiplies them.
__device__ __forceinline__ int place_in_tile(int d, int row, int unit) {
    if (d < 64) return row * d * 2 + 16 * (unit ^ row / 2 % 4);
    return row / 8 * 16 * d + unit / 8 * 1024 + row % 8 * 128 + 16 * (unit % 8 ^ row % 8);
}

__device__ __forceinline__ void multiply32(int *c, const u32 *a, uint2 b) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}
// As multiply32, of weights without a sign.
__device__ __forceinline__ void multiply_unsigned(int *c, const u32 *a, uint2 b) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}
__device__ __forceinline__ void multiply16(int *c, u32 a0, u32 a1, u32 b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}
__device__ __forceinline__ void multiply_f16(float *c, const u32 *a, uint2 b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}
__device__ __forceinline__ void multiply_bf16(float *c, const u32 *a, uint2 b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}

// The row of a tile whose 16 bytes this lane names to load_matrices, and which 16 of two:
// rows 0 to 7 first, or halves of all rows first.
__device__ __forceinline__ int row_by_halves(int lane) { return lane % 8 + lane / 16 * 8; }
__device__ __forceinline__ int half_by_halves(int lane) { return lane / 8 % 2; }
__device__ __forceinline__ int row_by_rows(int lane) { return lane % 8 + lane / 8 % 2 * 8; }
__device__ __forceinline__ int half_by_rows(int lane) { return lane / 16; }

// Copies of 16 bytes into shared memory that run on while the thread goes on. The whole of
// their 128 bytes comes into the cache: other copies take the rest.
__device__ __forceinline__ void copy16(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from)
                 : "memory");
}
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for this thread's copies but the LATER last groups.
template <int LATER>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory");
}
// Of 4 bytes, or zeros where there is nothing to be read.
__device__ __forceinline__ void copy4(void *to, const void *from, bool there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from),
                 "r"(there ? 4 : 0)
                 : "memory");
}
// Of 16, likewise.
__device__ __forceinline__ void copy16_or_zeros(void *to, const void *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
}
