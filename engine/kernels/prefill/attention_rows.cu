// attn_scores, attn_weights and attn_context of many tokens, on the tensor cores to f32
// accuracy: q, keys, values and weights as two halves each, of whose products the smallest
// is left out, at most 2^-22 of the whole. A row is a token's query of one of the heads
// that share a head of the cache; a block walks over the keys that its rows see, tile by
// tile (`cache.cuh`), TILES of them at once. A warp takes
// 16 rows and half the keys of one of these, with a running maximum and sum, so that scores
// need no memory unless they are tapped; what the warps of a row have is put together
// at the end. A tapped weight goes the way of the sums: it is written as it is multiplied
// with its value, and rescaled and divided by the total as they are.
// Grid (ceil(T H / G / ROWS), G), block TILES * THREADS.
// q [T, H, D], out [T, H, D]; taps [H, T, N].

#include "prefill/cache.cuh"

constexpr int ROWS = 64;
constexpr int THREADS = 4 * ROWS; // of a tile
constexpr int SPAN = 32; // of elements, or keys, that the tensor cores sum at once: they round towards zero

struct AttentionRowsParams {
    const float *q;
    const u8 *tiles;
    float *out;
    float *scores_tap, *weights_tap; // null where not wanted
    int heads, kv_heads, first, tokens;
    float scale;
    int tap_tokens, tap_keys; // T and N of the taps, of which these may be some tokens of a longer pass
};

