// y[t, o] = W[o, :] . x[t, :] of up to three matrices with the same x, on the tensor
// cores, to f32 accuracy: weights that are integers are exact halves, x comes in parts
// (`operand.cuh`), and what is summed of a group of 32, or of a piece where its groups'
// scales are in the weights, is scaled and added in f32, so that the tensor cores' sums,
// which round towards zero, end with it. Minima of a format are a matrix of their own, of
// eight groups at a time, that meets the sums of x.
//
// A block makes OUTPUTS outputs of TOKENS tokens of one share of the sum, a warp 16 of each 64
// outputs. Pieces of two groups come into shared memory, STAGES of STAGE_BYTES at once.
// Grid (ceil(T / TOKENS), sum of ceil(m / OUTPUTS), shares), block THREADS.
// W [m, n] in blocks, y [shares, T, m].

#include "prefill/pieces.cuh"
#include "fused/rows.cuh"
#include "prefill/warpgroups.cuh"

constexpr int THREADS = 128;
constexpr int ROWS = 2; // sets of 16 of a warp
constexpr int OUTPUTS = 64 * ROWS;
constexpr int BLOCKS = 2; // of a multiprocessor
constexpr int MINIMA = 5120; // bytes of shared memory for what eight groups' minima are multiplied from

struct ProductsParams {
    Operand x;
    Weights w[3];
    float *y[3];
    int m[3]; // 0 where there is none
    int n, tokens, first; // of so many tokens from this of the operand on
};

// A stage of shared memory.
template <typename P, typename Part>
struct Stage {
    // Whether the sixteen bytes of a token's group are turned, so that eight tokens, which are read at once, share no
    // bank.
    static constexpr bool TURNED = PartsOf<Part>::COUNT == 2;
    static constexpr int X = PartsOf<Part>::COUNT * PART_BYTES + (TURNED ? 0 : 16);
    static constexpr bool EIGHTS = P::SUMS && PartsOf<Part>::COUNT == 2; // minima are multiplied as matrices
    static constexpr bool SINGLY = P::SUMS && !EIGHTS;
    static constexpr int SUMS = PIECE * TOKENS * X, SCALES = SUMS + (SINGLY ? 4 * TOKENS * PIECE : 0);
    static constexpr bool PAIRS = SINGLY || P::HALVES; // two numbers a group and row
    static constexpr int QUANTS = SCALES + (PAIRS ? 8 : 4) * OUTPUTS * PIECE;
    static constexpr int HIGH = QUANTS + OUTPUTS * P::PITCH;
    static constexpr int BYTES = (HIGH + OUTPUTS * P::HIGH_PITCH + 1023) / 1024 * 1024;
};

template <typename Part>
__device__ __forceinline__ void multiply(float *c, const u32 *a, uint2 b);
template <>
__device__ __forceinline__ void multiply<HalfPart>(float *c, const u32 *a, uint2 b) {
    multiply_f16(c, a, b);
}
template <>
__device__ __forceinline__ void multiply<BrainPart>(float *c, const u32 *a, uint2 b) {
    multiply_bf16(c, a, b);
}

