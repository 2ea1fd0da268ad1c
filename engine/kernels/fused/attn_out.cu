// attn_weights and attn_context put together of their shares, attn_out and
// attn_residual of one token. A block makes a tile of rows; each puts the whole
// context together for itself. A warp measures a head at a time.
// Grid (ceil(m / TILE)). sums and measures as `attention` leaves them, W [m, H*D] in blocks, a, y [m].

#include "fused/shares.cuh"
#include "fused/tile.cuh"

struct AttnOutParams {
    Partial partial;
    Weights w;
    const float *a;
    float *y;
    const int *position_at;
    float *weights_tap, *context_tap, *product_tap, *y_tap; // null where not wanted
    Walk walk;
    int n, m, heads, splits;
};

template <typename Format, int D>
__global__ void __launch_bounds__(32 * MOST_WARPS, 1) attn_out(const __grid_constant__ AttnOutParams p) {
    extern __shared__ __align__(16) u8 shared[]; // factors [H, SPLITS] and totals [H], x, stages
    float *factors = (float *)shared, *totals = factors + p.heads * SPLITS;
    u8 *vector = shared + (p.heads * (SPLITS + 1) + 3) / 4 * 16;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    begin_next();
    const Shares of(*p.position_at + 1, p.splits);
    const int row = blockIdx.x * TILE + threadIdx.x;
    const bool mine = threadIdx.x < TILE && row < p.m;
    float a = 0.0f;
    auto rows_of = [&](int, int) { return Rows{&p.w, (int)blockIdx.x * TILE, p.m}; };
    auto ready = [&] {
        wait_for_previous();
        if (mine) a = __ldcg(p.a + row);
        for (int h = warp; h < p.heads; h += warps) {
            const float2 *measures = p.partial.measures + h * SPLITS;
            const float2 none = make_float2(-3.402823466e38f, 0.0f);
            const float2 first = lane < of.live ? __ldcg(measures + lane) : none;
            const float2 second = 32 + lane < of.live ? __ldcg(measures + 32 + lane) : none;
            const float most = warp_max(fmaxf(first.x, second.x));
            const float f = expf(first.x - most), s = expf(second.x - most);
            factors[h * SPLITS + lane] = f;
            factors[h * SPLITS + 32 + lane] = s;
            const float sum = warp_sum(fmaf(first.y, f, second.y * s));
            if (lane == 0) totals[h] = sum;
        }
        __syncthreads();
        if (p.weights_tap) {
            for (int h = blockIdx.x; h < p.heads; h += gridDim.x) {
                float *weights = p.weights_tap + h * of.keys;
                for (int n = threadIdx.x; n < of.keys; n += blockDim.x) {
                    weights[n] = __ldcg(weights + n) * factors[h * SPLITS + n / of.share] / totals[h];
                }
            }
        }
        return prepare_both<Format, Format>(vector, p.n, [&](int i) {
            const int h = 4 * i / D;
            const float *factor = factors + h * SPLITS;
            const float4 *sums = (const float4 *)(p.partial.sums + (size_t)h * SPLITS * D + 4 * i % D);
            float4 s = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
            for (int k = 0; k < of.live; k++) {
                const float4 v = __ldcg(sums + k * (D / 4));
                const float f = factor[k];
                s.x = fmaf(v.x, f, s.x), s.y = fmaf(v.y, f, s.y), s.z = fmaf(v.z, f, s.z), s.w = fmaf(v.w, f, s.w);
            }
            const float total = totals[h];
            return tap4(blockIdx.x == 0 ? p.context_tap : nullptr, 4 * i,
                        make_float4(s.x / total, s.y / total, s.z / total, s.w / total));
        });
    };
    auto done = [&](int, const float *sums) {
        if (mine) p.y[row] = tap(p.y_tap, row, a + tap(p.product_tap, row, sums[threadIdx.x]));
    };
    walk_rows<Format, Format>(p.walk, p.n / 32, vector + vector_bytes<Format, Format>(p.n), rows_of, ready, done);
}
