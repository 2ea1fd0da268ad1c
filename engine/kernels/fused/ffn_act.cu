// ffn_norm, ffn_gate, ffn_up and ffn_act of one token. A block makes pairs of
// tiles: rows of gate and the same rows of up; sets of them go round the blocks.
// Grid (blocks). x [n], gate and up [m, n] in blocks, y [m].

#include "fused/stream.cuh"

struct FfnActParams {
    Stream x;
    const float *norm;
    Weights gate, up;
    float *y;
    float *norm_tap, *gate_tap, *up_tap, *y_tap; // null where not wanted
    Walk walk;
    int n, m;
    float eps;
    Stamp *stamps; // null where it is not timed
};

template <typename Gate, typename Up, int TILES, int HELD>
__global__ void __launch_bounds__(32 * MOST_WARPS, 2) ffn_act(const __grid_constant__ FfnActParams p) {
    typedef ResultsOf<TILES, HELD> Sums;
    extern __shared__ __align__(16) u8 shared[];
    Turn turn(p.stamps);
    constexpr int PAIRS = TILES / 2, RUN = run_of<Gate, Up>;
    auto first_of = [&](int set) { return (int)(set * gridDim.x + blockIdx.x) * TILE * PAIRS; };
    Norm<RUN> norm(p.x, p.norm, p.norm_tap, p.n);
    auto rows_of = [&](int set, int tile) {
        return Rows{tile % 2 == 0 ? &p.gate : &p.up, first_of(set) + tile / 2 * TILE, p.m};
    };
    auto ready = [&] {
        norm.measure(p.n, p.eps);
        turn.mark(1);
        return prepare_both<Gate, Up, RUN, 1>(shared, p.n, norm);
    };
    auto done = [&](int set, Sums sums) {
        const int row = first_of(set) + threadIdx.x;
        if (threadIdx.x >= TILE * PAIRS || row >= p.m) return;
        const int tile = threadIdx.x / TILE * 2, of = threadIdx.x % TILE;
        const float g = tap(p.gate_tap, row, sums(tile, of)), u = tap(p.up_tap, row, sums(tile + 1, of));
        p.y[row] = tap(p.y_tap, row, g / (1.0f + expf(-g)) * u);
    };
    u8 *stages = shared + vector_bytes<Gate, Up>(p.n);
    if constexpr (HELD > 0) {
        hold_rows<Gate, TILES, HELD>(p.walk, Span::whole(p.n), stages, turn, [&](int tile) { return rows_of(0, tile); },
                                     [&] { return ready().a; }, [&](Sums sums) { done(0, sums); });
    } else {
        walk_rows<Gate, Up>(p.walk, Span::whole(p.n), stages, turn, rows_of, ready, done);
    }
}
