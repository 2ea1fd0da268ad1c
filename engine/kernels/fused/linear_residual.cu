// y = a + W x of one token: ffn_down with layer_out. A block makes a tile of rows.
// Grid (ceil(m / TILE)). x [n], W [m, n] in blocks, a, y [m].

#include "fused/tile.cuh"

struct LinearResidualParams {
    const float *x;
    Weights w;
    const float *a;
    float *y;
    float *product_tap, *y_tap; // null where not wanted
    Walk walk;
    int n, m;
};

template <typename Format>
__global__ void __launch_bounds__(32 * MOST_WARPS, 1) linear_residual(const __grid_constant__ LinearResidualParams p) {
    extern __shared__ __align__(16) u8 shared[];
    begin_next();
    const int row = blockIdx.x * TILE + threadIdx.x;
    const bool mine = threadIdx.x < TILE && row < p.m;
    float a = 0.0f;
    auto rows_of = [&](int, int) { return Rows{&p.w, (int)blockIdx.x * TILE, p.m}; };
    auto ready = [&] {
        wait_for_previous();
        if (mine) a = __ldcg(p.a + row);
        return prepare_both<Format, Format>(shared, p.n, [&](int i) { return __ldcg((const float4 *)p.x + i); });
    };
    auto done = [&](int, const float *sums) {
        if (mine) p.y[row] = tap(p.y_tap, row, a + tap(p.product_tap, row, sums[threadIdx.x]));
    };
    walk_rows<Format, Format>(p.walk, p.n / 32, shared + vector_bytes<Format, Format>(p.n), rows_of, ready, done);
}