template <int D, bool TAPPED, int TILE_BYTES, int TILES>
__global__ void __launch_bounds__(TILES *THREADS) attention_rows(const __grid_constant__ AttentionRowsParams p) {
    typedef CacheTile<D> Tile;
    static_assert(TILE_BYTES == Tile::BYTES, "bytes of a tile in engine/src/cuda/prefill.rs");
    constexpr int KEYS = Tile::KEYS, MINE = KEYS / 2, PLANE = Tile::PLANE, BYTES = Tile::BYTES;
    constexpr int AT_ONCE = MINE < SPAN ? MINE : SPAN;
    constexpr float WEIGHT = 16384.0f; // what weights are multiplied with, to be halves of full accuracy
    extern __shared__ __align__(16) u8 shared[];
    let_begin();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % (ROWS / 16), kv_head = blockIdx.y, group = p.heads / p.kv_heads;
    const int keys = p.first + p.tokens, tiles = (keys + KEYS - 1) / KEYS;
    const int part = threadIdx.x / (2 * ROWS), half = part % 2, of_round = part / 2, key0 = half * MINE; // of a tile
    // The longest first: the last tokens see the most keys.
    const int row0 = (gridDim.x - 1 - blockIdx.x) * ROWS + 16 * warp;
    const int block_end = min((int)(gridDim.x - blockIdx.x) * ROWS, p.tokens * group);
    const int walked = (p.first + (block_end - 1) / group) / KEYS + 1; // tiles
    int token[2], head[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = row0 + lane / 4 + 8 * r;
        token[r] = row / group;
        head[r] = kv_head * group + row % group;
    }
    wait_for_turn();
    const u8 *from = p.tiles + (size_t)kv_head * tiles * BYTES;
    auto fetch = [&](int round) {
        u8 *to = shared + round % 2 * TILES * BYTES;
        const int tile = round * TILES, bytes = min(TILES, walked - tile) * BYTES;
        for (int i = 16 * threadIdx.x; i < bytes; i += 16 * TILES * THREADS) copy16(to + i, from + (size_t)tile * BYTES + i);
        end_copies();
    };
    fetch(0);

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
    float sum[D / 8][4] = {};
    auto row_of = [&](int r) { return ((size_t)head[r] * p.tap_tokens + token[r]) * p.tap_keys; };
    auto own_key = [&](int n) { return n % KEYS / MINE == half && n / KEYS % TILES == of_round; };
    for (int round = 0; round * TILES < walked; round++) {
        wait_for_copies<0>();
        __syncthreads(); // also for the round before, whose place the next one takes
        if ((round + 1) * TILES < walked) fetch(round + 1);
        const int tile = round * TILES + of_round;
        if (tile >= walked) break;
        const u8 *k_tile = shared + (round % 2 * TILES + of_round) * BYTES, *v_tile = k_tile + 2 * PLANE;
        const float *of_keys = (const float *)(k_tile + Tile::SCALES) + key0;
        const typename Tile::Last of_values = *(const typename Tile::Last *)(k_tile + Tile::LAST);
        const u32 without = of_values.without[key0 / 32] >> (key0 % 32) & (MINE < 32 ? (1u << MINE % 32) - 1 : ~0u);
        const int n0 = tile * KEYS + key0;
        float s[MINE / 8][4] = {};
#pragma unroll
        for (int j = 0; j < MINE / 8; j++) {
#pragma unroll
            for (int d0 = 0; d0 < D; d0 += SPAN) {
                u32 k[2][4]; // elements d0 .. d0 + 31 of key 8 j + g
#pragma unroll
                for (int part = 0; part < 2; part++) {
                    load_matrices(k[part], k_tile + part * PLANE + place_in_tile(D, key0 + 8 * j + lane % 8, d0 / 8 + lane / 8));
                }
                float c[4] = {};
#pragma unroll
                for (int h = 0; h < 2; h++) multiply_f16(c, q[1][d0 / 16 + h], make_uint2(k[0][2 * h], k[0][2 * h + 1]));
#pragma unroll
                for (int h = 0; h < 2; h++) multiply_f16(c, q[0][d0 / 16 + h], make_uint2(k[1][2 * h], k[1][2 * h + 1]));
#pragma unroll
                for (int h = 0; h < 2; h++) multiply_f16(c, q[0][d0 / 16 + h], make_uint2(k[0][2 * h], k[0][2 * h + 1]));
#pragma unroll
                for (int e = 0; e < 4; e++) s[j][e] += c[e];
            }
        }
        u32 weights[2][MINE / 16][4];
        float rescale[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int t = token[r], last = p.first + t; // the last key that it sees
            float most = largest[r];
#pragma unroll
            for (int j = 0; j < MINE / 8; j++) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int n = n0 + 8 * j + lane % 4 * 2 + e;
                    const bool visible = n <= last && t < p.tokens;
                    float &v = s[j][2 * r + e];
                    v *= inverse[r] * of_keys[8 * j + lane % 4 * 2 + e];
                    if (TAPPED) v = tap(visible ? p.scores_tap : nullptr, row_of(r) + n, v);
                    v = n <= last ? __fmul_rn(v, p.scale) : __int_as_float(0xff800000);
                    most = fmaxf(most, v);
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
            for (int j = 0; j < MINE / 8; j++) {
                float w[2];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int n = n0 + 8 * j + lane % 4 * 2 + e;
                    const bool visible = n <= last && t < p.tokens;
                    w[e] = expf(s[j][2 * r + e] - most);
                    if (TAPPED) w[e] = tap(visible ? p.weights_tap : nullptr, row_of(r) + n, w[e]);
                    e_sum += w[e];
                }
                const int at = j % 2 * 2 + r;
                split_two(w[0] * WEIGHT, w[1] * WEIGHT, weights[0][j / 2][at], weights[1][j / 2][at]);
            }
            e_sum += __shfl_xor_sync(0xffffffffu, e_sum, 1);
            e_sum += __shfl_xor_sync(0xffffffffu, e_sum, 2);
            total[r] = total[r] * rescale[r] + e_sum;
            // Keys of this warp that the row sees and that have a value that is no number.
            const int seen = last - n0 + 1;
            if (without & (seen <= 0 ? 0u : seen >= 32 ? ~0u : (1u << seen) - 1)) total[r] = __int_as_float(0x7fffffff);
            largest[r] = most;
        }
        __syncwarp();
        const float of = of_values.values * (1.0f / WEIGHT);
#pragma unroll
        for (int j = 0; j < D / 8; j++) {
#pragma unroll
            for (int e = 0; e < 4; e++) sum[j][e] *= rescale[e / 2];
#pragma unroll
            for (int k0 = 0; k0 < MINE; k0 += AT_ONCE) {
                // Elements 8 j + g of so many keys: a second half of 16 is not used where there are no more.
                u32 v[2][4];
#pragma unroll
                for (int part = 0; part < 2; part++) {
                    load_transposed(v[part], v_tile + part * PLANE + place_in_tile(D, key0 + k0 + lane % AT_ONCE, j));
                }
                float c[4] = {};
                constexpr int STEPS = AT_ONCE / 16;
#pragma unroll
                for (int h = 0; h < STEPS; h++) multiply_f16(c, weights[1][k0 / 16 + h], make_uint2(v[0][2 * h], v[0][2 * h + 1]));
#pragma unroll
                for (int h = 0; h < STEPS; h++) multiply_f16(c, weights[0][k0 / 16 + h], make_uint2(v[1][2 * h], v[1][2 * h + 1]));
#pragma unroll
                for (int h = 0; h < STEPS; h++) multiply_f16(c, weights[0][k0 / 16 + h], make_uint2(v[0][2 * h], v[0][2 * h + 1]));
#pragma unroll
                for (int e = 0; e < 4; e++) sum[j][e] = fmaf(c[e], of, sum[j][e]);
            }
        }
    }
    // All parts put together, in place of the tiles.
    constexpr int PARTS = 2 * TILES, PART = THREADS / 2; // threads of warps that share no row
    float4 *measured = (float4 *)shared;
    float *sums = (float *)(measured + PARTS * PART) + threadIdx.x % PART;
    static_assert(4 * PART * (4 * PARTS + (PARTS - 1) * D / 2) <= 2 * TILES * BYTES, "what they leave must fit where the tiles were");
    __syncthreads();
    measured[threadIdx.x] = make_float4(largest[0], largest[1], total[0], total[1]);
