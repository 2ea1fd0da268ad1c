// c[t, h, i] = sum_n w[h, t, n] v[n, h / (H/G), i] for n up to the position of row
// t, v at the slot of n. A thread per element; grid (T, H), block: threads over i. Four partial sums keep the
// rounding error down.
// w [H, T, N], v [N, G, d] in the cache's type, c [T, H, d].

#include "batch.cuh"
#include "kv_types.cuh"

struct AttnContextParams {
    const float *w;
    const void *v;
    float *c;
    int heads, kv_heads, d, first, tokens, keys;
    Batch batch;
};

template <typename Kv>
__global__ void attn_context(const __grid_constant__ AttnContextParams p) {
    const int t = blockIdx.x, h = blockIdx.y;
    const int seen = min(p.keys, p.batch.position(p.first, t) + 1);
    const int kv = h / (p.heads / p.kv_heads);
    const float *w = p.w + ((size_t)h * p.tokens + t) * p.keys;
    const auto v = kv_elements<Kv>(p.v);
    for (int i = threadIdx.x; i < p.d; i += blockDim.x) {
        auto at = [&](int n) { return ((size_t)p.batch.slot(t, n) * p.kv_heads + kv) * p.d + i; };
        float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        int n = 0;
        for (; n + 4 <= seen; n += 4) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                sum[j] = fmaf(w[n + j], Kv::get(v[at(n + j)]), sum[j]);
            }
        }
        for (; n < seen; n++) sum[0] = fmaf(w[n], Kv::get(v[at(n)]), sum[0]);
        p.c[((size_t)t * p.heads + h) * p.d + i] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
}
