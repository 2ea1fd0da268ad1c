// final_norm and logits of one token. Blocks stay and take row after row, so
// that the norm is made once a block. Grid (blocks), block THREADS.
// x [n], W [V, n] in blocks, logits [V].

#include "fused/decode.cuh"

constexpr int THREADS = 256;

struct LmHeadParams {
    const float *x, *norm;
    Weights w;
    float *logits;
    float *norm_tap; // null where not wanted
    int n, m;
    float eps;
};

// No grid constant here: with one, NVRTC gave the kernel fewer registers, and it
// was slower (`qdiff bench --measure cuda` tells the time of each kernel).
template <typename Format>
__global__ void __launch_bounds__(THREADS) lm_head(const LmHeadParams p) {
    extern __shared__ __align__(16) float shared[];
    const int lane = threadIdx.x % 32, groups = p.n / 32, step = gridDim.x * (THREADS / 32);
    int row = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    RowDot<Format> dot;
    if (row < p.m) dot.start(p.w, row, groups, lane);
    wait_for_previous();
    norm_to_shared(p.x, p.norm, p.eps, p.n, shared, p.norm_tap);
    for (; row < p.m; row += step) {
        RowDot<Format> current = dot;
        if (row + step < p.m) dot.start(p.w, row + step, groups, lane);
        const float sum = warp_sum(current.finish(p.w, row, groups, lane, 32, shared));
        if (lane == 0) p.logits[row] = sum;
    }
}
