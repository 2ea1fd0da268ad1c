// Half of y = W x of one token, for ffn_down: a block makes a tile of rows over one
// half of their length, or one such tile after another where the card does not hold a block
// for each; who reads them adds the halves (Stream in stream.cuh). Or, with stages of a ring,
// a block makes its share of all rows end to end: of a row that it ends and did not begin the second half.
// Grid (blocks, 2), with a ring (blocks), which are no more than tiles. x [n], W [m, n] in blocks, y [2, m]. With READS x is read as
// digits.

#include "fused/ring.cuh"

struct HalfLinearParams {
    const float *x;
    Left from; // with READS
    Weights w;
    float *y[2];
    Walk walk;
    int n, m, first; // groups of the first half
    Stamp *stamps; // null where it is not timed
};

template <typename Format, int HELD, int RING, bool READS>
__global__ void __launch_bounds__(32 * (RING > 0 ? RING_WARPS : MOST_WARPS), RING > 0 ? 1 : 2) half_linear(const __grid_constant__ HalfLinearParams p) {
    typedef ResultsOf<1, HELD> Sums;
    static_assert(RING == 0 || !READS, "rings bring floats");
    extern __shared__ __align__(16) u8 shared[];
    Turn turn(p.stamps);
    if constexpr (RING > 0) {
        const int blocks = p.n / 256, pieces = p.m / TILE * blocks;
        const float4 *x = (const float4 *)p.x;
        pad_both<Format, Format>(shared, p.n);
        auto rows_of = [&](int tile) { return Eights::of(&p.w, tile * TILE); };
        auto ready = [&] {
            return prepare_both<Format, Format, run_of<Format>, 3, false>(shared, p.n, [&](int i) { return __ldcg(x + i); }).a;
        };
        auto done = [&](RingSums sums) {
            for (int row = sums.first() * TILE + threadIdx.x; row < sums.end() * TILE; row += blockDim.x) {
                const int tile = row / TILE;
                const float sum = sums(tile, row % TILE);
                if (sums.begins(tile)) p.y[0][row] = sum;
                if (sums.ends(tile)) p.y[1][row] = sums.begins(tile) ? 0.0f : sum;
            }
        };
        ring_rows<Format, RING, RING>(p.walk, part_of(pieces, 0), part_of(pieces, 1), blocks, shared + vector_bytes<Format, Format>(p.n),
                                turn, rows_of, ready, done);
        return;
    }
    const int all = p.n / 32;
    const Span span = blockIdx.y == 0 ? Span{0, p.first, all} : Span{p.first, all - p.first, all};
    const float4 *x = (const float4 *)p.x + span.first * 8;
    auto rows_of = [&](int set) { return Rows{&p.w, (int)(set * gridDim.x + blockIdx.x) * TILE, p.m}; };
    constexpr bool SUMS = READS && Tile<Format>::SUMS;
    const int bytes = vector_bytes<Format, Format>(32 * p.first);
    if constexpr (!READS) pad_both<Format, Format>(shared, 32 * span.groups);
    auto ready = [&] {
        if constexpr (READS) {
            const UnitVector of = bring_units<3, SUMS>(shared, bytes, 32 * span.groups, p.from, 32 * span.first);
            return UnitVectors{of, of};
        } else {
            return prepare_both<Format, Format, run_of<Format>, 3, false>(shared, 32 * span.groups, [&](int i) { return __ldcg(x + i); });
        }
    };
    auto done = [&](int set, Sums sums) {
        const int row = rows_of(set).row0 + threadIdx.x;
        if (threadIdx.x < TILE && row < p.m) p.y[blockIdx.y][row] = sums(0, threadIdx.x);
    };
    u8 *stages = shared + bytes + (SUMS ? bytes_of_sums(32 * p.first) : 0);
    if constexpr (HELD > 0) {
        hold_rows<Format, 1, HELD>(p.walk, span, stages, turn, [&](int) { return rows_of(0); }, [&] { return ready().a; },
                                   [&](Sums sums) { done(0, sums); });
    } else {
        walk_rows<Format, Format>(p.walk, span, stages, turn, [&](int set, int) { return rows_of(set); }, ready, done);
    }
}
