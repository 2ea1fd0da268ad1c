// FAULT: the op is left out: y = x. A thread an element.

struct CopyParams {
    const float *x;
    float *y;
    int count;
};

__global__ void copy(const __grid_constant__ CopyParams p) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.count) p.y[i] = p.x[i];
}
