#pragma once

#include "fused/digits.cuh"

// Rows of weights against one vector on the tensor cores, to f32 accuracy.
//
// A tile is 16 rows. It is copied into shared memory plane by plane as it
// stands, before the kernel waits; `ldmatrix` then hands every lane what the
// matrix instructions want: lane 4g + t holds words t of rows g and g + 8.
//
// Blocks of integers meet the vector's digits: products and sums of a group, or of a block
// whose groups have integer scales, are then exact in 32 bits; only their scaling and the sum
// over groups or blocks round. Floats meet its parts:
// products are exact, and the tensor cores' sums, which round towards zero, end with the
// group.

constexpr int TILE = 16;
constexpr int MOST_WARPS = 8; // of a block, of which a multiprocessor holds two
// Bytes from row to row of a plane in shared memory: an odd number of 16, so that
// the rows which ldmatrix reads at once share no bank; as they are where they are no
// multiple of 16. `tile_bytes` in engine/src/cuda/tiles.rs takes no less.
__device__ __forceinline__ int pitch_of(int width) { return width % 16 == 0 ? (width / 16 | 1) * 16 : width; }
__device__ __forceinline__ int plane_bytes(int width) { return (TILE * pitch_of(width) + 15) / 16 * 16; }

// Which threads copy: all of a block, or those of a warp.
struct Copiers {
    int lane, warp, warps;
    static __device__ __forceinline__ Copiers block() {
        return {(int)threadIdx.x % 32, (int)threadIdx.x / 32, (int)blockDim.x / 32};
    }
    static __device__ __forceinline__ Copiers one_warp() { return {(int)threadIdx.x % 32, 0, 1}; }
};

