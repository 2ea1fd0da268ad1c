// y[t, i] = ln(1 + e^(x[t, i] + b[i])), a thread an element; from 20 on the sum itself, as in llama.cpp. x, y [T, n], b [n].

struct SoftplusParams {
    const float *x, *b;
    float *y;
    int n, count;
};

__global__ void softplus(const __grid_constant__ SoftplusParams p) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.count) return;
    const float z = p.x[i] + p.b[i % p.n];
    p.y[i] = z > 20.0f ? z : log1pf(expf(z));
}
