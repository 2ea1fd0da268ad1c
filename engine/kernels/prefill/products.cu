// y[t, o] = W[o, :] . x[t, :] of up to three matrices with the same x, on the tensor
// cores, to f32 accuracy: weights that are integers are exact halves, x comes in parts
// (`operand.cuh`), and what is summed of a group of 32 is scaled and added in f32, so that
// the tensor cores' sums, which round towards zero, end with the group.
//
// A block makes OUTPUTS outputs of TOKENS tokens of one share of the sum, a warp a quarter
// of the outputs. Pieces of two groups come into shared memory, STAGES of STAGE_BYTES at once.
// Grid (ceil(T / TOKENS), sum of ceil(m / OUTPUTS), shares), block THREADS.
// W [m, n] in blocks, y [shares, T, m].

#include "prefill/pieces.cuh"
#include "fused/rows.cuh"

constexpr int THREADS = 128;
constexpr int ROWS = 2; // sets of 16 of a warp
constexpr int OUTPUTS = 4 * 16 * ROWS;
constexpr int TOKENS = 64;
constexpr int BLOCKS = 2; // of a multiprocessor
constexpr int AT_ONCE = 2;

struct ProductsParams {
    Operand x;
    Weights w[3];
    float *y[3];
    int m[3]; // 0 where there is none
    int n, tokens;
};

// A stage of shared memory.
template <typename P, typename Part>
struct Stage {
    static constexpr int X = PIECE * PartsOf<Part>::COUNT * PART_BYTES; // of a token
    static constexpr int SUMS = TOKENS * X, SCALES = SUMS + (P::SUMS ? 4 * TOKENS * PIECE : 0);
    static constexpr bool PAIRS = P::SUMS || P::HALVES; // two numbers a group and row
    static constexpr int QUANTS = SCALES + (PAIRS ? 8 : 4) * OUTPUTS * PIECE;
    static constexpr int HIGH = QUANTS + OUTPUTS * P::PITCH;
    static constexpr int BYTES = (HIGH + OUTPUTS * P::HIGH_PITCH + 127) / 128 * 128;
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

