// y = x / sqrt(sum(x^2) + eps) of each head of d elements, which then stands `repeats` times in a row.
// Grid (T heads), block: threads over the head. x [T, heads, d], y [T, heads, repeats, d].

#include "reduce.cuh"

struct L2NormParams {
    const float *x;
    float *y;
    int d, repeats;
    float eps;
};

__global__ void l2_norm(const __grid_constant__ L2NormParams p) {
    const float *x = p.x + (size_t)blockIdx.x * p.d;
    float *y = p.y + (size_t)blockIdx.x * p.repeats * p.d;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < p.d; i += blockDim.x) squares = fmaf(x[i], x[i], squares);
    const float root = sqrtf(reduce_sum(squares) + p.eps);
    for (int r = 0; r < p.repeats; r++) {
        for (int i = threadIdx.x; i < p.d; i += blockDim.x) y[(size_t)r * p.d + i] = x[i] / root;
    }
}
