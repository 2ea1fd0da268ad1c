#pragma once

#include "fused/rows.cuh"

// The residual stream and its norm.

// The sum over all threads of a block, whose unused warps count as zero. Other barriers stand between two of them.
template <int WARPS>
__device__ __forceinline__ float block_sum(float v) {
    __shared__ __align__(16) float partial[WARPS];
    const int warp = threadIdx.x / 32;
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) partial[warp] = v;
    if (threadIdx.x < WARPS && threadIdx.x >= blockDim.x / 32) partial[threadIdx.x] = 0.0f;
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < WARPS / 4; i++) {
        const float4 four = ((const float4 *)partial)[i];
        sum += (four.x + four.y) + (four.z + four.w);
    }
    return sum;
}

// The residual stream: a vector and the halves of the product that is added to it,
// which the kernels after a product put together for themselves.
struct Stream {
    const float *base, *halves[2]; // no halves: the base alone
    float *product_tap, *sum_tap;  // null where not wanted
    // Elements 4i .. 4i + 3; one block taps them.
    __device__ __forceinline__ float4 at(int i, bool taps) const {
        const float4 v = __ldcg((const float4 *)base + i);
        if (!halves[0]) return v;
        const float4 a = __ldcg((const float4 *)halves[0] + i), b = __ldcg((const float4 *)halves[1] + i);
        const float4 p = tap4(taps ? product_tap : nullptr, 4 * i,
                              make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w));
        return tap4(taps ? sum_tap : nullptr, 4 * i, make_float4(v.x + p.x, v.y + p.y, v.z + p.z, v.w + p.w));
    }
    // The same, of which nothing is tapped.
    __device__ __forceinline__ Stream untapped() const { return {base, {halves[0], halves[1]}, nullptr, nullptr}; }
    __device__ __forceinline__ float one(int i) const {
        const float v = __ldcg(base + i);
        return halves[0] ? v + (__ldcg(halves[0] + i) + __ldcg(halves[1] + i)) : v;
    }
};

// RMSNorm of x, four elements at a time. The first KEPT fours of a thread (`four_of`) and their
// weights are kept; what a thread has besides is read again.
template <int RUN, int KEPT = RUN, bool ALL = false>
struct Norm {
    static constexpr int EACH = RUN;
    const Stream &x;
    const float *weight;
    float *tapped; // by one block
    float4 first[KEPT], factor[KEPT];
    float inverse_n, scale;
    // Before the wait.
    __device__ __forceinline__ Norm(const Stream &x, const float *weight, float *tap_of, int n)
        : x(x), weight(weight), tapped(blockIdx.x == 0 ? tap_of : nullptr) {
        inverse_n = 1.0f / (float)n;
#pragma unroll
        for (int k = 0; k < KEPT; k++) {
            const int i = four_of<RUN>(k);
            factor[k] = 4 * i < n ? ((const float4 *)weight)[i] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
    }
    // On the turn of a block of WARPS warps at most.
    template <int WARPS = MOST_WARPS>
    __device__ __forceinline__ void measure(int n, float eps) {
        float squares = 0.0f;
        auto add = [&](float4 v) {
            squares = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, squares))));
        };
#pragma unroll
        for (int k = 0; k < KEPT; k++) first[k] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if constexpr (KEPT == 1 && !ALL) { // one loop: its code is fetched once
#pragma unroll 1
            for (int i = threadIdx.x; i < n / 4; i += blockDim.x) {
                const float4 v = x.at(i, blockIdx.x == 0);
                if (i == threadIdx.x) first[0] = v;
                add(v);
            }
        } else { // all that is kept is on its way before the first is used
#pragma unroll
            for (int k = 0; k < KEPT; k++) {
                if (four_of<RUN>(k) < n / 4) first[k] = x.at(four_of<RUN>(k), blockIdx.x == 0);
            }
#pragma unroll
            for (int k = 0; k < KEPT; k++) add(first[k]);
#pragma unroll 1
            for (int k = KEPT; !ALL && four_of<RUN>(k) < n / 4; k++) add(x.at(four_of<RUN>(k), blockIdx.x == 0));
        }
        scale = factor_of(fmaf(block_sum<WARPS>(squares), inverse_n, eps));
    }
    __device__ __forceinline__ float4 operator()(int i) const {
        float4 v, w;
        bool kept = false;
#pragma unroll
        for (int k = 0; k < KEPT; k++) {
            if (i == four_of<RUN>(k)) v = first[k], w = factor[k], kept = true;
        }
        if (!ALL && !kept) v = x.at(i, false), w = ((const float4 *)weight)[i];
        return tap4(tapped, 4 * i,
                    make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w));
    }
};
