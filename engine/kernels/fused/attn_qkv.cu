// attn_norm, q/k/v_proj, q/k/v_biased, q/k_normed, q/k_rope and both caches of
// one token. A warp makes PAIRS pairs of elements (i, i + d/2) of one head: what
// RoPE rotates together. Where heads are normalised a block makes a whole head.
// Grid ((H + 2G) * d/2 / (warps * PAIRS)), block THREADS.
// x [E], q [H, d], caches [capacity, G, d]; wq [H*d, E], wk and wv [G*d, E].

#include "fused/decode.cuh"
#include "kv.cuh"

constexpr int THREADS = 256;

struct AttnQkvParams { // of three or two: q, k, v in this order
    const float *x, *norm;
    const float *bias[3], *head_norm[2]; // null where there is none
    const float *frequency;
    Weights w[3];
    const int *position_at;
    float *q;
    void *k_cache, *v_cache;
    float *norm_tap, *proj_tap[3], *biased_tap[3], *normed_tap[2], *rope_tap[2]; // null where not wanted
    int n, heads, kv_heads;
    float eps;
};

// The block's rows of one projection into `products`, low and high of each pair
// side by side; the norm comes between the first weights and the first product.
template <typename Format, int D, int PAIRS>
__device__ __forceinline__ void project(const AttnQkvParams &p, const Weights &w, int head, int pair0, float *shared,
                                        float *products) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, groups = p.n / 32;
    const int row0 = head * D + pair0 + warp * PAIRS;
    RowDot<Format> low, high;
    low.start(w, row0, groups, lane);
    high.start(w, row0 + D / 2, groups, lane);
    wait_for_previous();
    norm_to_shared(p.x, p.norm, p.eps, p.n, shared, p.norm_tap);
#pragma unroll 1
    for (int i = 0; i < PAIRS; i++) {
        if (i > 0) {
            low.start(w, row0 + i, groups, lane);
            high.start(w, row0 + i + D / 2, groups, lane);
        }
        const float a = warp_sum(low.finish(w, row0 + i, groups, lane, 32, shared));
        const float b = warp_sum(high.finish(w, row0 + i + D / 2, groups, lane, 32, shared));
        if (lane == 0) {
            products[2 * (warp * PAIRS + i)] = a;
            products[2 * (warp * PAIRS + i) + 1] = b;
        }
    }
}

template <typename Q, typename K, typename V, typename Kv, int D, int PAIRS, bool HEAD_NORM>
__global__ void __launch_bounds__(THREADS) attn_qkv(const __grid_constant__ AttnQkvParams p) {
    constexpr int BLOCK_PAIRS = THREADS / 32 * PAIRS;
    static_assert(!HEAD_NORM || BLOCK_PAIRS == D / 2, "a block must hold the head that it normalises");
    extern __shared__ __align__(16) float shared[];
    __shared__ float products[2 * BLOCK_PAIRS];
    const int at = blockIdx.x * BLOCK_PAIRS;    // pair, over the heads of q, then k, then v
    const int head_all = at / (D / 2), pair0 = at % (D / 2);
    const int part = head_all < p.heads ? 0 : head_all < p.heads + p.kv_heads ? 1 : 2;
    const int head = head_all - (part == 0 ? 0 : part == 1 ? p.heads : p.heads + p.kv_heads);
    if (part == 0) {
        project<Q, D, PAIRS>(p, p.w[0], head, pair0, shared, products);
    } else if (part == 1) {
        project<K, D, PAIRS>(p, p.w[1], head, pair0, shared, products);
    } else {
        project<V, D, PAIRS>(p, p.w[2], head, pair0, shared, products);
    }
    __syncthreads();

    const bool mine = threadIdx.x < BLOCK_PAIRS;
    const int i = pair0 + threadIdx.x;
    const int a_at = head * D + i, b_at = a_at + D / 2;
    float a = 0.0f, b = 0.0f;
    if (mine) {
        a = tap(p.proj_tap[part], a_at, products[2 * threadIdx.x]);
        b = tap(p.proj_tap[part], b_at, products[2 * threadIdx.x + 1]);
        if (const float *bias = p.bias[part]) {
            a = tap(p.biased_tap[part], a_at, a + bias[a_at]);
            b = tap(p.biased_tap[part], b_at, b + bias[b_at]);
        }
    }
    if (HEAD_NORM && part < 2) {
        const float scale = 1.0f / sqrtf(reduce_sum(fmaf(a, a, b * b)) / (float)D + p.eps);
        if (mine) {
            a = tap(p.normed_tap[part], a_at, a * scale * p.head_norm[part][i]);
            b = tap(p.normed_tap[part], b_at, b * scale * p.head_norm[part][i + D / 2]);
        }
    }
    if (!mine) return;
    const int position = *p.position_at;
    if (part < 2) {
        float s, c;
        sincosf((float)position * p.frequency[i], &s, &c);
        const float turned = a * c - b * s;
        b = a * s + b * c;
        a = turned;
    }
    if (part == 0) {
        p.q[a_at] = tap(p.rope_tap[0], a_at, a);
        p.q[b_at] = tap(p.rope_tap[0], b_at, b);
    } else {
        float *rope_tap = part == 1 ? p.rope_tap[1] : nullptr;
        auto *cache = (typename Kv::Type *)(part == 1 ? p.k_cache : p.v_cache) + (size_t)position * p.kv_heads * D;
        cache[a_at] = Kv::put(tap(rope_tap, a_at, a));
        cache[b_at] = Kv::put(tap(rope_tap, b_at, b));
    }
}