#pragma unroll
    for (int k = 0; k < D / 2; k++) {
        if (part > 0) sums[((part - 1) * D / 2 + k) * PART] = sum[k / 4][k % 4];
    }
    __syncthreads();
    float factor[2], of_part[PARTS][2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        auto of_thread = [&](int i, int what) { return ((const float *)&measured[i * PART + threadIdx.x % PART])[what]; };
        float most = largest[r];
#pragma unroll
        for (int i = 0; i < PARTS; i++) most = fmaxf(most, of_thread(i, r));
        factor[r] = expf(largest[r] - most);
        total[r] = 0.0f;
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            of_part[i][r] = expf(of_thread(i, r) - most);
            total[r] = fmaf(of_thread(i, 2 + r), of_part[i][r], total[r]);
        }
    }
#pragma unroll
    for (int k = 0; k < D / 2; k++) {
        if (part > 0) break;
        const int r = k % 4 / 2;
        float &of = sum[k / 4][k % 4];
        of *= of_part[0][r];
#pragma unroll
        for (int i = 1; i < PARTS; i++) of = fmaf(sums[((i - 1) * D / 2 + k) * PART], of_part[i][r], of);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (token[r] >= p.tokens) continue;
        if (part == 0) {
            float *out = p.out + ((size_t)token[r] * p.heads + head[r]) * D + lane % 4 * 2;
#pragma unroll
            for (int j = 0; j < D / 8; j++) {
                *(float2 *)(out + 8 * j) = make_float2(sum[j][2 * r] / total[r], sum[j][2 * r + 1] / total[r]);
            }
        }
        for (int n = lane % 4; TAPPED && n < p.tap_keys; n += 4) {
            if (!own_key(n)) continue;
            const bool visible = n <= p.first + token[r];
            if (p.scores_tap && !visible) p.scores_tap[row_of(r) + n] = 0.0f;
            if (p.weights_tap) {
                float &w = p.weights_tap[row_of(r) + n];
                w = visible ? w * factor[r] / total[r] : 0.0f;
            }
        }
    }
}
