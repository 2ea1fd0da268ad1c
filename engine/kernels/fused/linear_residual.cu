// y = a + W x of one token: attn_out with attn_residual, ffn_down with
// layer_out. A team of warps makes a row; block (32 * team, rows), grid
// (ceil(m / rows)). x [n], W [m, n] in blocks, a, y [m].

template <typename Format>
__device__ void linear_residual(const float *x, const Weights &w, const float *a, float *y, int n, int m,
                                float *product_tap) {
    extern __shared__ __align__(16) float shared[];
    __shared__ float partial[32];
    const int row = blockIdx.x * blockDim.y + threadIdx.y, groups = n / 32;
    const int lane = threadIdx.x, lanes = blockDim.x;
    RowDot<Format> dot;
    if (row < m) dot.start(w, row, groups, lane);
    wait_for_previous();
    for (int i = threadIdx.y * lanes + lane; i < n / 4; i += lanes * blockDim.y) {
        *(float4 *)(shared + padded(4 * i)) = ((const float4 *)x)[i];
    }
    __syncthreads();
    float sum = row < m ? warp_sum(dot.finish(w, row, groups, lane, lanes, shared)) : 0.0f;
    const int team = lanes / 32;
    if (team > 1) {
        if (lane % 32 == 0) partial[threadIdx.y * team + lane / 32] = sum;
        __syncthreads();
        sum = 0.0f;
        for (int i = 0; i < team; i++) sum += partial[threadIdx.y * team + i];
    }
    if (lane == 0 && row < m) {
        tap(product_tap, row, sum);
        y[row] = a[row] + sum;
    }
}

#define INSTANCE(F)                                                                                          \
    extern "C" __global__ void __launch_bounds__(512)                                                        \
    linear_residual_##F(const float *x, const Weights w, const float *a, float *y, int n, int m,            \
                        float *product_tap) {                                                               \
        linear_residual<F>(x, w, a, y, n, m, product_tap);                                                  \
    }
