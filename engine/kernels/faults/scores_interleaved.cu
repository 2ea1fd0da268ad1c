// FAULT: query head h reads key head h % G where it is h / (H/G). As attn_scores,
// of a cache of f32. q [T, H, d], k [N, G, d], s [H, T, N]; grid (T * N, H), block 32.

struct ScoresInterleavedParams {
    const float *q, *k;
    float *s;
    int heads, kv_heads, d, first, tokens, keys;
};

__global__ void scores_interleaved(const __grid_constant__ ScoresInterleavedParams p) {
    const int n = blockIdx.x % p.keys, t = blockIdx.x / p.keys, h = blockIdx.y;
    float sum = 0.0f;
    if (n <= p.first + t) {
        const float *query = p.q + ((size_t)t * p.heads + h) * p.d;
        const float *key = p.k + ((size_t)n * p.kv_heads + h % p.kv_heads) * p.d;
        for (int i = threadIdx.x; i < p.d; i += 32) sum = fmaf(query[i], key[i], sum);
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    }
    if (threadIdx.x == 0) p.s[((size_t)h * p.tokens + t) * p.keys + n] = sum;
}
