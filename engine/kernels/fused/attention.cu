// attn_scores, attn_weights and attn_context of one token. A block takes one
// head of the cache, the GROUP query heads that share it, and a share of the
// keys; the last block of a head to finish puts the shares together, in the
// order of the keys, so that the result does not depend on who was last.
// A tapped weight goes the way of the sums: it is written as it is multiplied with
// its value, and rescaled, put together and divided by the total as they are.
// Grid (G, SPLITS), block THREADS.
// q [H, D], caches [capacity, G, D], out [H, D]; partial [G, SPLITS, GROUP, D + 2].

#include "fused/decode.cuh"
#include "kv.cuh"

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr int KEYS = 64;   // of a tile
constexpr int FEWEST = 32; // keys worth a block
constexpr int SPLITS = 32; // blocks of a head at most: one lane each when shares are put together

struct AttentionParams {
    const float *q;
    const void *k, *v;
    float *partial;
    u32 *arrived;
    float *out;
    const int *position_at;
    float *scores_tap, *weights_tap, *out_tap; // null where not wanted; the first two [H, N]
    float scale;
};

template <typename Kv, int D, int GROUP>
__global__ void __launch_bounds__(THREADS, 1) attention(const __grid_constant__ AttentionParams p) {
    constexpr int LANES = D / 8;                                // threads that share a key
    constexpr int OUTPUTS = (GROUP * D + THREADS - 1) / THREADS; // per thread
    const auto *k = (const typename Kv::Type *)p.k, *v = (const typename Kv::Type *)p.v;
    __shared__ __align__(16) float query[GROUP * D];
    __shared__ __align__(16) float values[KEYS * D];
    __shared__ float prob[GROUP][KEYS];
    __shared__ float largest[GROUP], total[GROUP], rescale[GROUP], factor[GROUP][SPLITS];
    __shared__ bool last;
    const int kv_head = blockIdx.x, kv_heads = gridDim.x;
    const int keys = *p.position_at + 1;
    const int share = max((keys + SPLITS - 1) / SPLITS, FEWEST);
    const int live = (keys + share - 1) / share;
    const int begin = blockIdx.y * share, end = min(keys, begin + share);
    if (begin >= keys) return;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int part = threadIdx.x % LANES, at0 = threadIdx.x / LANES;
    auto fetch = [&](int n, float *key, float *value) {
        const size_t from = ((size_t)n * kv_heads + kv_head) * D + 8 * part;
        Kv::get8(k + from, key);
        Kv::get8(v + from, value);
    };
    auto weights_of = [&](int h) { return p.weights_tap ? p.weights_tap + (kv_head * GROUP + h) * keys : nullptr; };
    // The keys of earlier steps can be fetched before the kernel that writes
    // this step's is done.
    float key0[8] = {}, value0[8] = {};
    if (begin + at0 < end && begin + at0 < keys - 1) fetch(begin + at0, key0, value0);
    wait_for_previous();
    for (int i = threadIdx.x; i < GROUP * D; i += THREADS) query[i] = p.q[kv_head * GROUP * D + i];
    if (threadIdx.x < GROUP) {
        largest[threadIdx.x] = -3.402823466e38f;
        total[threadIdx.x] = 0.0f;
    }
    float sum[OUTPUTS];
#pragma unroll
    for (int r = 0; r < OUTPUTS; r++) sum[r] = 0.0f;

    for (int tile = begin; tile < end; tile += KEYS) {
        const int here = min(KEYS, end - tile);
        __syncthreads();
        for (int at = at0; at < KEYS; at += THREADS / LANES) {
            const bool early = tile == begin && at == at0 && tile + at < keys - 1;
            float key[8] = {}, value[8] = {};
            if (early) {
#pragma unroll
                for (int i = 0; i < 8; i++) key[i] = key0[i], value[i] = value0[i];
            } else if (at < here) {
                fetch(tile + at, key, value);
            }
            float4 *to = (float4 *)(values + at * D + 8 * part);
            to[0] = make_float4(value[0], value[1], value[2], value[3]);
            to[1] = make_float4(value[4], value[5], value[6], value[7]);
#pragma unroll
            for (int h = 0; h < GROUP; h++) {
                const float4 *x = (const float4 *)(query + h * D + 8 * part);
                const float4 x0 = x[0], x1 = x[1];
                float s = key[0] * x0.x;
                s = fmaf(key[1], x0.y, s);
                s = fmaf(key[2], x0.z, s);
                s = fmaf(key[3], x0.w, s);
                s = fmaf(key[4], x1.x, s);
                s = fmaf(key[5], x1.y, s);
                s = fmaf(key[6], x1.z, s);
                s = fmaf(key[7], x1.w, s);
                for (int lanes = LANES / 2; lanes > 0; lanes /= 2) s += __shfl_xor_sync(0xffffffffu, s, lanes);
                if (part == 0 && at < here) {
                    s = tap(p.scores_tap, (kv_head * GROUP + h) * keys + tile + at, s);
                    prob[h][at] = __fmul_rn(s, p.scale);
                }
            }
        }
        __syncthreads();
        for (int h = warp; h < GROUP; h += WARPS) {
            float most = largest[h];
            for (int i = lane; i < here; i += 32) most = fmaxf(most, prob[h][i]);
            for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
            const float less = expf(largest[h] - most);
            float *weights = weights_of(h);
            if (weights && less != 1.0f) {
                for (int n = begin + lane; n < tile; n += 32) weights[n] *= less;
            }
            float e = 0.0f;
            for (int i = lane; i < here; i += 32) {
                prob[h][i] = tap(weights, tile + i, expf(prob[h][i] - most));
                e += prob[h][i];
            }
            e = warp_sum(e);
            __syncwarp();
            if (lane == 0) {
                rescale[h] = less;
                total[h] = total[h] * less + e;
                largest[h] = most;
            }
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < OUTPUTS; r++) {
            const int at = threadIdx.x + THREADS * r;
            if (at >= GROUP * D) break;
            const int h = at / D;
            const float *value = values + at % D;
            float s[4] = {sum[r] * rescale[h], 0.0f, 0.0f, 0.0f};
            int i = 0;
            for (; i + 4 <= here; i += 4) {
#pragma unroll
                for (int j = 0; j < 4; j++) s[j] = fmaf(prob[h][i + j], value[(i + j) * D], s[j]);
            }
            for (; i < here; i++) s[0] = fmaf(prob[h][i], value[i * D], s[0]);
            sum[r] = (s[0] + s[1]) + (s[2] + s[3]);
        }
    }
    __syncthreads();

    if (live > 1) {
        float *mine = p.partial + ((size_t)kv_head * SPLITS + blockIdx.y) * GROUP * (D + 2);
#pragma unroll
        for (int r = 0; r < OUTPUTS; r++) {
            const int at = threadIdx.x + THREADS * r;
            if (at < GROUP * D) mine[(at / D) * (D + 2) + at % D] = sum[r];
        }
        if (threadIdx.x < GROUP) {
            mine[threadIdx.x * (D + 2) + D] = largest[threadIdx.x];
            mine[threadIdx.x * (D + 2) + D + 1] = total[threadIdx.x];
        }
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) last = atomicAdd(p.arrived + kv_head, 1) == (u32)live - 1;
        __syncthreads();
        if (!last) return;
        __threadfence();
        const float *all = p.partial + (size_t)kv_head * SPLITS * GROUP * (D + 2);
        for (int h = warp; h < GROUP; h += WARPS) {
            const float *of = all + (lane * GROUP + h) * (D + 2) + D;
            const float mine = lane < live ? __ldcg(of) : -3.402823466e38f;
            float most = mine;
            for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
            const float f = lane < live ? expf(mine - most) : 0.0f;
            const float e = warp_sum(lane < live ? __ldcg(of + 1) * f : 0.0f);
            factor[h][lane] = f;
            if (lane == 0) {
                largest[h] = most;
                total[h] = e;
            }
        }
        if (threadIdx.x == 0) p.arrived[kv_head] = 0;
        __syncthreads();
#pragma unroll
        for (int r = 0; r < OUTPUTS; r++) {
            const int at = threadIdx.x + THREADS * r;
            if (at >= GROUP * D) break;
            const int h = at / D;
            const float *of = all + h * (D + 2) + at % D;
            float s[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            int i = 0;
            for (; i + 4 <= live; i += 4) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    s[j] = fmaf(__ldcg(of + (i + j) * GROUP * (D + 2)), factor[h][i + j], s[j]);
                }
            }
            for (; i < live; i++) s[0] = fmaf(__ldcg(of + i * GROUP * (D + 2)), factor[h][i], s[0]);
            sum[r] = (s[0] + s[1]) + (s[2] + s[3]);
        }
    }
#pragma unroll
    for (int r = 0; r < OUTPUTS; r++) {
        const int at = threadIdx.x + THREADS * r;
        if (at >= GROUP * D) break;
        p.out[kv_head * GROUP * D + at] = tap(p.out_tap, kv_head * GROUP * D + at, sum[r] / total[at / D]);
    }
    for (int h = 0; h < GROUP; h++) {
        float *weights = weights_of(h);
        if (!weights) break;
        for (int n = threadIdx.x; n < keys; n += THREADS) {
            weights[n] = __ldcg(weights + n) * (live > 1 ? factor[h][n / share] : 1.0f) / total[h];
        }
    }
}
