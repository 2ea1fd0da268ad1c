// attn_scores of one token, and the shares of attn_weights and attn_context. A
// block takes one head of the cache, the GROUP query heads that share it, and a
// share of the keys, KEYS at a time; `attn_out` puts the shares together.
// A tapped weight goes the way of the sums: it is written as it is multiplied with
// its value, and rescaled, put together and divided by the total as they are.
// BATCH: of rows of a pass of several sequences, each with the keys in the slots of its own sequence;
// `join_shares` puts the shares together.
// Grid (G, splits), of rows (G, splits, rows), block THREADS.
// q [H, D], caches [capacity, G, D]; sums [H, SPLITS, D], measures [H, SPLITS]; of rows q [T, H, D], sums
// [rows, H, splits, D], measures [rows, H, splits].

#include "batch.cuh"
#include "fused/decode.cuh"
#include "fused/shares.cuh"
#include "kv.cuh"

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;

struct AttentionParams {
    const float *q;
    const void *k, *v;
    Partial partial;
    const int *position_at;
    float *scores_tap, *weights_tap; // null where not wanted; [H, N], of rows [H, T, N]
    float scale;
    int early; // blocks that find room before their turn, where others do not
    Stamp *stamps; // null where it is not timed
    Batch batch;
    const int *rows; // of the pass, those that are taken
    int tokens, keys; // T and N of the taps
};

