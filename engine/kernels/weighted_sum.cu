// y[t, i] = sum_j w[t, j] x[t, j, i], a thread an element. w [T, terms], x [T, terms, n], y [T, n].

struct WeightedSumParams {
    const float *w, *x;
    float *y;
    int n, terms, count;
};

__global__ void weighted_sum(const __grid_constant__ WeightedSumParams p) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= p.count) return;
    const size_t t = at / p.n;
    const float *w = p.w + t * p.terms, *x = p.x + t * p.terms * p.n + at % p.n;
    float sum = 0.0f;
    for (int j = 0; j < p.terms; j++) sum = fmaf(w[j], x[(size_t)j * p.n], sum);
    p.y[at] = sum;
}
