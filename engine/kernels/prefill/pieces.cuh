#pragma once

#include "prefill/operand.cuh"

// Rows of weights in pieces of two groups of 32, as the tensor cores take them.
//
// A piece is copied into shared memory as it stands, and each warp makes of it what the
// matrix instructions want: weights that are integers become halves, exactly, and what
// scales a group is applied to its sums; where it is an integer of so few bits that the
// product with a weight is one of 11, to the weights, and the block's scale to the sums of
// a piece. Lane 4g + t holds of rows g and g + 8 the elements that it holds of x
// (`operand.cuh`).

constexpr int PIECE = 2; // groups

__device__ __forceinline__ u32 subtract_halves(u32 a, u32 b) {
    u32 d;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
__device__ __forceinline__ u32 multiply_halves(u32 a, u32 b) {
    u32 d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
__device__ __forceinline__ u32 halves_less(u32 pair, u32 less) { // 1024 + byte is a half's bits as they stand
    return subtract_halves(pair, (0x6400u + less) * 0x00010001u);
}
// Integers of a word's four bytes less `less`, as pairs of bytes 0 and 2, and of 1 and 3.
template <typename Part>
__device__ __forceinline__ void pairs_of_bytes(u32 bytes, u32 less, u32 &even, u32 &odd);
template <>
__device__ __forceinline__ void pairs_of_bytes<HalfPart>(u32 bytes, u32 less, u32 &even, u32 &odd) {
    even = halves_less(__byte_perm(bytes, 0x64646464u, 0x4240), less);
    odd = halves_less(__byte_perm(bytes, 0x64646464u, 0x4341), less);
}
template <>
__device__ __forceinline__ void pairs_of_bytes<BrainPart>(u32 bytes, u32 less, u32 &even, u32 &odd) {
    u32 bits[4];
#pragma unroll
    for (int i = 0; i < 4; i++) bits[i] = __float_as_uint(small((bytes >> (8 * i)) & 255) - (float)less) >> 16;
    even = bits[0] | bits[2] << 16;
    odd = bits[1] | bits[3] << 16;
}

// A format: the bytes of a piece of a row in its two planes, copied by units, which stand
// in shared memory PITCH bytes apart; bytes of a group in a plane, and where in its row a
// unit stands; the groups of a piece; its weights as PARTS parts; and factor and summand
// of a group's sums (`scales`), or two factors for 16 elements each (HALVES); SUMS whether
// the summand counts, with the sum of x: it is `minima`, as halves, times `factors`' first,
// which is the same for eight groups; FOLDED whether weights are made as 2^-24 of integers,
// to be multiplied with `integers`, which makes 2^-14 of the products, and their sums with
// 2^14 times the second. Groups that are not there meet an x of zeros.
template <typename Format, typename Part>
struct Piece;

// Word t of 16 bytes of row g, or g + 8 (r), of a plane: rows share no bank.
__device__ __forceinline__ u32 word_of(const u8 *tile, int pitch, int r, int sixteen, int lane) {
    return *(const u32 *)(tile + (lane / 4 + 8 * r) * pitch + 16 * sixteen + lane % 4 * 4);
}

struct PlainGroups {
    static constexpr bool HALVES = false, FOLDED = false;
    static __device__ __forceinline__ int group(int piece, int i) { return PIECE * piece + i; }
};

template <bool HIGH, bool MIN, typename Part>
struct NibblesPiece : PlainGroups {
    static constexpr int PARTS = 1, BYTES = 32, PITCH = 48, HIGH_BYTES = HIGH ? 8 : 0, HIGH_PITCH = HIGH ? 8 : 0;
    static constexpr int HIGH_UNIT = 4, GROUP = 16, HIGH_GROUP = 4;
    static constexpr bool SUMS = MIN;
    static __device__ __forceinline__ int at(int groups, int piece, int unit) {
        return 16 * min(PIECE * piece + unit, groups - 1);
    }
    static __device__ __forceinline__ int high_at(int groups, int piece, int unit) {
        return 4 * min(PIECE * piece + unit, groups - 1);
    }
    struct Raw {
        u32 of[PIECE];
    };
    static __device__ __forceinline__ Raw load(const Weights &w, size_t row, int groups, int piece) {
        Raw raw;
#pragma unroll
        for (int i = 0; i < PIECE; i++) {
            const size_t g = row * groups + min(PIECE * piece + i, groups - 1);
            raw.of[i] = MIN ? at32(w.plane[HIGH ? 2 : 1], g) : at16(w.plane[HIGH ? 2 : 1], g);
        }
        return raw;
    }
    static __device__ __forceinline__ float2 scales(const Raw &raw, int, int i) {
        return make_float2(half_bits((u16)raw.of[i]), MIN ? half_bits((u16)(raw.of[i] >> 16)) : 0.0f);
    }
    static __device__ __forceinline__ u32 minima(const Raw &raw, int) { return __byte_perm(raw.of[0], raw.of[1], 0x7632); }
    static __device__ __forceinline__ float2 factors(const Raw &) { return make_float2(1.0f, 0.0f); }
    static __device__ __forceinline__ void make(const u8 *tile, const u8 *high, int, int i, int lane, u32 (*a)[2][4]) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const u32 q = word_of(tile, PITCH, r, i, lane);
            const u32 h = HIGH ? *(const u32 *)(high + (lane / 4 + 8 * r) * HIGH_PITCH + 4 * i) : 0;
#pragma unroll
            for (int step = 0; step < 2; step++) {
                u32 bytes = (q >> (4 * step)) & 0x0f0f0f0fu;
                if (HIGH) bytes |= fifth_bits(h, 16 * step + lane % 4 * 4);
                pairs_of_bytes<Part>(bytes, MIN ? 0 : HIGH ? 16 : 8, a[0][step][r], a[0][step][2 + r]);
            }
        }
    }
};
template <typename Part>
struct Piece<Q4_0, Part> : NibblesPiece<false, false, Part> {};
template <typename Part>
struct Piece<Q4_1, Part> : NibblesPiece<false, true, Part> {};
template <typename Part>
struct Piece<Q5_0, Part> : NibblesPiece<true, false, Part> {};
template <typename Part>
struct Piece<Q5_1, Part> : NibblesPiece<true, true, Part> {};

