// ffn_norm, ffn_gate, ffn_up and ffn_act of one token. A block makes pairs of
// tiles: rows of gate and the same rows of up.
// Grid (ceil(m / (TILE * pairs))). x [n], gate and up [m, n] in blocks, y [m].

#include "fused/tile.cuh"

struct FfnActParams {
    const float *x, *norm;
    Weights gate, up;
    float *y;
    float *norm_tap, *gate_tap, *up_tap, *y_tap; // null where not wanted
    Walk walk;
    int n, m;
    float eps;
};

template <typename Gate, typename Up>
__global__ void __launch_bounds__(32 * MOST_WARPS, 1) ffn_act(const __grid_constant__ FfnActParams p) {
    extern __shared__ __align__(16) u8 shared[];
    begin_next();
    const int pairs = p.walk.tiles / 2, row0 = blockIdx.x * TILE * pairs;
    Norm norm(p.x, p.norm, p.norm_tap, p.n);
    auto rows_of = [&](int, int tile) {
        return Rows{tile % 2 == 0 ? &p.gate : &p.up, row0 + tile / 2 * TILE, p.m};
    };
    auto ready = [&] {
        wait_for_previous();
        norm.measure(p.n, p.eps);
        return prepare_both<Gate, Up>(shared, p.n, norm);
    };
    auto done = [&](int, const float *sums) {
        const int row = row0 + threadIdx.x;
        if (threadIdx.x >= TILE * pairs || row >= p.m) return;
        const float *gate = sums + threadIdx.x / TILE * 2 * TILE + threadIdx.x % TILE;
        const float g = tap(p.gate_tap, row, gate[0]), u = tap(p.up_tap, row, gate[TILE]);
        p.y[row] = tap(p.y_tap, row, g / (1.0f + expf(-g)) * u);
    };
    walk_rows<Gate, Up>(p.walk, p.n / 32, shared + vector_bytes<Gate, Up>(p.n), rows_of, ready, done);
}
