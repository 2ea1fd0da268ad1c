// y[t, j] = x[t, j] / max(sum of x[t], the smallest normal half), a thread an element. x, y [T, k].

struct RowSharesParams {
    const float *x;
    float *y;
    int k, count;
};

__global__ void row_shares(const __grid_constant__ RowSharesParams p) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.count) return;
    const float *row = p.x + (size_t)(i / p.k) * p.k;
    float total = 0.0f;
    for (int j = 0; j < p.k; j++) total += row[j];
    p.y[i] = p.x[i] / fmaxf(total, 6.103515625e-5f);
}
