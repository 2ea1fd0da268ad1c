// The choice of a token's experts, and expert_gate, expert_up and expert_act of the chosen ones. The blocks share out the tiles of all
// of them, eight rows of gate and the same rows of up to a tile; or a warp makes a row of both. Grid (blocks). x [n], gate and
// up [experts, m, n] in blocks, y [taken, m].

#include "fused/experts.cuh"

struct ExpertActParams {
    const float *x;
    Choice choice;
    Weights gate, up;
    float *y;
    float *gate_tap, *up_tap, *y_tap; // null where not wanted
    Walk walk;
    int n, m;
    Stamp *stamps; // null where it is not timed
};

constexpr int PLAIN_WARPS = 8; // of a block without rings

// RING: stages of the ring of a warp, where the weights are in blocks of 256; else 0.
template <typename Gate, typename Up, int RING>
__global__ void __launch_bounds__(32 * (RING > 0 ? RING_WARPS : PLAIN_WARPS), RING > 0 ? 1 : 2)
    expert_act(const __grid_constant__ ExpertActParams p) {
    extern __shared__ __align__(16) u8 shared[];
    Turn turn(p.stamps);
    turn.wait();
    turn.mark(0);
    const Chosen chosen = Chosen::among(p.choice, shared);
    turn.mark(1);
    u8 *rest = shared + choice_bytes(p.choice);
    const float4 *x = (const float4 *)p.x;
    // Of row `row` of the expert that was chosen as number `slot`.
    auto write = [&](int slot, int row, float g, float u) {
        const int i = slot * p.m + row;
        g = tap(p.gate_tap, i, g), u = tap(p.up_tap, i, u);
        p.y[i] = tap(p.y_tap, i, gated(g, u));
    };
    if constexpr (RING > 0) {
        constexpr int ROWS = TILE / 2;
        const int blocks = p.n / 256, of_expert = p.m / ROWS, tiles = p.choice.taken * of_expert;
        auto rows_of = [&](int tile) {
            const int row0 = chosen.places[tile / of_expert] * p.m + tile % of_expert * ROWS;
            return Eights{{&p.gate, &p.up}, {row0, row0}};
        };
        auto ready = [&] {
            chosen.tell(p.choice); // while weights are on their way
            return prepare_both<Gate, Up, run_of<Gate>, 1>(rest, p.n, [&](int i) { return __ldcg(x + i); }).a;
        };
        auto done = [&](RingSums sums) {
            for (int row = sums.first() * ROWS + threadIdx.x; row < sums.end() * ROWS; row += blockDim.x) {
                write(row / p.m, row % p.m, sums(row / ROWS, row % ROWS), sums(row / ROWS, row % ROWS + ROWS));
            }
        };
        Had had = {turn};
        ring_rows<Gate, RING, RING>(p.walk, part_of(tiles, 0) * blocks, part_of(tiles, 1) * blocks, blocks,
                                    rest + vector_bytes<Gate, Up>(p.n), had, rows_of, [](int) { return 0; }, ready, done);
    } else {
        float *line = (float *)rest;
        lay_out(line, p.n, [&](int i) { return __ldcg(x + i); });
        __syncthreads();
        const int warps = PLAIN_WARPS, groups = p.n / 32;
        for (int i = blockIdx.x * warps + threadIdx.x / 32; i < p.choice.taken * p.m; i += gridDim.x * warps) {
            const int slot = i / p.m, row = i % p.m;
            const size_t at = (size_t)chosen.places[slot] * p.m + row;
            const float g = dot<Gate>(p.gate, at, groups, line), u = dot<Up>(p.up, at, groups, line);
            if (threadIdx.x % 32 == 0) write(slot, row, g, u);
        }
        chosen.tell(p.choice);
    }
}
