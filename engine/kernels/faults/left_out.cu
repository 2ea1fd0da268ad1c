// FAULT: of each row, the ids i with i % stride == phase are not written.
// A thread an element. x, y [T, width].

extern "C" __global__ void left_out(const float *x, float *y, int width, int stride, int phase, int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count && (i % width) % stride != phase) y[i] = x[i];
}