    // Where four units of a token's piece stand that a warp reads at once: tokens by two share no bank.
    auto place = [](int token, int four) { return token * S::X + 64 * (four ^ (token % 2)); };
    auto fetch = [&](int piece, u8 *to) {
        const int here = min(PIECE, groups - PIECE * piece), first = P::group(piece, 0), second = P::group(piece, PIECE - 1);
#pragma unroll
        for (int k = 0; k < (TOKENS + THREADS / 4 - 1) / (THREADS / 4); k++) {
            const int token = tid / 4 + k * (THREADS / 4);
            if (TOKENS % (THREADS / 4) && token >= TOKENS) break;
            const bool there = token0 + token < p.tokens;
            const u8 *from = p.x.parts + (size_t)(token0 + token) * groups * (PARTS * PART_BYTES) + 16 * (tid % 4);
#pragma unroll
            for (int i = 0; i < PIECE; i++) {
                const u8 *group = from + (i == 0 ? first : second) * (PARTS * PART_BYTES);
#pragma unroll
                for (int part = 0; part < PARTS; part++) {
                    copy16_or_zeros(to + place(token, i * PARTS + part) + 16 * (tid % 4), group + part * PART_BYTES,
                                    there && i < here);
                }
            }
        }
        if (P::SUMS) {
#pragma unroll
            for (int at = tid; at < PIECE * TOKENS; at += THREADS) {
                const int i = at / TOKENS;
                const size_t t = token0 + at % TOKENS;
                copy4(to + S::SUMS + 4 * at, p.x.sums + t * groups + (i == 0 ? first : second), i < here && t < p.tokens);
            }
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
                const float2 v = P::scales(raw[k], piece, i);
                const int at = i * OUTPUTS + tid + k * THREADS;
                if (S::PAIRS) ((float2 *)(to + S::SCALES))[at] = v;
                else ((float *)(to + S::SCALES))[at] = v.x;
            }
        }
    };
    auto stage = [&](int piece) { return shared + (piece - begin) % STAGES * STAGE_BYTES; };

    // A warp's weights of a group, and what scales their sums: made while those before are multiplied.
    struct Group {
        u32 a[ROWS][P::PARTS][2][4];
        float2 scale[ROWS][2];
    };
    auto take = [&](int piece, int i, Group &to) {
        const u8 *from = stage(piece);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int row = 16 * (ROWS * warp + r);
            P::make(from + S::QUANTS + row * P::PITCH, from + S::HIGH + row * P::HIGH_PITCH, piece, i, lane, to.a[r]);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int at = i * OUTPUTS + row + lane / 4 + 8 * half;
                if (S::PAIRS) to.scale[r][half] = ((const float2 *)(from + S::SCALES))[at];
                else to.scale[r][half] = make_float2(((const float *)(from + S::SCALES))[at], 0.0f);
            }
        }
    };
    float c[ROWS][TOKENS / 8][4] = {};
    auto add = [&](const u8 *from, int i, const Group &w) {
        // Sums that do not wait for each other in turns: those of AT_ONCE times 8 tokens.
#pragma unroll
        for (int j0 = 0; j0 < TOKENS / 8; j0 += AT_ONCE) {
            uint4 b[AT_ONCE][PARTS];
            float s[AT_ONCE][ROWS][1 + P::HALVES][4] = {};
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
#pragma unroll
                for (int part = 0; part < PARTS; part++) {
                    const int token = 8 * (j0 + j) + lane / 4;
                    b[j][part] = *(const uint4 *)(from + place(token, i * PARTS + part) + 16 * (lane % 4));
                }
            }
            // The small products first.
#pragma unroll
            for (int wp = P::PARTS - 1; wp >= 0; wp--) {
#pragma unroll
                for (int part = PARTS - 1; part >= 0; part--) {
#pragma unroll
                    for (int step = 0; step < 2; step++) {
#pragma unroll
                        for (int at = 0; at < AT_ONCE * ROWS; at++) {
                            const uint4 all = b[at / ROWS][part];
                            multiply<Part>(s[at / ROWS][at % ROWS][step * P::HALVES], w.a[at % ROWS][wp][step],
                                           step == 0 ? make_uint2(all.x, all.y) : make_uint2(all.z, all.w));
                        }
                    }
                }
            }
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                float2 sums = make_float2(0.0f, 0.0f);
                if (P::SUMS) sums = ((const float2 *)(from + S::SUMS))[(i * TOKENS + 8 * (j0 + j)) / 2 + lane % 4];
#pragma unroll
                for (int at = 0; at < 4 * ROWS; at++) {
                    const int r = at / 4, e = at % 4;
                    const float2 of = w.scale[r][e / 2];
                    float &sum = c[r][j0 + j][e];
                    sum = fmaf(s[j][r][0][e], of.x, sum);
                    if (P::HALVES) sum = fmaf(s[j][r][P::HALVES][e], of.y, sum);
                    if (P::SUMS) sum = fmaf(e % 2 ? sums.y : sums.x, of.y, sum);
                }
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
    // A piece is here when the one before it is multiplied.
    Group now, later;
    for (int piece = begin; piece < end; piece++) {
        wait_for_copies<STAGES - 3>();
        __syncthreads();
        const int next = piece + STAGES - 1;
        if (next < end) {
            fetch(next, stage(next));
            load_scales(next);
        }
        end_copies();
        if (piece == begin) take(piece, 0, now);
        take(piece, 1, later);
        add(stage(piece), 0, now);
        if (piece + 1 < end) take(piece + 1, 0, now);
        add(stage(piece), 1, later);
        if (next < end) put_scales(next, stage(next));
    }
    y += (size_t)blockIdx.z * p.tokens * m;
#pragma unroll
    for (int j = 0; j < TOKENS / 8; j++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int t = token0 + 8 * j + 2 * (lane % 4) + e;
            if (t >= p.tokens) continue;
            const float inverse = p.x.inverse[t];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int o = out0 + 16 * ROWS * warp + 16 * r + 8 * half + lane / 4;
                    if (o < m) y[(size_t)t * m + o] = c[r][j][2 * half + e] * inverse;
                }
            }
        }
    }
}

template <typename Part, typename A, typename B, typename C, int STAGE_BYTES, int STAGES>
__global__ void __launch_bounds__(THREADS, BLOCKS) products(const __grid_constant__ ProductsParams p) {
    extern __shared__ __align__(16) u8 shared[];
    Turn turn;
    turn.wait();
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
