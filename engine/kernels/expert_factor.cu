// y[l, i] = x[l, i] w[place of l], a thread an element: each line times the factor that it chose.
// x, y [L, m], chosen [L], w [experts], count = L m.

#include "choice.cuh"

struct ExpertFactorParams {
    const float *x, *chosen, *w;
    float *y;
    int m, experts, count;
};

__global__ void expert_factor(const __grid_constant__ ExpertFactorParams p) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.count) return;
    const int place = place_of(p.chosen[i / p.m], p.experts);
    p.y[i] = place < 0 ? unknown() : p.x[i] * p.w[place];
}
