// y[i] = a[i] b[i % n], a thread an element: of two tensors of n elements, or of rows and a vector of n.

struct FactorsParams {
    const float *a, *b;
    float *y;
    int n, count;
};

__global__ void factors(const __grid_constant__ FactorsParams p) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.count) p.y[i] = p.a[i] * p.b[i % p.n];
}
