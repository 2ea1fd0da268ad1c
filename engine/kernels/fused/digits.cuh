#pragma once

#include "fused/decode.cuh"

// A vector as the tensor cores take it, to f32 accuracy: one column for each part of
// its elements.
//
// For weights that are integers the elements of a group of 32, or of a block of 256 where
// the weights come by such blocks, become integers of 31 bits, relative to the largest of
// them, and these four digits of 8 bits. For floats an element of a group is split into
// three parts. Both are exact but for what is below 2^-30 of the largest.

// Bytes of a group of x in shared memory: its four digits or three parts, and 8 of scale and sum.
constexpr int INTEGER_GROUP = 136;
constexpr int FLOAT_GROUP = 200;

// 2^(bits - 127), of the exponent's bits alone.
__device__ __forceinline__ float power(u32 bits) { return __uint_as_float(bits << 23); }

// The power of two that takes a group whose largest magnitude has these bits to
// below 2^(to + 1), and its inverse; NaN where the group holds no number.
__device__ __forceinline__ void scale_of(u32 largest, int to, float &scale, float &inverse) {
    const u32 bits = largest >> 23;
    const u32 up = min(127u + to + 127u - bits, 253u);
    scale = power(up);
    inverse = bits >= 255 ? __uint_as_float(0x7fffffff) : power(254 - up);
}

// x in shared memory, prepared for a format.
struct Vector {
    u8 *groups;
    float2 *scales; // per group: inverse scale, and sum of the elements
};

// x as digits. Layout of a group: four digits of 32 elements, those of elements 4w .. 4w + 3
// as word w % 4 * 2 + w / 4, so that a lane's two words are side by side.
struct Digits {
    static constexpr int BLOCK = 32; // elements that share a scale
    static constexpr int GROUP = INTEGER_GROUP - 8;
    // Elements 4w .. 4w + 3 of a group whose largest magnitude is given; the inverse scale.
    static __device__ __forceinline__ float put(u8 *group, int w, float4 v, u32 largest) {
        float scale, inverse;
        scale_of(largest, 29, scale, inverse);
        // Digits from -128 to 127: what a lower one is too large goes to the next.
        auto digits = [&](float e) { return (u32)(__float2int_rn(e * scale) + 0x00808080) ^ 0x00808080u; };
        const u32 a = digits(v.x), b = digits(v.y), c = digits(v.z), d = digits(v.w);
        const u32 ab = __byte_perm(a, b, 0x5140), cd = __byte_perm(c, d, 0x5140);
        const u32 ab2 = __byte_perm(a, b, 0x7362), cd2 = __byte_perm(c, d, 0x7362);
        u32 *to = (u32 *)group + w % 4 * 2 + w / 4;
        to[0] = __byte_perm(ab, cd, 0x5410);
        to[8] = __byte_perm(ab, cd, 0x7632);
        to[16] = __byte_perm(ab2, cd2, 0x5410);
        to[24] = __byte_perm(ab2, cd2, 0x7632);
        return inverse;
    }
    // This lane's words of group j.
    static __device__ __forceinline__ uint2 at(const Vector &x, int j, int lane) {
        return lane < 16 ? ((const uint2 *)(x.groups + j * GROUP))[lane] : make_uint2(0, 0);
    }
    // What the sums of a lane's two columns weigh: 1 and 256, and this.
    static __device__ __forceinline__ float worth(int lane) {
        return lane % 4 == 0 ? 1.0f : lane % 4 == 1 ? 65536.0f : 0.0f;
    }
    static __device__ __forceinline__ float value(int low, int high) { return (float)(low + 256 * high); }
};

