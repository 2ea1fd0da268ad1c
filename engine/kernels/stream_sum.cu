// y[t, c, i] = base[t, c, i] + x[t, i] w[t, c], a thread an element; without a base the product alone.
// base, y [T, S, n], x [T, n], w [T, S].

struct StreamSumParams {
    const float *base, *x, *w;
    float *y;
    int n, streams, count;
};

__global__ void stream_sum(const __grid_constant__ StreamSumParams p) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= p.count) return;
    const int stream = at / p.n, t = stream / p.streams;
    const float x = p.x[(size_t)t * p.n + at % p.n], w = p.w[stream];
    p.y[at] = p.base ? fmaf(x, w, p.base[at]) : x * w;
}
