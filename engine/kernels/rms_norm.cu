// y = w x / sqrt(mean(x^2) + eps), per run of n elements. Grid (runs), block:
// threads over the run. x [runs, n], w [n], y [runs, n].

#include "reduce.cuh"

struct RmsNormParams {
    const float *x, *w;
    float *y;
    int n;
    float eps;
};

__global__ void rms_norm(const __grid_constant__ RmsNormParams p) {
    const float *x = p.x + (size_t)blockIdx.x * p.n;
    float *y = p.y + (size_t)blockIdx.x * p.n;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < p.n; i += blockDim.x) squares = fmaf(x[i], x[i], squares);
    const float scale = 1.0f / sqrtf(reduce_sum(squares) / (float)p.n + p.eps);
    for (int i = threadIdx.x; i < p.n; i += blockDim.x) y[i] = x[i] * scale * p.w[i];
}
