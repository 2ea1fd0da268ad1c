#pragma once

#include "fused/digits.cuh"

// The rows x [T, n] of a product of many tokens, as the tensor cores take them, to f32
// accuracy: an element is the sum of two halves of 11 bits each, its token's largest
// magnitude brought to below 2^15, or of three bfloat16 of 8 bits each where a weight's
// exponent has 8 bits (`digits.cuh`). What is left out is at most 2^-23 of an element, or
// 2^-39 of the token's largest. A row with an element that is no number, or infinite, gives
// no numbers.
//
// Each token and group of 32 elements has, part by part, the even and then the
// odd ones of the lower 16, and so those of the upper 16. So elements 4t, 4t + 2 and
// 4t + 1, 4t + 3 meet a lane's two pairs of a matrix instruction, and four weights that
// are in one word, byte by byte, become two pairs of halves.
//
// In halves, OPERAND_TOKENS tokens of a group stand together, 128 bytes each, their sixteens
// turned by the token: as they are multiplied from shared memory, whoever brings them there,
// and an odd number of groups ends with one of zeros. So do the sums of eight groups.

template <typename Part>
struct PartsOf {
    static constexpr int COUNT = 2;
};
template <>
struct PartsOf<BrainPart> {
    static constexpr int COUNT = 3;
};

constexpr int PART_BYTES = 64; // of a group of 32 elements
constexpr int EIGHT_SUMS = 32; // bytes of the sums of eight groups
constexpr int OPERAND_TOKENS = 128; // of a tile of an operand in halves

// Its place in memory.
struct Operand {
    u8 *parts;      // [T, n / 32, parts, PART_BYTES], or [tiles, padded groups, OPERAND_TOKENS, parts, PART_BYTES]
    float *inverse; // [T]: what a token's sums are multiplied with
    u8 *sums;       // [T, ceil(n / 256), EIGHT_SUMS], or [tiles, ceil(n / 256), OPERAND_TOKENS, EIGHT_SUMS]: of the elements of
                    // each group, scaled as they are
};
// Where 16 bytes of group g of token t of a row of n elements stand.
template <typename Part>
__device__ __forceinline__ size_t place_in_operand(int n, size_t t, int g, int unit) {
    constexpr int BYTES = PartsOf<Part>::COUNT * PART_BYTES;
    if (PartsOf<Part>::COUNT != 2) return (t * (n / 32) + g) * BYTES + 16 * unit;
    const size_t row = (t / OPERAND_TOKENS * padded_groups(n) + g) * OPERAND_TOKENS + t % OPERAND_TOKENS;
    return row * BYTES + 16 * (unit ^ (int)(t % 8));
}
// Where the sums of the eight groups from 8 * eight on do.
template <typename Part>
__device__ __forceinline__ size_t place_of_sums(int n, size_t t, int eight) {
    const int eights = (n / 32 + 7) / 8;
    if (PartsOf<Part>::COUNT != 2) return (t * eights + eight) * EIGHT_SUMS;
    return ((t / OPERAND_TOKENS * eights + eight) * OPERAND_TOKENS + t % OPERAND_TOKENS) * EIGHT_SUMS;
}
template <typename Part>
__device__ __forceinline__ void put_sum(u8 *eight, int group, float sum) {
    ((float *)eight)[group] = sum;
}
// A 32nd of it, which is below 2^15 as they are, as two halves: of two groups the first halves, then the second.
template <>
__device__ __forceinline__ void put_sum<HalfPart>(u8 *eight, int group, float sum) {
    u16 *at = (u16 *)eight + group / 2 * 4 + group % 2;
    sum *= 0.03125f;
    at[0] = HalfPart::split(sum);
    at[2] = HalfPart::split(sum);
}

__device__ __forceinline__ u32 magnitude(float v) { return __float_as_uint(v) & 0x7fffffffu; }
// As integers, NaN is the largest of all.
__device__ __forceinline__ u32 largest_of(float4 v) {
    return max(max(magnitude(v.x), magnitude(v.y)), max(magnitude(v.z), magnitude(v.w)));
}

// The largest of a block's, for every thread.
__device__ __forceinline__ u32 block_largest(u32 v) {
    __shared__ u32 all[32];
    for (int step = 16; step > 0; step /= 2) v = max(v, __shfl_xor_sync(0xffffffffu, v, step));
    __syncthreads();
    if (threadIdx.x % 32 == 0) all[threadIdx.x / 32] = v;
    __syncthreads();
    v = all[0];
    for (int i = 1; i < (int)(blockDim.x / 32); i++) v = max(v, all[i]);
    return v;
}
