// Softmax of scale * s over the keys n up to the position of row t; the rest is 0. A block per
// query and head; grid (T, H). s, y [H, T, N].

#include "batch.cuh"
#include "reduce.cuh"

struct AttnWeightsParams {
    const float *s;
    float *y;
    float scale;
    int first, tokens, keys;
    Batch batch;
};

__global__ void attn_weights(const __grid_constant__ AttnWeightsParams p) {
    const int t = blockIdx.x, h = blockIdx.y;
    const size_t row = ((size_t)h * p.tokens + t) * p.keys;
    const int seen = min(p.keys, p.batch.position(p.first, t) + 1);
    const float *s = p.s + row;
    float *y = p.y + row;
    float largest = -3.402823466e38f;
    for (int n = threadIdx.x; n < seen; n += blockDim.x) largest = fmaxf(largest, s[n] * p.scale);
    largest = reduce_max(largest);
    float total = 0.0f;
    for (int n = threadIdx.x; n < seen; n += blockDim.x) {
        const float e = expf(s[n] * p.scale - largest);
        y[n] = e;
        total += e;
    }
    total = reduce_sum(total);
    for (int n = threadIdx.x; n < p.keys; n += blockDim.x) y[n] = n < seen ? y[n] / total : 0.0f;
}
