// FAULT: the op is left out: y = x. A thread an element.

extern "C" __global__ void copy(const float *x, float *y, int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) y[i] = x[i];
}
