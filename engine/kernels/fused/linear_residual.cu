// y = a + W x of one token: attn_out with attn_residual, ffn_down with
// layer_out. A team of warps makes a row; block (32 * team, rows), THREADS at
// most, grid (ceil(m / rows)). x [n], W [m, n] in blocks, a, y [m].

#include "fused/decode.cuh"

constexpr int THREADS = 512;

struct LinearResidualParams {
    const float *x;
    Weights w;
    const float *a;
    float *y;
    float *product_tap, *y_tap; // null where not wanted
    int n, m;
};

template <typename Format>
__global__ void __launch_bounds__(THREADS) linear_residual(const __grid_constant__ LinearResidualParams p) {
    extern __shared__ __align__(16) float shared[];
    __shared__ float partial[THREADS / 32];
    const int row = blockIdx.x * blockDim.y + threadIdx.y, groups = p.n / 32;
    const int lane = threadIdx.x, lanes = blockDim.x;
    RowDot<Format> dot;
    if (row < p.m) dot.start(p.w, row, groups, lane);
    wait_for_previous();
    for (int i = threadIdx.y * lanes + lane; i < p.n / 4; i += lanes * blockDim.y) {
        *(float4 *)(shared + padded(4 * i)) = ((const float4 *)p.x)[i];
    }
    __syncthreads();
    float sum = row < p.m ? warp_sum(dot.finish(p.w, row, groups, lane, lanes, shared)) : 0.0f;
    const int team = lanes / 32;
    if (team > 1) {
        if (lane % 32 == 0) partial[threadIdx.y * team + lane / 32] = sum;
        __syncthreads();
        sum = 0.0f;
        for (int i = 0; i < team; i++) sum += partial[threadIdx.y * team + i];
    }
    if (lane == 0 && row < p.m) p.y[row] = tap(p.y_tap, row, p.a[row] + tap(p.product_tap, row, sum));
}
