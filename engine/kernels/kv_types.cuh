#pragma once

// Types of the KV cache that single nodes have besides those of `kv.cuh`. What is stored is what
// `engine/src/quant/activations.rs` and `cached.rs` say, bit for bit: no product is contracted with a sum.

#include "kv.cuh"

struct KvBf16 { // rounded to the nearest, ties to even
    typedef unsigned short Type;
    static __device__ __forceinline__ float get(Type bits) { return __uint_as_float((unsigned)bits << 16); }
    static __device__ __forceinline__ Type put(float v) {
        const unsigned bits = __float_as_uint(v);
        if ((bits & 0x7fffffffu) > 0x7f800000u) return (Type)(bits >> 16 | 64);
        return (Type)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
    }
};

// 8 bits, with so many of mantissa; the largest number has the bits MOST, and what is beyond it becomes that number.
template <int MANTISSA, int BIAS, unsigned MOST>
struct KvF8 {
    typedef unsigned char Type;
    static constexpr int CUT = 23 - MANTISSA;
    static constexpr unsigned SMALLEST = (128 - BIAS) << 23; // normal number
    static constexpr float STEPS = (float)(1 << (BIAS - 1 + MANTISSA)); // of the numbers below
    static __device__ __forceinline__ float get(Type bits) {
        const unsigned size = bits & 0x7f, sign = (unsigned)(bits & 0x80) << 24;
        if (size > MOST) return __uint_as_float(sign | 0x7f800000u | (MANTISSA == 2 && size == MOST + 1 ? 0 : 1));
        const float v = size >> MANTISSA ? __uint_as_float((size << CUT) + ((127 - BIAS) << 23)) : (float)size / STEPS;
        return __uint_as_float(__float_as_uint(v) | sign);
    }
    static __device__ __forceinline__ Type put(float v) {
        const unsigned bits = __float_as_uint(v), size = bits & 0x7fffffffu, sign = bits >> 24 & 0x80;
        if (size >= 0x7f800000u) return (Type)(sign | (size == 0x7f800000u ? MOST + 1 : 0x7f));
        const unsigned rounded = ((size + (1u << (CUT - 1)) - 1 + (size >> CUT & 1)) >> CUT) - ((127 - BIAS) << MANTISSA);
        const unsigned code = size < SMALLEST ? (unsigned)__float2int_rn(fabsf(v) * STEPS) : rounded;
        return (Type)(sign | (code < MOST ? code : MOST));
    }
};
typedef KvF8<3, 7, 0x7e> KvF8E4m3;
typedef KvF8<2, 15, 0x7b> KvF8E5m2;

// A block of 32 elements, of which `at` gives one and `store` makes all.
template <int BYTES>
struct KvBlock {
    unsigned short words[BYTES / 2];
};

// Elements that are stored together.
template <class Kv>
constexpr int KV_UNIT = sizeof(typename Kv::Type) > 4 ? 32 : 1;

// Elements of a cache from one on, each of which `Kv::get` takes.
template <class Kv>
struct KvElements {
    const typename Kv::Type *all;
    size_t first;
    __device__ __forceinline__ auto operator[](size_t i) const {
        if constexpr (KV_UNIT<Kv> == 1) return all[first + i];
        else return Kv::at(all[(first + i) / 32], (int)((first + i) % 32));
    }
};

template <class Kv>
__device__ __forceinline__ KvElements<Kv> kv_elements(const void *cache, size_t first = 0) {
    return {(const typename Kv::Type *)cache, first};
}

// The first value of the largest magnitude, with its sign.
__device__ __forceinline__ float kv_largest(const float *x) {
    float largest = 0.0f;
    for (int i = 0; i < 32; i++) largest = fabsf(largest) < fabsf(x[i]) ? x[i] : largest;
    return largest;
}

struct KvQ8_0 {
    typedef KvBlock<34> Type;
    static __device__ __forceinline__ float get(float v) { return v; }
    static __device__ __forceinline__ float at(const Type &from, int i) {
        return (float)(signed char)(from.words[1 + i / 2] >> (8 * (i % 2))) * KvF16::get(from.words[0]);
    }
    static __device__ void store(const float *x, Type &to) {
        const float most = fabsf(kv_largest(x)), inverse = most == 0.0f ? 0.0f : 127.0f / most;
        to.words[0] = KvF16::put(most / 127.0f);
        auto code = [&](int i) {
            const float v = __fmul_rn(x[i], inverse);
            return fabsf(v) < 2147483648.0f ? (unsigned)__float2int_rn(v) & 255 : 128; // what is no integer, as AVX has it
        };
        for (int i = 0; i < 32; i += 2) to.words[1 + i / 2] = (unsigned short)(code(i) | code(i + 1) << 8);
    }
};

