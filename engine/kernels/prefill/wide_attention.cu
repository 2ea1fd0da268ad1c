// attn_scores, attn_weights and attn_context of many tokens, as `attention_rows.cu` makes them,
// on Hopper, of heads of 64 or 128 elements. A warpgroup multiplies ROWS rows with every tile
// in its turn, which comes in bulk into STAGES places of its own; what the warpgroups of a block
// have is put together at the end.
// Grid (ceil(T H / G / ROWS), G), block 128 * GROUPS.
// q [T, H, D], out [T, H, D]; taps [H, T, N].

#include "prefill/cache.cuh"
#include "prefill/warpgroups.cuh"

constexpr int ROWS = 64;
constexpr int GROUPS = 2; // warpgroups, as many as the registers are for
constexpr int STAGES = 2;
constexpr int SPAN = 32; // of elements, or keys, that the tensor cores sum at once: they round towards zero

struct WideAttentionParams {
    const float *q;
    const u8 *tiles;
    float *out;
    float *scores_tap, *weights_tap; // null where not wanted
    int heads, kv_heads, first, tokens;
    float scale;
    int tap_tokens, tap_keys; // T and N of the taps, of which these may be some tokens of a longer pass
};

template <int D, bool TAPPED, int TILE_BYTES>
__global__ void __launch_bounds__(128 * GROUPS, 1) wide_attention(const __grid_constant__ WideAttentionParams p) {
    if constexpr (!WARPGROUPS) return;
    typedef CacheTile<D> Tile;
    static_assert(TILE_BYTES == Tile::BYTES, "bytes of a tile in engine/src/cuda/operand.rs");
    constexpr int KEYS = Tile::KEYS, PLANE = Tile::PLANE, EIGHT = 16 * D, REST = Tile::BYTES - 4 * PLANE;
    constexpr int CHUNKS = D / 64, SPANS = KEYS / SPAN;
    constexpr float WEIGHT = 16384.0f; // what weights are multiplied with, to be halves of full accuracy
    extern __shared__ __align__(1024) u8 shared[];
    __shared__ __align__(8) Barrier full[GROUPS * STAGES], empty[GROUPS * STAGES];
    let_begin();
    // From one lane, so that the compiler knows that it is the warp's.
    const int part = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0);
    const int lane = threadIdx.x % 32, kv_head = blockIdx.y, group = p.heads / p.kv_heads;
    const int keys = p.first + p.tokens, tiles = (keys + KEYS - 1) / KEYS;
    // The longest first: the last tokens see the most keys.
    const int row0 = (gridDim.x - 1 - blockIdx.x) * ROWS + threadIdx.x / 32 % 4 * 16;
    const int block_end = min((int)(gridDim.x - blockIdx.x) * ROWS, p.tokens * group);
    const int walked = (p.first + (block_end - 1) / group) / KEYS + 1; // tiles
    int token[2], head[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = row0 + lane / 4 + 8 * r;
        token[r] = row / group;
        head[r] = kv_head * group + row % group;
    }
    if (threadIdx.x == 0) {
        for (int i = 0; i < GROUPS * STAGES; i++) make_barrier(&full[i], 1), make_barrier(&empty[i], 128);
        show_barriers();
    }
    __syncthreads();
    wait_for_turn();
    // Tile by tile of this warpgroup.
    auto place = [&](int i) { return part * STAGES + i % STAGES; };
    auto rest_of = [&](int place) { return shared + GROUPS * STAGES * 4 * PLANE + place * REST; };
    auto fetch = [&](int i) {
        const int tile = i * GROUPS + part, at = place(i);
        if (threadIdx.x % 128 != 0 || tile >= walked) return;
        if (i >= STAGES) wait_for(&empty[at], i / STAGES - 1 & 1);
        const u8 *from = p.tiles + (size_t)(kv_head * tiles + tile) * Tile::BYTES;
        arrive_and_expect(&full[at], Tile::BYTES);
        copy_in_bulk(shared + at * 4 * PLANE, from, 4 * PLANE, &full[at]);
        copy_in_bulk(rest_of(at), from + 4 * PLANE, REST, &full[at]);
    };
    for (int i = 0; i < STAGES; i++) fetch(i);

    // q: of rows g and g + 8 elements 2t, 2t + 1 and 2t + 8, 2t + 9 of every 16, as halves of numbers below 2^15.
    u32 q[2][D / 16][4];
    float inverse[2];
    {
        float of[2][D / 16][4];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            u32 largest = 0;
#pragma unroll
            for (int k = 0; k < D / 16; k++) {
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    float2 two = make_float2(0.0f, 0.0f);
                    const size_t at = ((size_t)token[r] * p.heads + head[r]) * D + 16 * k + 8 * h + lane % 4 * 2;
                    if (token[r] < p.tokens) two = *(const float2 *)(p.q + at);
                    of[r][k][2 * h] = two.x, of[r][k][2 * h + 1] = two.y;
                    largest = max(largest, max(magnitude(two.x), magnitude(two.y)));
                }
            }
            largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
            largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
            float scale;
            HalfPart::scale(largest, scale, inverse[r]);
