// gate / (1 + exp(-gate)) up, as an operand of `products.cu`. A block a token, grid (T).
// gate, up [T, n].

#include "prefill/shares.cuh"

struct ActRowsParams {
    Shared gate, up;
    Operand to;
    float *gate_tap, *up_tap, *tap; // null where not wanted
    int n;
};

template <typename Part>
__global__ void __launch_bounds__(MOST_ROW_THREADS) act_rows(const __grid_constant__ ActRowsParams p) {
    let_begin();
    wait_for_turn();
    const size_t at = (size_t)blockIdx.x * p.n;
    auto one = [](float gate, float up) { return gate / (1.0f + expf(-gate)) * up; };
    auto get = [&](int first, float4 *made) {
        float4 gate[AHEAD], up[AHEAD];
        p.gate.fours(blockIdx.x, p.n, first, gate);
        p.up.fours(blockIdx.x, p.n, first, up);
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int i = first + k * blockDim.x;
            if (i >= p.n / 4) break;
            const float4 g = tap4(p.gate_tap, at + 4 * i, gate[k]), u = tap4(p.up_tap, at + 4 * i, up[k]);
            made[k] = tap4(p.tap, at + 4 * i, make_float4(one(g.x, u.x), one(g.y, u.y), one(g.z, u.z), one(g.w, u.w)));
        }
    };
    Row<decltype(get)> row = {get, p.n};
    u32 largest = 0;
    row.make([&](int, float4 v) { largest = max(largest, largest_of(v)); });
    write_row<Part>(p.to, blockIdx.x, row, block_largest(largest), [](int, float4 v) { return v; });
}
