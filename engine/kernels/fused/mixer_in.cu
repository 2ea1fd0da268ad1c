// attn_norm and the projections of one token in a layer of gated attention or of a gated delta net. A block makes its share of the
// rows of one projection. The thread that has an output of a delta net goes on with it: it convolves a channel and moves
// the channel's window on, or makes β or the decay of a head. Grid (the sum of `makers`).
// x [n]; the projection of part i, W [m, n] in blocks.

#include "fused/experts.cuh"

constexpr int PARTS = 4; // q with its gate, k, v, none; or of a delta net qkv, z, the products of β and of the decay
constexpr int MOST_PAST = 7; // rows of a window

struct MixerInParams {
    Stream x;
    const float *norm;
    Weights w[PARTS];
    float *y[PARTS]; // what later kernels read: projections, or what a delta net makes of them
    float *norm_tap, *product_tap[PARTS]; // null where not wanted
    // A delta net alone has these:
    const float *kernel; // of the convolution, [m, past + 1]; null where it is attention
    float *window; // the last rows of qkv, the oldest first, [past, m]
    const float *shift, *rate; // of the decay
    float *window_tap, *convolved_tap, *act_tap, *q_tap, *k_tap, *v_tap, *beta_tap, *soft_tap, *decay_tap;
    int past, keys; // rows of the window, and elements of q, of which k has as many
    Walk walk;
    int n;
    int m[PARTS], makers[PARTS]; // rows, and the blocks that make them
    float eps;
    Stamp *stamps; // null where it is not timed
};

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// Row `row` of a part, whose product with the vector is v.
__device__ __forceinline__ void finish(const MixerInParams &p, int part, int row, float v) {
    v = tap(p.product_tap[part], row, v);
    if (!p.kernel || part == 1) {
        p.y[part][row] = v;
    } else if (part == 0) {
        const int all = p.m[0];
        // All are on their way before the first is used.
        float x[MOST_PAST], w[MOST_PAST], sum = 0.0f;
#pragma unroll
        for (int j = 0; j < MOST_PAST; j++) {
            x[j] = j < p.past ? p.window[j * all + row] : 0.0f;
            w[j] = j < p.past ? p.kernel[row * (p.past + 1) + j] : 0.0f;
        }
        const float last = p.kernel[row * (p.past + 1) + p.past];
#pragma unroll
        for (int j = 0; j < MOST_PAST; j++) {
            sum = fmaf(w[j], x[j], sum);
            if (j > 0 && j < p.past) p.window[(j - 1) * all + row] = tap(p.window_tap, (j - 1) * all + row, x[j]);
        }
        p.window[(p.past - 1) * all + row] = tap(p.window_tap, (p.past - 1) * all + row, v);
        sum = tap(p.convolved_tap, row, fmaf(last, v, sum));
        const float act = tap(p.act_tap, row, sum / (1.0f + expf(-sum)));
        p.y[0][row] = act;
        float *const to[3] = {p.q_tap, p.k_tap, p.v_tap};
        const int which = min(row / p.keys, 2);
        tap(to[which], row - which * p.keys, act);
    } else if (part == 2) {
        p.y[2][row] = tap(p.beta_tap, row, sigmoid(v));
    } else {
        const float z = v + p.shift[row];
        const float soft = tap(p.soft_tap, row, z > 20.0f ? z : log1pf(expf(z)));
        p.y[3][row] = tap(p.decay_tap, row, soft * p.rate[row]);
    }
}

// The rows of a block, of one part. RING: stages of the ring of a warp, where the weights are in blocks of 256 and the rows are whole
// tiles; else 0, and a warp makes a row.
template <typename Format, int RING, typename NormOf>
__device__ __forceinline__ void project(const MixerInParams &p, int part, int index, u8 *shared, Turn &turn, NormOf &norm) {
    const int tiles = (p.m[part] + TILE - 1) / TILE, makers = p.makers[part];
    const int first = (int)((long long)tiles * index / makers), end = (int)((long long)tiles * (index + 1) / makers);
    if constexpr (RING > 0) {
        const int blocks = p.n / 256;
        auto ready = [&] {
            norm.template measure<RING_WARPS>(p.n, p.eps);
            turn.mark(1);
            return prepare_both<Format, Format, NormOf::EACH, 1>(shared, p.n, norm).a;
        };
        ring_rows<Format, RING, RING>(
            p.walk, first * blocks, end * blocks, blocks, shared + vector_bytes<Format, Format>(p.n), turn,
            [&](int tile) { return Eights::of(&p.w[part], tile * TILE); }, ready, [&](RingSums sums) {
                for (int row = first * TILE + threadIdx.x; row < end * TILE; row += blockDim.x) {
                    finish(p, part, row, sums(row / TILE, row % TILE));
                }
            });
    } else {
        float *line = (float *)shared;
        turn.wait();
        turn.mark(0);
        norm.template measure<RING_WARPS>(p.n, p.eps);
        lay_out(line, p.n, norm);
        __syncthreads();
        const int warps = blockDim.x / 32, rows = min(end * TILE, p.m[part]);
        for (int row = first * TILE + threadIdx.x / 32; row < rows; row += warps) {
            const float sum = dot<Format>(p.w[part], row, p.n / 32, line);
            if (threadIdx.x % 32 == 0) finish(p, part, row, sum);
        }
    }
}

template <typename A, typename B, typename C, typename D, int RING_A, int RING_B, int RING_C, int RING_D>
__global__ void __launch_bounds__(32 * RING_WARPS, 1) mixer_in(const __grid_constant__ MixerInParams p) {
    extern __shared__ __align__(16) u8 shared[];
    Turn turn(p.stamps);
    int part = 0, index = blockIdx.x;
    for (; part < PARTS - 1 && index >= p.makers[part]; part++) index -= p.makers[part];
    // The norm is the same to the last bit in all blocks.
    Norm<run_of<A, B, C, D>> norm(p.x, p.norm, p.norm_tap, p.n);
    // Parts of one format share its code.
    constexpr bool SAME_B = same_type<A, B> && RING_A == RING_B, SAME_C = same_type<A, C> && RING_A == RING_C;
    constexpr bool SAME_D = same_type<A, D> && RING_A == RING_D;
    if (!SAME_B && part == 1) project<B, RING_B>(p, part, index, shared, turn, norm);
    else if (!SAME_C && part == 2) project<C, RING_C>(p, part, index, shared, turn, norm);
    else if (!SAME_D && part == 3) project<D, RING_D>(p, part, index, shared, turn, norm);
    else project<A, RING_A>(p, part, index, shared, turn, norm);
}
