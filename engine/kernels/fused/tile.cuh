#pragma once

#include "fused/decode.cuh"

// Rows of weights against one vector on the tensor cores, to f32 accuracy.
//
// A tile is 16 rows. It is copied into shared memory plane by plane as it
// stands, before the kernel waits; `ldmatrix` then hands every lane what the
// matrix instructions want: lane 4g + t holds words t of rows g and g + 8.
//
// Blocks of integers: the elements of x in a group of 32 become integers of 31
// bits, relative to the group's largest, and these four digits of 8 bits, which
// are four columns of the other operand. Products and sums of a group are then
// exact in 32 bits; only their scaling and the sum over groups round.
// Floats: x is split into three parts, which are three columns; parts and
// products are exact, and the tensor cores' sums, which round towards zero, end
// with the group.

constexpr int TILE = 16;
constexpr int MOST_WARPS = 8; // of a block, of which a multiprocessor holds two
// Bytes of a group of x in shared memory: its four digits or three parts, and 8 of scale and sum.
constexpr int INTEGER_GROUP = 136;
constexpr int FLOAT_GROUP = 200;

// Bytes from row to row of a plane in shared memory: an odd number of 16, so that
// the rows which ldmatrix reads at once share no bank; as they are where they are no
// multiple of 16. `tile_bytes` in engine/src/cuda/tiles.rs says the same.
__device__ __forceinline__ int pitch_of(int width) { return width % 16 == 0 ? (width / 16 | 1) * 16 : width; }
__device__ __forceinline__ int plane_bytes(int width) { return (TILE * pitch_of(width) + 15) / 16 * 16; }

// Bytes from `offset` on of `rows` rows of a plane, all threads together.
__device__ __forceinline__ void fetch_plane(const u8 *plane, size_t row_bytes, int row0, int rows, size_t offset,
                                            int width, u8 *to) {
    const u8 *from = plane + row0 * row_bytes + offset;
    const int pitch = pitch_of(width), lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    if (width % 16 == 0 && row_bytes % 16 == 0 && offset % 16 == 0) {
        for (int row = warp; row < rows; row += warps) {
            for (int i = 16 * lane; i < width; i += 16 * 32) copy16(to + row * pitch + i, from + row * row_bytes + i);
        }
    } else if (width == row_bytes) { // whole rows: their tile begins at a multiple of 16
        for (int i = 16 * threadIdx.x; i < rows * width; i += 16 * blockDim.x) copy16(to + i, from + i);
    } else {
        for (int row = warp; row < rows; row += warps) {
            for (int i = 2 * lane; i < width; i += 64) {
                *(u16 *)(to + row * pitch + i) = *(const u16 *)(from + row * row_bytes + i);
            }
        }
    }
}

// Four matrices of 8 rows of 16 bytes; this lane names one of the 32 rows.
__device__ __forceinline__ void load_matrices(u32 *r, const u8 *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((u32)__cvta_generic_to_shared(row))
                 : "memory");
}

__device__ __forceinline__ void multiply32(int *c, const u32 *a, uint2 b) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}
__device__ __forceinline__ void multiply16(int *c, u32 a0, u32 a1, u32 b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}
__device__ __forceinline__ void multiply_f16(float *c, const u32 *a, uint2 b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}
__device__ __forceinline__ void multiply_bf16(float *c, const u32 *a, uint2 b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}

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

// x as digits. Of a group: four digits of 32 elements, those of elements 4w .. 4w + 3
// as word w % 4 * 2 + w / 4, so that a lane's two words stand side by side.
struct Digits {
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

// x as three parts. Of a group: part by part 32 elements of two bytes, in the order of WORDS.
template <typename Part>
struct Parts {
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

struct HalfPart { // of 11 bits each
    static __device__ __forceinline__ void scale(u32 largest, float &scale, float &inverse) {
        scale_of(largest, 14, scale, inverse);
    }
    static __device__ __forceinline__ u16 split(float &v) {
        u16 bits;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v));
        v -= half_bits(bits);
        return bits;
    }
    static __device__ __forceinline__ int place(int k) { return place_of_pairs(k); }
};
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

