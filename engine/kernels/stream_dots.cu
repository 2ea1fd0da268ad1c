// y[t, c] = scale sum_i a[t, c, i] b[t, c, i]. Grid (T S), block: threads over a stream. a, b [T, S, n], y [T, S].

#include "reduce.cuh"

struct StreamDotsParams {
    const float *a, *b;
    float *y;
    int n;
    float scale;
};

__global__ void stream_dots(const __grid_constant__ StreamDotsParams p) {
    const float *a = p.a + (size_t)blockIdx.x * p.n, *b = p.b + (size_t)blockIdx.x * p.n;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < p.n; i += blockDim.x) sum = fmaf(a[i], b[i], sum);
    sum = reduce_sum(sum);
    if (threadIdx.x == 0) p.y[blockIdx.x] = sum * p.scale;
}
