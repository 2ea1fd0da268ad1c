// As `attention.cu`, of caches of halves, on the tensor cores to f32 accuracy. A query, and a
// weight, is two halves (`digits.cuh`): row g of a matrix instruction is head g's first half,
// row g + 8 what that leaves, so that one instruction makes both products. Keys and values are
// halves already. A warp takes CHUNK keys at a time, through a ring of STAGES of its own, with a
// running maximum and sum, so that no barrier stands between its keys; warps are put together in
// shared memory, and the blocks of a cluster, which make a share together: `attn_out`, each of
// whose blocks reads all shares, finds few. Made for long contexts: of a short one the way through
// so many hands takes longer than its keys.
// A tapped weight goes the way of the sums, as in `attention.cu`.
// What is no number is seen by those who see it: where a second half makes no number of a product
// with an infinity, the first half's product counts alone. TAPPED: whether it may write stages besides.
// Grid (G, shares * CLUSTER), block THREADS. q [H, D], caches [capacity, G, D]; sums [H, SPLITS, D],
// measures [H, SPLITS].

#include "fused/cluster.cuh"
#include "fused/digits.cuh"
#include "fused/shares.cuh"

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr int CHUNK = 16; // keys that a warp takes at a time
constexpr int MEASURED = 16 * 8 * 9; // bytes of shared memory behind the rings: largest and sum of each warp, and of the block

struct AttentionHalvesParams {
    const float *q;
    const u16 *k, *v;
    Partial partial;
    const int *position_at;
    float *scores_tap, *weights_tap; // null where not wanted; [H, N]
    float scale;
    Stamp *stamps; // null where it is not timed
};

// What the measures of a warp, or a block, count for beside the largest of all.
__device__ __forceinline__ float factor_of(float largest, float most) { return expf(largest - most); }

// A product of a first half, and what its second half adds, if that is a number.
__device__ __forceinline__ float both(float high, float low) { return low + high == low + high ? low + high : high; }

constexpr float LEAST = -3.402823466e38f;

// What COUNT parts make together: `part(k)` gives four elements and `measure(k)` what they are relative to.
template <int COUNT, typename Measure, typename Part>
__device__ __forceinline__ void sum_up(Measure measure, Part part, float4 &s, float4 &whole) {
    float4 theirs[COUNT], elements[COUNT];
#pragma unroll
    for (int k = 0; k < COUNT; k++) theirs[k] = measure(k), elements[k] = part(k);
    whole = make_float4(LEAST, 0.0f, 0.0f, 0.0f), s = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int k = 0; k < COUNT; k++) whole.x = fmaxf(whole.x, theirs[k].x);
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
        const float by = factor_of(theirs[k].x, whole.x);
        const float4 e = elements[k];
        s.x = fmaf(e.x, by, s.x), s.y = fmaf(e.y, by, s.y), s.z = fmaf(e.z, by, s.z), s.w = fmaf(e.w, by, s.w);
        whole.y = fmaf(theirs[k].y, by, whole.y);
    }
}