// Makes a vector: get(i) gives elements 4i .. 4i + 3 and is called by whole warps,
// AT_ONCE times before the first is used. The group's largest and its sum, where SUMS
// asks for it, come from the eight threads that hold it.
template <typename X, int AT_ONCE, bool SUMS, typename Get>
__device__ __forceinline__ Vector prepare(u8 *shared, int n, Get get) {
    const Vector x = {shared, (float2 *)(shared + n / 32 * X::GROUP)};
    const int items = n / 4;
    for (int i0 = threadIdx.x; i0 - threadIdx.x % 32 < items; i0 += AT_ONCE * blockDim.x) {
        float4 all[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) all[k] = get(min(i0 + k * (int)blockDim.x, items - 1));
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int i = i0 + k * blockDim.x;
            const float4 v = all[k];
            auto magnitude = [](float e) { return __float_as_uint(e) & 0x7fffffffu; };
            // As integers, NaN is the largest of all.
            u32 largest = max(max(magnitude(v.x), magnitude(v.y)), max(magnitude(v.z), magnitude(v.w)));
            float sum = SUMS ? (v.x + v.y) + (v.z + v.w) : 0.0f;
#pragma unroll
            for (int step = 1; step < 8; step *= 2) {
                largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, step));
                if (SUMS) sum += __shfl_xor_sync(0xffffffffu, sum, step);
            }
            if (i < items) {
                const float inverse = X::put(x.groups + i / 8 * X::GROUP, i % 8, v, largest);
                if (i % 8 == 0) x.scales[i / 8] = make_float2(inverse, sum);
            }
        }
    }
    return x;
}

// One of two halves as a float, made where it stands: unpacked ahead of time, all that is
// held would take twice the registers.
__device__ __forceinline__ float half_of(u32 two, int which) {
    float f;
    if (which == 0) asm volatile("{ .reg .f16 a, b; mov.b32 {a, b}, %1; cvt.f32.f16 %0, a; }" : "=f"(f) : "r"(two));
    else asm volatile("{ .reg .f16 a, b; mov.b32 {a, b}, %1; cvt.f32.f16 %0, b; }" : "=f"(f) : "r"(two));
    return f;
}

// What a lane has of a tile's rows g and g + 8; `less` belongs to row g + 8 (t % 2).
struct Sums {
    float row[2] = {0.0f, 0.0f}, less = 0.0f;
    // All of the tile's sums, from the lanes that hold them.
    __device__ __forceinline__ void write(float *to, int lane) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float v = lane % 2 == i ? row[i] - less : row[i];
            v += __shfl_xor_sync(0xffffffffu, v, 1);
            v += __shfl_xor_sync(0xffffffffu, v, 2);
            if (lane % 4 == 0) to[lane / 4 + 8 * i] = v;
        }
    }
};

// The row of a tile whose 16 bytes this lane names to load_matrices, and which 16 of two:
// rows 0 to 7 first, or halves of all rows first.
__device__ __forceinline__ int row_by_halves(int lane) { return lane % 8 + lane / 16 * 8; }
__device__ __forceinline__ int half_by_halves(int lane) { return lane / 8 % 2; }
__device__ __forceinline__ int row_by_rows(int lane) { return lane % 8 + lane / 8 % 2 * 8; }
__device__ __forceinline__ int half_by_rows(int lane) { return lane / 16; }

// How a format's tiles are multiplied: `width` bytes of a plane for a row of so
// many groups; ATOM groups at a time; whether the sums of x's groups are needed (SUMS). `hold` unpacks those from group j of a tile
// of `groups` on into a lane's registers, as the tensor cores take them; `add` adds
// their products with x from group j0 on.
template <typename Format>
struct Tile;