template <typename Part>
struct Piece<Q8_0, Part> : PlainGroups {
    static constexpr int PARTS = 1, BYTES = 64, PITCH = 80, HIGH_BYTES = 0, HIGH_PITCH = 0, HIGH_UNIT = 4;
    static constexpr int GROUP = 32, HIGH_GROUP = 0;
    static constexpr bool SUMS = false;
    static __device__ __forceinline__ int at(int groups, int piece, int unit) {
        return 32 * min(PIECE * piece + unit / 2, groups - 1) + 16 * (unit % 2);
    }
    static __device__ __forceinline__ int high_at(int, int, int) { return 0; }
    struct Raw {
        u16 of[PIECE];
    };
    static __device__ __forceinline__ Raw load(const Weights &w, size_t row, int groups, int piece) {
        Raw raw;
#pragma unroll
        for (int i = 0; i < PIECE; i++) raw.of[i] = at16(w.plane[1], row * groups + min(PIECE * piece + i, groups - 1));
        return raw;
    }
    static __device__ __forceinline__ float2 scales(const Raw &raw, int, int i) {
        return make_float2(half_bits(raw.of[i]), 0.0f);
    }
    static __device__ __forceinline__ void make(const u8 *tile, const u8 *, int, int i, int lane, u32 (*a)[2][4]) {
#pragma unroll
        for (int step = 0; step < 2; step++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                pairs_of_bytes<Part>(word_of(tile, PITCH, r, 2 * i + step, lane) ^ 0x80808080u, 128, a[0][step][r], a[0][step][2 + r]);
            }
        }
    }
};