#pragma unroll
            for (int k = 0; k < D / 16; k++) {
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    split_two(of[r][k][2 * h] * scale, of[r][k][2 * h + 1] * scale, q[0][k][2 * h + r], q[1][k][2 * h + r]);
                }
            }
        }
    }
    float largest[2] = {-3.402823466e38f, -3.402823466e38f}, total[2] = {0.0f, 0.0f};
    float sum[D / 8][4] = {}, scale = p.scale;
    asm volatile("" : "+f"(scale));
    auto row_of = [&](int r) { return ((size_t)head[r] * p.tap_tokens + token[r]) * p.tap_keys; };
    auto own_key = [&](int n) { return n / KEYS % GROUPS == part; };
#pragma unroll 1
    for (int i = 0; i * GROUPS + part < walked; i++) {
        const int at = place(i), n0 = (i * GROUPS + part) * KEYS;
        wait_for(&full[at], i / STAGES & 1);
        const u8 *k_tile = shared + at * 4 * PLANE, *v_tile = k_tile + 2 * PLANE;
        float of_keys[KEYS / 8][2];
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++) {
            const float2 two = ((const float2 *)rest_of(at))[4 * j + lane % 4];
            of_keys[j][0] = two.x, of_keys[j][1] = two.y;
        }
        const typename Tile::Last of_values = *(const typename Tile::Last *)(rest_of(at) + 4 * KEYS);
        // Of three products the smallest first: of the second halves of q, of those of the keys, of neither.
        auto second = [](int product, int which) { return product == which ? 1 : 0; };
        float s[KEYS / 8][4] = {};
#pragma unroll
        for (int j0 = 0; j0 < KEYS / 8; j0 += 4) {
#pragma unroll
            for (int d0 = 0; d0 < D; d0 += 2 * SPAN) {
                float c[2][16];
                begin_products<32>(c[0]);
#pragma unroll
                for (int k = 0; k < 12; k++) {
                    const int span = k / 6, product = k % 6 / 2, d = d0 + SPAN * span + 16 * (k % 2);
                    const int keys_at = second(product, 1) * PLANE + j0 * EIGHT + d / 64 * 1024 + d % 64 * 2;
                    multiply_keys(c[span], q[second(product, 0)][d / 16], k_tile, keys_at, EIGHT, k % 6 > 0);
                }
                end_products();
                wait_for_products<0, 32>(c[0]);
#pragma unroll
                for (int e = 0; e < 16; e++) s[j0 + e / 4][e % 4] = (s[j0 + e / 4][e % 4] + c[0][e]) + c[1][e];
            }
        }
        u32 weights[2][KEYS / 16][4];
        float rescale[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int t = token[r], last = p.first + t; // the last key that it sees
            float most = largest[r];
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int n = n0 + 8 * j + lane % 4 * 2 + e;
                    const float v = tap(TAPPED && n <= last && t < p.tokens ? p.scores_tap : nullptr, row_of(r) + n,
                                        s[j][2 * r + e] * (inverse[r] * of_keys[j][e]));
                    s[j][2 * r + e] = n <= last ? __fmul_rn(v, scale) : __int_as_float(0xff800000);
                    most = fmaxf(most, s[j][2 * r + e]);
                }
            }
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
            rescale[r] = expf(largest[r] - most);
            if (TAPPED && p.weights_tap && rescale[r] != 1.0f && t < p.tokens) {
                for (int n = lane % 4; n < n0; n += 4) {
                    if (own_key(n)) p.weights_tap[row_of(r) + n] *= rescale[r];
                }
            }
            float e_sum = 0.0f;
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++) {
                float w[2];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int n = n0 + 8 * j + lane % 4 * 2 + e;
                    w[e] = expf(s[j][2 * r + e] - most);
                    if (TAPPED) w[e] = tap(n <= last && t < p.tokens ? p.weights_tap : nullptr, row_of(r) + n, w[e]);
                    e_sum += w[e];
                }
                const int of = j % 2 * 2 + r;
                split_two(w[0] * WEIGHT, w[1] * WEIGHT, weights[0][j / 2][of], weights[1][j / 2][of]);
            }
            total[r] = total[r] * rescale[r] + e_sum;
            // Keys that the row sees and that have a value that is no number.