template <bool HIGH, bool MIN>
struct NibblesTile {
    typedef Digits X;
    static constexpr int ATOM = 2, PLANES = HIGH ? 3 : 2, SCALE = MIN ? 4 : 2;
    static constexpr bool SUMS = MIN;
    static __device__ __forceinline__ int width(int plane, int groups) {
        return plane == 0 ? 16 * groups : HIGH && plane == 1 ? 4 * groups : SCALE * groups;
    }
    // Four integers from four nibbles and four upper bits.
    static __device__ __forceinline__ u32 integers(u32 nibbles, u32 high, int first) {
        if (HIGH && MIN) return nibbles | fifth_bits(high, first);
        if (HIGH) return nibbles | fifth_bits(~high, first) * 15; // minus 16 where the bit is 0
        if (MIN) return nibbles;
        return (nibbles & 0x07070707u) | (~nibbles & 0x08080808u) * 31; // minus 8
    }
    struct Held {
        u32 q[2][4], d[2], m[2]; // scales and minima of rows g and g + 8 as halves; groups that are not there are zero
    };
    static __device__ __forceinline__ Held hold(const u8 *tile, int groups, int j, int lane) {
        const int q_pitch = pitch_of(16 * groups), h_pitch = pitch_of(4 * groups), s_pitch = pitch_of(SCALE * groups);
        const u8 *high = tile + plane_bytes(16 * groups), *scales = HIGH ? high + plane_bytes(4 * groups) : high;
        u32 q[4];
        load_matrices(q, tile + row_by_halves(lane) * q_pitch + 16 * (j + half_by_halves(lane)));
        const int row = lane / 4, first = lane % 4 * 4;
        Held held = {};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (j + i >= groups) break;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const u32 h = HIGH ? *(const u32 *)(high + (row + 8 * r) * h_pitch + 4 * (j + i)) : 0;
                held.q[i][r] = integers(q[2 * r + i] & 0x0f0f0f0fu, h, first);
                held.q[i][2 + r] = integers((q[2 * r + i] >> 4) & 0x0f0f0f0fu, h, 16 + first);
                const u8 *scale = scales + (row + 8 * r) * s_pitch + SCALE * (j + i);
                const u32 dm = MIN ? *(const u32 *)scale : *(const u16 *)scale;
                held.d[i] |= (dm & 0xffff) << (16 * r);
                if (MIN) held.m[i] |= (dm >> 16) << (16 * r);
            }
        }
        return held;
    }
    static __device__ __forceinline__ void add(const Held &held, const Vector &x, int j0, int lane, Sums &sums) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int c[4] = {0, 0, 0, 0};
            multiply32(c, held.q[i], Digits::at(x, j0 + i, lane));
            const float2 of = x.scales[j0 + i];
            const float worth = of.x * Digits::worth(lane);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float d = half_of(held.d[i], r);
                sums.row[r] = fmaf(Digits::value(c[2 * r], c[2 * r + 1]), d * worth, sums.row[r]);
                if (MIN && lane % 4 == 0) {
                    sums.row[r] = fmaf(half_of(held.m[i], r), of.y, sums.row[r]);
                }
            }
        }
    }
};
template <>
struct Tile<Q4_0> : NibblesTile<false, false> {};
template <>
struct Tile<Q4_1> : NibblesTile<false, true> {};
template <>
struct Tile<Q5_0> : NibblesTile<true, false> {};
template <>
struct Tile<Q5_1> : NibblesTile<true, true> {};

template <>
struct Tile<Q8_0> {
    typedef Digits X;
    static constexpr int ATOM = 1, PLANES = 2;
    static constexpr bool SUMS = false;
    static __device__ __forceinline__ int width(int plane, int groups) { return (plane == 0 ? 32 : 2) * groups; }
    struct Held {
        u32 q[4], d;
    };
    static __device__ __forceinline__ Held hold(const u8 *tile, int groups, int j, int lane) {
        const int pitch = pitch_of(32 * groups), s_pitch = pitch_of(2 * groups);
        const u8 *scale = tile + plane_bytes(32 * groups) + lane / 4 * s_pitch + 2 * j;
        Held held;
        load_matrices(held.q, tile + row_by_rows(lane) * pitch + 32 * j + 16 * half_by_rows(lane));
        held.d = *(const u16 *)scale | (u32) * (const u16 *)(scale + 8 * s_pitch) << 16;
        return held;
    }
    static __device__ __forceinline__ void add(const Held &held, const Vector &x, int j0, int lane, Sums &sums) {
        int c[4] = {0, 0, 0, 0};
        multiply32(c, held.q, Digits::at(x, j0, lane));
        const float worth = x.scales[j0].x * Digits::worth(lane);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float d = half_of(held.d, r);
            sums.row[r] = fmaf(Digits::value(c[2 * r], c[2 * r + 1]), d * worth, sums.row[r]);
        }
    }
};

