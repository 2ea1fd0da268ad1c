// y[t, i] = x[t, i] + b[i], a thread an element. x, y [T, n], b [n].

extern "C" __global__ void bias(const float *x, const float *b, float *y, int n, int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) y[i] = x[i] + b[i % n];
}
