// y[t, i] = x[t, i] + b[i], a thread an element. x, y [T, n], b [n].

struct BiasParams {
    const float *x, *b;
    float *y;
    int n, count;
};

__global__ void bias(const __grid_constant__ BiasParams p) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.count) p.y[i] = p.x[i] + p.b[i % p.n];
}
