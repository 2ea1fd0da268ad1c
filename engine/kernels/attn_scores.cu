// s[h, t, n] = q[t, h] . k[n, h / (H/G)] for n up to the position of row t, k at the
// slot of n; else 0. A warp per score; grid (T * ceil(N / warps), H), block 32 x warps.
// q [T, H, d], k [N, G, d] in the cache's type, s [H, T, N].

#include "batch.cuh"
#include "kv_types.cuh"

struct AttnScoresParams {
    const float *q;
    const void *k;
    float *s;
    int heads, kv_heads, d, first, tokens, keys;
    Batch batch;
};

template <typename Kv>
__global__ void attn_scores(const __grid_constant__ AttnScoresParams p) {
    const int warps = blockDim.x / 32, blocks = (p.keys + warps - 1) / warps;
    const int n = blockIdx.x % blocks * warps + threadIdx.x / 32;
    const int t = blockIdx.x / blocks, h = blockIdx.y, lane = threadIdx.x % 32;
    if (n >= p.keys) return;
    float sum = 0.0f;
    if (n <= p.batch.position(p.first, t)) {
        const float *query = p.q + ((size_t)t * p.heads + h) * p.d;
        const size_t slot = p.batch.slot(t, n);
        const auto key = kv_elements<Kv>(p.k, (slot * p.kv_heads + h / (p.heads / p.kv_heads)) * p.d);
        for (int i = lane; i < p.d; i += 32) sum = fmaf(query[i], Kv::get(key[i]), sum);
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    }
    if (lane == 0) p.s[((size_t)h * p.tokens + t) * p.keys + n] = sum;
}
