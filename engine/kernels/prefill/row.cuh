#pragma once

#include "prefill/operand.cuh"

// A token's row of n elements, by all threads of a block, a multiple of 32: four elements
// of each at a time, which are in shared memory once they are made. So few registers are
// taken that a multiprocessor holds the rows of many tokens at once.
constexpr int MOST_ROW_THREADS = 1024; // of a block that makes a row
constexpr int AHEAD = 2; // fours that a thread loads before it goes on with the first

__device__ __forceinline__ float4 *row_memory() {
    extern __shared__ __align__(16) u8 shared[];
    return (float4 *)shared;
}
// The fours of a row that are a thread's from the first on, of those from `from` up to `end`; zeros for others.
__device__ __forceinline__ void load_fours(const float *row, int first, int from, int end, float4 *to) {
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
        const int i = first + k * blockDim.x;
        to[k] = from <= i && i < end ? *(const float4 *)(row + 4 * i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}
template <typename Get>
struct Row {
    Get get; // get(i, made) makes fours i, i + blockDim.x and so on, AHEAD of them
    int n;
    // Goes through it once; what(i, elements).
    template <typename What>
    __device__ __forceinline__ void make(What what) {
        for (int first = threadIdx.x; first < n / 4; first += AHEAD * blockDim.x) {
            float4 made[AHEAD];
            get(first, made);
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                const int i = first + k * blockDim.x;
                if (i < n / 4) what(i, row_memory()[i] = made[k]);
            }
        }
    }
    // Goes through it again, whole warps together: what(i, elements, whether there are any).
    template <typename What>
    __device__ __forceinline__ void again(What what) {
        for (int i = threadIdx.x; i - (int)(threadIdx.x % 32) < n / 4; i += blockDim.x) {
            const bool there = i < n / 4;
            what(i, there ? row_memory()[i] : make_float4(0.0f, 0.0f, 0.0f, 0.0f), there);
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
