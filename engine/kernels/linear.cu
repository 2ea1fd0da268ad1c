// y[t, o] = W[o, :] . x[t, :], in f32. A warp per output, TOKENS tokens at a
// time so that each weight is unpacked once per TOKENS products.
// Grid (ceil(m / warps), ceil(T / TOKENS)), block 32 x warps.
// x [T, n], W [m, n] in blocks, y [T, m].

#include "blocks.cuh"

constexpr int TOKENS = 8;

struct LinearParams {
    const float *x;
    Weights w;
    float *y;
    int n, m, tokens;
};

template <typename Format>
__global__ void linear(const __grid_constant__ LinearParams p) {
    const int o = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const int lane = threadIdx.x % 32, groups = p.n / 32;
    const int first = blockIdx.y * TOKENS;
    if (o >= p.m) return;
    float sum[TOKENS];
#pragma unroll
    for (int t = 0; t < TOKENS; t++) sum[t] = 0.0f;
    for (int g = lane; g < groups; g += 32) {
        float value[32];
        Format::unpack(Format::load(p.w, (size_t)o * groups + g), g % 8, value);
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            if (first + t >= p.tokens) break;
            const float4 *row = (const float4 *)(p.x + (size_t)(first + t) * p.n + 32 * g);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float4 v = row[i];
                sum[t] = fmaf(value[4 * i], v.x, sum[t]);
                sum[t] = fmaf(value[4 * i + 1], v.y, sum[t]);
                sum[t] = fmaf(value[4 * i + 2], v.z, sum[t]);
                sum[t] = fmaf(value[4 * i + 3], v.w, sum[t]);
            }
        }
    }
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
        float s = sum[t];
        for (int step = 16; step > 0; step /= 2) s += __shfl_xor_sync(0xffffffffu, s, step);
        if (lane == 0 && first + t < p.tokens) p.y[(size_t)(first + t) * p.m + o] = s;
    }
}
