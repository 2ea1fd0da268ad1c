// attn_weights and attn_context put together of the shares of one token, and the context times the sigmoid of its gate: a head a block, an
// element a thread. Grid (H), block D. sums and measures as `attention` leaves them; gate, y [H, D].

#include "fused/decode.cuh"
#include "fused/shares.cuh"

struct GatedContextParams {
    Partial partial;
    const float *gate;
    float *y;
    const int *position_at;
    float *weights_tap, *context_tap, *sigmoid_tap, *gated_tap; // null where not wanted
    int splits;
    Stamp *stamps; // null where it is not timed
};

template <int D>
__global__ void __launch_bounds__(D) gated_context(const __grid_constant__ GatedContextParams p) {
    static_assert(D % 32 == 0, "a head is whole warps");
    constexpr int BATCH = 8;           // shares that a thread asks for at once
    constexpr int OWN = SPLITS / 32;   // shares that a lane measures
    __shared__ float by[SPLITS];       // what each share is multiplied with
    Turn turn(p.stamps);
    const Shares of(__ldcg(p.position_at) + 1, p.splits);
    const int i = threadIdx.x, h = blockIdx.x, at = h * D + i;
    turn.wait();
    turn.mark(0);
    const float gate = __ldcg(p.gate + at);
    const float *sums = p.partial.sums + (size_t)h * SPLITS * D + i;
    float share[BATCH];
#pragma unroll
    for (int k = 0; k < BATCH; k++) share[k] = k < of.live ? __ldcg(sums + k * D) : 0.0f;
    if (i < 32) {
        float2 measure[OWN];
        float most = -3.402823466e38f, factor[OWN], total = 0.0f;
#pragma unroll
        for (int k = 0; k < OWN; k++) {
            const int n = 32 * k + i;
            measure[k] = n < of.live ? __ldcg(p.partial.measures + h * SPLITS + n) : make_float2(-3.402823466e38f, 0.0f);
            most = fmaxf(most, measure[k].x);
        }
        most = warp_max(most);
#pragma unroll
        for (int k = 0; k < OWN; k++) {
            factor[k] = expf(measure[k].x - most);
            total = fmaf(measure[k].y, factor[k], total);
        }
        total = warp_sum(total);
#pragma unroll
        for (int k = 0; k < OWN; k++) by[32 * k + i] = factor[k] / total;
    }
    __syncthreads();
    float sum = 0.0f;
    for (int first = 0; first < of.live; first += BATCH) {
#pragma unroll
        for (int k = 0; k < BATCH; k++) sum = fmaf(share[k], first + k < of.live ? by[first + k] : 0.0f, sum);
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            const int n = first + BATCH + k;
            share[k] = n < of.live ? __ldcg(sums + (size_t)n * D) : 0.0f;
        }
    }
    sum = tap(p.context_tap, at, sum);
    const float sigmoid = tap(p.sigmoid_tap, at, 1.0f / (1.0f + expf(-gate)));
    p.y[at] = tap(p.gated_tap, at, sum * sigmoid);
    if (!p.weights_tap) return;
    // Tapped weights stand relative to the largest score of their share.
    float *weights = p.weights_tap + (size_t)h * of.keys;
    for (int n = i; n < of.keys; n += D) weights[n] = __ldcg(weights + n) * by[n / of.share];
}
