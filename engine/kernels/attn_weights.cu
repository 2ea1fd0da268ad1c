// Softmax of scale * s over the keys n <= first + t; the rest is 0. A block per
// query and head; grid (T, H). s, y [H, T, N].

extern "C" __global__ void attn_weights(const float *s, float *y, float scale, int first, int tokens, int keys) {
    const int t = blockIdx.x, h = blockIdx.y;
    const size_t row = ((size_t)h * tokens + t) * keys;
    const int seen = min(keys, first + t + 1);
    s += row;
    y += row;
    float largest = -3.402823466e38f;
    for (int n = threadIdx.x; n < seen; n += blockDim.x) largest = fmaxf(largest, s[n] * scale);
    largest = reduce_max(largest);
    float total = 0.0f;
    for (int n = threadIdx.x; n < seen; n += blockDim.x) {
        const float e = expf(s[n] * scale - largest);
        y[n] = e;
        total += e;
    }
    total = reduce_sum(total);
    for (int n = threadIdx.x; n < keys; n += blockDim.x) y[n] = n < seen ? y[n] / total : 0.0f;
}
