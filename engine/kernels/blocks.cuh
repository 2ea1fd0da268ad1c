#pragma once

// ggml's block formats on the device: 32 weights at a time, each exactly as
// ggml's to_float rounds it (no fused multiply-add).
//
// At load a tensor's blocks are taken apart into planes, one per field of the
// block, each holding that field of every block in file order: then every field
// is aligned and a warp reads it in wide loads. `engine/src/cuda/weights.rs`
// says which bytes go where. A group is 32 consecutive weights of a row; the
// groups of a tensor are numbered through, row after row.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;

// The planes of one tensor.
struct Weights {
    const u8 *plane[4];
};

__device__ __forceinline__ float half_bits(u16 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

__device__ __forceinline__ u16 at16(const u8 *plane, size_t i) { return ((const u16 *)plane)[i]; }
__device__ __forceinline__ u32 at32(const u8 *plane, size_t i) { return ((const u32 *)plane)[i]; }
__device__ __forceinline__ uint4 at128(const u8 *plane, size_t i) { return ((const uint4 *)plane)[i]; }

// Small unsigned integers as floats, exactly: the mantissa of 2^23 + v.
__device__ __forceinline__ float small(u32 v) { return __uint_as_float(0x4b000000u | v) - 8388608.0f; }

// Byte i of a vector, i known at compile time.
__device__ __forceinline__ u32 byte_of(const uint4 &v, int i) {
    const u32 word = i < 4 ? v.x : i < 8 ? v.y : i < 12 ? v.z : v.w;
    return (word >> (8 * (i % 4))) & 255;
}

// A format: Raw is what a thread loads of a group, load fetches it, unpack makes
// 32 floats of it.

// Bits first..first + 3 of v, each as 16 in a byte of its own.
__device__ __forceinline__ u32 fifth_bits(u32 v, int first) { return (((v >> first) & 15) * 0x02040810u) & 0x10101010u; }

struct F32 {
    struct Raw { uint4 v[8]; };
    static __device__ __forceinline__ Raw load(const Weights &w, size_t g) {
        Raw r;
#pragma unroll
        for (int i = 0; i < 8; i++) r.v[i] = at128(w.plane[0], 8 * g + i);
        return r;
    }
    static __device__ __forceinline__ void unpack(const Raw &r, int, float *out) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            out[4 * i] = __uint_as_float(r.v[i].x);
            out[4 * i + 1] = __uint_as_float(r.v[i].y);
            out[4 * i + 2] = __uint_as_float(r.v[i].z);
            out[4 * i + 3] = __uint_as_float(r.v[i].w);
        }
    }
};

// Two-byte floats; Convert makes a float of the bits.
template <typename Convert>
struct TwoBytes {
    struct Raw { uint4 v[4]; };
    static __device__ __forceinline__ Raw load(const Weights &w, size_t g) {
        Raw r;
#pragma unroll
        for (int i = 0; i < 4; i++) r.v[i] = at128(w.plane[0], 4 * g + i);
        return r;
    }
    static __device__ __forceinline__ void unpack(const Raw &r, int, float *out) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const u32 words[4] = {r.v[i].x, r.v[i].y, r.v[i].z, r.v[i].w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                out[8 * i + 2 * j] = Convert::of((u16)words[j]);
                out[8 * i + 2 * j + 1] = Convert::of((u16)(words[j] >> 16));
            }
        }
    }
};

struct HalfToFloat {
    static __device__ __forceinline__ float of(u16 bits) { return half_bits(bits); }
};
struct BrainToFloat {
    static __device__ __forceinline__ float of(u16 bits) { return __uint_as_float((u32)bits << 16); }
};
struct F16 : TwoBytes<HalfToFloat> {};
struct BF16 : TwoBytes<BrainToFloat> {};

struct Q8_0 { // planes: 32 x i8; f16 d
    struct Raw { uint4 q[2]; u16 d; };
    static __device__ __forceinline__ Raw load(const Weights &w, size_t g) {
        return {{at128(w.plane[0], 2 * g), at128(w.plane[0], 2 * g + 1)}, at16(w.plane[1], g)};
    }
    static __device__ __forceinline__ void unpack(const Raw &r, int, float *out) {
        const float d = half_bits(r.d);
#pragma unroll
        for (int i = 0; i < 32; i++) {
            // A signed byte as 128 + v, then minus both constants at once.
            const float v = __uint_as_float(0x4b000000u | (byte_of(r.q[i / 16], i % 16) ^ 128)) - 8388736.0f;
            out[i] = __fmul_rn(v, d);
        }
    }
};

// Four bits a weight, the low nibbles the first 16, and HIGH a fifth bit; MIN
// whether a minimum is beside the scale, else the middle is subtracted.
template <bool HIGH, bool MIN>
struct Nibbles { // planes: 16 bytes of nibbles; [u32 high bits;] f16 d [, f16 m]
    struct Raw { uint4 q; u32 high; u32 dm; };
    static __device__ __forceinline__ Raw load(const Weights &w, size_t g) {
        const u8 *scales = w.plane[HIGH ? 2 : 1];
        return {at128(w.plane[0], g), HIGH ? at32(w.plane[1], g) : 0, MIN ? at32(scales, g) : at16(scales, g)};
    }
    static __device__ __forceinline__ void unpack(const Raw &r, int, float *out) {
        const float d = half_bits((u16)r.dm), m = half_bits((u16)(r.dm >> 16));
#pragma unroll
        for (int i = 0; i < 32; i++) {
            const u32 byte = byte_of(r.q, i % 16);
            u32 q = i < 16 ? byte & 15 : byte >> 4;
            if (HIGH) q |= ((r.high >> i) & 1) << 4;
            if (MIN) {
                out[i] = __fadd_rn(__fmul_rn(small(q), d), m);
            } else {
                out[i] = __fmul_rn(small(q) - (HIGH ? 16.0f : 8.0f), d);
            }
        }
    }
};
struct Q4_0 : Nibbles<false, false> {};
struct Q4_1 : Nibbles<false, true> {};
struct Q5_0 : Nibbles<true, false> {};
struct Q5_1 : Nibbles<true, true> {};

