#pragma once

#include "prefill/wide.cuh"

// Matrix instructions on operands in shared memory, of two warpgroups of each block: what the tensor cores give at most.
__global__ void __launch_bounds__(256, 1) tensor_cores(int rounds, float *to) {
    extern __shared__ __align__(1024) u8 operands[];
    for (int i = threadIdx.x; i < 64 << 10 >> 2; i += blockDim.x) ((u32 *)operands)[i] = 0x3c003800u + i % 64; // halves near 1
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    float s[WIDE_THREAD_SUMS] = {};
    const u8 *a = operands + threadIdx.x / 128 * (16 << 10), *b = operands + (32 << 10);
#pragma unroll 1
    for (int k = 0; k < rounds; k++) {
        begin_products<WIDE_THREAD_SUMS>(s);
#pragma unroll
        for (int step = 0; step < 8; step++) multiply_wide(s, a, step % 2 * 8192 + step / 2 % 4 * 32, b, step % 2 * 16384 + step / 2 % 4 * 32, true);
        end_products();
        wait_for_products<0, WIDE_THREAD_SUMS>(s);
    }
    float sum = 0.0f;
    for (int i = 0; i < WIDE_THREAD_SUMS; i++) sum += s[i];
    to[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
// Its shared memory, and what so many blocks of it compute.
constexpr int MULTIPLIED = 64 << 10;
static double operations_of(int rounds, int blocks) { return 2.0 * 64 * OPERAND_TOKENS * 16 * 8 * 2 * rounds * blocks; }
