// y[t, c] = sum_j w[c, j] x[t - past + j, c] over j from 0 to past, a thread an element. The rows before the step are
// in
// `before`, the oldest row first. x, y [T, n], w [n, past + 1], before [past, n].

struct ConvolutionParams {
    const float *x, *before, *w;
    float *y;
    int n, past, count;
};

__global__ void convolution(const __grid_constant__ ConvolutionParams p) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= p.count) return;
    const int t = at / p.n, c = at % p.n;
    float sum = 0.0f;
    for (int j = 0; j <= p.past; j++) {
        const float x = t + j < p.past ? p.before[(t + j) * p.n + c] : p.x[(size_t)(t + j - p.past) * p.n + c];
        sum = fmaf(p.w[c * (p.past + 1) + j], x, sum);
    }
    p.y[at] = sum;
}
