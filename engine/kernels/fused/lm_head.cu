// final_norm and logits of one token. Blocks stay and take set after set of
// tiles, so that the norm is made once a block. Grid (blocks).
// x [n], W [V, n] in blocks, logits [V].

#include "fused/best.cuh"
#include "fused/ring.cuh"

struct LmHeadParams {
    Stream x;
    const float *norm;
    Weights w;
    float *logits;
    Best best; // but where whole sets of tiles are made one after another
    float *norm_tap; // null where not wanted
    Walk walk;
    int n, m;
    float eps;
    Stamp *stamps; // null where it is not timed
};

constexpr int OWN_WARPS = 16; // of a block whose warps make tiles alone, at most

// OWN: whether a warp makes a tile alone, of which shared memory then holds some whole. RING: stages of the ring of a warp, where
// tiles come through such. The warp then also gives the best. N: the length of x, or 0 where that is not known before.
template <typename Format, bool OWN, int RING, int N>
__global__ void __launch_bounds__(32 * (OWN ? OWN_WARPS : RING > 0 ? RING_WARPS : MOST_WARPS), OWN || RING > 0 ? 1 : 2)
    lm_head(const __grid_constant__ LmHeadParams p) {
    static_assert(OWN_WARPS == RING_WARPS, "the norm is measured alike");
    extern __shared__ __align__(16) u8 shared[];
    Turn turn(p.stamps);
    constexpr int RUN = run_of<Format>;
    const int n = N > 0 ? N : p.n;
    Norm<RUN> norm(p.x, p.norm, p.norm_tap, n);
    pad_both<Format, Format>(shared, n);
    auto ready = [&] {
        norm.template measure<(OWN || RING > 0) ? OWN_WARPS : MOST_WARPS>(n, p.eps);
        turn.mark(1);
        return prepare_both<Format, Format, RUN, 1, false>(shared, n, norm);
    };
    u8 *stages = shared + vector_bytes<Format, Format>(n);
    // Sets go round the blocks, so that at any time they read one piece of memory together.
    auto first_of = [&](int set) { return (set * gridDim.x + blockIdx.x) * p.walk.tiles * TILE; };
    unsigned long long most = 0;
    auto give = [&](int row, float sum) {
        p.logits[row] = sum;
        const unsigned long long key = key_of(sum, row);
        most = key > most ? key : most;
    };
    if constexpr (RING > 0) {
        const int blocks = n / 256, tiles = p.m / TILE;
        auto rows_of = [&](int tile) { return Eights::of(&p.w, tile * TILE); };
        ring_rows<Format, RING, RING>(p.walk, part_of(tiles, 0) * blocks, part_of(tiles, 1) * blocks, blocks, stages, turn, rows_of,
                                [&] { return ready().a; }, [&](RingSums sums) {
                                    for (int row = sums.first() * TILE + threadIdx.x; row < sums.end() * TILE; row += blockDim.x) {
                                        give(row, sums(row / TILE, row % TILE));
                                    }
                                });
        if (p.best.token) tell_best(most, p.best);
        return;
    }
    if constexpr (OWN) {
        own_rows<Format, OWN_WARPS>(
            p.walk, n / 32, stages, turn,
            [&](int set) { return Rows{&p.w, (int)(first_of(set) + threadIdx.x / 32 * TILE), p.m}; },
            [&] { return ready().a; }, give);
        if (p.best.token) tell_best(most, p.best);
        return;
    }
    auto rows_of = [&](int set, int tile) { return Rows{&p.w, (int)first_of(set) + tile * TILE, p.m}; };
    auto done = [&](int set, Results<1> sums) {
        const int row = first_of(set) + threadIdx.x;
        if (threadIdx.x < p.walk.tiles * TILE && row < p.m) p.logits[row] = sums(0, threadIdx.x);
    };
    walk_rows<Format, Format>(p.walk, Span::whole(n), stages, turn, rows_of, ready, done);
}