// Codes of 4 or 5 bits: scale, offset where there is one, fifth bits, and codes i and i + 16 in one byte.
template <int BITS, bool OFFSET>
struct KvCodes {
    static constexpr int FIFTH = OFFSET ? 2 : 1, CODES = FIFTH + (BITS == 5 ? 2 : 0), TOP = (1 << BITS) - 1;
    typedef KvBlock<2 * (CODES + 8)> Type;
    static __device__ __forceinline__ float get(float v) { return v; }
    static __device__ __forceinline__ int code(const Type &from, int i) {
        const int low = from.words[CODES + i % 16 / 2] >> (8 * (i % 2) + i / 16 * 4) & 15;
        return BITS == 5 ? low | (from.words[FIFTH + i / 16] >> (i % 16) & 1) << 4 : low;
    }
    static __device__ __forceinline__ void pack(const int *codes, Type &to) {
        for (int i = 0; i < 16; i += 2) {
            auto byte = [&](int i) { return (codes[i] & 15) | (codes[i + 16] & 15) << 4; };
            to.words[CODES + i / 2] = (unsigned short)(byte(i) | byte(i + 1) << 8);
        }
        if (BITS == 4) return;
        unsigned fifth = 0;
        for (int i = 0; i < 32; i++) fifth |= (unsigned)(codes[i] >> 4 & 1) << i;
        to.words[FIFTH] = (unsigned short)fifth, to.words[FIFTH + 1] = (unsigned short)(fifth >> 16);
    }
};

// The scale times the code less the middle one.
template <int BITS>
struct KvCentred : KvCodes<BITS, false> {
    typedef KvCodes<BITS, false> Codes;
    static constexpr int HALF = 1 << (BITS - 1);
    static __device__ __forceinline__ float at(const typename Codes::Type &from, int i) {
        return (float)(Codes::code(from, i) - HALF) * KvF16::get(from.words[0]);
    }
    static __device__ void store(const float *x, typename Codes::Type &to) {
        const float scale = kv_largest(x) / -(float)HALF, inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
        int codes[32];
        for (int i = 0; i < 32; i++) {
            codes[i] = min(__float2int_rz(__fadd_rn(__fmul_rn(x[i], inverse), (float)HALF + 0.5f)), Codes::TOP);
        }
        to.words[0] = KvF16::put(scale);
        Codes::pack(codes, to);
    }
};
typedef KvCentred<4> KvQ4_0;
typedef KvCentred<5> KvQ5_0;

// The scale times the code, plus the offset.
template <int BITS>
struct KvOffset : KvCodes<BITS, true> {
    typedef KvCodes<BITS, true> Codes;
    static __device__ __forceinline__ float at(const typename Codes::Type &from, int i) {
        return __fadd_rn(__fmul_rn((float)Codes::code(from, i), KvF16::get(from.words[0])), KvF16::get(from.words[1]));
    }
    static __device__ void store(const float *x, typename Codes::Type &to) {
        float low = x[0], high = x[0];
        for (int i = 1; i < 32; i++) low = fminf(low, x[i]), high = fmaxf(high, x[i]);
        const float scale = __fsub_rn(high, low) / (float)Codes::TOP, inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
        int codes[32];
        for (int i = 0; i < 32; i++) {
            codes[i] = min(__float2int_rz(__fadd_rn(__fmul_rn(__fsub_rn(x[i], low), inverse), 0.5f)), Codes::TOP);
        }
        to.words[0] = KvF16::put(scale), to.words[1] = KvF16::put(low);
        Codes::pack(codes, to);
    }
};
typedef KvOffset<4> KvQ4_1;
typedef KvOffset<5> KvQ5_1;

static __device__ const signed char KV_LEVELS[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// The scale times a number of the table.
struct KvIq4Nl : KvCodes<4, false> {
    static __device__ __forceinline__ float at(const Type &from, int i) {
        return (float)KV_LEVELS[code(from, i)] * KvF16::get(from.words[0]);
    }
    // The number nearest to x; of two as near, the larger.
    static __device__ __forceinline__ int nearest(float x) {
        int above = 0;
        while (above < 16 && (float)KV_LEVELS[above] <= x) above++;
        if (above == 0) return 0;
        return above == 16 || __fsub_rn(x, (float)KV_LEVELS[above - 1]) < __fsub_rn((float)KV_LEVELS[above], x) ? above - 1 : above;
    }
    static __device__ void store(const float *x, Type &to) {
        const float largest = kv_largest(x);
        int codes[32] = {};
        float scale = 0.0f;
        if (fabsf(largest) >= 1e-15f) {
            const float inverse = 1.0f / (largest / -127.0f);
            // The scale that is best for these codes, large values before small ones.
            float with_values = 0.0f, of_squares = 0.0f;
            for (int i = 0; i < 32; i++) {
                codes[i] = nearest(__fmul_rn(x[i], inverse));
                const float level = (float)KV_LEVELS[codes[i]], weighted = __fmul_rn(__fmul_rn(x[i], x[i]), level);
                with_values = __fadd_rn(with_values, __fmul_rn(weighted, x[i]));
                of_squares = __fadd_rn(of_squares, __fmul_rn(weighted, level));
            }
            if (of_squares > 0.0f) scale = with_values / of_squares;
        }
        to.words[0] = KvF16::put(scale);
        pack(codes, to);
    }
};