// Byte i of the 16 that head a Q4_K or Q5_K block, i known only at run time.
__device__ __forceinline__ u32 head_byte(const uint4 &v, int i) {
    const u32 word = i < 8 ? (i < 4 ? v.x : v.y) : (i < 12 ? v.z : v.w);
    return (word >> (8 * (i % 4))) & 255;
}

// Scale and minimum of group j of 8: 6 bits each, packed in 12 bytes after the
// two halves that scale them.
__device__ __forceinline__ u32 min_of(const uint4 &head, int j) {
    const u32 mid = head_byte(head, 8 + (j & 3)), top = head_byte(head, 12 + (j & 3));
    return j < 4 ? mid & 63 : (top >> 4) | ((mid >> 6) << 4);
}
__device__ __forceinline__ u32 scale_of_group(const uint4 &head, int j) {
    const u32 low = head_byte(head, 4 + (j & 3)), top = head_byte(head, 12 + (j & 3));
    return j < 4 ? low & 63 : (top & 15) | ((low >> 6) << 4);
}
__device__ __forceinline__ void scale_min(const uint4 &head, int j, float &scale, float &min) {
    scale = __fmul_rn(half_bits((u16)head.x), small(scale_of_group(head, j)));
    min = __fmul_rn(half_bits((u16)(head.x >> 16)), small(min_of(head, j)));
}

// Blocks of 256: groups 2k and 2k + 1 are the low and high nibbles of the same
// 32 bytes; HIGH a fifth bit, bit j of 32 bytes for group j.
template <bool HIGH>
struct KNibbles { // planes: 128 bytes of nibbles; [32 bytes of high bits;] d, dmin, scales
    struct Raw { uint4 q[2]; uint4 high[HIGH ? 2 : 1]; uint4 head; };
    static __device__ __forceinline__ Raw load(const Weights &w, size_t g) {
        const size_t block = g / 8, pair = 8 * block + 2 * ((g % 8) / 2);
        Raw r;
        r.q[0] = at128(w.plane[0], pair);
        r.q[1] = at128(w.plane[0], pair + 1);
        if (HIGH) {
            r.high[0] = at128(w.plane[1], 2 * block);
            r.high[HIGH ? 1 : 0] = at128(w.plane[1], 2 * block + 1);
        }
        r.head = at128(w.plane[HIGH ? 2 : 1], block);
        return r;
    }
    static __device__ __forceinline__ void unpack(const Raw &r, int j, float *out) {
        float scale, min;
        scale_min(r.head, j, scale, min);
        const int shift = 4 * (j & 1);
#pragma unroll
        for (int i = 0; i < 32; i++) {
            u32 q = (byte_of(r.q[i / 16], i % 16) >> shift) & 15;
            if (HIGH) q |= ((byte_of(r.high[HIGH ? i / 16 : 0], i % 16) >> j) & 1) << 4;
            out[i] = __fsub_rn(__fmul_rn(scale, small(q)), min);
        }
    }
};
struct Q4_K : KNibbles<false> {};
struct Q5_K : KNibbles<true> {};

struct Q6_K { // planes: 128 bytes of low nibbles; 64 of high pairs; 16 x i8 scales; f16 d
    struct Raw { uint4 low[2]; uint4 high[2]; u16 scales; u16 d; };
    static __device__ __forceinline__ Raw load(const Weights &w, size_t g) {
        const size_t block = g / 8;
        const int j = g % 8, half = j / 4, group = j % 4;
        Raw r;
        r.low[0] = at128(w.plane[0], 8 * block + 4 * half + 2 * (group % 2));
        r.low[1] = at128(w.plane[0], 8 * block + 4 * half + 2 * (group % 2) + 1);
        r.high[0] = at128(w.plane[1], 4 * block + 2 * half);
        r.high[1] = at128(w.plane[1], 4 * block + 2 * half + 1);
        r.scales = at16(w.plane[2], g);
        r.d = at16(w.plane[3], block);
        return r;
    }
    static __device__ __forceinline__ void unpack(const Raw &r, int j, float *out) {
        const int group = j % 4;
        const float d = half_bits(r.d);
        const float scale[2] = {__fmul_rn(d, (float)(signed char)(r.scales & 255)),
                                __fmul_rn(d, (float)(signed char)(r.scales >> 8))};
#pragma unroll
        for (int i = 0; i < 32; i++) {
            const u32 low = (byte_of(r.low[i / 16], i % 16) >> (group < 2 ? 0 : 4)) & 15;
            const u32 high = (byte_of(r.high[i / 16], i % 16) >> (2 * group)) & 3;
            out[i] = __fmul_rn(scale[i / 16], small(low | (high << 4)) - 32.0f);
        }
    }
};
