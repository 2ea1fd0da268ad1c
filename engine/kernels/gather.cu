// y[t, j] = x[t, chosen[t, j]], a thread an element. x [T, n], chosen and y [T, k].

#include "choice.cuh"

struct GatherParams {
    const float *x, *chosen;
    float *y;
    int n, k, count;
};

__global__ void gather(const __grid_constant__ GatherParams p) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.count) return;
    const int at = place_of(p.chosen[i], p.n);
    p.y[i] = at < 0 ? unknown() : p.x[(size_t)(i / p.k) * p.n + at];
}
