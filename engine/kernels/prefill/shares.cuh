#pragma once

#include "prefill/row.cuh"

// A product [T, n] of which some tiles are in shares of their sums, to be added up in their
// order: those of tokens from `token0` on, but of its first OPERAND_TOKENS only the elements
// from `row0` on.
struct Shared {
    const float *at, *rest; // the first share, and from where the others count
    unsigned long long stride; // elements from share to share
    int shares, token0, row0;
    // From which element of token t's row on.
    __device__ __forceinline__ int cut_from(size_t t, int n) const {
        return (int)t < token0 ? n : (int)t < token0 + OPERAND_TOKENS ? row0 : 0;
    }
    // Elements i and k of token t's row, of which k comes later. A cut may be between them.
    __device__ __forceinline__ float2 two(size_t t, int n, int i, int k) const {
        const size_t row = t * n;
        const int from = cut_from(t, n);
        float2 sum = make_float2(at[row + i], at[row + k]);
        if (k < from) return sum;
        for (int s = 1; s < shares; s++) {
            if (i >= from) sum.x += rest[s * stride + row + i];
            sum.y += rest[s * stride + row + k];
        }
        return sum;
    }
    // Of token t's row, as `load_fours`.
    __device__ __forceinline__ void fours(size_t t, int n, int first, float4 *sum) const {
        const size_t row = t * n;
        const int from = cut_from(t, n) / 4;
        load_fours(at + row, first, 0, n / 4, sum);
        for (int s = 1; s < shares; s++) {
            float4 v[AHEAD];
            load_fours(rest + s * stride + row, first, from, n / 4, v);
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                sum[k] = make_float4(sum[k].x + v[k].x, sum[k].y + v[k].y, sum[k].z + v[k].z, sum[k].w + v[k].w);
            }
        }
    }
};