template <bool HIGH, typename Part>
struct KNibblesPiece : PlainGroups { // its groups are the low and the high nibbles of the same 32 bytes
    static constexpr int PARTS = 1, BYTES = 32, PITCH = 48, HIGH_BYTES = HIGH ? 32 : 0, HIGH_PITCH = HIGH ? 48 : 0;
    static constexpr int HIGH_UNIT = 16;
    static constexpr int GROUP = 16, HIGH_GROUP = 4;
    static constexpr bool SUMS = true, FOLDED = PartsOf<Part>::COUNT == 2;
    static __device__ __forceinline__ int at(int, int piece, int unit) { return 16 * (PIECE * piece + unit); }
    static __device__ __forceinline__ int high_at(int, int piece, int unit) { return piece / 4 * 32 + 16 * unit; }
    struct Raw {
        uint4 head;
    };
    static __device__ __forceinline__ Raw load(const Weights &w, size_t row, int groups, int piece) {
        return {at128(w.plane[HIGH ? 2 : 1], (row * groups + PIECE * piece) / 8)};
    }
    static __device__ __forceinline__ float2 scales(const Raw &raw, int piece, int i) {
        float scale, min;
        scale_min(raw.head, (PIECE * piece + i) % 8, scale, min);
        return make_float2(scale, -min);
    }
    static __device__ __forceinline__ u32 minima(const Raw &raw, int piece) {
        const u32 first = min_of(raw.head, PIECE * piece % 8), second = min_of(raw.head, (PIECE * piece + 1) % 8);
        return halves_less(first | second << 16 | 0x64006400u, 0);
    }
    static __device__ __forceinline__ float2 factors(const Raw &raw) {
        return make_float2(-half_bits((u16)(raw.head.x >> 16)), half_bits((u16)raw.head.x));
    }
    static __device__ __forceinline__ u32 integers(const Raw &raw, int piece, int i) { // 1024 times, twice the same
        const u32 scale = halves_less(scale_of_group(raw.head, (PIECE * piece + i) % 8) * 0x00010001u | 0x64006400u, 0);
        return multiply_halves(scale, 0x64006400u);
    }
    static __device__ __forceinline__ void make(const u8 *tile, const u8 *high, int piece, int i, int lane, u32 (*a)[2][4]) {
#pragma unroll
        for (int step = 0; step < 2; step++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                u32 bytes = (word_of(tile, PITCH, r, step, lane) >> (4 * i)) & 0x0f0f0f0fu;
                if (HIGH) bytes |= ((word_of(high, HIGH_PITCH, r, step, lane) >> ((PIECE * piece + i) % 8)) & 0x01010101u) << 4;
                if (FOLDED) { // a half of these bits alone is 2^-24 of the integer
                    a[0][step][r] = __byte_perm(bytes, 0, 0x4240);
                    a[0][step][2 + r] = __byte_perm(bytes, 0, 0x4341);
                } else {
                    pairs_of_bytes<Part>(bytes, 0, a[0][step][r], a[0][step][2 + r]);
                }
            }
        }
    }
};
template <typename Part>
struct Piece<Q4_K, Part> : KNibblesPiece<false, Part> {};
template <typename Part>
struct Piece<Q5_K, Part> : KNibblesPiece<true, Part> {};

