// FAULT: W read as [n, m] where it is [m, n]: y[t, o] = sum_i W.flat[i * m + o] x[t, i].
// A thread per output; grid (ceil(m / block), T). W as f32.

extern "C" __global__ void linear_transposed(const float *w, const float *x, float *y, int n, int m) {
    const int o = blockIdx.x * blockDim.x + threadIdx.x;
    if (o >= m) return;
    x += (size_t)blockIdx.y * n;
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int i = 0; i < n; i++) sum[i % 4] = fmaf(w[(size_t)i * m + o], x[i], sum[i % 4]);
    y[(size_t)blockIdx.y * m + o] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
}
