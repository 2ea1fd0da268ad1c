#pragma once

#include "prefill/row.cuh"

// A product whose sums stand in shares, to be added up in their order.
struct Shared {
    const float *at;
    unsigned long long stride; // elements from share to share
    int shares;
    __device__ __forceinline__ float one(size_t i) const {
        float sum = at[i];
        for (int s = 1; s < shares; s++) sum += at[s * stride + i];
        return sum;
    }
    // Elements i and k.
    __device__ __forceinline__ float2 two(size_t i, size_t k) const {
        float2 sum = make_float2(at[i], at[k]);
        for (int s = 1; s < shares; s++) sum.x += at[s * stride + i], sum.y += at[s * stride + k];
        return sum;
    }
    // Of the row that begins at `row`, as `load_fours`.
    __device__ __forceinline__ void fours(size_t row, int first, int fours, float4 *sum) const {
        load_fours(at + row, first, fours, sum);
        for (int s = 1; s < shares; s++) {
            float4 v[AHEAD];
            load_fours(at + s * stride + row, first, fours, v);
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                sum[k] = make_float4(sum[k].x + v[k].x, sum[k].y + v[k].y, sum[k].z + v[k].z, sum[k].w + v[k].w);
            }
        }
    }
};
