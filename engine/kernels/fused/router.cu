// ffn_norm and the router's logits of one token. A warp makes a logit, whose weights it has before its turn. Grid (blocks). x [n],
// W [m, n] in blocks, normed [n], y [m].

#include "fused/experts.cuh"

struct RouterParams {
    Stream x;
    const float *norm;
    Weights w;
    float *normed, *y;
    float *norm_tap, *y_tap; // null where not wanted
    int n, m;
    float eps;
    Stamp *stamps; // null where it is not timed
};

constexpr int ROUTER_WARPS = 8; // of a block

// HELD: groups of its row that a lane has before its turn.
template <typename Format, int HELD>
__global__ void __launch_bounds__(32 * ROUTER_WARPS, 1) router(const __grid_constant__ RouterParams p) {
    extern __shared__ __align__(16) u8 shared[];
    float *x = (float *)shared;
    Turn turn(p.stamps);
    Norm<1, 2> norm(p.x, p.norm, p.norm_tap, p.n);
    const int groups = p.n / 32, lane = threadIdx.x % 32, row = blockIdx.x * ROUTER_WARPS + threadIdx.x / 32;
    const size_t first = (size_t)min(row, p.m - 1) * groups;
    typename Format::Raw held[HELD];
#pragma unroll
    for (int i = 0; i < HELD; i++) held[i] = Format::load(p.w, first + min(lane + 32 * i, groups - 1));
    turn.wait();
    turn.mark(0);
    norm.measure<ROUTER_WARPS>(p.n, p.eps);
    float4 *normed = blockIdx.x == 0 ? (float4 *)p.normed : nullptr;
    lay_out(x, p.n, [&](int i) {
        const float4 v = norm(i);
        if (normed) normed[i] = v;
        return v;
    });
    turn.mark(1);
    __syncthreads();
    float4 sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        if (lane + 32 * i < groups) add_group<Format>(held[i], x, lane + 32 * i, sums);
    }
    for (int g = lane + 32 * HELD; g < groups; g += 32) add_group<Format>(Format::load(p.w, first + g), x, g, sums);
    const float sum = warp_sum_of(sums);
    if (lane == 0 && row < p.m) p.y[row] = tap(p.y_tap, row, sum);
}
