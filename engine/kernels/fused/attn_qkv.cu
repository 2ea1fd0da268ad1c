// attn_norm, q/k/v_proj, q/k/v_biased, q/k_normed, q/k_rope and both caches of
// one token. A block makes PAIRS pairs of tiles: elements i of a head and i + d/2,
// which RoPE rotates together. Where heads are normalised a block makes a whole head. PAIRS is 0 where rows come through rings of
// HELD stages: a block then makes its share of the pairs of one part, eight to a tile; whole heads where they are normalised.
// N: the length of x, or 0 where that is not known before. TAPPED: whether it may write stages besides.
// Grid ((H + 2G) * d/2 / (TILE * PAIRS)); with rings as many as `makers` says of q, k and v.
// x [E], q [H, d], caches [capacity, G, d]; wq [H*d, E], wk and wv [G*d, E].

#include "fused/ring.cuh"
#include "kv.cuh"

struct AttnQkvParams { // of three or two: q, k, v in this order
    Stream x;
    const float *norm;
    const float *bias[3], *head_norm[2]; // null where there is none
    const float *frequency;
    Weights w[3];
    const int *position_at;
    float *q;
    void *k_cache, *v_cache;
    float *norm_tap, *proj_tap[3], *biased_tap[3], *normed_tap[2], *rope_tap[2]; // null where not wanted
    Walk walk;
    int n, heads, kv_heads;
    float eps;
    int makers[3]; // blocks of each part, where rows come through rings
    Stamp *stamps; // null where it is not timed
};

// One of two types.
template <bool FIRST, typename A, typename B>
struct Either {
    typedef A Type;
};
template <typename A, typename B>
struct Either<false, A, B> {
    typedef B Type;
};

// The pairs of a part from `pair0` of a head on; of several heads only where rows come through rings.
struct Pairs {
    int part, head, pair0, count;
};

template <typename Format, typename Kv, int RUN, int D, int PAIRS, bool HEAD_NORM, int HELD, int N, bool TAPPED>
__device__ __forceinline__ void project(const AttnQkvParams &p, const Pairs &pairs, u8 *shared, Turn &turn) {
    constexpr bool RING = PAIRS == 0;
    const int n = N > 0 ? N : p.n;
    const int part = pairs.part, pair0 = pairs.pair0;
    const bool mine = threadIdx.x < (RING ? pairs.count : TILE * PAIRS);
    const int head = pairs.head + (RING ? (pair0 + (int)threadIdx.x) / (D / 2) : 0);
    // The pair within its head, where this thread is one of those that finish pairs.
    const int i = pair0 + (int)threadIdx.x - (head - pairs.head) * (D / 2);
    const int a_at = head * D + i, b_at = a_at + D / 2, position = __ldcg(p.position_at);
    float bias_a = 0.0f, bias_b = 0.0f, norm_a = 0.0f, norm_b = 0.0f, sine = 0.0f, cosine = 0.0f;
    const float *bias = p.bias[part], *head_norm = HEAD_NORM && part < 2 ? p.head_norm[part] : nullptr;
    // Where the pair goes, and where what becomes of it is tapped.
    void *to;
    float *made_tap, *biased_tap, *normed_tap, *turned_tap;
    // Asked for while the weights are on their way.
    auto constants = [&] {
        to = part == 0 ? (void *)(p.q + a_at)
                       : (typename Kv::Type *)(part == 1 ? p.k_cache : p.v_cache) + (size_t)position * p.kv_heads * D + a_at;
        asm volatile("" : "+l"(to));
        made_tap = tap_of<TAPPED>(p.proj_tap[part]);
        biased_tap = tap_of<TAPPED>(bias ? p.biased_tap[part] : nullptr);
        normed_tap = tap_of<TAPPED && HEAD_NORM>(head_norm ? p.normed_tap[part] : nullptr);
        turned_tap = tap_of<TAPPED>(part < 2 ? p.rope_tap[part] : nullptr);
        if (!mine) return;
        if (bias) bias_a = bias[a_at], bias_b = bias[b_at];
        if (head_norm) norm_a = head_norm[i], norm_b = head_norm[i + D / 2];
        if (part < 2) sincosf((float)position * p.frequency[i], &sine, &cosine);
        // Here and not where they are first used.
        asm volatile("" : "+f"(bias_a), "+f"(bias_b), "+f"(norm_a), "+f"(norm_b), "+f"(sine), "+f"(cosine));
    };
    pad_both<Format, Format>(shared, n);
    if (HELD == 0 || RING) constants();
    const Stream x = TAPPED ? p.x : p.x.untapped();
    // Where no weights are held, registers are left for all of a vector of 4,096 elements.
    constexpr bool ALL = HELD > 0 && !RING && N > 0 && N % (4 * 32 * RUN) == 0 && N <= 4 * 32 * MOST_WARPS * RUN;
    Norm<RUN, HELD == 0 ? 2 * RUN : RUN, ALL> norm(x, p.norm, tap_of<TAPPED>(p.norm_tap), n);
    auto ready = [&] {
        norm.template measure<RING ? RING_WARPS : MOST_WARPS>(n, p.eps);
        turn.mark(1);
        return prepare_both<Format, Format, RUN, 1, false, ALL>(shared, n, norm);
    };
    // A ring's tile holds eight rows, and the eight half a head further on; else these are two tiles.
    constexpr int ROWS = RING ? TILE / 2 : TILE;
    const int first = RING ? (pairs.head * (D / 2) + pair0) / ROWS : 0;
    typedef typename Either<RING, RingSums, ResultsOf<RING ? 1 : 2 * PAIRS, HELD>>::Type Sums;
    auto done = [&](Sums sums) {
        float a = 0.0f, b = 0.0f;
        if (mine) {
            const int tile = RING ? first + (int)threadIdx.x / ROWS : threadIdx.x / ROWS * 2, row = threadIdx.x % ROWS;
            a = tap(nullptr, 0, sums(tile, row));
            b = tap(nullptr, 0, RING ? sums(tile, row + ROWS) : sums(tile + 1, row));
        }
        // What is tapped is kept until all is written.
        const float2 made = make_float2(a, b);
        a = tap(nullptr, 0, a + bias_a), b = tap(nullptr, 0, b + bias_b);
        const float2 biased = make_float2(a, b);
        if (HEAD_NORM && part < 2) {
            const float squares = fmaf(a, a, b * b);
            float sum;
            if constexpr (RING) sum = sum_of_group<RING && HEAD_NORM ? D / 2 : 32>(squares);
            else sum = reduce_sum(squares);
            const float scale = 1.0f / sqrtf(sum / (float)D + p.eps);
            if (mine) a = tap(nullptr, 0, a * scale * norm_a), b = tap(nullptr, 0, b * scale * norm_b);
        }
        const float2 normed = make_float2(a, b);
        if (mine) {
            if (part < 2) {
                const float turned = a * cosine - b * sine;
                b = a * sine + b * cosine;
                a = turned;
            }
            a = tap(nullptr, 0, a), b = tap(nullptr, 0, b);
            if (part == 0) {
                ((float *)to)[0] = a, ((float *)to)[D / 2] = b;
            } else {
                ((typename Kv::Type *)to)[0] = Kv::put(a), ((typename Kv::Type *)to)[D / 2] = Kv::put(b);
            }
            auto tap_pair = [&](float *at, float2 of) {
                if (TAPPED && at) at[a_at] = of.x, at[b_at] = of.y;
            };
            tap_pair(made_tap, made), tap_pair(biased_tap, biased), tap_pair(normed_tap, normed), tap_pair(turned_tap, make_float2(a, b));
        }
    };
    u8 *stages = shared + vector_bytes<Format, Format>(n);
    if constexpr (RING) {
        const int blocks = n / 256, end = first + pairs.count / ROWS;
        auto rows_of = [&](int tile) {
            const int row = tile * ROWS / (D / 2) * D + tile * ROWS % (D / 2);
            return Eights{{&p.w[part], &p.w[part]}, {row, row + D / 2}};
        };
        ring_rows<Format, HELD, 1>(p.walk, first * blocks, end * blocks, blocks, stages, turn, rows_of, [&] { return ready().a; }, done);
    } else {
        auto rows_of = [&](int tile) {
            return Rows{&p.w[part], head * D + pair0 + tile / 2 * TILE + tile % 2 * (D / 2), (head + 1) * D};
        };
        if constexpr (HELD > 0) {
            hold_rows<Format, 2 * PAIRS, HELD>(p.walk, Span::whole(n), stages, turn, rows_of, [&] { return ready().a; }, done, constants);
        } else {
            walk_rows<Format, Format>(p.walk, Span::whole(n), stages, turn, [&](int, int tile) { return rows_of(tile); }, ready,
                                      [&](int, Sums sums) { done(sums); });
        }
    }
}

