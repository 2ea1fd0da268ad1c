// attn_scores, attn_weights and attn_context of many tokens. A block takes
// QUERIES tokens of one head, walks over the keys they see, 32 at a time, and
// keeps a running maximum and sum, so that scores need no memory unless they are
// tapped. A tapped weight goes the way of the sums: it is written as it is
// multiplied with its value, and rescaled and divided by the total as they are.
// Grid (ceil(T / QUERIES), H), block THREADS.
// q [T, H, D], caches [capacity, G, D], out [T, H, D]; taps [H, T, N].

#include "fused/decode.cuh"
#include "kv.cuh"

constexpr int TEAM = 8;   // threads that share a query
constexpr int TEAMS = 16; // queries at a time
constexpr int THREADS = TEAM * TEAMS;
constexpr int KEYS = 32; // of a tile

struct AttnPrefillParams {
    const float *q;
    const void *k, *v;
    float *out;
    float *scores_tap, *weights_tap; // null where not wanted
    int heads, kv_heads, first, tokens;
    float scale;
};

// ROWS queries of a thread.
template <typename Kv, int D, int ROWS>
__global__ void __launch_bounds__(THREADS) attn_prefill(const __grid_constant__ AttnPrefillParams p) {
    constexpr int QUERIES = TEAMS * ROWS;
    constexpr int STRIDE = D + 4;
    constexpr int COLUMNS = D / 32; // float4s of the result of a thread
    const auto *k = (const typename Kv::Type *)p.k, *v = (const typename Kv::Type *)p.v;
    const int heads = p.heads, kv_heads = p.kv_heads, first = p.first, tokens = p.tokens;
    __shared__ __align__(16) float qs[QUERIES * STRIDE];
    __shared__ __align__(16) float ks[KEYS * STRIDE];
    __shared__ __align__(16) float vs[KEYS * STRIDE];
    __shared__ float ps[QUERIES][KEYS + 1];
    // The longest first: the last tokens see the most keys.
    const int t0 = (gridDim.x - 1 - blockIdx.x) * QUERIES, h = blockIdx.y, kv_head = h / (heads / kv_heads);
    const int tx = threadIdx.x % TEAM, ty = threadIdx.x / TEAM;
    const int keys = first + tokens, seen = min(keys, first + t0 + QUERIES);
    for (int i = threadIdx.x; i < QUERIES * D; i += THREADS) {
        const int t = t0 + i / D;
        qs[(i / D) * STRIDE + i % D] = t < tokens ? p.q[((size_t)t * heads + h) * D + i % D] : 0.0f;
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
        for (int i = threadIdx.x; i < KEYS * D; i += THREADS) {
            const int n = n0 + i / D;
            const size_t from = ((size_t)n * kv_heads + kv_head) * D + i % D;
            ks[(i / D) * STRIDE + i % D] = n < seen ? Kv::get(k[from]) : 0.0f;
            vs[(i / D) * STRIDE + i % D] = n < seen ? Kv::get(v[from]) : 0.0f;
        }
        __syncthreads();
        float s[ROWS][KEYS / TEAM] = {};
        for (int d = 0; d < D; d += 4) {
            float4 key[KEYS / TEAM];
#pragma unroll
            for (int c = 0; c < KEYS / TEAM; c++) key[c] = *(const float4 *)(ks + (tx + TEAM * c) * STRIDE + d);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const float4 x = *(const float4 *)(qs + (ty + TEAMS * r) * STRIDE + d);
#pragma unroll
                for (int c = 0; c < KEYS / TEAM; c++) {
                    s[r][c] = fmaf(x.x, key[c].x, s[r][c]);
                    s[r][c] = fmaf(x.y, key[c].y, s[r][c]);
                    s[r][c] = fmaf(x.z, key[c].z, s[r][c]);
                    s[r][c] = fmaf(x.w, key[c].w, s[r][c]);
                }
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int t = t0 + ty + TEAMS * r;
            const size_t row = ((size_t)h * tokens + t) * keys;
            auto visible = [&](int n) { return n <= first + t && n < keys; };
            auto tapped = [&](float *to, int n) { return visible(n) && t < tokens ? to : nullptr; };
            float most = largest[r];
#pragma unroll
            for (int c = 0; c < KEYS / TEAM; c++) {
                const int n = n0 + tx + TEAM * c;
                s[r][c] = tap(tapped(p.scores_tap, n), row + n, s[r][c]);
                s[r][c] = visible(n) ? __fmul_rn(s[r][c], p.scale) : __int_as_float(0xff800000);
                most = fmaxf(most, s[r][c]);
            }
            for (int step = TEAM / 2; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
            const float rescale = expf(largest[r] - most);
            if (p.weights_tap && rescale != 1.0f && t < tokens) {
                for (int n = tx; n < n0; n += TEAM) p.weights_tap[row + n] *= rescale;
            }
            float e = 0.0f;
#pragma unroll
            for (int c = 0; c < KEYS / TEAM; c++) {
                const int n = n0 + tx + TEAM * c;
                const float prob = tap(tapped(p.weights_tap, n), row + n, expf(s[r][c] - most));
                ps[ty + TEAMS * r][tx + TEAM * c] = prob;
                e += prob;
            }
            for (int step = TEAM / 2; step > 0; step /= 2) e += __shfl_xor_sync(0xffffffffu, e, step);
            total[r] = total[r] * rescale + e;
            largest[r] = most;
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                sum[r][c].x *= rescale;
                sum[r][c].y *= rescale;
                sum[r][c].z *= rescale;
                sum[r][c].w *= rescale;
            }
        }
        __syncwarp();
        for (int n = 0; n < KEYS; n++) {
            float4 value[COLUMNS];
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) value[c] = *(const float4 *)(vs + n * STRIDE + 32 * c + 4 * tx);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const float prob = ps[ty + TEAMS * r][n];
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) {
                    sum[r][c].x = fmaf(prob, value[c].x, sum[r][c].x);
                    sum[r][c].y = fmaf(prob, value[c].y, sum[r][c].y);
                    sum[r][c].z = fmaf(prob, value[c].z, sum[r][c].z);
                    sum[r][c].w = fmaf(prob, value[c].w, sum[r][c].w);
                }
            }
        }
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int t = t0 + ty + TEAMS * r;
        if (t >= tokens) continue;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            *(float4 *)(p.out + ((size_t)t * heads + h) * D + 32 * c + 4 * tx) =
                make_float4(sum[r][c].x / total[r], sum[r][c].y / total[r], sum[r][c].z / total[r], sum[r][c].w / total[r]);
        }
        const size_t row = ((size_t)h * tokens + t) * keys;
        for (int n = tx; n < keys; n += TEAM) {
            const bool visible = n <= first + t;
            if (p.scores_tap && !visible) p.scores_tap[row + n] = 0.0f;
            if (p.weights_tap) p.weights_tap[row + n] = visible ? p.weights_tap[row + n] / total[r] : 0.0f;
        }
    }
}
