#pragma once

#include "fused/digits.cuh"

// Rows of weights against one vector on the tensor cores, to f32 accuracy.
//
// A tile is 16 rows. It is copied into shared memory plane by plane as it
// stands, before the kernel waits; `ldmatrix` then hands every lane what the
// matrix instructions want: lane 4g + t holds words t of rows g and g + 8.
//
// Blocks of integers meet the vector's digits: products and sums of a group are then exact
// in 32 bits; only their scaling and the sum over groups round. Floats meet its parts:
// products are exact, and the tensor cores' sums, which round towards zero, end with the
// group.

constexpr int TILE = 16;
constexpr int MOST_WARPS = 8; // of a block, of which a multiprocessor holds two
// Bytes from row to row of a plane in shared memory: an odd number of 16, so that
// the rows which ldmatrix reads at once share no bank; as they are where they are no
// multiple of 16. `tile_bytes` in engine/src/cuda/tiles.rs takes no less.
__device__ __forceinline__ int pitch_of(int width) { return width % 16 == 0 ? (width / 16 | 1) * 16 : width; }
__device__ __forceinline__ int plane_bytes(int width) { return (TILE * pitch_of(width) + 15) / 16 * 16; }

// Bytes from `offset` on of `rows` rows of a plane, all threads together. Loops are left
// rolled here and elsewhere before a turn: what is fetched of a kernel's code counts too.
__device__ __forceinline__ void fetch_plane(const u8 *plane, size_t row_bytes, int row0, int rows, size_t offset,
                                            int width, u8 *to) {
    const u8 *from = plane + row0 * row_bytes + offset;
    const int pitch = pitch_of(width), lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    if (width % 16 == 0 && row_bytes % 16 == 0 && offset % 16 == 0) {
#pragma unroll 1
        for (int row = warp; row < rows; row += warps) {
#pragma unroll 1
            for (int i = 16 * lane; i < width; i += 16 * 32) copy16(to + row * pitch + i, from + row * row_bytes + i);
        }
    } else if (width == row_bytes) { // whole rows: their tile begins at a multiple of 16
#pragma unroll 1
        for (int i = 16 * threadIdx.x; i < rows * width; i += 16 * blockDim.x) copy16(to + i, from + i);
    } else {
#pragma unroll 1
        for (int row = warp; row < rows; row += warps) {
#pragma unroll 1
            for (int i = 2 * lane; i < width; i += 64) {
                *(u16 *)(to + row * pitch + i) = *(const u16 *)(from + row * row_bytes + i);
            }
        }
    }
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
