// attn_weights and attn_context put together of their shares, attn_out and
// attn_residual of one token. A block makes a tile of rows; each puts the whole
// context together for itself, D / 4 lanes a head. Where weights are tapped, blocks
// behind these bring them to their total, so that no product waits for it. With stages of a
// ring a block makes its share of the tiles, of which there are no fewer than blocks. N: the length of the context, or 0 where that is
// not known before. TAPPED: whether it may write stages besides.
// Grid (makers, and where weights are tapped a multiple of H more). sums and
// measures as `attention` leaves them, W [m, H*D] in blocks, y [m].

#include "fused/ring.cuh"
#include "fused/shares.cuh"

constexpr int WEIGHTS = 4; // tapped weights that a thread asks for at once

struct AttnOutParams {
    Partial partial;
    Weights w;
    Stream a;
    float *y;
    const int *position_at;
    float *weights_tap, *context_tap, *product_tap, *y_tap; // null where not wanted
    Walk walk;
    int n, m, heads, splits;
    int makers; // blocks that make rows: one a tile, or fewer with rings
    Stamp *stamps; // null where it is not timed
};

// Puts the context together from the shares of a token's attention.
template <int D>
struct Context {
    static constexpr int LANES = D / 4;         // of a head
    static constexpr int EACH = SPLITS / LANES; // shares that a lane measures
    static constexpr int EARLY = D > 64 ? 12 : 16; // shares whose sums a thread asks for at once, and of the others so many
    static constexpr int BATCH = D > 64 ? 8 : 16;
    const Partial &partial;
    int live;           // shares
    float *context_tap; // null where not wanted
    // What this lane's shares of head h count for beside the one with the largest score; gives one by the total.
    __device__ __forceinline__ float measured(int h, float (&factor)[EACH]) const {
        const int lane = threadIdx.x % LANES;
        float2 measure[EACH];
        float most = -3.402823466e38f;
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            const int at = k * LANES + lane;
            measure[k] = at < live ? __ldcg(partial.measures + h * SPLITS + at) : make_float2(-3.402823466e38f, 0.0f);
        }
#pragma unroll
        for (int k = 0; k < EACH; k++) most = fmaxf(most, measure[k].x);
#pragma unroll
        for (int step = LANES / 2; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
        float total = 0.0f;
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            factor[k] = expf(measure[k].x - most);
            total = fmaf(measure[k].y, factor[k], total);
        }
#pragma unroll
        for (int step = LANES / 2; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
        return 1.0f / total;
    }
    // Elements 4i .. 4i + 3; past the last i a thread has its share of the last head again.
    __device__ __forceinline__ float4 operator()(int i) const {
        const int h = i / LANES, lane = threadIdx.x % LANES;
        const float4 *sums = (const float4 *)partial.sums + (size_t)h * SPLITS * LANES + lane;
        float4 early[EARLY];
#pragma unroll
        for (int k = 0; k < EARLY; k++) {
            early[k] = k < live ? __ldcg(sums + k * LANES) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
        float factor[EACH];
        const float by = measured(h, factor);
        float4 s = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        auto add = [&](float4 v, float f) {
            s.x = fmaf(v.x, f, s.x), s.y = fmaf(v.y, f, s.y), s.z = fmaf(v.z, f, s.z), s.w = fmaf(v.w, f, s.w);
        };
        // A share that is not there adds zeros.
#pragma unroll
        for (int k = 0; k < EARLY; k++) add(early[k], __shfl_sync(0xffffffffu, factor[k / LANES], k % LANES, LANES));
        if (live > EARLY) {
#pragma unroll
            for (int each = 0; each < EACH; each++) {
#pragma unroll
                for (int first = max(EARLY, each * LANES); first < (each + 1) * LANES; first += BATCH) {
                    if (first >= live) break;
                    const int end = min(live, (each + 1) * LANES);
                    float4 more[BATCH];
#pragma unroll
                    for (int k = 0; k < BATCH; k++) {
                        more[k] = first + k < end ? __ldcg(sums + (first + k) * LANES) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                    }
#pragma unroll
                    for (int k = 0; k < BATCH; k++) add(more[k], __shfl_sync(0xffffffffu, factor[each], (first + k) % LANES, LANES));
                }
            }
        }
        return tap4(context_tap, 4 * (h * LANES + lane), make_float4(s.x * by, s.y * by, s.z * by, s.w * by));
    }
};

// Brings tapped weights, which stand relative to the largest score of their share, to
// their total. `index` counts the blocks that do, of `blocks`; they share out the heads. `by` has room for SPLITS floats, where other
// blocks have their vector: blocks that make rows have no more shared memory for it.
template <int D>
__device__ __forceinline__ void scale_weights(const AttnOutParams &p, const Shares &of, int index, int blocks, float *by, Turn &turn) {
    const int head = index % p.heads, stride = blocks / p.heads * blockDim.x;
    float *weights = p.weights_tap + (size_t)head * of.keys;
    int at = index / p.heads * blockDim.x + threadIdx.x;
    float weight[WEIGHTS];
    auto ask = [&] {
#pragma unroll
        for (int k = 0; k < WEIGHTS; k++) weight[k] = at + k * stride < of.keys ? __ldcg(weights + at + k * stride) : 0.0f;
    };
    turn.wait();
    ask();
    if (threadIdx.x < 32) {
        typedef Context<D> C;
        float factor[C::EACH];
        const float by_total = C{p.partial, of.live, nullptr}.measured(head, factor);
#pragma unroll
        for (int k = 0; k < C::EACH; k++) by[k * C::LANES + threadIdx.x % C::LANES] = factor[k] * by_total;
    }
    __syncthreads();
#pragma unroll 1
    while (at < of.keys) {
#pragma unroll
        for (int k = 0; k < WEIGHTS; k++) {
            const int n = at + k * stride;
            if (n < of.keys) weights[n] = weight[k] * by[n / of.share];
        }
        at += WEIGHTS * stride;
        ask();
    }
}

template <typename Format, int D, int HELD, int RING, int N, bool TAPPED>
__global__ void __launch_bounds__(32 * (RING > 0 ? RING_WARPS : MOST_WARPS), RING > 0 ? 1 : 2)
    attn_out(const __grid_constant__ AttnOutParams p) {
    typedef ResultsOf<1, HELD> Sums;
    extern __shared__ __align__(16) u8 shared[];
    Turn turn(p.stamps);
    const Shares of(__ldcg(p.position_at) + 1, p.splits);
    const int tiles = (p.m + TILE - 1) / TILE, makers = RING > 0 ? p.makers : tiles;
    if (TAPPED && p.weights_tap && (int)blockIdx.x >= makers) {
        scale_weights<D>(p, of, blockIdx.x - makers, gridDim.x - makers, (float *)shared, turn);
        return;
    }
    const int first = RING > 0 ? tiles * (int)blockIdx.x / makers : blockIdx.x;
    const int end = RING > 0 ? tiles * ((int)blockIdx.x + 1) / makers : first + 1;
    const int row = first * TILE + threadIdx.x;
    const int n = N > 0 ? N : p.n;
    const bool mine = threadIdx.x < (RING > 0 ? (end - first) * TILE : TILE) && row < p.m;
    float a = 0.0f;
    float *const context_tap = tap_of<TAPPED>(blockIdx.x == 0 ? p.context_tap : nullptr);
    float *const product_tap = tap_of<TAPPED>(p.product_tap), *const y_tap = tap_of<TAPPED>(p.y_tap);
    pad_both<Format, Format>(shared, n);
    auto rows_of = [&](int) { return Rows{&p.w, first * TILE, p.m}; };
    auto ready = [&] {
        if (mine) a = p.a.one(row);
        const Context<D> context{p.partial, of.live, context_tap};
        return prepare_both<Format, Format, run_of<Format>, 1, false>(shared, n, context);
    };
    auto finish = [&](float sum) { p.y[row] = tap(y_tap, row, a + tap(product_tap, row, sum)); };
    auto done = [&](Sums sums) {
        if (mine) finish(sums(0, threadIdx.x));
    };
    u8 *stages = shared + vector_bytes<Format, Format>(n);
    if constexpr (RING > 0) {
        const int blocks = n / 256;
        ring_rows<Format, RING, RING>(p.walk, first * blocks, end * blocks, blocks, stages, turn,
                                [&](int tile) { return Eights::of(&p.w, tile * TILE); }, [&] { return ready().a; },
                                [&](RingSums sums) {
                                    if (mine) finish(sums(row / TILE, row % TILE));
                                });
    } else if constexpr (HELD > 0) {
        hold_rows<Format, 1, HELD>(p.walk, Span::whole(n), stages, turn, rows_of,
                                   [&] { return ready().a; }, done);
    } else {
        walk_rows<Format, Format>(p.walk, Span::whole(n), stages, turn, [&](int, int) { return rows_of(0); }, ready,
                                  [&](int, Sums sums) { done(sums); });
    }
}
