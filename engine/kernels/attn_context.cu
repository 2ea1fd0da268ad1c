// c[t, h, i] = sum_n w[h, t, n] v[n, h / (H/G), i] for n <= first + t. A thread
// per element; grid (T, H), block: threads over i. Four partial sums keep the
// rounding error down.
// w [H, T, N], v [N, G, d], c [T, H, d].

extern "C" __global__ void attn_context(const float *w, const float *v, float *c, int heads, int kv_heads,
                                        int d, int first, int tokens, int keys) {
    const int t = blockIdx.x, h = blockIdx.y;
    const int seen = min(keys, first + t + 1);
    const int kv = h / (heads / kv_heads);
    w += ((size_t)h * tokens + t) * keys;
    for (int i = threadIdx.x; i < d; i += blockDim.x) {
        float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        for (int n = 0; n < seen; n++) {
            sum[n % 4] = fmaf(w[n], v[((size_t)n * kv_heads + kv) * d + i], sum[n % 4]);
        }
        c[((size_t)t * heads + h) * d + i] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
}
