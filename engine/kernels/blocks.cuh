// ggml's block formats on the device: the value of weight i of a row, exactly
// as ggml's to_float rounds it (no fused multiply-add), from the bytes as they
// stand in the file. Put in front of every kernel that reads weights.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;

__device__ __forceinline__ u16 load16(const u8 *p) { return (u16)(p[0] | (p[1] << 8)); }

__device__ __forceinline__ u32 load32(const u8 *p) {
    return (u32)p[0] | ((u32)p[1] << 8) | ((u32)p[2] << 16) | ((u32)p[3] << 24);
}

__device__ __forceinline__ float half_at(const u8 *p) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(load16(p)));
    return f;
}

// Scale and minimum of sub-block j of a Q4_K or Q5_K block: 6 bits each, packed
// in 12 bytes.
__device__ __forceinline__ void scale_min(const u8 *s, int j, float &scale, float &min) {
    int sc, m;
    if (j < 4) {
        sc = s[j] & 63;
        m = s[j + 4] & 63;
    } else {
        sc = (s[j + 4] & 15) | ((s[j - 4] >> 6) << 4);
        m = (s[j + 4] >> 4) | ((s[j] >> 6) << 4);
    }
    scale = (float)sc;
    min = (float)m;
}

struct F32 {
    static __device__ __forceinline__ float at(const u8 *row, int i) {
        return __uint_as_float(load32(row + 4 * (size_t)i));
    }
};

struct F16 {
    static __device__ __forceinline__ float at(const u8 *row, int i) {
        return half_at(row + 2 * (size_t)i);
    }
};

struct BF16 {
    static __device__ __forceinline__ float at(const u8 *row, int i) {
        return __uint_as_float((u32)load16(row + 2 * (size_t)i) << 16);
    }
};

struct Q8_0 { // f16 d, 32 x i8
    static __device__ __forceinline__ float at(const u8 *row, int i) {
        const u8 *b = row + (size_t)(i / 32) * 34;
        return __fmul_rn((float)(signed char)b[2 + i % 32], half_at(b));
    }
};

__device__ __forceinline__ int nibble(const u8 *qs, int i) {
    return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4;
}

struct Q4_0 { // f16 d, 16 bytes of nibbles
    static __device__ __forceinline__ float at(const u8 *row, int i) {
        const u8 *b = row + (size_t)(i / 32) * 18;
        return __fmul_rn((float)(nibble(b + 2, i % 32) - 8), half_at(b));
    }
};

struct Q4_1 { // f16 d, f16 m, 16 bytes of nibbles
    static __device__ __forceinline__ float at(const u8 *row, int i) {
        const u8 *b = row + (size_t)(i / 32) * 20;
        return __fadd_rn(__fmul_rn((float)nibble(b + 4, i % 32), half_at(b)), half_at(b + 2));
    }
};

struct Q5_0 { // f16 d, 32 high bits, 16 bytes of nibbles
    static __device__ __forceinline__ float at(const u8 *row, int i) {
        const u8 *b = row + (size_t)(i / 32) * 22;
        const int j = i % 32;
        const int q = nibble(b + 6, j) | (int)(((load32(b + 2) >> j) & 1) << 4);
        return __fmul_rn((float)(q - 16), half_at(b));
    }
};

struct Q5_1 { // f16 d, f16 m, 32 high bits, 16 bytes of nibbles
    static __device__ __forceinline__ float at(const u8 *row, int i) {
        const u8 *b = row + (size_t)(i / 32) * 24;
        const int j = i % 32;
        const int q = nibble(b + 8, j) | (int)(((load32(b + 4) >> j) & 1) << 4);
        return __fadd_rn(__fmul_rn((float)q, half_at(b)), half_at(b + 2));
    }
};

struct Q4_K { // f16 d, f16 dmin, 12 bytes of scales, 128 bytes of nibbles
    static __device__ __forceinline__ float at(const u8 *row, int i) {
        const u8 *b = row + (size_t)(i / 256) * 144;
        const int j = i % 256;
        float scale, min;
        scale_min(b + 4, j / 32, scale, min);
        const u8 q = b[16 + (j / 64) * 32 + j % 32];
        const float v = (float)((j / 32) % 2 ? q >> 4 : q & 15);
        return __fsub_rn(__fmul_rn(__fmul_rn(half_at(b), scale), v), __fmul_rn(half_at(b + 2), min));
    }
};

struct Q5_K { // as Q4_K, with 32 bytes of high bits before the nibbles
    static __device__ __forceinline__ float at(const u8 *row, int i) {
        const u8 *b = row + (size_t)(i / 256) * 176;
        const int j = i % 256;
        float scale, min;
        scale_min(b + 4, j / 32, scale, min);
        const u8 q = b[48 + (j / 64) * 32 + j % 32];
        const int high = (b[16 + j % 32] >> (j / 32)) & 1;
        const float v = (float)(((j / 32) % 2 ? q >> 4 : q & 15) + 16 * high);
        return __fsub_rn(__fmul_rn(__fmul_rn(half_at(b), scale), v), __fmul_rn(half_at(b + 2), min));
    }
};

struct Q6_K { // 128 bytes of low nibbles, 64 of high pairs, 16 x i8 scales, f16 d
    static __device__ __forceinline__ float at(const u8 *row, int i) {
        const u8 *b = row + (size_t)(i / 256) * 210;
        const int half = (i % 256) / 128, j = i % 128, group = j / 32, l = j % 32;
        const u8 low = b[half * 64 + (group % 2) * 32 + l];
        const u8 high = b[128 + half * 32 + l];
        const int q = (group < 2 ? low & 15 : low >> 4) | (((high >> (2 * group)) & 3) << 4);
        const float scale = (float)(signed char)b[192 + half * 8 + j / 16];
        return __fmul_rn(__fmul_rn(half_at(b + 208), scale), (float)(q - 32));
    }
};
