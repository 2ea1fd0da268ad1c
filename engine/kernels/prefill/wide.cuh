#pragma once

#include "prefill/pieces.cuh"
#include "prefill/warpgroups.cuh"

// Rows of weights as halves, as Hopper multiplies them from shared memory: made once, when a
// model is loaded (`widen.cu`), where the card has the memory. Nothing is unpacked then while a
// product is made (`wide_products.cu`). Weights that are integers are exact halves, and what
// scales their sums is what scales them in `pieces.cuh`.
//
// Of WIDE_ROWS rows and a piece of two groups an image holds, row by row in 128 bytes, the
// halves of both groups, each in the order of the operand's (`operand.cuh`), sixteens turned
// by the row; then what the sums are scaled with. Groups that are not there are zeros.

constexpr int WIDE_ROWS = 192;
constexpr int WIDE_WEIGHTS = WIDE_ROWS * 128; // bytes of the halves of an image
constexpr int WIDE_TOKENS = PIECE * OPERAND_TOKENS * 128; // of a piece of the operand
constexpr int WIDE_STAGE = 60 * 1024; // of shared memory: a piece of the operand and the largest image
constexpr int WIDE_STAGES = 3; // of pieces, and as many of what belongs to eight groups
// The minima of a tile's rows in eight groups: a row's pairs of each piece, and the factors of their sums.
constexpr int WIDE_PAIRS = 16 * WIDE_ROWS;
constexpr int WIDE_MINIMA = 20 * WIDE_ROWS;
// Of shared memory: the operand's sums of eight groups, and the minima that meet them.
constexpr int WIDE_SUMS = OPERAND_TOKENS * EIGHT_SUMS;
constexpr int WIDE_EIGHT = 31 * 256;
static_assert(WIDE_EIGHT == WIDE_SUMS + WIDE_MINIMA, "said twice, since engine/src/cuda/wide.rs reads products alone");

// HALVES: a number for each 16 elements of a row; FOLDED: one for both groups, whose scales are in the halves; else one for
// each group. MINIMA: whether the format has some. TOLD: its bytes, from the code that takes the memory.
template <bool HALVES_, bool FOLDED_, bool MINIMA_, int TOLD = 0>
struct Image {
    static constexpr bool HALVES = HALVES_, FOLDED = FOLDED_, MINIMA = MINIMA_;
    static constexpr int BYTES = WIDE_WEIGHTS + 4 * WIDE_ROWS * (HALVES ? 4 : FOLDED ? 1 : PIECE);
    static_assert(TOLD == 0 || TOLD == BYTES, "bytes of an image in engine/src/cuda/wide.rs");
    static_assert(WIDE_TOKENS + BYTES <= WIDE_STAGE && BYTES % 16 == 0, "an image fits its stage, and is copied by sixteens");
};
template <typename P>
using ImageOf = Image<P::HALVES, P::FOLDED, P::SUMS>;

// Where 16 bytes of a row of 128 stand: eight rows, which are read at once, share no bank.
__device__ __forceinline__ int turned_place(int row, int unit) { return row * 128 + 16 * (unit ^ row % 8); }

constexpr int WIDE_THREAD_SUMS = OPERAND_TOKENS / 2; // of a thread: 16 rows by 128 tokens of a warp
// s = 16 halves of each of 64 rows of weights times those of OPERAND_TOKENS tokens, or s plus that.
__device__ __forceinline__ void multiply_wide(float *s, const u8 *a, int of_a, const u8 *b, int of_b, bool plus) {
    ON_HOPPER(asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0;\n"
                           "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
                           "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                           "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                           "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                           "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
                           "%64, %65, p, 1, 1, 0, 0; }"
                           : SIXTEEN_SUMS(0), SIXTEEN_SUMS(16), SIXTEEN_SUMS(32), SIXTEEN_SUMS(48)
                           : "l"(rows_at(a, of_a)), "l"(rows_at(b, of_b)), "r"((int)plus)
                           : "memory"));
}
