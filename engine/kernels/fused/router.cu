// ffn_norm and the router's logits of one token. Two warps make a logit, whose weights they have before their turn. Grid (blocks).
// x [n], W [m, n] in blocks, normed [n], y [m].

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
constexpr int ROUTER_ROWS = 4;  // of a block

// HELD: groups of its row that a lane has before its turn.
template <typename Format, int HELD>
__global__ void __launch_bounds__(32 * ROUTER_WARPS, 1) router(const __grid_constant__ RouterParams p) {
    extern __shared__ __align__(16) u8 shared[];
    float *x = (float *)shared;
    Turn turn(p.stamps);
    Norm<1, 2> norm(p.x, p.norm, p.norm_tap, p.n);
    constexpr int THREADS = 32 * ROUTER_WARPS / ROUTER_ROWS; // of a row
    const int groups = p.n / 32, own = threadIdx.x % THREADS, row = blockIdx.x * ROUTER_ROWS + threadIdx.x / THREADS;
    const size_t first = (size_t)min(row, p.m - 1) * groups;
    typename Format::Raw held[HELD];
#pragma unroll
    for (int i = 0; i < HELD; i++) held[i] = Format::load(p.w, first + min(own + THREADS * i, groups - 1));
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
        if (own + THREADS * i < groups) add_group<Format>(held[i], x, own + THREADS * i, sums);
    }
    for (int g = own + THREADS * HELD; g < groups; g += THREADS) add_group<Format>(Format::load(p.w, first + g), x, g, sums);
    __shared__ float parts[ROUTER_WARPS];
    const float part = warp_sum_of(sums);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = part;
    __syncthreads();
    if (own == 0 && row < p.m) p.y[row] = tap(p.y_tap, row, parts[threadIdx.x / 32] + parts[threadIdx.x / 32 + 1]);
}
