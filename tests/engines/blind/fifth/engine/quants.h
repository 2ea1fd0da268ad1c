// Block formats: a group of weights of a row as f32.
#pragma once
#include "gguf.h"

enum Type : uint32_t { F32 = 0, F16 = 1, Q4_0 = 2, Q8_0 = 8, Q4_K = 12, Q6_K = 14 };

inline float half_to_float(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
    uint32_t bits;
    if (exponent == 31) bits = sign | 0x7f800000u | fraction << 13;
    else if (exponent) bits = sign | (exponent + 112) << 23 | fraction << 13;
    else {
        const float v = (float)fraction * (1.0f / 16777216.0f);
        std::memcpy(&bits, &v, 4);
        bits |= sign;
    }
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}

// To the nearest, ties to even.
inline uint16_t float_to_half(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000u) { // a subnormal half
        float a;
        std::memcpy(&a, &magnitude, 4);
        const float scaled = a * 16777216.0f;
        const float whole = (scaled + 8388608.0f) - 8388608.0f;
        return (uint16_t)(sign | (uint32_t)whole);
    }
    const uint32_t odd = magnitude >> 13 & 1;
    return (uint16_t)(sign | ((magnitude + 0xfff + odd - 0x38000000u) >> 13));
}

inline uint16_t u16_at(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

// Weights of a block, and its bytes.
inline int block_weights(uint32_t type) { return type == F32 || type == F16 ? 1 : type == Q4_0 || type == Q8_0 ? 32 : 256; }
inline int block_bytes(uint32_t type) {
    switch (type) {
    case F32: return 4;
    case F16: return 2;
    case Q4_0: return 18;
    case Q8_0: return 34;
    case Q4_K: return 144;
    case Q6_K: return 210;
    default: fail("a format that is not supported: " + std::to_string(type));
    }
}

// 32 weights a block: a scale, and four bits a weight, the low nibbles first.
inline void unpack_q4_0(const uint8_t *block, float *y) {
    const float d = half_to_float(u16_at(block));
    const uint8_t *q = block + 2;
    for (int i = 0; i < 16; i++) {
        y[i] = (float)((q[i] & 15) - 8) * d;
        y[i + 16] = (float)((q[i] >> 4) - 8) * d;
    }
}

inline void unpack_q8_0(const uint8_t *block, float *y) {
    const float d = half_to_float(u16_at(block));
    const int8_t *q = (const int8_t *)(block + 2);
    for (int i = 0; i < 32; i++) y[i] = (float)q[i] * d;
}

// The six-bit scale and minimum of sub-block j of eight.
inline void scale_and_min(const uint8_t *s, int j, int &scale, int &min) {
    if (j < 4) {
        scale = s[j] & 63;
        min = s[j + 4] & 63;
    } else {
        scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        min = (s[j + 4] >> 4) | (s[j] >> 6) << 4;
    }
}

// Sub-block j of 32 weights of a block of 256.
inline void unpack_q4_k(const uint8_t *block, int j, float *y) {
    const float d = half_to_float(u16_at(block)), dmin = half_to_float(u16_at(block + 2));
    int scale, min;
    scale_and_min(block + 4, j, scale, min);
    const uint8_t *q = block + 16 + 32 * (j / 2);
    const float s = d * (float)scale, m = dmin * (float)min;
    for (int i = 0; i < 32; i++) y[i] = s * (float)(j % 2 ? q[i] >> 4 : q[i] & 15) - m;
}

inline void unpack_q6_k(const uint8_t *block, int j, float *y) {
    const int half = j / 4, group = j % 4;
    const uint8_t *low = block + 64 * half + 32 * (group % 2), *high = block + 128 + 32 * half;
    const int8_t *scales = (const int8_t *)(block + 192);
    const float d = half_to_float(u16_at(block + 208));
    for (int i = 0; i < 32; i++) {
        const int nibble = group < 2 ? low[i] & 15 : low[i] >> 4, top = high[i] >> (2 * group) & 3;
        const float s = d * (float)scales[8 * half + 2 * group + i / 16];
        y[i] = s * (float)((nibble | top << 4) - 32);
    }
}

// Weights `from` to `from + count` of a row; of block formats whole sub-blocks of 32.
inline void unpack(uint32_t type, const uint8_t *row, int from, int count, float *y) {
    switch (type) {
    case F32: std::memcpy(y, row + 4 * (size_t)from, 4 * (size_t)count); break;
    case F16:
        for (int i = 0; i < count; i++) y[i] = half_to_float(u16_at(row + 2 * (size_t)(from + i)));
        break;
    default:
        for (int i = 0; i < count; i += 32) {
            const int at = from + i;
            if (type == Q4_0) unpack_q4_0(row + (size_t)(at / 32) * 18, y + i);
            else if (type == Q8_0) unpack_q8_0(row + (size_t)(at / 32) * 34, y + i);
            else if (type == Q4_K) unpack_q4_k(row + (size_t)(at / 256) * 144, at % 256 / 32, y + i);
            else unpack_q6_k(row + (size_t)(at / 256) * 210, at % 256 / 32, y + i);
        }
    }
}