template <int D, int GROUP, int STAGES, int CLUSTER, bool TAPPED>
__global__ void OF_CLUSTERS(CLUSTER) __launch_bounds__(THREADS, 2)
    attention_halves(const __grid_constant__ AttentionHalvesParams p) {
    static_assert(GROUP <= 8 && D % 32 == 0, "eight rows, and whole matrices");
    constexpr int ROW = 2 * D, UNITS = ROW / 16, STAGE = 2 * CHUNK * ROW; // bytes of a key, sixteens, keys and values
    constexpr int FOURS = GROUP * D / 4; // of the group's elements
    constexpr float WEIGHT = 16384.0f; // what weights are multiplied with, to be halves of full accuracy
    static_assert(2 * 16 * FOURS <= STAGE, "a warp's sums, and a block's, must fit where a stage was");
    static_assert(MEASURED == 16 * 8 * (WARPS + 1) && FOURS <= THREADS, "a thread puts four elements together");
    extern __shared__ __align__(16) u8 shared[];
    float4 *measures = (float4 *)(shared + WARPS * STAGES * STAGE); // [WARPS, 8]: largest score, sum of weights
    float4 *whole_measures = measures + 8 * WARPS;                  // [8]
    float4 *whole = (float4 *)(shared + STAGE / 2);                 // [GROUP, D]: behind the first warp's sums
    Turn turn(p.stamps);
    const Shares of(__ldcg(p.position_at) + 1, gridDim.y / CLUSTER);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int keys = of.keys, newest = keys - 1, kv_head = blockIdx.x, kv_heads = gridDim.x;
    const int share = blockIdx.y / CLUSTER, rank = blockIdx.y % CLUSTER;
    if (share >= of.live) return; // the whole cluster
    const int of_share = min(of.share, keys - share * of.share);
    const int each = ((of_share + CLUSTER - 1) / CLUSTER + CHUNK - 1) / CHUNK * CHUNK;
    const int begin = share * of.share + min(rank * each, of_share), end = min(begin + each, share * of.share + of_share);
    const int chunks = (end - begin + CHUNK - 1) / CHUNK;
    const int mine = chunks > warp ? (chunks - warp + WARPS - 1) / WARPS : 0; // of this warp
    u8 *ring = shared + warp * STAGES * STAGE;
    auto first_of = [&](int i) { return begin + (warp + i * WARPS) * CHUNK; };
    auto row_of = [&](const u16 *cache, int n) { return cache + ((size_t)n * kv_heads + kv_head) * D; };
    // Keys and then values of this warp's chunk i but those of `without`; zeros for keys that are not there.
    auto fetch = [&](int i, int without) {
        if (i < mine) {
            u8 *to = ring + i % STAGES * STAGE;
            const int first = first_of(i);
#pragma unroll
            for (int at = lane; at < 2 * CHUNK * UNITS; at += 32) {
                const int row = at / UNITS, unit = at % UNITS, n = first + row % CHUNK;
                if (n == without && n < end) continue;
                const u16 *from = row_of(row < CHUNK ? p.k : p.v, min(n, newest)) + 8 * unit;
                copy16_or_zeros(to + place_in_tile(D, row, unit), from, n < end);
            }
        }
        end_copies();
    };
    // The rows of earlier steps can be fetched before the kernel that writes this step's is done.
#pragma unroll 1
    for (int i = 0; i < STAGES; i++) fetch(i, newest);
    const int chunk_of = begin <= newest && newest < end ? (newest - begin) / CHUNK : -1;
    const int late = chunk_of >= 0 && chunk_of % WARPS == warp && chunk_of / WARPS < STAGES ? chunk_of / WARPS : -1;
    turn.wait();
    if (late >= 0 && lane < 2 * UNITS) {
        const int row = (newest - begin) % CHUNK + lane / UNITS * CHUNK, unit = lane % UNITS;
        copy16(ring + late % STAGES * STAGE + place_in_tile(D, row, unit), row_of(lane < UNITS ? p.k : p.v, newest) + 8 * unit);
    }
    end_copies();
    // The queries: of heads g elements 2t, 2t + 1 and 2t + 8, 2t + 9 of every 16.
    u32 q[D / 16][4];
    float inverse;
    {
        float2 two[D / 16][2];
        u32 largest = 0;
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float *from = p.q + (kv_head * GROUP + g) * D + 16 * k + 8 * h + 2 * t;
                two[k][h] = g < GROUP ? __ldcg((const float2 *)from) : make_float2(0.0f, 0.0f);
                largest = max(largest, __float_as_uint(two[k][h].x) & 0x7fffffffu);
                largest = max(largest, __float_as_uint(two[k][h].y) & 0x7fffffffu);
            }
        }
        largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
        largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
        float scale;
        HalfPart::scale(min(largest, 0x7f7fffffu), scale, inverse); // an infinity stays one
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
#pragma unroll
            for (int h = 0; h < 2; h++) split_two(two[k][h].x * scale, two[k][h].y * scale, q[k][2 * h], q[k][2 * h + 1]);
        }
    }
    turn.mark(0);
    const int head = kv_head * GROUP + min(g, GROUP - 1);
    float *scores_tap = TAPPED && p.scores_tap && g < GROUP ? p.scores_tap + (size_t)head * keys : nullptr;
    float *weights_tap = TAPPED && p.weights_tap && g < GROUP ? p.weights_tap + (size_t)head * keys : nullptr;
    // This lane's tapped weights of the chunks before `count`.
    auto rescale_taps = [&](int count, float by) {
        if (!weights_tap || by == 1.0f) return;
#pragma unroll 1
        for (int i = 0; i < count; i++) {
#pragma unroll 1
            for (int at = 0; at < CHUNK / 4; at++) {
                const int n = first_of(i) + at / 2 * 8 + 2 * t + at % 2;
                if (n < end) weights_tap[n] *= by;
            }
        }
    };
    // This lane's numbers of a chunk, if they are tapped.
    auto show = [&](float *to, int first, const float (&of)[CHUNK / 8][2]) {
        if (!to) return;
#pragma unroll
        for (int i = 0; i < CHUNK / 4; i++) {
            const int n = first + i / 2 * 8 + 2 * t + i % 2;
            if (n < end) to[n] = of[i / 2][i % 2];
        }
    };
    float largest = LEAST, total = 0.0f, sum[D / 8][2] = {};
