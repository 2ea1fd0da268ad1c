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

// Where it stands in memory.
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

// A token's row of n elements, by all threads of a block, a multiple of 32: four elements
// of each at a time, of which a thread keeps the first so many. What it has besides is made
// anew each time.
constexpr int MOST_ROW_THREADS = 1024; // of a block that makes a row
template <typename Get>
struct Row {
    static constexpr int KEPT = 4;
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
    const int n = from.n, groups = n / 32;
    auto sums = [&](int g, float sum) { put_sum<Part>(to.sums + place_of_sums<Part>(n, t, g / 8), g % 8, sum); };
    float scale, inverse;
    Part::scale(largest, scale, inverse);
    if (threadIdx.x == 0) to.inverse[t] = inverse;
    for (int g = groups + threadIdx.x; g < (groups + 7) / 8 * 8; g += blockDim.x) sums(g, 0.0f);
    if (PARTS == 2 && groups % 2 == 1 && threadIdx.x < 8) { // the group that makes their number even
        *(uint4 *)(to.parts + place_in_operand<Part>(n, t, groups, threadIdx.x)) = uint4{0, 0, 0, 0};
    }
    from.again([&](int i, float4 v, bool there) {
        if (there) v = change(i, v);
        float sum = there ? (v.x + v.y) + (v.z + v.w) : 0.0f;
        for (int step = 1; step < 8; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (!there) return;
        if (i % 8 == 0) sums(i / 8, sum * scale);
        float e[4] = {v.x * scale, v.y * scale, v.z * scale, v.w * scale};
        auto pair = [&](int part, int odd) {
            const int unit = 4 * part + i % 8 / 4 * 2 + odd;
            return (u32 *)(to.parts + place_in_operand<Part>(n, t, i / 8, unit) + i % 4 * 4);
        };
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            u32 bits[4];
#pragma unroll
            for (int k = 0; k < 4; k++) bits[k] = Part::split(e[k]);
            *pair(part, 0) = bits[0] | bits[2] << 16;
            *pair(part, 1) = bits[1] | bits[3] << 16;
        }
    });
}
