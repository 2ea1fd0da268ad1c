// y = w x / sqrt(mean(x^2) + eps), per run of n elements. Grid (runs), block:
// threads over the run. x [runs, n], w [n], y [runs, n].

extern "C" __global__ void rms_norm(const float *x, const float *w, float *y, int n, float eps) {
    x += (size_t)blockIdx.x * n;
    y += (size_t)blockIdx.x * n;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) squares = fmaf(x[i], x[i], squares);
    const float scale = 1.0f / sqrtf(reduce_sum(squares) / (float)n + eps);
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i] * scale * w[i];
}