// As digits of one scale for a block of 256: the products of its groups can then be
// weighed with the integer scales of these and added, exactly, before they are floats.
//
// All eight columns of a product are used: the first four are the digits that meet the
// first half of what is multiplied, the others those that meet the second.
struct BlockDigits : Digits {
    static constexpr int BLOCK = 256;
    // A lane's word for the half that its columns meet.
    static __device__ __forceinline__ uint2 beside_zero(u32 word, int lane) {
        return lane < 16 ? make_uint2(word, 0) : make_uint2(0, word);
    }
    // Elements 4t .. 4t + 3 and those 16 further on, of group j for the first columns and of j + 1 for the others.
    static __device__ __forceinline__ uint2 of_pair(const Vector &x, int j, int lane) {
        return ((const uint2 *)(x.groups + j * GROUP))[lane];
    }
    // Elements 4t .. 4t + 3 of group j for the first columns, and those 16 further on for the others.
    static __device__ __forceinline__ u32 of_halves(const Vector &x, int j, int lane) {
        return ((const u32 *)(x.groups + j * GROUP))[lane % 16 * 2 + lane / 16];
    }
    // What the sums of a lane's two columns weigh: 1 and 256, and this.
    static __device__ __forceinline__ float worth(int lane) { return lane % 2 == 0 ? 1.0f : 65536.0f; }
    static __device__ __forceinline__ float value(int low, int high) { return fmaf((float)high, 256.0f, (float)low); }
};

// x as three parts. Layout of a group: part by part 32 elements of two bytes, in the order of WORDS.
template <typename Part>
struct Parts {
    static constexpr int BLOCK = 32;
    static constexpr int GROUP = FLOAT_GROUP - 8;
    static __device__ __forceinline__ float put(u8 *group, int w, float4 v, u32 largest) {
        float scale, inverse;
        Part::scale(largest, scale, inverse);
        float e[4] = {v.x * scale, v.y * scale, v.z * scale, v.w * scale};
#pragma unroll
        for (int part = 0; part < 3; part++) {
            u16 *to = (u16 *)(group + 64 * part);
#pragma unroll
            for (int i = 0; i < 4; i++) to[Part::place(4 * w + i)] = Part::split(e[i]);
        }
        return inverse;
    }
    // This lane's words of step `step` of the two of group j.
    static __device__ __forceinline__ uint2 at(const Vector &x, int j, int step, int lane) {
        const u8 *group = x.groups + j * GROUP;
        return lane < 12 ? ((const uint2 *)(group + lane / 4 * 64 + step * 32))[lane % 4] : make_uint2(0, 0);
    }
};

// Where element k of a group stands: elements 2t, 2t + 1 and 2t + 8, 2t + 9 of a
// step of 16 are lane t's.
__device__ __forceinline__ int place_of_pairs(int k) {
    return k / 16 * 16 + k % 8 / 2 * 4 + k % 16 / 8 * 2 + k % 2;
}

// To the nearest even half.
__device__ __forceinline__ u16 bits_of_half(float v) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v));
    return bits;
}

struct HalfPart { // of 11 bits each
    static __device__ __forceinline__ void scale(u32 largest, float &scale, float &inverse) {
        scale_of(largest, 14, scale, inverse);
    }
    static __device__ __forceinline__ u16 split(float &v) {
        const u16 bits = bits_of_half(v);
        v -= half_bits(bits);
        return bits;
    }
    static __device__ __forceinline__ int place(int k) { return place_of_pairs(k); }
};
// Two numbers as halves in one word, the first in its lower bits.
__device__ __forceinline__ u32 pair_of_halves(float a, float b) {
    u32 bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(b), "f"(a));
    return bits;
}
// Two numbers as two pairs of halves.
__device__ __forceinline__ void split_two(float a, float b, u32 &high, u32 &low) {
    high = pair_of_halves(a, b);
    low = pair_of_halves(a - half_bits((u16)high), b - half_bits((u16)(high >> 16)));
}
struct BrainPart { // of 8 bits each
    static __device__ __forceinline__ void scale(u32, float &scale, float &inverse) { scale = inverse = 1.0f; }
    static __device__ __forceinline__ u16 split(float &v) {
        const u32 bits = __float_as_uint(v) & 0xffff0000u;
        // What is no number has no rest.
        v = (bits & 0x7f800000u) == 0x7f800000u ? 0.0f : v - __uint_as_float(bits);
        return (u16)(bits >> 16);
    }
    static __device__ __forceinline__ int place(int k) { return place_of_pairs(k); }
};
struct SplitPart : BrainPart { // elements t, t + 4 and t + 8, t + 12 of a step are lane t's
    static __device__ __forceinline__ int place(int k) { return k / 16 * 16 + k % 4 * 4 + k % 16 / 4; }
};

// Groups of a vector of n elements in shared memory: an even number.
__device__ __forceinline__ int padded_groups(int n) { return (n / 32 + 1) / 2 * 2; }

