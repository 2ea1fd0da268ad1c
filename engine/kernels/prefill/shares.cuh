#pragma once

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
    __device__ __forceinline__ float4 four(size_t i) const {
        float4 sum = *(const float4 *)(at + i);
        for (int s = 1; s < shares; s++) {
            const float4 v = *(const float4 *)(at + s * stride + i);
            sum = make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w);
        }
        return sum;
    }
};
