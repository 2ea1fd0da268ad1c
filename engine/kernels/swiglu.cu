// y = g / (1 + exp(-g)) u, a thread an element. gate g and up u [T, F].

extern "C" __global__ void swiglu(const float *gate, const float *up, float *y, int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) y[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}
