// Softmax of scale * s over the keys n up to the position of row t that are chosen; the rest is 0. A block per query and head;
// grid (T, H). s, y [H, T, N], chosen [T, N] of 0 and 1.

#include "reduce.cuh"

struct ChosenWeightsParams {
    const float *s, *chosen;
    float *y;
    float scale;
    int first, tokens, keys;
};

__global__ void chosen_weights(const __grid_constant__ ChosenWeightsParams p) {
    const int t = blockIdx.x, h = blockIdx.y;
    const size_t row = ((size_t)h * p.tokens + t) * p.keys;
    const int seen = min(p.keys, p.first + t + 1);
    const float *s = p.s + row, *chosen = p.chosen + (size_t)t * p.keys;
    float *y = p.y + row;
    float largest = -3.402823466e38f;
    for (int n = threadIdx.x; n < seen; n += blockDim.x) {
        if (chosen[n] == 1.0f) largest = fmaxf(largest, s[n] * p.scale);
    }
    largest = reduce_max(largest);
    float total = 0.0f;
    for (int n = threadIdx.x; n < seen; n += blockDim.x) {
        const float e = chosen[n] == 1.0f ? expf(s[n] * p.scale - largest) : 0.0f;
        y[n] = e;
        total += e;
    }
    total = reduce_sum(total);
    for (int n = threadIdx.x; n < p.keys; n += blockDim.x) y[n] = n < seen ? y[n] / total : 0.0f;
}