#pragma unroll 1
    for (int i = 0; i < mine; i++) {
        if (i == late) wait_for_copies<0>();
        else wait_for_copies<STAGES - 1>();
        __syncwarp();
        const u8 *k_tile = ring + i % STAGES * STAGE, *v_tile = k_tile + CHUNK * ROW;
        const int first = first_of(i);
        float s[CHUNK / 8][2], most = largest;
#pragma unroll
        for (int j = 0; j < CHUNK / 8; j++) {
            float high[2] = {}, low[2] = {};
#pragma unroll
            for (int d0 = 0; d0 < D; d0 += 32) { // the tensor cores round towards zero: no longer sums
                u32 k[4];
                load_matrices(k, k_tile + place_in_tile(D, 8 * j + lane % 8, d0 / 8 + lane / 8));
                float c[4] = {};
                multiply_f16(c, q[d0 / 16], make_uint2(k[0], k[1]));
                multiply_f16(c, q[d0 / 16 + 1], make_uint2(k[2], k[3]));
#pragma unroll
                for (int e = 0; e < 2; e++) high[e] += c[e], low[e] += c[2 + e];
            }
#pragma unroll
            for (int e = 0; e < 2; e++) {
                s[j][e] = tap(nullptr, 0, both(high[e], low[e]) * inverse);
            }
        }
        show(scores_tap, first, s);
#pragma unroll
        for (int j = 0; j < CHUNK / 8; j++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                s[j][e] = 8 * j + 2 * t + e < end - first ? __fmul_rn(s[j][e], p.scale) : __int_as_float(0xff800000);
                most = fmaxf(most, s[j][e]);
            }
        }
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        const float less = factor_of(largest, most);
        largest = most;
        rescale_taps(i, less);
        float of_lane = 0.0f;
        u32 w[4];
#pragma unroll
        for (int j = 0; j < CHUNK / 8; j++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                s[j][e] = tap(nullptr, 0, expf(s[j][e] - most));
                of_lane += s[j][e];
            }
            split_two(s[j][0] * WEIGHT, s[j][1] * WEIGHT, w[2 * j], w[2 * j + 1]);
        }
        show(weights_tap, first, s);
        total = fmaf(total, less, of_lane); // of this lane's keys
#pragma unroll
        for (int j = 0; j < D / 8; j += 2) {
            u32 v[4]; // eight elements of the keys, and the next eight
            load_transposed(v, v_tile + place_in_tile(D, lane % 16, j + lane / 16));
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float c[4] = {};
                multiply_f16(c, w, make_uint2(v[2 * h], v[2 * h + 1]));
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    sum[j + h][e] = fmaf(both(c[e], c[2 + e]), 1.0f / WEIGHT, sum[j + h][e] * less);
                }
            }
        }
        __syncwarp(); // all have read what is written now
        fetch(i + STAGES, -1);
    }
    wait_for_copies<0>();
    __syncwarp();
    turn.mark(1);
    // This warp's sums, in place of its keys.
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    float *sums = (float *)ring;
    if (g < GROUP) {
#pragma unroll
        for (int j = 0; j < D / 8; j++) *(float2 *)(sums + g * D + 8 * j + 2 * t) = make_float2(sum[j][0], sum[j][1]);
    }
    if (t == 0) measures[8 * warp + g] = make_float4(largest, total, 0.0f, 0.0f);
    __syncthreads();
    turn.mark(2);
    const int i = threadIdx.x, of_head = i / (D / 4); // elements 4i .. 4i + 3 of the group
    float4 s, measure;
    if (i < FOURS) {
        sum_up<WARPS>([&](int w) { return measures[8 * w + of_head]; },
               [&](int w) { return ((const float4 *)(shared + w * STAGES * STAGE))[i]; }, s, measure);
        whole[i] = s;
        if (i % (D / 4) == 0) whole_measures[of_head] = measure;
    }
    float of_block = LEAST; // the largest score
    if (TAPPED && p.weights_tap) {
#pragma unroll 1
        for (int w = 0; w < WARPS; w++) of_block = fmaxf(of_block, measures[8 * w + g].x);
        rescale_taps(mine, factor_of(largest, of_block));
    }
    cluster_barrier();
    turn.mark(3);
    // The blocks of the cluster share out the group.
    if (i < FOURS && i % CLUSTER == rank) {
        sum_up<CLUSTER>([&](int r) { return of_rank(whole_measures + of_head, r); },
               [&](int r) { return of_rank(whole + i, r); }, s, measure);
        const size_t at = (size_t)(kv_head * GROUP + of_head) * SPLITS + share;
        ((float4 *)p.partial.sums)[at * (D / 4) + i % (D / 4)] = s;
        // One block of a head brings the measures.
        if (i % (D / 4) == 0) p.partial.measures[at] = make_float2(measure.x, measure.y);
    }
    if (TAPPED && p.weights_tap) {
        float most = LEAST;
#pragma unroll 1
        for (int r = 0; r < CLUSTER; r++) most = fmaxf(most, of_rank(whole_measures + min(g, GROUP - 1), r).x);
        rescale_taps(mine, factor_of(of_block, most));
    }
    cluster_meet(); // nobody ends while others read
    turn.mark(4);
}
