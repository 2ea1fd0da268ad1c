// y[t, o] = W[o, :] . x[t, :] as in `products.cu`, of weights kept as halves (`wide.cuh`),
// on Hopper. Three warpgroups multiply, 64 outputs of OPERAND_TOKENS tokens each, in turns: while
// one scales and adds in f32, the others' are multiplied. A thread of a fourth, which leaves them
// its registers, brings pieces of x and of the weights in bulk, WIDE_STAGES at once, and the first
// of the weights before the block's turn. No barrier of the block is in the loop. Blocks stay, and
// take one tile after another: what the next is made of comes while the last is written. The last
// tiles, which would keep some blocks busy alone, are made in shares of their sums (`shares.cuh`).
// Grid (blocks), block THREADS. y [T, m].

#include "fused/rows.cuh"
#include "prefill/wide.cuh"

constexpr int CONSUMERS = 3; // warpgroups
constexpr int THREADS = 128 * 4;
static_assert(WIDE_ROWS == 64 * CONSUMERS, "a tile's outputs");

struct WideProductsParams {
    Operand x;
    const u8 *images[3], *minima[3];
    float *y[3], *rest[3]; // the first share, and from where the others count
    int m[3]; // 0 where there is none
    int n, tokens, whole, shares, token0; // tiles that are made at once; of the others so many, of tokens from token0 on
};

// A tile of a share of one matrix' sum.
struct Own {
    const u8 *images, *minima, *x, *sums;
    float *y;
    int m, out0, token0, begin, end; // pieces
    __device__ __forceinline__ bool begins_eight(int piece) const { return piece == begin || piece % 4 == 0; }
    __device__ __forceinline__ bool ends_eight(int piece) const { return piece == end - 1 || piece % 4 == 3; }
};

// Shared memory, and who may go on. Pieces, and what belongs to eight groups, take turns in it: of so many that were before.
struct Stages {
    u8 *shared;
    Barrier *full, *empty, *turns;
    int pieces, eights, phases; // the last as consumers count them
    static __device__ __forceinline__ u32 parity(int i) { return i / WIDE_STAGES & 1; }
    __device__ __forceinline__ u8 *stage(int i) const { return shared + i % WIDE_STAGES * WIDE_STAGE; }
    // The operand's sums of a piece's eight groups, and minima. Pieces that are here at once are of no more eights.
    __device__ __forceinline__ u8 *eight(const Own &own, int piece) const {
        const int i = eights + piece / 4 - own.begin / 4;
        return shared + WIDE_STAGES * WIDE_STAGE + i % WIDE_STAGES * WIDE_EIGHT;
    }
    __device__ __forceinline__ void go_on(const Own &own) {
        if (own.begin >= own.end) return;
        pieces += own.end - own.begin, eights += (own.end - 1) / 4 - own.begin / 4 + 1;
    }
};

// Brings the pieces.
template <typename I>
__device__ __forceinline__ void produce(const Own &own, const Stages &stages) {
    auto weights = [&](int piece) {
        const int i = stages.pieces + piece - own.begin;
        Barrier *full = &stages.full[i % WIDE_STAGES];
        const bool minima = I::MINIMA && own.begins_eight(piece);
        arrive_and_expect(full, WIDE_TOKENS + I::BYTES + (minima ? WIDE_EIGHT : 0));
        copy_in_bulk(stages.stage(i) + WIDE_TOKENS, own.images + (size_t)piece * I::BYTES, I::BYTES, full);
        if (minima) copy_in_bulk(stages.eight(own, piece) + WIDE_SUMS, own.minima + piece / 4 * WIDE_MINIMA, WIDE_MINIMA, full);
    };
    auto tokens = [&](int piece) {
        const int i = stages.pieces + piece - own.begin;
        Barrier *full = &stages.full[i % WIDE_STAGES];
        copy_in_bulk(stages.stage(i), own.x + (size_t)piece * WIDE_TOKENS, WIDE_TOKENS, full);
        if (I::MINIMA && own.begins_eight(piece)) copy_in_bulk(stages.eight(own, piece), own.sums + piece / 4 * WIDE_SUMS, WIDE_SUMS, full);
    };
    int ahead = own.begin;
    if (stages.pieces == 0) { // the block's first
        for (; ahead < min(own.end, own.begin + WIDE_STAGES); ahead++) weights(ahead);
        wait_for_turn();
    }
    for (int piece = own.begin; piece < own.end; piece++) {
        const int i = stages.pieces + piece - own.begin;
        if (piece >= ahead) {
            if (i >= WIDE_STAGES) wait_for(&stages.empty[i % WIDE_STAGES], Stages::parity(i - WIDE_STAGES));
            weights(piece);
        }
        tokens(piece);
    }
}