template <bool HIGH>
struct KNibblesTile {
    typedef Digits X;
    static constexpr int ATOM = 2, PLANES = HIGH ? 3 : 2;
    static constexpr bool SUMS = true;
    static __device__ __forceinline__ int width(int plane, int groups) {
        return plane == 0 ? 16 * groups : HIGH && plane == 1 ? 4 * groups : 2 * groups;
    }
    struct Held { // a lane unpacks scale and minimum of one of two rows in one of two groups, for all four lanes
        u32 q[2][4];
        float scale, min;
    };
    static __device__ __forceinline__ Held hold(const u8 *tile, int groups, int j, int lane) {
        const int q_pitch = pitch_of(16 * groups), h_pitch = pitch_of(4 * groups), s_pitch = pitch_of(2 * groups);
        const u8 *high = tile + plane_bytes(16 * groups), *heads = HIGH ? high + plane_bytes(4 * groups) : high;
        const int block = j / 8, row_of = row_by_halves(lane), half = half_by_halves(lane);
        u32 q[4], h[4] = {0, 0, 0, 0};
        load_matrices(q, tile + row_of * q_pitch + 16 * (j + half));
        if (HIGH) load_matrices(h, high + row_of * h_pitch + 16 * (2 * block + half));
        Held held;
        const u8 *head = heads + (lane / 4 + 8 * (lane % 2)) * s_pitch + 16 * block;
        scale_min(*(const uint4 *)head, (j + lane % 4 / 2) % 8, held.scale, held.min);
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int k = 0; k < 4; k++) { // rows g, g + 8 of the first 16 bytes, then of the second
                const int from = k % 2 * 2 + k / 2;
                held.q[i][k] = (q[from] >> (4 * i)) & 0x0f0f0f0fu;
                if (HIGH) held.q[i][k] |= ((h[from] >> ((j + i) % 8)) & 0x01010101u) << 4;
            }
        }
        return held;
    }
    static __device__ __forceinline__ void add(const Held &held, const Vector &x, int j0, int lane, Sums &sums) {
        const float2 of = x.scales[j0 + lane % 4 / 2];
        sums.less = fmaf(held.min, of.y, sums.less);
        const float product = held.scale * of.x;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int c[4] = {0, 0, 0, 0};
            multiply32(c, held.q[i], Digits::at(x, j0 + i, lane));
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float of_row = __shfl_sync(0xffffffffu, product, lane / 4 * 4 + 2 * i + r);
                sums.row[r] = fmaf(Digits::value(c[2 * r], c[2 * r + 1]), of_row * Digits::worth(lane), sums.row[r]);
            }
        }
    }
};
template <>
struct Tile<Q4_K> : KNibblesTile<false> {};
template <>
struct Tile<Q5_K> : KNibblesTile<true> {};

template <>
struct Tile<Q6_K> {
    typedef Digits X;
    static constexpr int ATOM = 4, PLANES = 4; // half a block: its groups share their bytes
    static constexpr bool SUMS = false;
    static __device__ __forceinline__ int width(int plane, int groups) {
        return plane == 0 ? 16 * groups : plane == 1 ? 8 * groups : plane == 2 ? 2 * groups : groups / 4;
    }
    struct Held {
        u32 q[4][4], scales[4], d; // two scales of row g and two of row g + 8; both rows' d
    };
    static __device__ __forceinline__ Held hold(const u8 *tile, int groups, int j, int lane) {
        const u8 *high = tile + plane_bytes(16 * groups), *scales = high + plane_bytes(8 * groups);
        const u8 *ds = scales + plane_bytes(2 * groups);
        const int q_pitch = pitch_of(16 * groups), h_pitch = pitch_of(8 * groups), s_pitch = pitch_of(2 * groups);
        const int d_pitch = pitch_of(groups / 4), row_of = row_by_halves(lane), half = half_by_halves(lane);
        u32 q[2][4], h[4];
        load_matrices(q[0], tile + row_of * q_pitch + 16 * (j + half));
        load_matrices(q[1], tile + row_of * q_pitch + 16 * (j + 2 + half));
        load_matrices(h, high + row_of * h_pitch + 8 * j + 16 * half);
        Held held;
        auto of_rows = [&](const u8 *first, int pitch) {
            return *(const u16 *)(first + lane / 4 * pitch) | (u32) * (const u16 *)(first + (lane / 4 + 8) * pitch) << 16;
        };
        held.d = of_rows(ds + 2 * (j / 8), d_pitch);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            held.scales[i] = of_rows(scales + 2 * (j + i), s_pitch);
#pragma unroll
            for (int k = 0; k < 4; k++) { // rows g, g + 8 of the first 16 bytes, then of the second
                const int from = k % 2 * 2 + k / 2;
                // Minus 32: the upper of six bits turned round and carried on to the sign.
                const u32 low = (q[i % 2][from] >> (i < 2 ? 0 : 4)) & 0x0f0f0f0fu;
                const u32 upper = (h[from] >> (2 * i)) ^ 0x02020202u;
                held.q[i][k] = low | (upper << 4 & 0x10101010u) | (upper << 4 & 0x20202020u) * 7;
            }
        }
        return held;
    }
    static __device__ __forceinline__ void add(const Held &held, const Vector &x, int j0, int lane, Sums &sums) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint2 b = Digits::at(x, j0 + i, lane);
            int c[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
            multiply16(c[0], held.q[i][0], held.q[i][1], b.x);
            multiply16(c[1], held.q[i][2], held.q[i][3], b.y);
            const float worth = x.scales[j0 + i].x * Digits::worth(lane);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float of = half_of(held.d, r) * worth;
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    const float scale = (float)(signed char)(held.scales[i] >> (16 * r + 8 * k));
                    sums.row[r] = fmaf(Digits::value(c[k][2 * r], c[k][2 * r + 1]), of * scale, sums.row[r]);
                }
            }
        }
    }
};

