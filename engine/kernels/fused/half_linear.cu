// Half of y = W x of one token, for ffn_down: a block makes a tile of rows over one
// half of their length, or one such tile after another where the card does not hold a block
// for each; who reads them adds the halves (Stream in stream.cuh).
// Grid (blocks, 2). x [n], W [m, n] in blocks, y [2, m].

#include "fused/rows.cuh"

struct HalfLinearParams {
    const float *x;
    Weights w;
    float *y[2];
    Walk walk;
    int n, m, first; // groups of the first half
    Stamp *stamps; // null where it is not timed
};

template <typename Format, int HELD>
__global__ void __launch_bounds__(32 * MOST_WARPS, 2) half_linear(const __grid_constant__ HalfLinearParams p) {
    typedef ResultsOf<1, HELD> Sums;
    extern __shared__ __align__(16) u8 shared[];
    Turn turn(p.stamps);
    const int all = p.n / 32;
    const Span span = blockIdx.y == 0 ? Span{0, p.first, all} : Span{p.first, all - p.first, all};
    const float4 *x = (const float4 *)p.x + span.first * 8;
    auto rows_of = [&](int set) { return Rows{&p.w, (int)(set * gridDim.x + blockIdx.x) * TILE, p.m}; };
    auto ready = [&] {
        return prepare_both<Format, Format, run_of<Format>, 3>(shared, 32 * span.groups, [&](int i) { return __ldcg(x + i); });
    };
    auto done = [&](int set, Sums sums) {
        const int row = rows_of(set).row0 + threadIdx.x;
        if (threadIdx.x < TILE && row < p.m) p.y[blockIdx.y][row] = sums(0, threadIdx.x);
    };
    u8 *stages = shared + vector_bytes<Format, Format>(32 * p.first);
    if constexpr (HELD > 0) {
        hold_rows<Format, 1, HELD>(p.walk, span, stages, turn, [&](int) { return rows_of(0); }, [&] { return ready().a; },
                                   [&](Sums sums) { done(0, sums); });
    } else {
        walk_rows<Format, Format>(p.walk, span, stages, turn, [&](int set, int) { return rows_of(set); }, ready, done);
    }
}