// Multiplies 64 outputs of them.
template <typename I>
__device__ __forceinline__ void consume(const WideProductsParams &p, const Own &own, Stages &stages) {
    const int lane = threadIdx.x % 32, part = threadIdx.x / 128, first = 64 * part, row = first + 16 * (threadIdx.x / 32 % 4) + lane / 4;
    float c[WIDE_THREAD_SUMS] = {}, inverse[OPERAND_TOKENS / 32]; // the last of tokens lane, lane + 32 and so on
#pragma unroll
    for (int i = 0; i < OPERAND_TOKENS / 32; i++) inverse[i] = p.x.inverse[min(own.token0 + lane + 32 * i, p.tokens - 1)];
    // Adds the minima times the sums of x, of those of eight groups that end with this piece and are of this share.
    auto add_minima = [&](int piece) {
        const u8 *from = stages.eight(own, piece), *pairs = from + WIDE_SUMS;
        const int of_lane = piece / 4 * 4 + lane % 4;
        const bool there = own.begin <= of_lane && of_lane <= piece;
        u32 a[4];
        float factor[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            a[half] = a[2 + half] = there ? ((const u32 *)pairs)[4 * (row + 8 * half) + lane % 4] : 0;
            factor[half] = ((const float *)(pairs + WIDE_PAIRS))[row + 8 * half];
        }
#pragma unroll
        for (int j = 0; j < OPERAND_TOKENS / 8; j++) {
            float s[4] = {};
            multiply_f16(s, a, ((const uint2 *)from)[4 * (8 * j + lane / 4) + lane % 4]);
#pragma unroll
            for (int e = 0; e < 4; e++) c[4 * j + e] = fmaf(s[e], factor[e / 2], c[4 * j + e]);
        }
    };
#pragma unroll 1
    for (int piece = own.begin; piece < own.end; piece++) {
        const int i = stages.pieces + piece - own.begin;
        wait_for(&stages.full[i % WIDE_STAGES], Stages::parity(i));
        const u8 *x = stages.stage(i), *weights = x + WIDE_TOKENS + 128 * first;
        const float *scales = (const float *)(x + WIDE_TOKENS + WIDE_WEIGHTS);
        // Each thread for itself: one that arrives for its warp is enough, but racecheck sees no order then.
        auto leave = [&] { arrive(&stages.empty[i % WIDE_STAGES]); };
        // Sums that are made before they are scaled: so many groups, of each so many steps of 16 elements.
        constexpr int GROUPS = I::FOLDED ? PIECE : 1, STEPS = I::HALVES ? 1 : 2, PHASES = 2 * PIECE / (GROUPS * STEPS);
#pragma unroll
        for (int phase = 0; phase < PHASES; phase++) {
            const int group0 = phase * STEPS / 2, step0 = phase * STEPS % 2;
            float s[WIDE_THREAD_SUMS], scale[2];
            wait_for(&stages.turns[part], (stages.phases++ & 1) ^ (part == 0));
            begin_products<WIDE_THREAD_SUMS>(s);
#pragma unroll
            for (int k = 0; k < 2 * STEPS * GROUPS; k++) { // the small products first
                const int of_two = 1 - k / (STEPS * GROUPS), group = group0 + k / STEPS % GROUPS, step = step0 + k % STEPS;
                const int of_x = group * OPERAND_TOKENS * 128 + 64 * of_two + 32 * step;
                multiply_wide(s, weights, 64 * group + 32 * step, x, of_x, k > 0);
            }
            end_products();
            arrive(&stages.turns[(part + 1) % CONSUMERS]);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int of = group0 * WIDE_ROWS + row + 8 * half;
                scale[half] = scales[I::HALVES ? 2 * of + step0 : of];
            }
            wait_for_products<0, WIDE_THREAD_SUMS>(s);
            const bool last = phase == PHASES - 1, minima = I::MINIMA && own.ends_eight(piece);
            if (last && !minima) leave();
#pragma unroll
            for (int e = 0; e < WIDE_THREAD_SUMS; e++) c[e] = fmaf(s[e], scale[e / 2 % 2], c[e]);
            if (last && minima) {
                add_minima(piece);
                leave();
            }
        }
    }