template <typename Q, typename K, typename V, typename Kv, int D, int PAIRS, bool HEAD_NORM, int HELD_Q, int HELD_K, int HELD_V, int N, bool TAPPED>
__global__ void __launch_bounds__(32 * (PAIRS == 0 ? RING_WARPS : MOST_WARPS), PAIRS == 0 ? 1 : 2)
    attn_qkv(const __grid_constant__ AttnQkvParams p) {
    static_assert(!HEAD_NORM || PAIRS == 0 || TILE * PAIRS == D / 2, "a block must hold the head that it normalises");
    extern __shared__ __align__(16) u8 shared[];
    Turn turn(p.stamps);
    Pairs pairs;
    if constexpr (PAIRS == 0) {
        int index = blockIdx.x;
        for (pairs.part = 0; pairs.part < 2 && index >= p.makers[pairs.part]; pairs.part++) index -= p.makers[pairs.part];
        const int tiles = (pairs.part == 0 ? p.heads : p.kv_heads) * (D / 2) / (TILE / 2), makers = p.makers[pairs.part];
        const int first = tiles * index / makers, end = tiles * (index + 1) / makers, at = first * (TILE / 2);
        pairs.head = at / (D / 2), pairs.pair0 = at % (D / 2), pairs.count = (end - first) * (TILE / 2);
    } else {
        const int at = blockIdx.x * TILE * PAIRS; // pair, over the heads of q, then k, then v
        const int head_all = at / (D / 2);
        pairs.part = head_all < p.heads ? 0 : head_all < p.heads + p.kv_heads ? 1 : 2;
        pairs.head = head_all - (pairs.part == 0 ? 0 : pairs.part == 1 ? p.heads : p.heads + p.kv_heads);
        pairs.pair0 = at % (D / 2);
    }
    const int part = pairs.part;
    // The norm is the same to the last bit in all blocks.
    constexpr int RUN = run_of<Q, K, V>;
    // Parts of one format share its code.
    if (!same_type<V, Q> && part == 2) {
        project<V, Kv, RUN, D, PAIRS, HEAD_NORM, HELD_V, N, TAPPED>(p, pairs, shared, turn);
    } else if (!same_type<K, Q> && part == 1) {
        project<K, Kv, RUN, D, PAIRS, HEAD_NORM, HELD_K, N, TAPPED>(p, pairs, shared, turn);
    } else {
        project<Q, Kv, RUN, D, PAIRS, HEAD_NORM, HELD_Q, N, TAPPED>(p, pairs, shared, turn);
    }
}
