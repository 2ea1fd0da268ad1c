// expert_down of the chosen experts, their sum by their weights (experts_out), and layer_out. A block makes its rows of all chosen
// experts. Grid (blocks). x [taken, n], chosen and weights [taken], W [experts, m, n] in blocks, base and y [m].

#include "fused/experts.cuh"

struct ExpertDownParams {
    const float *x, *chosen, *weights, *base;
    Weights w;
    float *y;
    float *down_tap, *sum_tap, *y_tap; // null where not wanted
    Walk walk;
    int n, m, taken;
    Stamp *stamps; // null where it is not timed
};

constexpr int DOWN_WARPS = 8; // of a block without rings

// RING: stages of the ring of a warp, where the weights are in blocks of 256; else 0.
template <typename Format, int RING>
__global__ void __launch_bounds__(32 * (RING > 0 ? RING_WARPS : DOWN_WARPS), RING > 0 ? 1 : 2)
    expert_down(const __grid_constant__ ExpertDownParams p) {
    extern __shared__ __align__(16) u8 shared[];
    constexpr int ROWS = RING > 0 ? TILE : 1; // that are made at a time
    Turn turn(p.stamps);
    turn.wait();
    turn.mark(0);
    const int taken = p.taken, sets = (p.m + ROWS - 1) / ROWS, first = part_of(sets, 0), count = part_of(sets, 1) - first;
    int *places = (int *)shared;
    float *weights = (float *)shared + taken;
    float *products = (float *)(shared + (8 * taken + 15) / 16 * 16); // [count, taken, ROWS]
    u8 *rest = (u8 *)products + (4 * taken * ROWS * ((sets + gridDim.x - 1) / gridDim.x) + 15) / 16 * 16;
    const float4 *x = (const float4 *)p.x;
    // The first row that this thread ends, asked for before it is needed.
    const float first_base = (int)threadIdx.x < count * ROWS ? __ldcg(p.base + first * ROWS + threadIdx.x) : 0.0f;
    for (int r = threadIdx.x; r < taken; r += blockDim.x) {
        places[r] = (int)__ldcg(p.chosen + r);
        weights[r] = __ldcg(p.weights + r);
    }
    __syncthreads();
    auto give = [&](int item, int of, float v) { // an item is a set's rows of a chosen expert
        const int row = (first + item / taken) * ROWS + of;
        products[item * ROWS + of] = tap(p.down_tap, (size_t)(item % taken) * p.m + row, v);
    };
    if constexpr (RING > 0) {
        const int blocks = p.n / 256;
        auto rows_of = [&](int item) { return Eights::of(&p.w, places[item % taken] * p.m + item / taken * TILE); };
        auto group_of = [&](int item) { return item % taken * blocks * PIECE; };
        auto ready = [&] {
            return prepare_both<Format, Format, run_of<Format>, 3>(rest, taken * p.n, [&](int i) { return __ldcg(x + i); }).a;
        };
        auto done = [&](RingSums sums) {
            for (int i = threadIdx.x; i < count * taken * TILE; i += blockDim.x) {
                give(i / TILE, i % TILE, sums(first * taken + i / TILE, i % TILE));
            }
        };
        Had had = {turn};
        ring_rows<Format, RING, RING>(p.walk, first * taken * blocks, (first + count) * taken * blocks, blocks,
                                      rest + vector_bytes<Format, Format>(taken * p.n), had, rows_of, group_of, ready, done);
    } else {
        float *line = (float *)rest;
        lay_out(line, taken * p.n, [&](int i) { return __ldcg(x + i); });
        __syncthreads();
        const int groups = p.n / 32;
#pragma unroll 2
        for (int item = threadIdx.x / 32; item < count * taken; item += DOWN_WARPS) {
            const int slot = item % taken;
            const size_t row = (size_t)places[slot] * p.m + first + item / taken;
            const float v = dot<Format>(p.w, row, groups, line + slot * groups * LINE);
            if (threadIdx.x % 32 == 0) give(item, 0, v);
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < count * ROWS; i += blockDim.x) {
        const int row = first * ROWS + i;
        float sum = 0.0f;
#pragma unroll 8
        for (int slot = 0; slot < taken; slot++) {
            sum = fmaf(weights[slot], products[(i / ROWS * taken + slot) * ROWS + i % ROWS], sum);
        }
        sum = tap(p.sum_tap, row, sum);
        p.y[row] = tap(p.y_tap, row, (i < (int)blockDim.x ? first_base : __ldcg(p.base + row)) + sum);
    }
}