template <typename Part>
struct Piece<Q6_K, Part> { // groups k and k + 2 of half a block share their bytes
    static constexpr int PARTS = 1, BYTES = 32, PITCH = 48, HIGH_BYTES = 32, HIGH_PITCH = 48, HIGH_UNIT = 16;
    static constexpr int GROUP = 16, HIGH_GROUP = 8;
    static constexpr bool SUMS = false, HALVES = true, FOLDED = false;
    static __device__ __forceinline__ int group(int piece, int i) { return piece / 2 * 4 + piece % 2 + 2 * i; }
    static __device__ __forceinline__ int at(int, int piece, int unit) { return 16 * (PIECE * piece + unit); }
    static __device__ __forceinline__ int high_at(int, int piece, int unit) { return piece / 2 * 32 + 16 * unit; }
    struct Raw {
        u16 of[PIECE], d;
    };
    static __device__ __forceinline__ Raw load(const Weights &w, size_t row, int groups, int piece) {
        Raw raw;
#pragma unroll
        for (int i = 0; i < PIECE; i++) raw.of[i] = at16(w.plane[2], row * groups + group(piece, i));
        raw.d = at16(w.plane[3], (row * groups + PIECE * piece) / 8);
        return raw;
    }
    static __device__ __forceinline__ float2 scales(const Raw &raw, int, int i) {
        const float d = half_bits(raw.d);
        return make_float2(d * (float)(signed char)(raw.of[i] & 255), d * (float)(signed char)(raw.of[i] >> 8));
    }
    static __device__ __forceinline__ void make(const u8 *tile, const u8 *high, int piece, int i, int lane, u32 (*a)[2][4]) {
#pragma unroll
        for (int step = 0; step < 2; step++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                u32 bytes = (word_of(tile, PITCH, r, step, lane) >> (4 * i)) & 0x0f0f0f0fu;
                bytes |= ((word_of(high, HIGH_PITCH, r, step, lane) >> (2 * (piece % 2 + 2 * i))) & 0x03030303u) << 4;
                pairs_of_bytes<Part>(bytes, 32, a[0][step][r], a[0][step][2 + r]);
            }
        }
    }
};

// Floats of EACH bytes: in as many parts as it has bits for x's parts of 8, or in one.
template <int EACH, int COUNT, typename Part>
struct FloatPiece : PlainGroups {
    static constexpr int PARTS = COUNT, BYTES = 64 * EACH, PITCH = EACH == 2 ? 160 : 320, HIGH_BYTES = 0, HIGH_PITCH = 0;
    static constexpr int HIGH_UNIT = 4, GROUP = 32 * EACH, HIGH_GROUP = 0;
    static constexpr bool SUMS = false;
    static __device__ __forceinline__ int at(int groups, int piece, int unit) {
        return GROUP * min(PIECE * piece + unit / (2 * EACH), groups - 1) + 16 * (unit % (2 * EACH));
    }
    static __device__ __forceinline__ int high_at(int, int, int) { return 0; }
    struct Raw {};
    static __device__ __forceinline__ Raw load(const Weights &, size_t, int, int) { return {}; }
    static __device__ __forceinline__ float2 scales(const Raw &, int, int) { return make_float2(1.0f, 0.0f); }
    static __device__ __forceinline__ void make(const u8 *tile, const u8 *, int, int i, int lane, u32 (*a)[2][4]) {
#pragma unroll
        for (int step = 0; step < 2; step++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const u8 *at = tile + (lane / 4 + 8 * r) * PITCH + (32 * i + 16 * step + lane % 4 * 4) * EACH;
                if constexpr (COUNT == 1) { // as they stand
                    const uint2 w = *(const uint2 *)at;
                    a[0][step][r] = __byte_perm(w.x, w.y, 0x5410);
                    a[0][step][2 + r] = __byte_perm(w.x, w.y, 0x7632);
                } else {
                    float e[4];
#pragma unroll
                    for (int k = 0; k < 4; k++) e[k] = EACH == 2 ? half_bits(((const u16 *)at)[k]) : ((const float *)at)[k];
#pragma unroll
                    for (int part = 0; part < COUNT; part++) {
                        u32 bits[4];
#pragma unroll
                        for (int k = 0; k < 4; k++) bits[k] = Part::split(e[k]);
                        a[part][step][r] = bits[0] | bits[2] << 16;
                        a[part][step][2 + r] = bits[1] | bits[3] << 16;
                    }
                }
            }
        }
    }
};
template <>
struct Piece<F16, HalfPart> : FloatPiece<2, 1, HalfPart> {};
template <>
struct Piece<F16, BrainPart> : FloatPiece<2, 2, BrainPart> {};
template <>
struct Piece<BF16, BrainPart> : FloatPiece<2, 1, BrainPart> {};
template <>
struct Piece<F32, BrainPart> : FloatPiece<4, 3, BrainPart> {};