template <typename Part, bool BRAIN>
struct TwoBytesTile {
    typedef Parts<Part> X;
    static constexpr int ATOM = 1, PLANES = 1;
    static constexpr bool SUMS = false;
    static __device__ __forceinline__ int width(int, int groups) { return 64 * groups; }
    struct Held {
        u32 w[2][4];
    };
    static __device__ __forceinline__ Held hold(const u8 *tile, int groups, int j, int lane) {
        const u8 *at = tile + row_by_rows(lane) * pitch_of(64 * groups) + 64 * j + 16 * half_by_rows(lane);
        Held held;
        load_matrices(held.w[0], at);
        load_matrices(held.w[1], at + 32);
        return held;
    }
    static __device__ __forceinline__ void add(const Held &held, const Vector &x, int j0, int lane, Sums &sums) {
        float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int step = 0; step < 2; step++) {
            if (BRAIN) multiply_bf16(c, held.w[step], X::at(x, j0, step, lane));
            else multiply_f16(c, held.w[step], X::at(x, j0, step, lane));
        }
        const float inverse = x.scales[j0].x;
        sums.row[0] = fmaf(c[0] + c[1], inverse, sums.row[0]);
        sums.row[1] = fmaf(c[2] + c[3], inverse, sums.row[1]);
    }
};
template <>
struct Tile<F16> : TwoBytesTile<HalfPart, false> {};
template <>
struct Tile<BF16> : TwoBytesTile<BrainPart, true> {};

template <>
struct Tile<F32> { // weights in three parts too, one after another
    typedef Parts<SplitPart> X;
    static constexpr int ATOM = 1, PLANES = 1;
    static constexpr bool SUMS = false;
    static __device__ __forceinline__ int width(int, int groups) { return 128 * groups; }
    struct Held {
        u32 w[2][8];
    };
    static __device__ __forceinline__ Held hold(const u8 *tile, int groups, int j, int lane) {
        const u8 *at = tile + row_by_rows(lane) * pitch_of(128 * groups) + 128 * j + 16 * half_by_rows(lane);
        Held held;
#pragma unroll
        for (int i = 0; i < 4; i++) load_matrices(held.w[i / 2] + 4 * (i % 2), at + 32 * i);
        return held;
    }
    static __device__ __forceinline__ void add(const Held &held, const Vector &x, int j0, int lane, Sums &sums) {
        float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int step = 0; step < 2; step++) {
            const uint2 b = X::at(x, j0, step, lane);
            float w[8];
#pragma unroll
            for (int i = 0; i < 8; i++) w[i] = __uint_as_float(held.w[step][i]);
#pragma unroll
            for (int part = 0; part < 3; part++) {
                u32 top[8];
#pragma unroll
                for (int i = 0; i < 8; i++) top[i] = SplitPart::split(w[i]);
                const u32 a[4] = {top[0] | top[2] << 16, top[1] | top[3] << 16, top[4] | top[6] << 16,
                                  top[5] | top[7] << 16};
                multiply_bf16(c, a, b);
            }
        }
        sums.row[0] += c[0] + c[1];
        sums.row[1] += c[2] + c[3];
    }
};