#pragma unroll
            for (int k0 = 0; k0 < KEYS; k0 += 32) {
                const int seen = last - n0 - k0 + 1;
                const u32 those = seen <= 0 ? 0u : seen >= 32 ? ~0u : (1u << seen) - 1;
                if (of_values.without[k0 / 32] & those) total[r] = __int_as_float(0x7fffffff);
            }
            largest[r] = most;
        }
        __syncwarp();
#pragma unroll
        for (int k = 0; k < KEYS / 2; k++) asm volatile("" : "+r"(weights[k / (KEYS / 4)][k / 4 % (KEYS / 16)][k % 4])::"memory");
#pragma unroll
        for (int j = 0; j < D / 8; j++) {
#pragma unroll
            for (int e = 0; e < 4; e++) sum[j][e] *= rescale[e / 2];
        }
        const float of = of_values.values * (1.0f / WEIGHT);
        float c[CHUNKS * SPANS][32];
        begin_products<32 * CHUNKS * SPANS>(c[0]);
#pragma unroll
        for (int k = 0; k < 6 * CHUNKS * SPANS; k++) {
            const int i = k / 6, product = k % 6 / 2, key = i % SPANS * SPAN + 16 * (k % 2);
            const int values_at = second(product, 1) * PLANE + key / 8 * EIGHT + i / SPANS * 1024;
            multiply_values(c[i], weights[second(product, 0)][key / 16], v_tile, values_at, EIGHT, k % 6 > 0);
        }
        end_products();
        wait_for_products<0, 32 * CHUNKS * SPANS>(c[0]);
#pragma unroll
        for (int k = 0; k < 32 * CHUNKS * SPANS; k++) {
            float &to = sum[k / 32 / SPANS * 8 + k % 32 / 4][k % 4];
            to = fmaf(c[k / 32][k % 32], of, to);
        }
        arrive(&empty[at]);
        fetch(i + STAGES);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) { // so far of a lane's keys
        total[r] += __shfl_xor_sync(0xffffffffu, total[r], 1);
        total[r] += __shfl_xor_sync(0xffffffffu, total[r], 2);
    }
    // All parts put together, in place of the tiles.
    float4 *measured = (float4 *)shared;
    float *sums = (float *)(measured + GROUPS * 128) + threadIdx.x % 128;
    constexpr int LEFT = 4 * 128 * (4 * GROUPS + (GROUPS - 1) * D / 2); // bytes
    static_assert(LEFT <= GROUPS * STAGES * 4 * PLANE, "what they leave must fit where the tiles were");
    __syncthreads();
    measured[threadIdx.x] = make_float4(largest[0], largest[1], total[0], total[1]);
#pragma unroll
    for (int k = 0; k < D / 2; k++) {
        if (part > 0) sums[((part - 1) * D / 2 + k) * 128] = sum[k / 4][k % 4];
    }
    __syncthreads();
    float factor[2], of_part[GROUPS][2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        auto of_thread = [&](int i, int what) { return ((const float *)&measured[i * 128 + threadIdx.x % 128])[what]; };
        float most = largest[r];
#pragma unroll
        for (int i = 0; i < GROUPS; i++) most = fmaxf(most, of_thread(i, r));
        factor[r] = expf(largest[r] - most);
        total[r] = 0.0f;
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            of_part[i][r] = expf(of_thread(i, r) - most);
            total[r] = fmaf(of_thread(i, 2 + r), of_part[i][r], total[r]);
        }
        total[r] = 1.0f / total[r];
    }
#pragma unroll
    for (int k = 0; k < D / 2; k++) {
        if (part > 0) break;
        const int r = k % 4 / 2;
        float &of = sum[k / 4][k % 4];
        of *= of_part[0][r];
#pragma unroll
        for (int i = 1; i < GROUPS; i++) of = fmaf(sums[((i - 1) * D / 2 + k) * 128], of_part[i][r], of);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (token[r] >= p.tokens) continue;
        if (part == 0) {
            float *out = p.out + ((size_t)token[r] * p.heads + head[r]) * D + lane % 4 * 2;
#pragma unroll
            for (int j = 0; j < D / 8; j++) {
                *(float2 *)(out + 8 * j) = make_float2(sum[j][2 * r] * total[r], sum[j][2 * r + 1] * total[r]);
            }
        }
        for (int n = lane % 4; TAPPED && n < p.tap_keys; n += 4) {
            if (!own_key(n)) continue;
            const bool visible = n <= p.first + token[r];
            if (p.scores_tap && !visible) p.scores_tap[row_of(r) + n] = 0.0f;
            if (p.weights_tap) {
                float &w = p.weights_tap[row_of(r) + n];
                w = visible ? w * factor[r] * total[r] : 0.0f;
            }
        }
    }
}
