// The sum of the residual stream and a product in shares, and its norm as an
// operand of `products.cu`. A block a token, grid (T).
// base, sum, product [T, n], which is none where nothing is added; weight [n].

#include "prefill/shares.cuh"

struct NormRowsParams {
    const float *base;
    Shared product;
    float *sum;
    const float *weight;
    Operand to;
    float *product_tap, *norm_tap; // null where not wanted
    int n;
    float eps;
};

template <typename Part>
__global__ void __launch_bounds__(MOST_ROW_THREADS) norm_rows(const __grid_constant__ NormRowsParams p) {
    let_begin();
    wait_for_turn();
    const size_t t = blockIdx.x, at = t * p.n;
    const float4 *weight = (const float4 *)p.weight;
    auto get = [&](int first, float4 *made) {
        load_fours(p.base + at, first, 0, p.n / 4, made);
        if (!p.product.at) return;
        float4 product[AHEAD];
        p.product.fours(t, p.n, first, product);
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int i = first + k * blockDim.x;
            if (i >= p.n / 4) break;
            const float4 v = made[k], a = tap4(p.product_tap, at + 4 * i, product[k]);
            made[k] = tap4(p.sum, at + 4 * i, make_float4(v.x + a.x, v.y + a.y, v.z + a.z, v.w + a.w));
        }
    };
    Row<decltype(get)> row = {get, p.n};
    float squares = 0.0f, most = 0.0f;
    row.make([&](int i, float4 v) {
        squares = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, squares))));
        const float4 w = weight[i];
        most = fmaxf(fmaxf(fmaxf(most, fabsf(v.x * w.x)), fabsf(v.y * w.y)), fmaxf(fabsf(v.z * w.z), fabsf(v.w * w.w)));
    });
    const float scale = 1.0f / sqrtf(reduce_sum(squares) / (float)p.n + p.eps);
    // The order of roundings may take it one place above the largest that is written, where there is room. What is no
    // number shows in the scale.
    const u32 largest = max(block_largest(magnitude(most * scale)), magnitude(scale) >= 0x7f800000u ? 0x7f800000u : 0u);
    write_row<Part>(p.to, t, row, largest, [&](int i, float4 v) {
        const float4 w = weight[i];
        return tap4(p.norm_tap, at + 4 * i,
                    make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w));
    });
}