template <typename L, typename R>
constexpr bool same_type = false;
template <typename T>
constexpr bool same_type<T, T> = true;

// How a block goes through its rows.
struct Walk {
    int tiles;  // at a time, one of a warp or more warps to one
    int sets;   // of so many tiles, one after another
    int chunk;  // groups of a row at a time
    int stages; // of shared memory: chunks on their way at once
    int stride; // bytes of a tile in a stage
};

// The groups of its rows that a block takes, from `first` on, of `all`.
struct Span {
    int first, groups, all;
    static __device__ __forceinline__ Span whole(int n) { return {0, n / 32, n / 32}; }
};

// The rows of one tile: `rows` from row0 on, of m.
struct Rows {
    const Weights *w;
    int row0, m;
};

// Brings `here` groups of a tile's rows, from j0 on.
template <typename Format>
__device__ __forceinline__ void fetch_tile(const Rows &rows, int groups, int j0, int here, u8 *to) {
    typedef Tile<Format> T;
    const int count = min(TILE, rows.m - rows.row0);
    if (count <= 0) return;
#pragma unroll
    for (int plane = 0; plane < T::PLANES; plane++) {
        const int width = T::width(plane, here);
        fetch_plane(rows.w->plane[plane], T::width(plane, groups), rows.row0, count, T::width(plane, j0), width, to);
        to += plane_bytes(width);
    }
}

// x prepared for two formats, once where both want the same.
struct Vectors {
    Vector a, b;
};

// Adds a member's share of a tile's products, of a team, to its sums.
template <typename Format>
__device__ __forceinline__ void add_share(const u8 *tile, int groups, int member, int team, const Vector &x, int j0,
                                          int lane, Sums &sums) {
    typedef Tile<Format> T;
    const int atoms = (groups + T::ATOM - 1) / T::ATOM, end = atoms * (member + 1) / team;
#pragma unroll 2
    for (int i = atoms * member / team; i < end; i++) {
        T::add(T::hold(tile, groups, i * T::ATOM, lane), x, j0 + i * T::ATOM, lane, sums);
    }
}

// The sums of a block's tiles, each in parts by the warps of a team.
template <int TEAM>
struct Results {
    const float *parts; // [tiles, TEAM, TILE]
    __device__ __forceinline__ float operator()(int tile, int row) const {
        float sum = parts[tile * TEAM * TILE + row];
#pragma unroll
        for (int k = 1; k < TEAM; k++) sum += parts[(tile * TEAM + k) * TILE + row];
        return sum;
    }
};

// Those of a kernel that holds its weights, or does not.
template <int TILES, int HELD>
using ResultsOf = Results<(HELD > 0 ? MOST_WARPS / TILES : 1)>;

// The atoms of a tile of so many groups that are a member's of a team.
template <typename Format>
__device__ __forceinline__ void share_out(int groups, int member, int team, int &begin, int &end) {
    const int atoms = (groups + Tile<Format>::ATOM - 1) / Tile<Format>::ATOM;
    begin = atoms * member / team;
    end = atoms * (member + 1) / team;
}