// The largest of a warp's.
__device__ __forceinline__ u32 warp_largest(u32 v) {
    u32 largest;
    asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(largest) : "r"(v));
    return largest;
}

// Which four elements a thread takes as its k-th: warps take RUN times 32 fours that stand side by side.
template <int RUN>
__device__ __forceinline__ int four_of(int k) {
    if constexpr (RUN == 1) return k * (int)blockDim.x + (int)threadIdx.x;
    const int lane = threadIdx.x % 32;
    return k / RUN * RUN * (int)blockDim.x + RUN * ((int)threadIdx.x - lane) + k % RUN * 32 + lane;
}

// Formats that take groups by two meet one of zeros after an odd number.
template <typename X>
__device__ __forceinline__ void pad(u8 *shared, int n) {
    const int groups = padded_groups(n);
    if (32 * groups == n) return;
    for (int i = threadIdx.x; i < X::GROUP / 4; i += blockDim.x) ((u32 *)(shared + (groups - 1) * X::GROUP))[i] = 0;
    if (threadIdx.x == 0) ((float2 *)(shared + groups * X::GROUP))[groups - 1] = make_float2(0.0f, 0.0f);
}

// Makes a vector but for its padding: get(i) gives elements 4i .. 4i + 3 and is called by whole warps,
// RUN * AT_ONCE times before the first is used. The largest of a group or of a block and the
// sum of a group, where SUMS asks for it, come from the threads that hold them: a block of
// 256 is two fours of each thread of a warp, so that RUN is 2 where there are such. ONCE: no thread has more than it loads at once.
template <typename X, int RUN, int AT_ONCE, bool SUMS, bool ONCE = false, typename Get>
__device__ __forceinline__ Vector prepare(u8 *shared, int n, Get get) {
    static_assert(X::BLOCK <= 128 * RUN, "a warp must hold what shares a scale");
    const int groups = padded_groups(n), items = n / 4;
    const Vector x = {shared, (float2 *)(shared + groups * X::GROUP)};
#pragma unroll 1
    for (int k0 = 0; four_of<RUN>(k0) - (int)threadIdx.x % 32 < items; k0 += RUN * AT_ONCE) {
        // Whether the warp has anything to do in a run.
        auto any = [&](int run) { return four_of<RUN>(k0 + run) - (int)threadIdx.x % 32 < items; };
        float4 all[RUN * AT_ONCE];
#pragma unroll
        for (int k = 0; k < RUN * AT_ONCE; k++) {
            if (RUN == 1 || any(k / RUN * RUN)) all[k] = get(min(four_of<RUN>(k0 + k), items - 1));
        }
#pragma unroll
        for (int run = 0; run < RUN * AT_ONCE; run += RUN) {
            if (RUN > 1 && !any(run)) break;
            u32 largest[RUN];
            float sum[RUN];
#pragma unroll
            for (int k = 0; k < RUN; k++) {
                const float4 v = all[run + k];
                auto magnitude = [](float e) { return __float_as_uint(e) & 0x7fffffffu; };
                // As integers, NaN is the largest of all.
                largest[k] = max(max(magnitude(v.x), magnitude(v.y)), max(magnitude(v.z), magnitude(v.w)));
                sum[k] = SUMS ? (v.x + v.y) + (v.z + v.w) : 0.0f;
#pragma unroll
                for (int step = 1; step < 8; step *= 2) {
                    if (X::BLOCK == 32) largest[k] = max(largest[k], __shfl_xor_sync(0xffffffffu, largest[k], step));
                    if (SUMS) sum[k] += __shfl_xor_sync(0xffffffffu, sum[k], step);
                }
            }
            if constexpr (X::BLOCK == 256) largest[0] = largest[1] = warp_largest(max(largest[0], largest[1]));
#pragma unroll
            for (int k = 0; k < RUN; k++) {
                const int i = four_of<RUN>(k0 + run + k);
                if (i < items) {
                    const float inverse = X::put(x.groups + i / 8 * X::GROUP, i % 8, all[run + k], largest[k]);
                    if (i % 8 == 0) x.scales[i / 8] = make_float2(inverse, sum[k]);
                }
            }
        }
        if (ONCE) break;
    }
    return x;
}
