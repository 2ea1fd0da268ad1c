// s[h, t, n] = q[t, h] . k[n, h / (H/G)] for n <= first + t, else 0. A warp per
// score; grid (ceil(N / warps), T, H), block 32 x warps.
// q [T, H, d], k [N, G, d] in the cache's type, s [H, T, N].

template <typename Kv>
__device__ void attn_scores(const float *q, const typename Kv::Type *k, float *s, int heads, int kv_heads, int d,
                            int first, int tokens, int keys) {
    const int n = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const int t = blockIdx.y, h = blockIdx.z, lane = threadIdx.x % 32;
    if (n >= keys) return;
    float sum = 0.0f;
    if (n <= first + t) {
        const float *query = q + ((size_t)t * heads + h) * d;
        const typename Kv::Type *key = k + ((size_t)n * kv_heads + h / (heads / kv_heads)) * d;
        for (int i = lane; i < d; i += 32) sum = fmaf(query[i], Kv::get(key[i]), sum);
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    }
    if (lane == 0) s[((size_t)h * tokens + t) * keys + n] = sum;
}

#define INSTANCE(K)                                                                                          \
    extern "C" __global__ void attn_scores_##K(const float *q, const K::Type *k, float *s, int heads,        \
                                               int kv_heads, int d, int first, int tokens, int keys) {       \
        attn_scores<K>(q, k, s, heads, kv_heads, d, first, tokens, keys);                                    \
    }
