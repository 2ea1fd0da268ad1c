// FAULT: W read as [n, m] where it is [m, n]: y[t, o] = sum_i W.flat[i * m + o] x[t, i].
// A thread per output; grid (T, ceil(m / block)). W as f32.

struct LinearTransposedParams {
    const float *w, *x;
    float *y;
    int n, m;
};

__global__ void linear_transposed(const __grid_constant__ LinearTransposedParams p) {
    const int o = blockIdx.y * blockDim.x + threadIdx.x;
    if (o >= p.m) return;
    const float *x = p.x + (size_t)blockIdx.x * p.n;
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int i = 0; i < p.n; i++) sum[i % 4] = fmaf(p.w[(size_t)i * p.m + o], x[i], sum[i % 4]);
    p.y[(size_t)blockIdx.x * p.m + o] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
}