// KEYS of a tile: as many as make a share at least, or 32 where shared memory is small.
// LATE: whether some blocks find no room before their turn. TAPPED: whether it may write stages besides.
template <typename Kv, int D, int GROUP, int KEYS, bool LATE, bool TAPPED, bool BATCH = false>
__global__ void __launch_bounds__(THREADS, GROUP > 8 ? 1 : 2) attention(const __grid_constant__ AttentionParams p) {
    typedef typename Kv::Type Type;
    constexpr int LANES = D / 8;            // threads that share a key when scores are made
    constexpr int COLUMNS = D / 4;          // threads that share a key when values are summed, four elements each
    constexpr int PARTS = THREADS / COLUMNS; // of the keys of a tile, then
    constexpr int HEADS = GROUP > 8 ? 16 : GROUP > 4 ? 8 : GROUP > 2 ? 4 : GROUP; // a power of two
    constexpr int STAGE = 2 * KEYS * D;     // elements of a tile of keys and values
    constexpr int ROW = D * sizeof(Type) / 16; // copies of a row
    extern __shared__ __align__(16) u8 shared[]; // two stages; at the end the second holds the parts' sums [PARTS, GROUP, D]
    __shared__ __align__(16) float prob[GROUP][KEYS];
    __shared__ float largest[GROUP], total[GROUP], rescale[GROUP];
    Turn turn(p.stamps);
    const int row = BATCH ? p.rows[blockIdx.z] : 0;
    const int *const table = BATCH ? p.batch.tables + p.batch.starts[row] : nullptr;
    const Shares of((BATCH ? p.batch.positions[row] : __ldcg(p.position_at)) + 1, gridDim.y);
    const int keys = of.keys, begin = blockIdx.y * of.share, end = min(keys, begin + of.share);
    if (begin >= keys) return;
    const int kv_head = blockIdx.x, kv_heads = gridDim.x;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    auto stage_of = [&](int tile) { return (Type *)shared + (tile - begin) / KEYS % 2 * STAGE; };
    // Keys and values of a tile but those of `without`.
    auto fetch = [&](int tile, int without) {
        const int here = min(KEYS, end - tile);
        Type *to = stage_of(tile);
#pragma unroll 1
        for (int i = threadIdx.x; i < here * ROW; i += THREADS) {
            const int at = i / ROW, n = tile + at;
            if (n == without) continue;
            const size_t from = ((size_t)(BATCH ? table[n] : n) * kv_heads + kv_head) * D + i % ROW * (16 / sizeof(Type));
            const int place = at * D + i % ROW * (16 / (int)sizeof(Type));
            copy16(to + place, (const Type *)p.k + from);
            copy16(to + KEYS * D + place, (const Type *)p.v + from);
        }
    };
    bool live = false;
    float *const scores_to = tap_of<TAPPED>(p.scores_tap), *const weights_to = tap_of<TAPPED>(p.weights_tap);
    const float *const q = BATCH ? p.q + (size_t)row * kv_heads * GROUP * D : p.q;
    auto row_of = [&](float *to, int h) {
        if (BATCH) return to && live ? to + ((size_t)(kv_head * GROUP + h) * p.tokens + row) * p.keys : nullptr;
        return to && live ? to + (kv_head * GROUP + h) * keys : nullptr;
    };
    // Where a query head's share stands.
    auto share_of = [&](int head) {
        return BATCH ? ((size_t)blockIdx.z * kv_heads * GROUP + head) * gridDim.y + blockIdx.y : (size_t)head * SPLITS + blockIdx.y;
    };
    // The rows of earlier steps can be fetched before the kernel that writes this step's is done; of a pass a sequence may have
    // several new ones.
    const int newest = keys - 1;
    if (BATCH) turn.wait();
    fetch(begin, BATCH ? -1 : newest);
    end_copies();
    const int part = threadIdx.x % LANES, at0 = threadIdx.x / LANES;
    const int column = threadIdx.x % COLUMNS, keys_of = threadIdx.x / COLUMNS;
    // Before its turn a block goes through its first tile as a rehearsal that writes
    // nothing: instructions met for the first time would take longer than all that is
    // waited for. One that begins late has no time for it.
    const bool late = BATCH || LATE && (int)(blockIdx.y * gridDim.x + blockIdx.x) >= p.early;
#pragma unroll 1
    for (int round = late; round < 2; round++) {
        live = round == 1;
        if (live && !BATCH) turn.wait();
        if (threadIdx.x < GROUP) {
            largest[threadIdx.x] = -3.402823466e38f;
            total[threadIdx.x] = 0.0f;
        }
        float4 query[GROUP][2];
#pragma unroll
        for (int h = 0; h < GROUP; h++) {
            const float4 *from = (const float4 *)(q + (kv_head * GROUP + h) * D + 8 * part);
            query[h][0] = __ldcg(from);
            query[h][1] = __ldcg(from + 1);
        }
        if (!BATCH && live && newest < begin + KEYS && newest < end && threadIdx.x < ROW) {
            const size_t from = ((size_t)newest * kv_heads + kv_head) * D + threadIdx.x * (16 / sizeof(Type));
            Type *to = stage_of(begin) + (newest - begin) * D + threadIdx.x * (16 / sizeof(Type));
            copy16(to, (const Type *)p.k + from);
            copy16(to + KEYS * D, (const Type *)p.v + from);
        }
        end_copies();
        float4 sum[GROUP];
#pragma unroll
        for (int h = 0; h < GROUP; h++) sum[h] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

        const int last = live ? end : min(end, begin + KEYS);
        for (int tile = begin; tile < last; tile += KEYS) {
            const int here = min(KEYS, end - tile);
            if (tile + KEYS < last) fetch(tile + KEYS, -1);
            end_copies();
            wait_for_copies<1>();
            __syncthreads();
            const Type *k = stage_of(tile), *v = k + KEYS * D;
            // Whole warps, 32 / LANES keys each.
#pragma unroll 1
            for (int at = at0; at - at0 % (32 / LANES) < here; at += THREADS / LANES) {
                float key[8], s[HEADS] = {};
                Kv::get8(k + at * D + 8 * part, key);
#pragma unroll
                for (int h = 0; h < GROUP; h++) {
                    const float4 x0 = query[h][0], x1 = query[h][1];
                    s[h] = key[0] * x0.x;
                    s[h] = fmaf(key[1], x0.y, s[h]);
                    s[h] = fmaf(key[2], x0.z, s[h]);
                    s[h] = fmaf(key[3], x0.w, s[h]);
                    s[h] = fmaf(key[4], x1.x, s[h]);
                    s[h] = fmaf(key[5], x1.y, s[h]);
                    s[h] = fmaf(key[6], x1.z, s[h]);
                    s[h] = fmaf(key[7], x1.w, s[h]);
                }
                // The lanes of a key share out the heads while they add: at each step a lane
                // keeps half of what it has, as long as that is more than one.
                int first = 0, have = HEADS;
                bool owns = true;
#pragma unroll
                for (int bit = LANES / 2; bit > 0; bit /= 2) {
                    const bool upper = part & bit;
                    if (have > 1) {
                        have /= 2;
#pragma unroll
                        for (int i = 0; i < HEADS / 2; i++) {
                            if (i >= have) break;
                            const float send = upper ? s[i] : s[i + have], keep = upper ? s[i + have] : s[i];
                            s[i] = keep + __shfl_xor_sync(0xffffffffu, send, bit);
                        }
                        first += upper ? have : 0;
                    } else {
                        s[0] += __shfl_xor_sync(0xffffffffu, s[0], bit);
                        owns = owns && !upper;
                    }
                }
#pragma unroll
                for (int i = 0; i < HEADS; i++) {
                    if (i >= have) break;
                    const int h = first + i;
                    if (owns && h < GROUP && at < here) prob[h][at] = s[i];
                }
            }
            __syncthreads();
#pragma unroll 1
            for (int h = warp; h < GROUP; h += WARPS) {
                float score[KEYS / 32], before = largest[h], most = before, *scores = row_of(scores_to, h);
#pragma unroll
                for (int i = 0; i < KEYS / 32; i++) {
                    const bool is = lane + 32 * i < here;
                    const float s = tap(is ? scores : nullptr, tile + lane + 32 * i, is ? prob[h][lane + 32 * i] : 0.0f);
                    score[i] = is ? __fmul_rn(s, p.scale) : -3.402823466e38f;
                    most = fmaxf(most, score[i]);
                }
                most = warp_max(most);
                const float less = expf(before - most);
                float *weights = row_of(weights_to, h);
                if (weights && less != 1.0f) {
#pragma unroll 1
                    for (int n = begin + lane; n < tile; n += 32) weights[n] *= less;
                }
                float e = 0.0f;
#pragma unroll
                for (int i = 0; i < KEYS / 32; i++) {
                    const bool is = lane + 32 * i < here;
                    const float w = tap(is ? weights : nullptr, tile + lane + 32 * i, is ? expf(score[i] - most) : 0.0f);
                    prob[h][lane + 32 * i] = w;
                    e += w;
                }
                e = warp_sum(e);
                __syncwarp(); // all lanes have read what the first writes
                if (lane == 0) {
                    rescale[h] = less;
                    total[h] = total[h] * less + e;
                    largest[h] = most;
                }
            }
            __syncthreads();
            if (tile > begin) {
#pragma unroll
                for (int h = 0; h < GROUP; h++) {
                    const float by = rescale[h];
                    sum[h].x *= by, sum[h].y *= by, sum[h].z *= by, sum[h].w *= by;
                }
            }
            // Four keys next to each other at a time.
#pragma unroll 1
            for (int at = 4 * keys_of; at < here; at += 4 * PARTS) {
                float4 value[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    // What lies beyond the last key was never written.
                    value[i] = at + i < here ? Kv::get4(v + (at + i) * D + 4 * column) : make_float4(0, 0, 0, 0);
                }
#pragma unroll
                for (int h = 0; h < GROUP; h++) {
                    const float4 w = *(const float4 *)(prob[h] + at);
                    const float by[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        sum[h].x = fmaf(by[i], value[i].x, sum[h].x);
                        sum[h].y = fmaf(by[i], value[i].y, sum[h].y);
                        sum[h].z = fmaf(by[i], value[i].z, sum[h].z);
                        sum[h].w = fmaf(by[i], value[i].w, sum[h].w);
                    }
                }
            }
            __syncthreads();
        }
        wait_for_copies<0>();
        float *sums = (float *)((Type *)shared + STAGE);
#pragma unroll
        for (int h = 0; h < GROUP; h++) ((float4 *)sums)[(keys_of * GROUP + h) * COLUMNS + column] = sum[h];
        __syncthreads();
#pragma unroll 1
        for (int i = threadIdx.x; i < GROUP * D; i += THREADS) {
            float s = 0.0f;
#pragma unroll
            for (int part = 0; part < PARTS; part++) s += sums[part * GROUP * D + i];
            const int head = kv_head * GROUP + i / D;
            if (live) p.partial.sums[share_of(head) * D + i % D] = s;
        }
        if (threadIdx.x < GROUP && live) {
            p.partial.measures[share_of(kv_head * GROUP + threadIdx.x)] =
                make_float2(largest[threadIdx.x], total[threadIdx.x]);
        }
        __syncthreads();
    }
}