// Makes the rows of a block: TILES tiles of one format, whose rows fit shared memory whole
// and whose unpacked weights fit the registers: no warp has more than HELD atoms.
// `rows_of(tile)` says which rows a tile is; `ready(live)` gives the vector; `done(results,
// live)` gets the sums. All threads call them.
//
// All that does not depend on the vector is done before the block's turn: fetching; meanwhile
// a rehearsal with whatever stands where the vector will be, which writes nothing (live is
// false); unpacking. The turn takes a microsecond or two, and instructions and parameters
// that are met for the first time would take as long again.
template <typename Format, int TILES, int HELD, typename RowsOf, typename Ready, typename Done>
__device__ __forceinline__ void hold_rows(const Walk &walk, Span span, u8 *stage, Turn &turn, RowsOf rows_of,
                                          Ready ready, Done done) {
    typedef Tile<Format> T;
    constexpr int TEAM = MOST_WARPS / TILES;
    __shared__ float parts[MOST_WARPS * TILE];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, tile = warp / TEAM;
    for (int i = 0; i < TILES; i++) {
        fetch_tile<Format>(rows_of(i), span.all, span.first, span.groups, stage + i * walk.stride);
    }
    end_copies();
    int begin, end;
    share_out<Format>(span.groups, warp % TEAM, TEAM, begin, end);
    typename T::Held held[HELD] = {};
#pragma unroll 1
    for (int round = 0; round < 2; round++) {
        const bool live = round == 1;
        if (live) {
            wait_for_copies<0>();
            __syncthreads();
            const u8 *at = stage + tile * walk.stride;
#pragma unroll
            for (int i = 0; i < HELD; i++) {
                // Where there are fewer, zeros.
                if (begin + i < end) held[i] = T::hold(at, span.groups, (begin + i) * T::ATOM, lane);
            }
            turn.wait();
        }
        turn.mark(live, 0);
        const Vector x = ready(live);
        turn.mark(live, 2);
        __syncthreads();
        turn.mark(live, 3);
        Sums sums;
#pragma unroll
        for (int i = 0; i < HELD; i++) T::add(held[i], x, min(begin + i, end - 1) * T::ATOM, lane, sums);
        turn.mark(live, 4);
        sums.write(parts + warp * TILE, lane);
        __syncthreads();
        turn.mark(live, 5);
        done(Results<TEAM>{parts}, live);
        turn.mark(live, 7);
    }
}

// Makes the rows of a block of any length: set after set of `walk.tiles` tiles, even ones of
// format A and odd ones of B, in pieces where they do not fit shared memory whole. As
// `hold_rows`, but `rows_of` and `done` are told the set, and weights are unpacked as they
// are multiplied.
template <typename A, typename B, typename RowsOf, typename Ready, typename Done>
__device__ __forceinline__ void walk_rows(const Walk &walk, Span span, u8 *stages, Turn &turn, RowsOf rows_of,
                                          Ready ready, Done done) {
    __shared__ float parts[MOST_WARPS * TILE];
    __shared__ float whole_sums[MOST_WARPS * TILE];
    const int groups = span.groups, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int team = blockDim.x / 32 / walk.tiles, tile = warp / team, member = warp % team;
    const int chunks = (groups + walk.chunk - 1) / walk.chunk, passes = walk.sets * chunks;
    const int stage_bytes = walk.tiles * walk.stride;
    auto fetch = [&](int pass) {
        if (pass < passes) {
            const int set = pass / chunks, j0 = pass % chunks * walk.chunk, here = min(walk.chunk, groups - j0);
            for (int i = 0; i < walk.tiles; i++) {
                const Rows rows = rows_of(set, i);
                u8 *to = stages + pass % walk.stages * stage_bytes + i * walk.stride;
                if (same_type<A, B> || i % 2 == 0) fetch_tile<A>(rows, span.all, span.first + j0, here, to);
                else fetch_tile<B>(rows, span.all, span.first + j0, here, to);
            }
        }
        end_copies();
    };
    for (int pass = 0; pass < walk.stages; pass++) fetch(pass);
    Vectors x = ready(false);
    Sums sums;
    int set = 0, chunk = 0, stage = 0;
#pragma unroll 1
    for (int pass = 0; pass < passes; pass++) {
        if (pass == 0) {
            turn.wait();
            x = ready(true);
        }
        switch (walk.stages) {
        case 1: wait_for_copies<0>(); break;
        case 2: wait_for_copies<1>(); break;
        default: wait_for_copies<2>();
        }
        __syncthreads();
        const int j0 = chunk * walk.chunk, here = min(walk.chunk, groups - j0);
        const u8 *at = stages + stage * stage_bytes + tile * walk.stride;
        if (same_type<A, B> || tile % 2 == 0) add_share<A>(at, here, member, team, x.a, j0, lane, sums);
        else add_share<B>(at, here, member, team, x.b, j0, lane, sums);
        const bool whole = chunk + 1 == chunks;
        if (whole) {
            sums.write(parts + warp * TILE, lane);
            sums = Sums();
        }
        __syncthreads();
        fetch(pass + walk.stages);
        stage = stage + 1 == walk.stages ? 0 : stage + 1;
        chunk = whole ? 0 : chunk + 1;
        if (!whole) continue;
        for (int i = threadIdx.x; i < walk.tiles * TILE; i += blockDim.x) {
            const float *of = parts + i / TILE * team * TILE + i % TILE;
            float sum = of[0];
            for (int k = 1; k < team; k++) sum += of[k * TILE];
            whole_sums[i] = sum;
        }
        __syncthreads();
        done(set++, Results<1>{whole_sums}, true);
    }
}

