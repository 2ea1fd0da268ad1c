// attn_scores, attn_weights and attn_context of many tokens. A block takes
// QUERIES tokens of one head, walks over the keys they see, 32 at a time, and
// keeps a running maximum and sum, so that scores need no memory unless they are
// tapped. Grid (ceil(T / QUERIES), H), block 128.
// q [T, H, D], caches [capacity, G, D], out [T, H, D]; taps [H, T, N].

#define KEYS 32

template <typename Kv, int D>
__device__ void attn_prefill(const float *q, const typename Kv::Type *k, const typename Kv::Type *v, float *out,
                             float scale, int heads, int kv_heads, int first, int tokens, float *scores_tap,
                             float *weights_tap) {
    constexpr int ROWS = D <= 64 ? 2 : 1;     // queries of a thread
    constexpr int QUERIES = 16 * ROWS;
    constexpr int STRIDE = D + 4;
    constexpr int COLUMNS = D / 32;           // float4s of the result of a thread
    __shared__ __align__(16) float qs[QUERIES * STRIDE];
    __shared__ __align__(16) float ks[KEYS * STRIDE];
    __shared__ __align__(16) float vs[KEYS * STRIDE];
    __shared__ float ps[QUERIES][KEYS + 1];
    // The longest first: the last tokens see the most keys.
    const int t0 = (gridDim.x - 1 - blockIdx.x) * QUERIES, h = blockIdx.y, kv_head = h / (heads / kv_heads);
    const int tx = threadIdx.x % 8, ty = threadIdx.x / 8;
    const int keys = first + tokens, seen = min(keys, first + t0 + QUERIES);
    for (int i = threadIdx.x; i < QUERIES * D; i += 128) {
        const int t = t0 + i / D;
        qs[(i / D) * STRIDE + i % D] = t < tokens ? q[((size_t)t * heads + h) * D + i % D] : 0.0f;
    }
    float largest[ROWS], total[ROWS];
    float4 sum[ROWS][COLUMNS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        largest[r] = -3.402823466e38f;
        total[r] = 0.0f;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) sum[r][c] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    for (int n0 = 0; n0 < seen; n0 += KEYS) {
        __syncthreads();
        for (int i = threadIdx.x; i < KEYS * D; i += 128) {
            const int n = n0 + i / D;
            const size_t from = ((size_t)n * kv_heads + kv_head) * D + i % D;
            ks[(i / D) * STRIDE + i % D] = n < seen ? Kv::get(k[from]) : 0.0f;
            vs[(i / D) * STRIDE + i % D] = n < seen ? Kv::get(v[from]) : 0.0f;
        }
        __syncthreads();
        float s[ROWS][4] = {};
        for (int d = 0; d < D; d += 4) {
            float4 key[4];
#pragma unroll
            for (int c = 0; c < 4; c++) key[c] = *(const float4 *)(ks + (tx + 8 * c) * STRIDE + d);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const float4 x = *(const float4 *)(qs + (ty + 16 * r) * STRIDE + d);
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    s[r][c] = fmaf(x.x, key[c].x, s[r][c]);
                    s[r][c] = fmaf(x.y, key[c].y, s[r][c]);
                    s[r][c] = fmaf(x.z, key[c].z, s[r][c]);
                    s[r][c] = fmaf(x.w, key[c].w, s[r][c]);
                }
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int t = t0 + ty + 16 * r;
            const size_t row = ((size_t)h * tokens + t) * keys;
            float most = largest[r];
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const int n = n0 + tx + 8 * c;
                const bool visible = n <= first + t && n < keys;
                if (visible && t < tokens) tap(scores_tap, row + n, s[r][c]);
                s[r][c] = visible ? s[r][c] * scale : __int_as_float(0xff800000);
                most = fmaxf(most, s[r][c]);
            }
            for (int step = 4; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
            const float fade = expf(largest[r] - most);
            float e = 0.0f;
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const float v = expf(s[r][c] - most);
                ps[ty + 16 * r][tx + 8 * c] = v;
                e += v;
            }
            for (int step = 4; step > 0; step /= 2) e += __shfl_xor_sync(0xffffffffu, e, step);
            total[r] = total[r] * fade + e;
            largest[r] = most;
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                sum[r][c].x *= fade;
                sum[r][c].y *= fade;
                sum[r][c].z *= fade;
                sum[r][c].w *= fade;
            }
        }
        __syncwarp();
        for (int n = 0; n < KEYS; n++) {
            float4 value[COLUMNS];
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) value[c] = *(const float4 *)(vs + n * STRIDE + 32 * c + 4 * tx);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const float p = ps[ty + 16 * r][n];
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) {
                    sum[r][c].x = fmaf(p, value[c].x, sum[r][c].x);
                    sum[r][c].y = fmaf(p, value[c].y, sum[r][c].y);
                    sum[r][c].z = fmaf(p, value[c].z, sum[r][c].z);
                    sum[r][c].w = fmaf(p, value[c].w, sum[r][c].w);
                }
            }
        }
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int t = t0 + ty + 16 * r;
        if (t >= tokens) continue;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            *(float4 *)(out + ((size_t)t * heads + h) * D + 32 * c + 4 * tx) =
                make_float4(sum[r][c].x / total[r], sum[r][c].y / total[r], sum[r][c].z / total[r], sum[r][c].w / total[r]);
        }
        const size_t row = ((size_t)h * tokens + t) * keys;
        for (int n = tx; n < keys; n += 8) {
            const bool visible = n <= first + t;
            if (!visible) tap(scores_tap, row + n, 0.0f);
            if (weights_tap) {
                weights_tap[row + n] = visible ? expf(scores_tap[row + n] * scale - largest[r]) / total[r] : 0.0f;
            }
        }
    }
}

#define INSTANCE(NAME, KV, D)                                                                                    \
    extern "C" __global__ void __launch_bounds__(128)                                                            \
    NAME(const float *q, const KV::Type *k, const KV::Type *v, float *out, float scale, int heads, int kv_heads, \
         int first, int tokens, float *scores_tap, float *weights_tap) {                                        \
        attn_prefill<KV, D>(q, k, v, out, scale, heads, kv_heads, first, tokens, scores_tap, weights_tap);      \
    }
