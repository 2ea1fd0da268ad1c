// The last product of gated attention or of a gated delta net, and attn_residual, of one token. Where it is a delta net, each block makes the norm
// of every head and its gate for itself, D / 4 lanes a head. A block makes its share of the rows. Grid (blocks, no more than tiles of rows).
// x, z [n], norm [D], W [m, n] in blocks, y [m].

#include "fused/experts.cuh"

struct MixerOutParams {
    const float *x; // where D is 0 as it is
    const float *z, *norm; // what a delta net gave is normalised, and gated by z
    Weights w;
    Stream a;
    float *y;
    float *normed_tap, *gated_tap, *product_tap, *y_tap; // null where not wanted
    Walk walk;
    int n, m;
    float eps;
    Stamp *stamps; // null where it is not timed
};

// Elements 4i .. 4i + 3 of the vector.
template <int D>
struct Mixed {
    const MixerOutParams &p;
    __device__ __forceinline__ float4 operator()(int i) const {
        if constexpr (D == 0) {
            return __ldcg((const float4 *)p.x + i);
        } else {
            constexpr int LANES = D / 4;
            const int place = threadIdx.x % LANES;
            i = i / LANES * LANES + place; // past the last i a thread has its share of the last head again
            const float4 v = __ldcg((const float4 *)p.x + i), z = __ldcg((const float4 *)p.z + i);
            const float4 w = ((const float4 *)p.norm)[place];
            float squares = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, v.w * v.w)));
#pragma unroll
            for (int step = LANES / 2; step > 0; step /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, step);
            const float scale = 1.0f / sqrtf(squares / (float)D + p.eps);
            const bool taps = blockIdx.x == 0;
            const float4 normed = tap4(taps ? p.normed_tap : nullptr, 4 * i,
                                       make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w));
            return tap4(taps ? p.gated_tap : nullptr, 4 * i,
                        make_float4(gated(z.x, normed.x), gated(z.y, normed.y), gated(z.z, normed.z), gated(z.w, normed.w)));
        }
    }
};

// RING: stages of the ring of a warp, where the weights are in blocks of 256 and the rows are whole tiles; else 0, and a warp makes a row.
template <typename Format, int D, int RING>
__global__ void __launch_bounds__(32 * RING_WARPS, 1) mixer_out(const __grid_constant__ MixerOutParams p) {
    static_assert(D == 0 || (D <= 128 && 128 % D == 0), "whole heads must share a warp");
    extern __shared__ __align__(16) u8 shared[];
    Turn turn(p.stamps);
    const int tiles = (p.m + TILE - 1) / TILE, first = part_of(tiles, 0), end = part_of(tiles, 1);
    const Mixed<D> mixed{p};
    auto finish = [&](int row, float a, float sum) { p.y[row] = tap(p.y_tap, row, a + tap(p.product_tap, row, sum)); };
    if constexpr (RING > 0) {
        const int blocks = p.n / 256, own = first * TILE + threadIdx.x;
        float a = 0.0f;
        auto ready = [&] {
            if (own < end * TILE) a = p.a.one(own);
            return prepare_both<Format, Format, run_of<Format>, 1>(shared, p.n, mixed).a;
        };
        ring_rows<Format, RING, RING>(
            p.walk, first * blocks, end * blocks, blocks, shared + vector_bytes<Format, Format>(p.n), turn,
            [&](int tile) { return Eights::of(&p.w, tile * TILE); }, ready, [&](RingSums sums) {
                for (int row = own; row < end * TILE; row += blockDim.x) {
                    finish(row, row == own ? a : p.a.one(row), sums(row / TILE, row % TILE));
                }
            });
    } else {
        float *line = (float *)shared;
        const int lane = threadIdx.x % 32, fours = p.n / 4;
        turn.wait();
        turn.mark(0);
        // By whole warps, whose lanes share heads.
        for (int i0 = threadIdx.x - lane; i0 < fours; i0 += blockDim.x) {
            const int i = i0 + lane;
            const float4 v = mixed(min(i, fours - 1));
            if (i < fours) *(float4 *)(line + i / 8 * LINE + i % 8 * 4) = v;
        }
        __syncthreads();
        const int rows = min(end * TILE, p.m);
        for (int row = first * TILE + threadIdx.x / 32; row < rows; row += blockDim.x / 32) {
            const float sum = dot<Format>(p.w, row, p.n / 32, line);
            if (lane == 0) finish(row, p.a.one(row), sum);
        }
    }
}