// Bytes of x in shared memory for two formats.
template <typename A, typename B>
__device__ __forceinline__ int vector_bytes(int n) {
    typedef typename Tile<A>::X XA;
    typedef typename Tile<B>::X XB;
    return n / 32 * (XA::GROUP + 8 + (same_type<XA, XB> ? 0 : XB::GROUP + 8));
}

template <typename A, typename B, int AT_ONCE, typename Get>
__device__ __forceinline__ Vectors prepare_both(u8 *shared, int n, Get get) {
    typedef typename Tile<A>::X XA;
    typedef typename Tile<B>::X XB;
    constexpr bool SUMS = Tile<A>::SUMS || Tile<B>::SUMS;
    const Vector a = prepare<XA, AT_ONCE, SUMS>(shared, n, get);
    if constexpr (same_type<XA, XB>) return {a, a};
    else return {a, prepare<XB, AT_ONCE, SUMS>(shared + n / 32 * (XA::GROUP + 8), n, get)};
}

// The sum over all threads of a block, whose unused warps count as zero. Other barriers stand between two of them.
__device__ __forceinline__ float block_sum(float v) {
    __shared__ __align__(16) float partial[MOST_WARPS];
    const int warp = threadIdx.x / 32;
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) partial[warp] = v;
    if (threadIdx.x < MOST_WARPS && threadIdx.x >= blockDim.x / 32) partial[threadIdx.x] = 0.0f;
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < MOST_WARPS / 4; i++) {
        const float4 four = ((const float4 *)partial)[i];
        sum += (four.x + four.y) + (four.z + four.w);
    }
    return sum;
}

// The residual stream: a vector and the halves of the product that is added to it,
// which the kernels after a product put together for themselves.
struct Stream {
    const float *base, *halves[2]; // no halves: the base alone
    float *product_tap, *sum_tap;  // null where not wanted
    // Elements 4i .. 4i + 3; one block taps them.
    __device__ __forceinline__ float4 at(int i, bool taps) const {
        const float4 v = __ldcg((const float4 *)base + i);
        if (!halves[0]) return v;
        const float4 a = __ldcg((const float4 *)halves[0] + i), b = __ldcg((const float4 *)halves[1] + i);
        const float4 p = tap4(taps ? product_tap : nullptr, 4 * i,
                              make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w));
        return tap4(taps ? sum_tap : nullptr, 4 * i, make_float4(v.x + p.x, v.y + p.y, v.z + p.z, v.w + p.w));
    }
    __device__ __forceinline__ float one(int i) const {
        const float v = __ldcg(base + i);
        return halves[0] ? v + (__ldcg(halves[0] + i) + __ldcg(halves[1] + i)) : v;
    }
};

// RMSNorm of x, four elements at a time. The first four of a thread and their
// weights are kept; what a thread has besides is read again.
struct Norm {
    const Stream &x;
    const float *weight;
    float *tap_of, *tapped; // by one block, on its turn
    float4 first, factor;
    float inverse_n, scale;
    // Before the wait.
    __device__ __forceinline__ Norm(const Stream &x, const float *weight, float *tap_of, int n)
        : x(x), weight(weight), tap_of(blockIdx.x == 0 ? tap_of : nullptr) {
        inverse_n = 1.0f / (float)n;
        factor = 4 * threadIdx.x < n ? ((const float4 *)weight)[threadIdx.x] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    // On the block's turn, or for rehearsal.
    __device__ __forceinline__ void measure(int n, float eps, bool live) {
        tapped = live ? tap_of : nullptr;
        float squares = 0.0f;
        first = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (int i = threadIdx.x; i < n / 4; i += blockDim.x) {
            const float4 v = x.at(i, live && blockIdx.x == 0);
            if (i == threadIdx.x) first = v;
            squares = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, squares))));
        }
        scale = __frsqrt_rn(fmaf(block_sum(squares), inverse_n, eps));
    }
    __device__ __forceinline__ float4 operator()(int i) const {
        const bool kept = i == threadIdx.x;
        const float4 v = kept ? first : x.at(i, false), w = kept ? factor : ((const float4 *)weight)[i];
        return tap4(tapped, 4 * i,
                    make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w));
    }
};
