// final_norm and logits of one token. Blocks stay and take row after row, so
// that the norm is made once a block. Grid (blocks), block 256.
// x [n], W [V, n] in blocks, logits [V].

template <typename Format>
__device__ void head(const float *x, const float *norm, float eps, const Weights &w, float *logits, int n, int m,
                     float *norm_tap) {
    extern __shared__ __align__(16) float shared[];
    const int lane = threadIdx.x % 32, groups = n / 32, step = gridDim.x * 8;
    int row = blockIdx.x * 8 + threadIdx.x / 32;
    RowDot<Format> dot;
    if (row < m) dot.start(w, row, groups, lane);
    wait_for_previous();
    norm_to_shared(x, norm, eps, n, shared, norm_tap);
    for (; row < m; row += step) {
        RowDot<Format> current = dot;
        if (row + step < m) dot.start(w, row + step, groups, lane);
        const float sum = warp_sum(current.finish(w, row, groups, lane, 32, shared));
        if (lane == 0) logits[row] = sum;
    }
}

#define INSTANCE(F)                                                                                            \
    extern "C" __global__ void __launch_bounds__(256)                                                          \
    head_##F(const float *x, const float *norm, float eps, const Weights w, float *logits, int n, int m,      \
             float *norm_tap) {                                                                                \
        head<F>(x, norm, eps, w, logits, n, m, norm_tap);                                                      \
    }
