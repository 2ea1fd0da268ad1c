// c[t, h, i] = sum_n w[h, t, n] v[n, h / (H/G), i] for n <= first + t. A thread
// per element; grid (T, H), block: threads over i. Four partial sums keep the
// rounding error down.
// w [H, T, N], v [N, G, d] in the cache's type, c [T, H, d].

template <typename Kv>
__device__ void attn_context(const float *w, const typename Kv::Type *v, float *c, int heads, int kv_heads, int d,
                             int first, int tokens, int keys) {
    const int t = blockIdx.x, h = blockIdx.y;
    const int seen = min(keys, first + t + 1);
    const int kv = h / (heads / kv_heads);
    w += ((size_t)h * tokens + t) * keys;
    for (int i = threadIdx.x; i < d; i += blockDim.x) {
        float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        int n = 0;
        for (; n + 4 <= seen; n += 4) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                sum[j] = fmaf(w[n + j], Kv::get(v[((size_t)(n + j) * kv_heads + kv) * d + i]), sum[j]);
            }
        }
        for (; n < seen; n++) sum[0] = fmaf(w[n], Kv::get(v[((size_t)n * kv_heads + kv) * d + i]), sum[0]);
        c[((size_t)t * heads + h) * d + i] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
}

#define INSTANCE(K)                                                                                           \
    extern "C" __global__ void attn_context_##K(const float *w, const K::Type *v, float *c, int heads,        \
                                                int kv_heads, int d, int first, int tokens, int keys) {       \
        attn_context<K>(w, v, c, heads, kv_heads, d, first, tokens, keys);                                    \
    }
