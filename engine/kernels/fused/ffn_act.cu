// ffn_norm, ffn_gate, ffn_up and ffn_act of one token. A block makes pairs of
// tiles: rows of gate and the same rows of up; sets of them go round the blocks.
// Grid (blocks). x [n], gate and up [m, n] in blocks, y [m].

#include "fused/ring.cuh"

struct FfnActParams {
    const float *x;
    const float *norm;
    Weights gate, up;
    float *y;
    float *norm_tap, *gate_tap, *up_tap, *y_tap; // null where not wanted
    Walk walk;
    int n, m;
    float eps;
    Stamp *stamps; // null where it is not timed
};

constexpr int SHARING_WARPS = 6; // of a block whose warps share out all its rows
constexpr int SHARING_BLOCKS = 3; // of these, of a multiprocessor

// TILES: of a block at a time; or 1, where all of them fit shared memory: 8 rows of gate and the same 8 of up each then. Likewise 0,
// where they come through rings of HELD stages. N: the length of x, or 0 where that is not known before. TAPPED: whether it may write stages besides.
template <typename Gate, typename Up, int TILES, int HELD, int N, bool TAPPED>
__global__ void __launch_bounds__(32 * (TILES == 0 ? RING_WARPS : TILES == 1 ? SHARING_WARPS : MOST_WARPS),
                                  TILES == 0 ? 1 : TILES == 1 ? SHARING_BLOCKS : 2)
    ffn_act(const __grid_constant__ FfnActParams p) {
    extern __shared__ __align__(16) u8 shared[];
    Turn turn(p.stamps);
    constexpr int PAIRS = TILES / 2, RUN = run_of<Gate, Up>;
    const int n = N > 0 ? N : p.n;
    // Whether no thread has more of x than it keeps. Where all rows of a block are in shared memory, this would leave it with 80 registers
    // a thread; its blocks then begin beside others that need the room more.
    constexpr bool ALL = TILES > 1 && HELD > 0 && N > 0 && N % (4 * 32 * RUN) == 0 && N <= 4 * 32 * MOST_WARPS * RUN;
    const Stream x = {p.x, {}, nullptr, nullptr};
    Norm<RUN, RUN, ALL> norm(x, p.norm, tap_of<TAPPED>(p.norm_tap), n);
    float *const gate_tap = tap_of<TAPPED>(p.gate_tap), *const up_tap = tap_of<TAPPED>(p.up_tap), *const y_tap = tap_of<TAPPED>(p.y_tap);
    pad_both<Gate, Up>(shared, n);
    auto ready = [&] {
        norm.template measure<TILES == 0 ? RING_WARPS : MOST_WARPS>(n, p.eps);
        turn.mark(1);
        return prepare_both<Gate, Up, RUN, 1, false, ALL>(shared, n, norm);
    };
    auto write = [&](int row, float g, float u) {
        g = tap(gate_tap, row, g), u = tap(up_tap, row, u);
        p.y[row] = tap(y_tap, row, gated(g, u));
    };
    u8 *stages = shared + vector_bytes<Gate, Up>(n);
    if constexpr (TILES == 0) {
        constexpr int ROWS = TILE / 2;
        const int blocks = n / 256, tiles = p.m / ROWS;
        auto rows_of = [&](int tile) { return Eights{{&p.gate, &p.up}, {tile * ROWS, tile * ROWS}}; };
        ring_rows<Gate, HELD, HELD>(p.walk, part_of(tiles, 0) * blocks, part_of(tiles, 1) * blocks, blocks, stages, turn, rows_of,
                              [&] { return ready().a; }, [&](RingSums sums) {
                                  for (int row = sums.first() * ROWS + threadIdx.x; row < sums.end() * ROWS; row += blockDim.x) {
                                      write(row, sums(row / ROWS, row % ROWS), sums(row / ROWS, row % ROWS + ROWS));
                                  }
                              });
        return;
    }
    if constexpr (TILES == 1) {
        constexpr int ROWS = TILE / 2;
        const int groups = n / 32, tiles = (p.m + ROWS - 1) / ROWS;
        const int count = max((tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x, 0);
        auto first_of = [&](int tile) { return (int)(tile * gridDim.x + blockIdx.x) * ROWS; };
        auto fetch = [&](int tile, u8 *to) {
            const int row0 = first_of(tile), rows = min(ROWS, p.m - row0);
            fetch_rows<Gate>(p.gate, row0, rows, 0, groups, 0, groups, to, Copiers::block());
            fetch_rows<Gate>(p.up, row0, rows, ROWS, groups, 0, groups, to, Copiers::block());
        };
        typedef SharedRows<Gate, HELD, SHARING_WARPS> All;
        All::make(p.walk, count, groups, stages, turn, fetch, [&] { return ready().a; }, [&](All sums) {
            for (int i = threadIdx.x; i < count * ROWS; i += blockDim.x) {
                const int tile = i / ROWS, of = i % ROWS, row = first_of(tile) + of;
                if (row < p.m) write(row, sums(tile, of), sums(tile, of + ROWS));
            }
        });
        return;
    }
    typedef ResultsOf<TILES < 2 ? 2 : TILES, HELD> Sums;
    auto first_of = [&](int set) { return (int)(set * gridDim.x + blockIdx.x) * TILE * PAIRS; };
    auto rows_of = [&](int set, int tile) {
        return Rows{tile % 2 == 0 ? &p.gate : &p.up, first_of(set) + tile / 2 * TILE, p.m};
    };
    auto done = [&](int set, Sums sums) {
        const int row = first_of(set) + threadIdx.x;
        if (threadIdx.x >= TILE * PAIRS || row >= p.m) return;
        const int tile = threadIdx.x / TILE * 2, of = threadIdx.x % TILE;
        write(row, sums(tile, of), sums(tile + 1, of));
    };
    if constexpr (TILES > 1 && HELD > 0) {
        hold_rows<Gate, TILES, HELD>(p.walk, Span::whole(n), stages, turn, [&](int tile) { return rows_of(0, tile); },
                                     [&] { return ready().a; }, [&](Sums sums) { done(0, sums); });
    } else if constexpr (TILES > 1) {
        walk_rows<Gate, Up>(p.walk, Span::whole(n), stages, turn, rows_of, ready, done);
    }
}
