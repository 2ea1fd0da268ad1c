// Softmax of a whole row. Grid (T), block: threads over the row. x, y [T, n].

#include "reduce.cuh"

struct RowSoftmaxParams {
    const float *x;
    float *y;
    int n;
};

__global__ void row_softmax(const __grid_constant__ RowSoftmaxParams p) {
    const float *x = p.x + (size_t)blockIdx.x * p.n;
    float *y = p.y + (size_t)blockIdx.x * p.n;
    float largest = -3.402823466e38f;
    for (int i = threadIdx.x; i < p.n; i += blockDim.x) largest = fmaxf(largest, x[i]);
    largest = reduce_max(largest);
    float total = 0.0f;
    for (int i = threadIdx.x; i < p.n; i += blockDim.x) {
        const float e = expf(x[i] - largest);
        y[i] = e;
        total += e;
    }
    total = reduce_sum(total);
    for (int i = threadIdx.x; i < p.n; i += blockDim.x) y[i] /= total;
}