template <typename Format, typename Part, int STAGE_BYTES, int STAGES>
__device__ __forceinline__ void product(const ProductsParams &p, const Weights &w, float *y, int m, int out0, u8 *shared) {
    typedef Piece<Format, Part> P;
    typedef Stage<P, Part> S;
    static_assert(S::BYTES <= STAGE_BYTES, "bytes of a stage in engine/src/cuda/prefill.rs");
    constexpr int PARTS = PartsOf<Part>::COUNT;
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, token0 = blockIdx.x * TOKENS;
    const int groups = p.n / 32, pieces = (groups + PIECE - 1) / PIECE;
    const int share = (pieces + gridDim.z - 1) / gridDim.z;
    const int begin = blockIdx.z * share, end = min(pieces, begin + share);

    // Where what the minima of a piece's eight groups are multiplied from stands, while the next eight's come: the sums of
    // x (`operand.cuh`), pairs of minima, and factors of their rows.
    constexpr int FOUR = 8 / PIECE, PAIRS_OF_MINIMA = TOKENS * EIGHT_SUMS, FACTORS = PAIRS_OF_MINIMA + 4 * FOUR * OUTPUTS;
    static_assert(MINIMA == FACTORS + 8 * OUTPUTS && THREADS * 16 == TOKENS * EIGHT_SUMS, "all of it, and a copy a thread");
    auto minima = [&](int piece) { return shared + STAGES * STAGE_BYTES + (u32)piece / FOUR % 2 * MINIMA; };
    auto begins_eight = [&](int piece) { return piece == begin || (u32)piece % FOUR == 0; };
    // Where sixteen bytes of a token's group stand.
    auto place = [](int i, int token, int unit) {
        return (i * TOKENS + token) * S::X + 16 * (S::TURNED ? unit ^ (token % 8) : unit);
    };
    auto fetch = [&](int piece, u8 *to) {
        const int here = min(PIECE, groups - PIECE * piece), first = P::group(piece, 0), second = P::group(piece, PIECE - 1);
#pragma unroll
        for (int k = 0; k < TOKENS / (THREADS / 4); k++) {
            const int token = tid / 4 + k * (THREADS / 4);
            const bool there = token0 + token < p.tokens;
#pragma unroll
            for (int i = 0; i < PIECE; i++) {
#pragma unroll
                for (int part = 0; part < PARTS; part++) {
                    const int unit = 4 * part + tid % 4;
                    const size_t at = place_in_operand<Part>(p.n, p.first + token0 + token, i == 0 ? first : second, unit);
                    copy16_or_zeros(to + place(i, token, unit), p.x.parts + at, there && i < here);
                }
            }
        }
        if (S::SINGLY) {
#pragma unroll
            for (int at = tid; at < PIECE * TOKENS; at += THREADS) {
                const int i = at / TOKENS;
                const int t = token0 + at % TOKENS, g = i == 0 ? first : second;
                copy4(to + S::SUMS + 4 * at, p.x.sums + place_of_sums<Part>(p.n, p.first + t, g / 8) + 4 * (g % 8),
                      i < here && t < p.tokens);
            }
        }
        if (S::EIGHTS && begins_eight(piece)) {
            const int t = token0 + tid / 2;
            const size_t at = place_of_sums<Part>(p.n, p.first + t, (u32)piece / FOUR) + 16 * (tid % 2);
            copy16_or_zeros(minima(piece) + 16 * tid, p.x.sums + at, t < p.tokens);
        }
        constexpr int EACH = P::BYTES / 16;
        const u8 *from = w.plane[0] + (size_t)(out0 + tid / EACH) * groups * P::GROUP + P::at(groups, piece, tid % EACH);
        u8 *at = to + S::QUANTS + tid / EACH * P::PITCH + 16 * (tid % EACH);
#pragma unroll
        for (int k = 0; k < OUTPUTS * EACH / THREADS; k++) {
            constexpr int STEP = THREADS / EACH;
            copy16_or_zeros(at + k * STEP * P::PITCH, from + (size_t)(k * STEP * P::GROUP) * groups,
                            out0 + tid / EACH + k * STEP < m);
        }
        if constexpr (P::HIGH_BYTES > 0) {
            constexpr int EACH = P::HIGH_BYTES / P::HIGH_UNIT, STEP = THREADS / EACH;
            const u8 *from = w.plane[1] + (size_t)(out0 + tid / EACH) * groups * P::HIGH_GROUP +
                             P::high_at(groups, piece, tid % EACH);
            u8 *at = to + S::HIGH + tid / EACH * P::HIGH_PITCH + P::HIGH_UNIT * (tid % EACH);
#pragma unroll
            for (int k = 0; k < OUTPUTS * EACH / THREADS; k++) {
                const bool there = out0 + tid / EACH + k * STEP < m;
                const u8 *high = from + (size_t)(k * STEP * P::HIGH_GROUP) * groups;
                if (P::HIGH_UNIT == 4) copy4(at + k * STEP * P::HIGH_PITCH, high, there);
                else copy16_or_zeros(at + k * STEP * P::HIGH_PITCH, high, there);
            }
        }
    };
    // Thread i brings what scales rows i and so on.
    constexpr int EACH = OUTPUTS / THREADS;
    typename P::Raw raw[EACH];
    auto load_scales = [&](int piece) {
#pragma unroll
        for (int k = 0; k < EACH; k++) raw[k] = P::load(w, min(out0 + tid + k * THREADS, m - 1), groups, piece);
    };
    auto put_scales = [&](int piece, u8 *to) {
#pragma unroll
        for (int k = 0; k < EACH; k++) {
#pragma unroll
            for (int i = 0; i < PIECE; i++) {
                const int at = i * OUTPUTS + tid + k * THREADS;
                if constexpr (P::FOLDED) {
                    ((u32 *)(to + S::SCALES))[at] = P::integers(raw[k], piece, i);
                    continue;
                }
                const float2 v = P::scales(raw[k], piece, i);
                if (S::PAIRS) ((float2 *)(to + S::SCALES))[at] = v;
                else ((float *)(to + S::SCALES))[at] = v.x;
            }
            if constexpr (S::EIGHTS) {
                const int row = tid + k * THREADS;
                ((u32 *)(minima(piece) + PAIRS_OF_MINIMA))[FOUR * row + (u32)piece % FOUR] = P::minima(raw[k], piece);
                // Once, for warps that are behind read them of the pieces before.
                if (begins_eight(piece)) {
                    const float2 v = P::factors(raw[k]);
                    ((float2 *)(minima(piece) + FACTORS))[row] = make_float2(32.0f * v.x, 16384.0f * v.y);
                }
            }
        }
    };
    auto stage = [&](int piece) { return shared + (u32)(piece - begin) % STAGES * STAGE_BYTES; };

    // A warp's weights of a group, and what scales their sums.
    struct Group {
        u32 a[ROWS][P::PARTS][2][4];
        float2 scale[ROWS][2];
    };
    auto take = [&](int piece, int i) {
        const u8 *from = stage(piece);
        Group group;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int row = 64 * r + 16 * warp;
            P::make(from + S::QUANTS + row * P::PITCH, from + S::HIGH + row * P::HIGH_PITCH, piece, i, lane, group.a[r]);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int of_tile = row + lane / 4 + 8 * half, at = i * OUTPUTS + of_tile;
                if constexpr (P::FOLDED) {
                    const u32 integers = ((const u32 *)(from + S::SCALES))[at];
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        u32 &a = group.a[r][0][k / 2][k % 2 * 2 + half];
                        a = multiply_halves(a, integers);
                    }
                    group.scale[r][half] = make_float2(((const float2 *)(minima(piece) + FACTORS))[of_tile].y, 0.0f);
                    continue;
                }
                if (S::PAIRS) group.scale[r][half] = ((const float2 *)(from + S::SCALES))[at];
                else group.scale[r][half] = make_float2(((const float *)(from + S::SCALES))[at], 0.0f);
            }
        }
        return group;
    };
    float c[ROWS][TOKENS / 8][4] = {};
    // Adds the sums of a group, or of half of one, to those of 8 tokens.
    auto scaled = [&](const u8 *from, int i, int step, const float2 *scale, const float *s, int j, float *c) {
        float2 sums = make_float2(0.0f, 0.0f);
        if (S::SINGLY) sums = ((const float2 *)(from + S::SUMS))[(i * TOKENS + 8 * j) / 2 + lane % 4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float2 of = scale[e / 2];
            c[e] = fmaf(s[e], P::HALVES && step == 1 ? of.y : of.x, c[e]);
            if (S::SINGLY) c[e] = fmaf(e % 2 ? sums.y : sums.x, of.y, c[e]);
        }
    };
    auto add = [&](int piece) {
        const u8 *from = stage(piece);
        // Groups that are summed before they are scaled.
        constexpr int SUMMED = P::FOLDED ? PIECE : 1;
        if constexpr (WARPGROUPS && S::TURNED && P::PARTS == 1) {
            // One after another into two sets of sums: one is multiplied while the other is scaled.
            constexpr int STEPS = P::HALVES ? 1 : 2, PHASES = 2 / STEPS * ROWS, ALL = PIECE / SUMMED * PHASES;
            float s[2][TOKENS / 2];
            Group made[PIECE];
#pragma unroll
            for (int at = 0; at <= ALL; at++) {
                if (at < ALL) {
                    const int first = at / PHASES * SUMMED, phase = at % PHASES, step0 = phase / ROWS * STEPS;
#pragma unroll
                    for (int i = first; phase == 0 && i < first + SUMMED; i++) made[i] = take(piece, i);
                    begin_products(s[at % 2]);
#pragma unroll
                    for (int k = 0; k < 2 * STEPS * SUMMED; k++) { // the small products first
                        const int part = 1 - k / (STEPS * SUMMED), i = first + k / STEPS % SUMMED, step = step0 + k % STEPS;
                        const int rows = i * TOKENS * S::X + part * 64 + step * 32;
                        multiply_group(s[at % 2], made[i].a[phase % ROWS][0][step], from, rows, k > 0);
                    }
                    end_products();
                }
                if (at == 0) continue;
                const int before = at - 1, i = before / PHASES * SUMMED, phase = before % PHASES, r = phase % ROWS;
                if (at < ALL) wait_for_products<1>(s[before % 2]);
                else wait_for_products<0>(s[before % 2]);
#pragma unroll
                for (int j = 0; j < TOKENS / 8; j++) {
                    scaled(from, i, phase / ROWS * STEPS, made[i].scale[r], s[before % 2] + 4 * j, j, c[r][j]);
                }
            }
        } else {
#pragma unroll
            for (int first = 0; first < PIECE; first += SUMMED) {
                Group made[SUMMED];
#pragma unroll
                for (int i = 0; i < SUMMED; i++) made[i] = take(piece, first + i);
#pragma unroll
                for (int j = 0; j < TOKENS / 8; j++) {
                    float s[ROWS][1 + P::HALVES][4] = {};
#pragma unroll
                    for (int i = 0; i < SUMMED; i++) {
                        u32 b[PARTS][4];
#pragma unroll
                        for (int part = 0; part < PARTS; part++) {
                            load_matrices(b[part], from + place(first + i, 8 * j + lane % 8, 4 * part + lane / 8));
                        }
                        // The small products first.
#pragma unroll
                        for (int wp = P::PARTS - 1; wp >= 0; wp--) {
#pragma unroll
                            for (int part = PARTS - 1; part >= 0; part--) {
#pragma unroll
                                for (int step = 0; step < 2; step++) {
#pragma unroll
                                    for (int r = 0; r < ROWS; r++) {
                                        multiply<Part>(s[r][step * P::HALVES], made[i].a[r][wp][step],
                                                       make_uint2(b[part][2 * step], b[part][2 * step + 1]));
                                    }
                                }
                            }
                        }
                    }
#pragma unroll
                    for (int r = 0; r < ROWS; r++) {
#pragma unroll
                        for (int half = 0; half <= P::HALVES; half++) {
                            scaled(from, first, half, made[0].scale[r], s[r][half], j, c[r][j]);
                        }
                    }
                }
            }
        }
    };

    // Adds the minima times the sums of x, of those of eight groups that end with this piece and are of this share: both
    // halves of the sums at once, as the second eight of sixteen elements.
    auto add_minima = [&](int piece) {
        const u8 *from = minima(piece);
        const int of_lane = (int)((u32)piece / FOUR * FOUR) + lane % 4;
        const bool there = begin <= of_lane && of_lane <= piece;
        u32 a[ROWS][4];
        float factor[ROWS][2];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = 64 * r + 16 * warp + lane / 4 + 8 * half;
                const u32 pair = ((const u32 *)(from + PAIRS_OF_MINIMA))[FOUR * row + lane % 4];
                a[r][half] = a[r][2 + half] = there ? pair : 0;
                factor[r][half] = ((const float2 *)(from + FACTORS))[row].x;
            }
        }
