// FAULT: query head h reads key head h % G where it is h / (H/G). As attn_scores.
// q [T, H, d], k [N, G, d], s [H, T, N]; grid (N, T, H), block 32.

extern "C" __global__ void scores_interleaved(const float *q, const float *k, float *s, int heads, int kv_heads,
                                              int d, int first, int tokens, int keys) {
    const int n = blockIdx.x, t = blockIdx.y, h = blockIdx.z;
    float sum = 0.0f;
    if (n <= first + t) {
        for (int i = threadIdx.x; i < d; i += 32) {
            sum = fmaf(q[((size_t)t * heads + h) * d + i], k[((size_t)n * kv_heads + h % kv_heads) * d + i], sum);
        }
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    }
    if (threadIdx.x == 0) s[((size_t)h * tokens + t) * keys + n] = sum;
}
