// y = w x / sqrt(mean(x^2) + eps) of each residual stream of n elements, w of all of them. Grid (T S), block: threads over a
// stream. x, y [T, S, n], w [S, n].

#include "reduce.cuh"

struct StreamNormParams {
    const float *x, *w;
    float *y;
    int n, streams;
    float eps;
};

__global__ void stream_norm(const __grid_constant__ StreamNormParams p) {
    const float *x = p.x + (size_t)blockIdx.x * p.n, *w = p.w + (size_t)(blockIdx.x % p.streams) * p.n;
    float *y = p.y + (size_t)blockIdx.x * p.n;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < p.n; i += blockDim.x) squares = fmaf(x[i], x[i], squares);
    const float scale = 1.0f / sqrtf(reduce_sum(squares) / (float)p.n + p.eps);
    for (int i = threadIdx.x; i < p.n; i += blockDim.x) y[i] = x[i] * scale * w[i];
}
