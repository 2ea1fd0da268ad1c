// The halves of a matrix, which `wide_products.cu` multiplies: `wide.cuh` says how they stand.
// Grid (ceil(n / 64), ceil(m / WIDE_ROWS)), block WIDE_ROWS. W [m, n] in blocks, images
// [tiles, pieces], minima [tiles, ceil(n / 256), WIDE_MINIMA] of a format that has some.

#include "prefill/wide.cuh"

struct WidenParams {
    Weights w;
    u8 *images, *minima;
    int n, m;
};

template <typename Format>
__global__ void __launch_bounds__(WIDE_ROWS) widen(const __grid_constant__ WidenParams p) {
    typedef Piece<Format, HalfPart> P;
    typedef ImageOf<P> I;
    __shared__ __align__(16) u8 quants[WIDE_ROWS * P::PITCH], high[WIDE_ROWS * P::HIGH_PITCH + 16];
    __shared__ u32 integers[PIECE][WIDE_ROWS];
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, piece = blockIdx.x, tile = blockIdx.y;
    const int groups = p.n / 32, pieces = gridDim.x, eights = (groups + 7) / 8;
    // Rows beyond the last are the last again: their products are not used.
    auto row_of = [&](int row) { return (size_t)min(tile * WIDE_ROWS + row, p.m - 1); };
    constexpr int EACH = P::BYTES / 16;
    for (int i = tid; i < WIDE_ROWS * EACH; i += WIDE_ROWS) {
        const u8 *from = p.w.plane[0] + row_of(i / EACH) * groups * P::GROUP + P::at(groups, piece, i % EACH);
        *(uint4 *)(quants + i / EACH * P::PITCH + 16 * (i % EACH)) = *(const uint4 *)from;
    }
    constexpr int UNITS = P::HIGH_BYTES / P::HIGH_UNIT;
    for (int i = tid; i < WIDE_ROWS * UNITS; i += WIDE_ROWS) {
        const int row = i / max(UNITS, 1), unit = i % max(UNITS, 1);
        const u8 *from = p.w.plane[1] + row_of(row) * groups * P::HIGH_GROUP + P::high_at(groups, piece, unit);
        u8 *to = high + row * P::HIGH_PITCH + P::HIGH_UNIT * unit;
        if (P::HIGH_UNIT == 4) *(u32 *)to = *(const u32 *)from;
        else *(uint4 *)to = *(const uint4 *)from;
    }
    // A format may take its groups in another order; here they are in the row's.
    auto image_of = [&](int g) { return p.images + ((size_t)tile * pieces + g / PIECE) * I::BYTES; };
    const typename P::Raw raw = P::load(p.w, row_of(tid), groups, piece);
#pragma unroll
    for (int i = 0; i < PIECE; i++) {
        const int g = P::group(piece, i), at = g % PIECE * WIDE_ROWS + tid;
        u8 *scales = image_of(g) + WIDE_WEIGHTS;
        if constexpr (I::FOLDED) {
            integers[i][tid] = P::integers(raw, piece, i);
            if (i == 0) ((float *)scales)[tid] = 16384.0f * P::factors(raw).y;
        } else {
            const float2 v = g < groups ? P::scales(raw, piece, i) : make_float2(0.0f, 0.0f);
            if (I::HALVES) ((float2 *)scales)[at] = v;
            else ((float *)scales)[at] = v.x;
        }
    }
    if constexpr (I::MINIMA) {
        u8 *minima = p.minima + ((size_t)tile * eights + piece / 4) * WIDE_MINIMA;
        ((u32 *)minima)[4 * tid + piece % 4] = P::minima(raw, piece);
        if (piece % 4 == 0) ((float *)(minima + WIDE_PAIRS))[tid] = 32.0f * P::factors(raw).x;
    }
    __syncthreads();
    for (int rows = 16 * warp; rows < WIDE_ROWS; rows += 16 * (WIDE_ROWS / 32)) {
#pragma unroll
        for (int i = 0; i < PIECE; i++) {
            const int g = P::group(piece, i);
            u32 a[1][2][4];
            P::make(quants + rows * P::PITCH, high + rows * P::HIGH_PITCH, piece, i, lane, a);
#pragma unroll
            for (int k = 0; k < 8; k++) {
                const int step = k / 4, row = rows + lane / 4 + k % 2 * 8, unit = g % PIECE * 4 + step * 2 + k % 4 / 2;
                u32 two = a[0][step][k % 4];
                if (I::FOLDED) two = multiply_halves(two, integers[i][row]);
                *(u32 *)(image_of(g) + turned_place(row, unit) + lane % 4 * 4) = g < groups ? two : 0;
            }
        }
    }
}
