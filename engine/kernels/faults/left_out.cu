// FAULT: of each row, the ids i with i % stride == phase are not written.
// A thread an element. x, y [T, width].

struct LeftOutParams {
    const float *x;
    float *y;
    int width, stride, phase, count;
};

__global__ void left_out(const __grid_constant__ LeftOutParams p) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.count && (i % p.width) % p.stride != p.phase) p.y[i] = p.x[i];
}
