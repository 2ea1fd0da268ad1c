// x as an operand of `products.cu`. A block a token, grid (T). x [T, n].

#include "prefill/row.cuh"

struct PrepareRowsParams {
    const float *x;
    Operand to;
    int n;
};

template <typename Part>
__global__ void __launch_bounds__(MOST_ROW_THREADS) prepare_rows(const __grid_constant__ PrepareRowsParams p) {
    let_begin();
    wait_for_turn();
    auto get = [&](int first, float4 *made) { load_fours(p.x + (size_t)blockIdx.x * p.n, first, 0, p.n / 4, made); };
    Row<decltype(get)> row = {get, p.n};
    u32 largest = 0;
    row.make([&](int, float4 v) { largest = max(largest, largest_of(v)); });
    write_row<Part>(p.to, blockIdx.x, row, block_largest(largest), [](int, float4 v) { return v; });
}
