// Half of y = W x of one token, for ffn_down: a block makes a tile of rows over one
// half of their length, or one such tile after another where the card does not hold a block
// for each; the reader adds the halves (Stream in stream.cuh). Or, with stages of a ring,
// a block makes its share of all rows end to end: of a row that it ends and did not begin the second half.
// N: the length of x, or 0 where that is not known before; FIRST: groups of the first half then.
// Grid (blocks, 2), with a ring (blocks), which are no more than tiles. x [n], W [m, n] in blocks, y [2, m].

#include "fused/ring.cuh"

struct HalfLinearParams {
    const float *x;
    Weights w;
    float *y[2];
    Walk walk;
    int n, m, first; // groups of the first half
    Stamp *stamps; // null where it is not timed
};

template <typename Format, int HELD, int RING, int N, int FIRST>
__global__ void __launch_bounds__(32 * (RING > 0 ? RING_WARPS : MOST_WARPS), RING > 0 ? 1 : 2)
    half_linear(const __grid_constant__ HalfLinearParams p) {
    typedef ResultsOf<1, HELD> Sums;
    extern __shared__ __align__(16) u8 shared[];
    Turn turn(p.stamps);
    const int n = N > 0 ? N : p.n, first = N > 0 ? FIRST : p.first;
    if constexpr (RING > 0) {
        const int blocks = n / 256, pieces = p.m / TILE * blocks;
        const float4 *x = (const float4 *)p.x;
        pad_both<Format, Format>(shared, n);
        auto rows_of = [&](int tile) { return Eights::of(&p.w, tile * TILE); };
        auto ready = [&] {
            return prepare_both<Format, Format, run_of<Format>, 3, false>(shared, n, [&](int i) { return __ldcg(x + i); }).a;
        };
        auto done = [&](RingSums sums) {
            for (int row = sums.first() * TILE + threadIdx.x; row < sums.end() * TILE; row += blockDim.x) {
                const int tile = row / TILE;
                const float sum = sums(tile, row % TILE);
                if (sums.begins(tile)) p.y[0][row] = sum;
                if (sums.ends(tile)) p.y[1][row] = sums.begins(tile) ? 0.0f : sum;
            }
        };
        ring_rows<Format, RING, RING>(p.walk, part_of(pieces, 0), part_of(pieces, 1), blocks, shared + vector_bytes<Format, Format>(n),
                                turn, rows_of, ready, done);
        return;
    }
    const int all = n / 32;
    const Span span = blockIdx.y == 0 ? Span{0, first, all} : Span{first, all - first, all};
    const float4 *x = (const float4 *)p.x + span.first * 8;
    auto rows_of = [&](int set) { return Rows{&p.w, (int)(set * gridDim.x + blockIdx.x) * TILE, p.m}; };
    pad_both<Format, Format>(shared, 32 * span.groups);
    auto ready = [&] {
        return prepare_both<Format, Format, run_of<Format>, 3, false>(shared, 32 * span.groups, [&](int i) { return __ldcg(x + i); });
    };
    auto done = [&](int set, Sums sums) {
        const int row = rows_of(set).row0 + threadIdx.x;
        if (threadIdx.x < TILE && row < p.m) p.y[blockIdx.y][row] = sums(0, threadIdx.x);
    };
    u8 *stages = shared + vector_bytes<Format, Format>(32 * first);
    if constexpr (HELD > 0) {
        hold_rows<Format, 1, HELD>(p.walk, span, stages, turn, [&](int) { return rows_of(0); }, [&] { return ready().a; },
                                   [&](Sums sums) { done(0, sums); });
    } else {
        walk_rows<Format, Format>(p.walk, span, stages, turn, [&](int set, int) { return rows_of(set); }, ready, done);
    }
}
