// q/k/v_proj from their shares, q/k/v_biased, q/k_normed, q/k_rope and both caches. A
// block a token, a warp a head after another: of q, then of k, then of v. Grid (T).
// The products [T, H D], [T, G D], [T, G D]; q [T, H, D], caches [capacity, G, D].

#include "batch.cuh"
#include "fused/decode.cuh"
#include "kv.cuh"
#include "prefill/shares.cuh"

struct HeadRowsParams { // of three or two: q, k, v in this order
    Shared product[3];
    const float *bias[3], *head_norm[2]; // null where there is none
    const float *frequency;
    float *q;
    void *k_cache, *v_cache;
    float *proj_tap[3], *biased_tap[3], *normed_tap[2], *k_tap; // null where not wanted
    int heads, kv_heads, first;
    float eps;
    Batch batch;
};

template <typename Kv, int D>
__global__ void head_rows(const __grid_constant__ HeadRowsParams p) {
    constexpr int PAIRS = (D / 2 + 31) / 32; // of a lane: elements i and i + D / 2, which RoPE rotates together
    let_begin();
    const int lane = threadIdx.x % 32;
    const size_t t = blockIdx.x;
    const int position = p.batch.position(p.first, t);
    const size_t slot = p.batch.slots ? p.batch.slots[t] : position;
    float sine[PAIRS], cosine[PAIRS];
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        const int i = lane + 32 * j;
        sincosf((float)position * p.frequency[min(i, D / 2 - 1)], &sine[j], &cosine[j]);
    }
    wait_for_turn();
    for (int at = threadIdx.x / 32; at < p.heads + 2 * p.kv_heads; at += blockDim.x / 32) {
        const int part = at < p.heads ? 0 : at < p.heads + p.kv_heads ? 1 : 2;
        const int head = at - (part == 0 ? 0 : part == 1 ? p.heads : p.heads + p.kv_heads);
        const int heads = part == 0 ? p.heads : p.kv_heads;
        const size_t row = t * heads * D;
        float a[PAIRS], b[PAIRS], squares = 0.0f;
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            const int i = head * D + lane + 32 * j, k = i + D / 2;
            a[j] = b[j] = 0.0f;
            if (lane + 32 * j >= D / 2) continue;
            const float2 two = p.product[part].two(t, heads * D, i, k);
            a[j] = tap(p.proj_tap[part], row + i, two.x);
            b[j] = tap(p.proj_tap[part], row + k, two.y);
            if (p.bias[part]) {
                a[j] = tap(p.biased_tap[part], row + i, a[j] + p.bias[part][i]);
                b[j] = tap(p.biased_tap[part], row + k, b[j] + p.bias[part][k]);
            }
            squares = fmaf(a[j], a[j], fmaf(b[j], b[j], squares));
        }
        const float *norm = part < 2 ? p.head_norm[part] : nullptr;
        const float scale = norm ? 1.0f / sqrtf(warp_sum(squares) / (float)D + p.eps) : 1.0f;
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            const int of_head = lane + 32 * j, i = head * D + of_head, k = i + D / 2;
            if (of_head >= D / 2) continue;
            if (norm) {
                a[j] = tap(p.normed_tap[part], row + i, a[j] * scale * norm[of_head]);
                b[j] = tap(p.normed_tap[part], row + k, b[j] * scale * norm[of_head + D / 2]);
            }
            if (part < 2) {
                const float turned = a[j] * cosine[j] - b[j] * sine[j];
                b[j] = a[j] * sine[j] + b[j] * cosine[j];
                a[j] = turned;
            }
            if (part == 0) {
                p.q[row + i] = a[j];
                p.q[row + k] = b[j];
                continue;
            }
            float *rope_tap = part == 1 ? p.k_tap : nullptr;
            auto *cache = (typename Kv::Type *)(part == 1 ? p.k_cache : p.v_cache) + slot * p.kv_heads * D;
            cache[i] = Kv::put(tap(rope_tap, row + i, a[j]));
            cache[k] = Kv::put(tap(rope_tap, row + k, b[j]));
        }
    }
}