// Bytes from `offset` on of `rows` rows of a plane, all copiers together. Loops are left
// rolled here and elsewhere before a turn: what is fetched of a kernel's code counts too.
__device__ __forceinline__ void fetch_plane(const u8 *plane, size_t row_bytes, int row0, int rows, size_t offset,
                                            int width, u8 *to, Copiers by) {
    const u8 *from = plane + row0 * row_bytes + offset;
    const int pitch = pitch_of(width);
    if (width % 16 == 0 && row_bytes % 16 == 0 && offset % 16 == 0) {
#pragma unroll 1
        for (int row = by.warp; row < rows; row += by.warps) {
#pragma unroll 1
            for (int i = 16 * by.lane; i < width; i += 16 * 32) copy16(to + row * pitch + i, from + row * row_bytes + i);
        }
    } else if (width == row_bytes) { // whole rows: their tile begins at a multiple of 16
#pragma unroll 1
        for (int i = 16 * (32 * by.warp + by.lane); i < rows * width; i += 16 * 32 * by.warps) copy16(to + i, from + i);
    } else {
#pragma unroll 1
        for (int row = by.warp; row < rows; row += by.warps) {
#pragma unroll 1
            for (int i = 2 * by.lane; i < width; i += 64) {
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
    // All of the tile's sums, `to(row, sum)` by the lanes that have one.
    template <typename To>
    __device__ __forceinline__ void give(int lane, To to) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float v = lane % 2 == i ? row[i] - less : row[i];
            v += __shfl_xor_sync(0xffffffffu, v, 1);
            v += __shfl_xor_sync(0xffffffffu, v, 2);
            if (lane % 4 == 0) to(lane / 4 + 8 * i, v);
        }
    }
    __device__ __forceinline__ void write(float *to, int lane) {
        give(lane, [&](int row, float v) { to[row] = v; });
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

// Blocks of 256: a block is an atom. Its groups meet digits of one scale, and their products
// are weighed with their integer scales and added as integers: what is a float begins with
// the block.
struct BlockTile {
    typedef BlockDigits X;
    static constexpr int ATOM = 8;
    // Adds a group's products, two columns of rows g and g + 8, with the scales of both.
    static __device__ __forceinline__ void weigh(int *sums, const int *c, int of_g, int of_g8) {
        sums[0] += of_g * c[0], sums[1] += of_g * c[1];
        sums[2] += of_g8 * c[2], sums[3] += of_g8 * c[3];
    }
    // Adds a block's: `d` are both rows' halves, `by` what an integer is worth besides.
    static __device__ __forceinline__ void finish(const int *sums, u32 d, float by, Sums &to) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            to.row[r] = fmaf(X::value(sums[2 * r], sums[2 * r + 1]), half_of(d, r) * by, to.row[r]);
        }
    }
};

template <bool HIGH>
struct KNibblesTile : BlockTile {
    static constexpr int PLANES = HIGH ? 3 : 2;
    static constexpr bool SUMS = true;
    // The values of the integers of high nibbles, which stay in place.
    static constexpr float HIGH_WORTH = HIGH ? 1.0f : 1.0f / 16.0f;
    static __device__ __forceinline__ int width(int plane, int groups) {
        return plane == 0 ? 16 * groups : HIGH && plane == 1 ? 4 * groups : 2 * groups;
    }
    struct Held {
        // By pair of groups, and first and second half of both: low nibbles of rows g and g + 8, then high ones.
        u32 q[4][2][4];
        // Of rows g and g + 8: bytes 0 and 2 are the scales of this lane's groups of two pairs of groups.
        u32 scales[2][2];
        u32 mins, d, dmin; // of row g + 8 (t % 2), four groups'; both rows' d; that row's dmin
    };
    // Six bits of groups 0 to 3, or 4 to 7: their lower four are in `last`, the others with those of the first.
    static __device__ __forceinline__ u32 first_four(u32 word) { return word & 0x3f3f3f3fu; }
    static __device__ __forceinline__ u32 last_four(u32 word, u32 last) {
        return (last & 0x0f0f0f0fu) | (word >> 2 & 0x30303030u);
    }
    static __device__ __forceinline__ Held hold(const u8 *tile, int groups, int j, int lane) {
        const int q_pitch = pitch_of(16 * groups), h_pitch = pitch_of(4 * groups), s_pitch = pitch_of(2 * groups);
        const u8 *high = tile + plane_bytes(16 * groups), *heads = HIGH ? high + plane_bytes(4 * groups) : high;
        const int block = j / 8, row_of = row_by_halves(lane), half = half_by_halves(lane), second = lane % 4 / 2;
        Held held;
        u32 h[4] = {};
        if constexpr (HIGH) load_matrices(h, high + row_of * h_pitch + 16 * (2 * block + half));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 q[4]; // rows 0 to 7 and the others, of each the first 16 bytes and the second
            load_matrices(q, tile + row_of * q_pitch + 16 * (j + 2 * i + half));
#pragma unroll
            for (int k = 0; k < 8; k++) {
                const int from = k % 2 * 2 + k / 4;
                held.q[i][k / 4][k % 4] = integers(q[from], h[from], i, k % 4 / 2);
            }
        }
        const u8 *head = heads + lane / 4 * s_pitch + 16 * block;
        const uint4 rows[2] = {*(const uint4 *)head, *(const uint4 *)(head + 8 * s_pitch)};
#pragma unroll
        for (int r = 0; r < 2; r++) {
            held.scales[r][0] = first_four(rows[r].y) >> (8 * second);
            held.scales[r][1] = last_four(rows[r].y, rows[r].w) >> (8 * second);
        }
        const bool odd = lane % 2 == 1;
        const u32 z = odd ? rows[1].z : rows[0].z, w = odd ? rows[1].w : rows[0].w;
        held.mins = second ? last_four(z, w >> 4) : first_four(z);
        held.d = __byte_perm(rows[0].x, rows[1].x, 0x5410);
        held.dmin = odd ? rows[1].x : rows[0].x;
        return held;
    }
    // Four integers of the low or the high nibbles, of pair i of groups.
    static __device__ __forceinline__ u32 integers(u32 nibbles, [[maybe_unused]] u32 high, [[maybe_unused]] int i,
                                                   bool upper) {
        if constexpr (HIGH) {
            return ((upper ? nibbles >> 4 : nibbles) & 0x0f0f0f0fu) | (high >> (2 * i + upper) & 0x01010101u) << 4;
        } else {
            return nibbles & (upper ? 0xf0f0f0f0u : 0x0f0f0f0fu);
        }
    }
    static __device__ __forceinline__ void add(const Held &held, const Vector &x, int j0, int lane, Sums &sums) {
        int all[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint2 words = X::of_pair(x, j0 + 2 * i, lane);
            int c[4] = {0, 0, 0, 0};
#pragma unroll
            for (int half = 0; half < 2; half++) {
                multiply_unsigned(c, held.q[i][half], X::beside_zero(half == 0 ? words.x : words.y, lane));
            }
            const int shift = i % 2 * 16;
            weigh(all, c, held.scales[0][i / 2] >> shift & 255, held.scales[1][i / 2] >> shift & 255);
        }
        const int second = lane % 4 / 2;
        finish(all, held.d, x.scales[j0].x * X::worth(lane) * (second ? HIGH_WORTH : 1.0f), sums);
        const float4 *of = (const float4 *)(x.scales + j0 + 4 * second);
        const float4 a = of[0], b = of[1];
        float less = small(held.mins & 255) * a.y;
        less = fmaf(small(held.mins >> 8 & 255), a.w, less);
        less = fmaf(small(held.mins >> 16 & 255), b.y, less);
        less = fmaf(small(held.mins >> 24), b.w, less);
        sums.less = fmaf(half_of(held.dmin, 1), less, sums.less);
    }
};
template <>
struct Tile<Q4_K> : KNibblesTile<false> {};
template <>
struct Tile<Q5_K> : KNibblesTile<true> {};

