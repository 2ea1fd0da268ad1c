#pragma once

#include "fused/digits.cuh"

// The rows x [T, n] of a product of many tokens, as the tensor cores take them, to f32
// accuracy: an element is the sum of two halves of 11 bits each, its token's largest
// magnitude brought to below 2^15, or of three bfloat16 of 8 bits each where a weight's
// exponent has 8 bits (`digits.cuh`). What is left out is at most 2^-23 of an element, or
// 2^-39 of the token's largest. A row with an element that is no number, or infinite, gives
// no numbers.
//
// Of each token and group of 32 elements, part by part, there stand the even and then the
// odd ones of the lower 16, and so those of the upper 16. So elements 4t, 4t + 2 and
// 4t + 1, 4t + 3 meet a lane's two pairs of a matrix instruction, and four weights that
// stand in one word, byte by byte, become two pairs of halves.

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

// Where it stands in memory.
struct Operand {
    u8 *parts;      // [T, n / 32, parts, PART_BYTES]
    float *inverse; // [T]: what a token's sums are multiplied with
    u8 *sums;       // [T, ceil(n / 256), EIGHT_SUMS]: of the elements of each group, scaled as they are
};
template <typename Part>
__device__ __forceinline__ void put_sum(u8 *row, int group, float sum) {
    ((float *)row)[group] = sum;
}
// A 32nd of it, which is below 2^15 as they are, as two halves: of two groups the first halves, then the second.
template <>
__device__ __forceinline__ void put_sum<HalfPart>(u8 *row, int group, float sum) {
    u16 *at = (u16 *)row + group / 2 * 4 + group % 2;
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

// A token's row of n elements, by all threads of a block, a multiple of 32: four elements
// of each at a time, of which a thread keeps the first so many. What it has besides is made
// anew each time.
template <typename Get>
struct Row {
    static constexpr int KEPT = 2;
    Get get; // get(i) makes elements 4i .. 4i + 3
    int n;
    float4 kept[KEPT];
    // Goes through it once; what(i, elements).
    template <typename What>
    __device__ __forceinline__ void make(What what) {
#pragma unroll
        for (int k = 0; k < KEPT; k++) {
            const int i = threadIdx.x + k * blockDim.x;
            if (i < n / 4) what(i, kept[k] = get(i));
        }
        for (int i = threadIdx.x + KEPT * blockDim.x; i < n / 4; i += blockDim.x) what(i, get(i));
    }
    // Goes through it again, whole warps together: what(i, elements, whether there are any).
    template <typename What>
    __device__ __forceinline__ void again(What what) {
#pragma unroll
        for (int k = 0; k < KEPT; k++) {
            const int i = threadIdx.x + k * blockDim.x;
            if (i - (int)(threadIdx.x % 32) < n / 4) what(i, kept[k], i < n / 4);
        }
        for (int i = threadIdx.x + KEPT * blockDim.x; i - (int)(threadIdx.x % 32) < n / 4; i += blockDim.x) {
            const bool there = i < n / 4;
            what(i, there ? get(i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f), there);
        }
    }
};

// Writes a row as token t's, its largest magnitude given; change(i, elements) is what it becomes first.
template <typename Part, typename Get, typename Change>
__device__ __forceinline__ void write_row(const Operand &to, size_t t, Row<Get> &from, u32 largest, Change change) {
    constexpr int PARTS = PartsOf<Part>::COUNT;
    const int groups = from.n / 32, eights = (groups + 7) / 8;
    u8 *sums = to.sums + t * eights * EIGHT_SUMS;
    u8 *row = to.parts + t * groups * (PARTS * PART_BYTES);
    float scale, inverse;
    Part::scale(largest, scale, inverse);
    if (threadIdx.x == 0) to.inverse[t] = inverse;
    for (int g = groups + threadIdx.x; g < 8 * eights; g += blockDim.x) put_sum<Part>(sums, g, 0.0f);
    from.again([&](int i, float4 v, bool there) {
        if (there) v = change(i, v);
        float sum = there ? (v.x + v.y) + (v.z + v.w) : 0.0f;
        for (int step = 1; step < 8; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (!there) return;
        if (i % 8 == 0) put_sum<Part>(sums, i / 8, sum * scale);
        float e[4] = {v.x * scale, v.y * scale, v.z * scale, v.w * scale};
        u8 *pair = row + (size_t)(i / 8) * (PARTS * PART_BYTES) + i % 8 / 4 * 32 + i % 4 * 4;
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            u32 bits[4];
#pragma unroll
            for (int k = 0; k < 4; k++) bits[k] = Part::split(e[k]);
            *(u32 *)(pair + part * PART_BYTES) = bits[0] | bits[2] << 16;
            *(u32 *)(pair + part * PART_BYTES + 16) = bits[1] | bits[3] << 16;
        }
    });
}
