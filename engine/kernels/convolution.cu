// y[t, c] = sum_j w[c, j] x[t - past + j apart, c] over the taps j, a thread an element; past = (taps - 1) apart. The rows before
// the step are in `before`, the oldest row first. x, y [T, n], w [n, taps], before [past, n].

struct ConvolutionParams {
    const float *x, *before, *w;
    float *y;
    int n, taps, apart, count;
};

__global__ void convolution(const __grid_constant__ ConvolutionParams p) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= p.count) return;
    const int t = at / p.n, c = at % p.n, past = (p.taps - 1) * p.apart;
    float sum = 0.0f;
    for (int j = 0; j < p.taps; j++) {
        const int row = t + j * p.apart;
        const float x = row < past ? p.before[(size_t)row * p.n + c] : p.x[(size_t)(row - past) * p.n + c];
        sum = fmaf(p.w[c * p.taps + j], x, sum);
    }
    p.y[at] = sum;
}