template <>
struct Tile<Q6_K> : BlockTile {
    static constexpr int PLANES = 4;
    static constexpr bool SUMS = false;
    static __device__ __forceinline__ int width(int plane, int groups) {
        return plane == 0 ? 16 * groups : plane == 1 ? 8 * groups : plane == 2 ? 2 * groups : groups / 4;
    }
    struct Held {
        u32 q[8][4]; // by group: rows g and g + 8, first 16 weights and second: four times each, signed
        u32 scales[2][2], d;  // of rows g and g + 8: a byte for this lane's half of each of eight groups; both rows' d
    };
    static __device__ __forceinline__ Held hold(const u8 *tile, int groups, int j, int lane) {
        const u8 *high = tile + plane_bytes(16 * groups), *scales = high + plane_bytes(8 * groups);
        const u8 *ds = scales + plane_bytes(2 * groups);
        const int q_pitch = pitch_of(16 * groups), h_pitch = pitch_of(8 * groups), s_pitch = pitch_of(2 * groups);
        const int d_pitch = pitch_of(groups / 4), row_of = row_by_halves(lane), half = half_by_halves(lane);
        Held held;
#pragma unroll
        for (int part = 0; part < 2; part++) { // of the block: its groups share their bytes
            u32 q[2][4], h[4];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                load_matrices(q[i], tile + row_of * q_pitch + 16 * (j + 4 * part + 2 * i + half));
            }
            load_matrices(h, high + row_of * h_pitch + 8 * j + 16 * (2 * part + half));
            // The uppermost of a weight's six bits, turned round, is the sign of a byte that ends with two zeros.
#pragma unroll
            for (int k = 0; k < 4; k++) h[k] ^= 0xaaaaaaaau;
#pragma unroll
            for (int i = 0; i < 16; i++) {
                const int of = i / 4, from = i % 2 * 2 + i % 4 / 2;
                const u32 low = q[of % 2][from];
                held.q[4 * part + of][i % 4] = ((of < 2 ? low << 2 : low >> 2) & 0x3c3c3c3cu) | (h[from] << (6 - 2 * of) & 0xc0c0c0c0u);
            }
        }
        const u32 mine = lane % 4 < 2 ? 0x6420 : 0x7531;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint4 of = *(const uint4 *)(scales + (lane / 4 + 8 * r) * s_pitch + 2 * j);
            held.scales[r][0] = __byte_perm(of.x, of.y, mine);
            held.scales[r][1] = __byte_perm(of.z, of.w, mine);
        }
        const u8 *d = ds + lane / 4 * d_pitch + j / 4;
        held.d = *(const u16 *)d | (u32) * (const u16 *)(d + 8 * d_pitch) << 16;
        return held;
    }
    static __device__ __forceinline__ void add(const Held &held, const Vector &x, int j0, int lane, Sums &sums) {
        int all[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int c[4] = {0, 0, 0, 0};
            multiply32(c, held.q[i], X::beside_zero(X::of_halves(x, j0 + i, lane), lane));
            auto scale = [&](int r) { return (int)(signed char)(held.scales[r][i / 4] >> (8 * (i % 4))); };
            weigh(all, c, scale(0), scale(1));
        }
        finish(all, held.d, x.scales[j0].x * X::worth(lane) * 0.25f, sums);
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
