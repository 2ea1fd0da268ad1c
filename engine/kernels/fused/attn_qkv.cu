// attn_norm, q/k/v_proj, q/k/v_biased, q/k_normed, q/k_rope and both caches of
// one token. A warp makes PAIRS pairs of elements (i, i + d/2) of one head: what
// RoPE rotates together. Where heads are normalised a block makes a whole head.
// Grid ((H + 2G) * d/2 / (8 * PAIRS)), block 256.
// x [E], q [H, d], caches [capacity, G, d]; wq [H*d, E], wk and wv [G*d, E].

struct QkvTaps { // null where not wanted; q, k, v in this order
    float *attn_norm, *proj[3], *biased[3], *normed[2], *k_rope;
};

struct QkvWeights {
    const float *norm, *bias[3], *head_norm[2], *frequency; // biases and head norms may be null
    Weights w[3];
};

// The block's rows of one projection into `products`, low and high of each pair
// side by side; the norm comes between the first weights and the first product.
template <typename Format, int D, int PAIRS>
__device__ __forceinline__ void project(const Weights &w, int head, int pair0, const float *x, const float *norm,
                                        float eps, int n, float *shared, float *norm_tap, float *products) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, groups = n / 32;
    const int row0 = head * D + pair0 + warp * PAIRS;
    RowDot<Format> low, high;
    low.start(w, row0, groups, lane);
    high.start(w, row0 + D / 2, groups, lane);
    wait_for_previous();
    norm_to_shared(x, norm, eps, n, shared, norm_tap);
#pragma unroll 1
    for (int p = 0; p < PAIRS; p++) {
        if (p > 0) {
            low.start(w, row0 + p, groups, lane);
            high.start(w, row0 + p + D / 2, groups, lane);
        }
        const float a = warp_sum(low.finish(w, row0 + p, groups, lane, 32, shared));
        const float b = warp_sum(high.finish(w, row0 + p + D / 2, groups, lane, 32, shared));
        if (lane == 0) {
            products[2 * (warp * PAIRS + p)] = a;
            products[2 * (warp * PAIRS + p) + 1] = b;
        }
    }
}

template <typename Q, typename K, typename V, typename Kv, int D, bool HEAD_NORM>
__device__ void attn_qkv(const float *x, const QkvWeights &weights, float eps, const int *position_at, float *q,
                         typename Kv::Type *k_cache, typename Kv::Type *v_cache, int n, int heads, int kv_heads,
                         const QkvTaps &taps) {
    constexpr int PAIRS = HEAD_NORM ? D / 16 : 1;
    constexpr int BLOCK_PAIRS = 8 * PAIRS;
    extern __shared__ __align__(16) float shared[];
    __shared__ float products[2 * BLOCK_PAIRS];
    const int at = blockIdx.x * BLOCK_PAIRS;    // pair, over the heads of q, then k, then v
    const int head_all = at / (D / 2), pair0 = at % (D / 2);
    const int part = head_all < heads ? 0 : head_all < heads + kv_heads ? 1 : 2;
    const int head = part == 0 ? head_all : part == 1 ? head_all - heads : head_all - heads - kv_heads;
    if (part == 0) {
        project<Q, D, PAIRS>(weights.w[0], head, pair0, x, weights.norm, eps, n, shared, taps.attn_norm, products);
    } else if (part == 1) {
        project<K, D, PAIRS>(weights.w[1], head, pair0, x, weights.norm, eps, n, shared, taps.attn_norm, products);
    } else {
        project<V, D, PAIRS>(weights.w[2], head, pair0, x, weights.norm, eps, n, shared, taps.attn_norm, products);
    }
    __syncthreads();

    const bool mine = threadIdx.x < BLOCK_PAIRS;
    const int i = pair0 + threadIdx.x;
    const int a_at = head * D + i, b_at = a_at + D / 2;
    float a = 0.0f, b = 0.0f;
    if (mine) {
        a = products[2 * threadIdx.x];
        b = products[2 * threadIdx.x + 1];
        tap(taps.proj[part], a_at, a);
        tap(taps.proj[part], b_at, b);
        if (const float *bias = weights.bias[part]) {
            a += bias[a_at];
            b += bias[b_at];
            tap(taps.biased[part], a_at, a);
            tap(taps.biased[part], b_at, b);
        }
    }
    if (HEAD_NORM && part < 2) {
        const float scale = 1.0f / sqrtf(reduce_sum(fmaf(a, a, b * b)) / (float)D + eps);
        if (mine) {
            a = a * scale * weights.head_norm[part][i];
            b = b * scale * weights.head_norm[part][i + D / 2];
            tap(taps.normed[part], a_at, a);
            tap(taps.normed[part], b_at, b);
        }
    }
    if (!mine) return;
    const int position = *position_at;
    if (part < 2) {
        float s, c;
        sincosf((float)position * weights.frequency[i], &s, &c);
        const float turned = a * c - b * s;
        b = a * s + b * c;
        a = turned;
    }
    if (part == 0) {
        q[a_at] = a;
        q[b_at] = b;
    } else {
        tap(part == 1 ? taps.k_rope : nullptr, a_at, a);
        tap(part == 1 ? taps.k_rope : nullptr, b_at, b);
        typename Kv::Type *cache = (part == 1 ? k_cache : v_cache) + (size_t)position * kv_heads * D;
        cache[a_at] = Kv::put(a);
        cache[b_at] = Kv::put(b);
    }
}

#define INSTANCE(NAME, Q, K, V, KV, D, HEAD_NORM)                                                                \
    extern "C" __global__ void __launch_bounds__(256)                                                            \
    NAME(const float *x, const QkvWeights weights, float eps, const int *position_at, float *q, KV::Type *k_cache,    \
         KV::Type *v_cache, int n, int heads, int kv_heads, const QkvTaps taps) {                               \
        attn_qkv<Q, K, V, KV, D, HEAD_NORM>(x, weights, eps, position_at, q, k_cache, v_cache, n, heads, kv_heads, taps); \
    }