#pragma unroll
    for (int j = 0; j < OPERAND_TOKENS / 8; j++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int of_tile = 8 * j + 2 * (lane % 4) + e, t = own.token0 + of_tile;
            const float of_token = __shfl_sync(0xffffffffu, inverse[j / 4], of_tile % 32);
            if (t >= p.tokens) continue;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int o = own.out0 + row + 8 * half;
                if (o < own.m) own.y[(size_t)t * own.m + o] = c[4 * j + 2 * half + e] * of_token;
            }
        }
    }
}

// A block's part of a tile of one matrix, of tokens, and of a share.
template <typename I, bool PRODUCER>
__device__ __forceinline__ void work(const WideProductsParams &p, Stages &stages, int which, int at, int tile, int share, int shares) {
    const int pieces = padded_groups(p.n) / PIECE, eights = (p.n / 32 + 7) / 8, of_share = (pieces + shares - 1) / shares;
    const int begin = share * of_share;
    const Own own = {p.images[which] + (size_t)at * pieces * I::BYTES,
                     p.minima[which] + (size_t)at * eights * WIDE_MINIMA,
                     p.x.parts + (size_t)tile * pieces * WIDE_TOKENS,
                     p.x.sums + (size_t)tile * eights * WIDE_SUMS,
                     share == 0 ? p.y[which] : p.rest[which] + (size_t)share * (p.tokens - p.token0) * p.m[which],
                     p.m[which],
                     at * WIDE_ROWS,
                     tile * OPERAND_TOKENS,
                     begin,
                     min(pieces, begin + of_share)};
    if constexpr (PRODUCER) produce<I>(own, stages);
    else consume<I>(p, own, stages);
    stages.go_on(own);
}

// One tile after another.
template <typename A, typename B, typename C, bool PRODUCER>
__device__ __forceinline__ void go(const WideProductsParams &p, Stages stages) {
    const int of_tokens = (p.tokens + OPERAND_TOKENS - 1) / OPERAND_TOKENS;
    auto tiles_of = [&](int which) { return (p.m[which] + WIDE_ROWS - 1) / WIDE_ROWS; };
    const int tiles = tiles_of(0) + tiles_of(1) + tiles_of(2), cut = tiles * of_tokens - p.whole;
#pragma unroll 1
    for (int item = blockIdx.x; item < p.whole + cut * p.shares; item += gridDim.x) {
        const bool whole = item < p.whole;
        const int share = whole ? 0 : (item - p.whole) / cut, shares = whole ? 1 : p.shares;
        const int all = item - share * cut, tile = all / tiles;
        int which = 0, at = all % tiles;
        for (; which < 2 && at >= tiles_of(which); which++) at -= tiles_of(which);
        // Matrices of one kind share its code.
        const bool second = which == 1 || which == 2 && !same_type<C, A>;
        if (which == 2 && !same_type<C, A> && !same_type<C, B>) work<C, PRODUCER>(p, stages, which, at, tile, share, shares);
        else if (!same_type<B, A> && second) work<B, PRODUCER>(p, stages, which, at, tile, share, shares);
        else work<A, PRODUCER>(p, stages, which, at, tile, share, shares);
    }
}

template <typename A, typename B, typename C>
__global__ void __launch_bounds__(THREADS, 1) wide_products(const __grid_constant__ WideProductsParams p) {
    if constexpr (!WARPGROUPS) return;
    extern __shared__ __align__(1024) u8 shared[];
    __shared__ __align__(8) Barrier full[WIDE_STAGES], empty[WIDE_STAGES], turns[CONSUMERS];
    let_begin();
    if (threadIdx.x == 0) {
        for (int i = 0; i < WIDE_STAGES; i++) make_barrier(&full[i], 1), make_barrier(&empty[i], 128 * CONSUMERS);
        for (Barrier &turn : turns) make_barrier(&turn, 128);
        show_barriers();
    }
    __syncthreads();
    const Stages stages = {shared, full, empty, turns, 0, 0, 0};
    if (threadIdx.x >= 128 * CONSUMERS) {
        give_registers();
        if (threadIdx.x == 128 * CONSUMERS) go<A, B, C, true>(p, stages);
    } else {
        take_registers();
        wait_for_turn();
        go<A, B, C, false>(p, stages);
    }
}
