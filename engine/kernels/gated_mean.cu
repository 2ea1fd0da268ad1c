// y[t, i] = 1/S sum_c x[t, c, i] sigmoid(gate[t, c, i]), a thread an element. x, gate [T, S, n], y [T, n].

struct GatedMeanParams {
    const float *x, *gate;
    float *y;
    int n, streams, count;
};

__global__ void gated_mean(const __grid_constant__ GatedMeanParams p) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= p.count) return;
    const size_t first = (size_t)(at / p.n) * p.streams * p.n + at % p.n;
    float sum = 0.0f;
    for (int c = 0; c < p.streams; c++) {
        const size_t i = first + (size_t)c * p.n;
        sum += p.x[i] / (1.0f + expf(-p.gate[i]));
    }
    p.y[at] = sum / (float)p.streams;
}