#pragma unroll
        for (int j = 0; j < TOKENS / 8; j++) {
            const uint2 sums = ((const uint2 *)from)[4 * (8 * j + lane / 4) + lane % 4];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float s[4] = {};
                multiply_f16(s, a[r], sums);
#pragma unroll
                for (int e = 0; e < 4; e++) c[r][j][e] = fmaf(s[e], factor[r][e / 2], c[r][j][e]);
            }
        }
    };

#pragma unroll
    for (int k = 0; k < STAGES - 1; k++) {
        const int piece = begin + k;
        if (piece < end) {
            fetch(piece, stage(piece));
            load_scales(piece);
            put_scales(piece, stage(piece));
        }
        end_copies();
    }
    for (int piece = begin; piece < end; piece++) {
        wait_for_copies<STAGES - 2>();
        show_to_products();
        __syncthreads();
        const int next = piece + STAGES - 1;
        if (next < end) {
            fetch(next, stage(next));
            load_scales(next);
        }
        end_copies();
        add(piece);
        if (S::EIGHTS && ((u32)piece % FOUR == FOUR - 1 || piece == end - 1)) add_minima(piece);
        if (next < end) put_scales(next, stage(next));
    }
    y += (size_t)blockIdx.z * p.tokens * m;
#pragma unroll
    for (int j = 0; j < TOKENS / 8; j++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int t = token0 + 8 * j + 2 * (lane % 4) + e;
            if (t >= p.tokens) continue;
            const float inverse = p.x.inverse[p.first + t];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int o = out0 + 64 * r + 16 * warp + 8 * half + lane / 4;
                    if (o < m) y[(size_t)t * m + o] = c[r][j][2 * half + e] * inverse;
                }
            }
        }
    }
}

template <typename Part, typename A, typename B, typename C, int STAGE_BYTES, int STAGES>
__global__ void __launch_bounds__(THREADS, BLOCKS) products(const __grid_constant__ ProductsParams p) {
    extern __shared__ __align__(1024) u8 shared[];
    let_begin();
    wait_for_turn();
    int which = 0, tile = blockIdx.y;
    for (; which < 2 && tile >= (p.m[which] + OUTPUTS - 1) / OUTPUTS; which++) tile -= (p.m[which] + OUTPUTS - 1) / OUTPUTS;
    const Weights &w = p.w[which];
    float *y = p.y[which];
    const int m = p.m[which], out0 = tile * OUTPUTS;
    // Matrices of one format share its code.
    if (which == 2 && !same_type<C, A> && !same_type<C, B>) {
        product<C, Part, STAGE_BYTES, STAGES>(p, w, y, m, out0, shared);
    } else if (!same_type<B, A> && (which == 1 || which == 2 && !same_type<C, A>)) {
        product<B, Part, STAGE_BYTES, STAGES>(p, w, y, m, out0, shared);
    } else {
        product<A, Part, STAGE_BYTES, STAGES>(p, w, y, m, out0, shared);
    }
}
