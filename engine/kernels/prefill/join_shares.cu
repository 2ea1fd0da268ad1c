// attn_weights and attn_context of rows of a pass of several sequences, put together of the shares that
// `attention.cu` leaves. A warp takes a query head of a row; tapped weights, which stand relative to the
// largest score of their share, are brought to their total, and what a row does not see becomes zero.
// Grid (ceil(H / WARPS), rows), block 32 * WARPS.
// sums [rows, H, splits, D], measures [rows, H, splits]; out [T, H, D]; taps [H, T, N].

#include "batch.cuh"
#include "fused/decode.cuh"
#include "fused/shares.cuh"

constexpr int WARPS = 4;

struct JoinSharesParams {
    Partial partial;
    Batch batch;
    const int *rows; // of the pass, those that are taken
    float *out;
    float *scores_tap, *weights_tap; // null where not wanted
    int heads, splits, tokens, keys; // the last two T and N of the taps
};

template <int D>
__global__ void __launch_bounds__(32 * WARPS) join_shares(const __grid_constant__ JoinSharesParams p) {
    constexpr int EACH = D / 32; // elements of a lane
    let_begin();
    const int lane = threadIdx.x % 32, head = blockIdx.x * WARPS + threadIdx.x / 32, row = p.rows[blockIdx.y];
    const Shares of(p.batch.positions[row] + 1, p.splits);
    if (head >= p.heads) return;
    wait_for_turn();
    const size_t first = ((size_t)blockIdx.y * p.heads + head) * p.splits;
    const float2 *measures = p.partial.measures + first;
    const float *sums = p.partial.sums + first * D;
    float most = -3.402823466e38f, total = 0.0f;
    for (int s = lane; s < of.live; s += 32) most = fmaxf(most, measures[s].x);
    most = warp_max(most);
    for (int s = lane; s < of.live; s += 32) total = fmaf(measures[s].y, expf(measures[s].x - most), total);
    total = warp_sum(total);
    float sum[EACH] = {};
    for (int s = 0; s < of.live; s++) {
        const float factor = expf(measures[s].x - most);
#pragma unroll
        for (int k = 0; k < EACH; k++) sum[k] = fmaf(sums[s * D + lane + 32 * k], factor, sum[k]);
    }
#pragma unroll
    for (int k = 0; k < EACH; k++) p.out[((size_t)row * p.heads + head) * D + lane + 32 * k] = sum[k] / total;
    const size_t at = ((size_t)head * p.tokens + row) * p.keys;
    for (int n = lane; p.weights_tap && n < p.keys; n += 32) {
        float &w = p.weights_tap[at + n];
        w = n < of.keys ? w * expf(measures[n / of.share].x - most) / total : 0.0f;
    }
    for (int n = of.keys + lane; p.scores_tap && n < p.keys; n += 32) p.scores_tap[at + n] = 0.0f;
}
