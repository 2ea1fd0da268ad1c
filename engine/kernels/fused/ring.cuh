#pragma once

#include "fused/stream.cuh"

// Rows that neither a block's registers nor its shared memory hold: its warps share out all of its pieces evenly, each 256 weights
// of 16 rows. A warp brings its pieces into a ring of its own, and waits for nobody until its last.
//
// For formats in blocks of 256 weights, and whole tiles.

constexpr int RING_WARPS = 16; // of a block at most, one to a multiprocessor
constexpr int PIECE = 8;       // groups of a piece

// Where this block's part of so many begins, or the next one's.
__device__ __forceinline__ int part_of(int all, int next) { return (int)((long long)all * (blockIdx.x + next) / gridDim.x); }

// Where the rows of a tile are: twice eight of them.
struct Eights {
    const Weights *w[2];
    int row0[2];
    static __device__ __forceinline__ Eights of(const Weights *w, int row0) { return {{w, w}, {row0, row0 + TILE / 2}}; }
};

// What a lane brings of one piece after another along a tile.
template <typename Format>
struct Bringer {
    typedef Tile<Format> T;
    const u8 *from[T::PLANES][2]; // of its first row of each eight, or of its only row
    int blocks;                   // of a row
    // What a lane brings of a plane at a time: 16 bytes, or the four around the two that a row has.
    static __device__ __forceinline__ int units(int plane) { return max(T::width(plane, PIECE) / 16, 1); }
    // Whether all that is brought at a time is of one eight.
    static __device__ __forceinline__ bool by_eights(int plane) { return 32 / units(plane) <= TILE / 2; }
    // Bytes from row to row in shared memory.
    static __device__ __forceinline__ int pitch(int plane) {
        const int width = T::width(plane, PIECE);
        return width % 16 == 0 ? pitch_of(width) : 4;
    }
    // Goes to piece j of a tile.
    __device__ __forceinline__ void go(const Eights &rows, int j, int lane) {
#pragma unroll
        for (int plane = 0; plane < T::PLANES; plane++) {
            const int width = T::width(plane, PIECE), row = lane / units(plane) % TILE;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const bool second = by_eights(plane) ? i == 1 : row >= TILE / 2;
                const size_t at = (size_t)((second ? rows.row0[1] : rows.row0[0]) + row % (TILE / 2)) * blocks + j;
                from[plane][i] = (second ? rows.w[1] : rows.w[0])->plane[plane] + at * width +
                                 (width % 16 == 0 ? lane % units(plane) * 16 : 0);
            }
        }
    }
    // Brings the piece that it is at, and goes to the next.
    __device__ __forceinline__ void bring(u8 *to, int lane) {
#pragma unroll
        for (int plane = 0; plane < T::PLANES; plane++) {
            const int width = T::width(plane, PIECE), each = 32 / units(plane);
            u8 *mine = to + lane / units(plane) * pitch(plane) + lane % units(plane) * 16;
            if (by_eights(plane)) {
#pragma unroll
                for (int i = 0; i < TILE / each; i++) {
                    const int row = i * each;
                    copy16(mine + row * pitch(plane), from[plane][row / (TILE / 2)] + (size_t)(row % (TILE / 2)) * blocks * width);
                }
            } else if (lane < TILE * units(plane)) {
                if (width % 16 == 0) copy16(mine, from[plane][0]);
                else copy4(to + 4 * lane, (const u8 *)((size_t)from[plane][0] & ~(size_t)3), true);
            }
#pragma unroll
            for (int i = 0; i < 2; i++) from[plane][i] += width;
            to += TILE * pitch(plane);
        }
    }
};

// A piece of a tile, unpacked. The word around a field holds what 16-byte copies do not bring: the halves d of rows of Q6_K.
template <typename Format>
__device__ __forceinline__ typename Tile<Format>::Held unpacked_piece(const u8 *piece, const Eights &rows, int blocks, int j,
                                                                     int lane) {
    typedef Tile<Format> T;
    auto held = T::hold(piece, PIECE, 0, lane);
    if constexpr (same_type<Format, Q6_K>) {
        const u8 *words = piece;
#pragma unroll
        for (int plane = 0; plane < T::PLANES - 1; plane++) words += TILE * Bringer<Format>::pitch(plane);
        u32 d[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = lane / 4, odd = ((rows.row0[i] + row) * blocks + j) % 2;
            d[i] = *(const u16 *)(words + 4 * (row + i * TILE / 2) + 2 * odd);
        }
        held.d = d[0] | d[1] << 16;
    }
    return held;
}

// The sums of a block's tiles, each in parts by the warps that have pieces of it.
struct RingSums {
    const float *parts;
    int from, to, blocks, warps;
    // The warp that has a piece.
    __device__ __forceinline__ int owner(int piece) const { return ((piece - from + 1) * warps - 1) / (to - from); }
    __device__ __forceinline__ int first() const { return from / blocks; }
    __device__ __forceinline__ int end() const { return (to + blocks - 1) / blocks; }
    // Whether all pieces of a tile before these are another block's, or all after them.
    __device__ __forceinline__ bool begins(int tile) const { return tile * blocks >= from; }
    __device__ __forceinline__ bool ends(int tile) const { return (tile + 1) * blocks <= to; }
    __device__ __forceinline__ float operator()(int tile, int row) const {
        const int first_warp = owner(max(tile * blocks, from)), last = owner(min((tile + 1) * blocks, to) - 1);
        const float *of = parts + (tile - first() + first_warp) * TILE + row;
        // All are on their way before the first is added.
        float part[RING_WARPS], sum = 0.0f;
#pragma unroll
        for (int k = 0; k < RING_WARPS; k++) part[k] = first_warp + k <= last ? of[k * TILE] : 0.0f;
#pragma unroll
        for (int k = 0; k < RING_WARPS; k++) sum += part[k];
        return sum;
    }
};

// Makes the sums of pieces `from` to `to` of tiles of `blocks` pieces each. `rows_of(tile)` says where a tile's rows are, `group_of(tile)`
// which group of the vector they meet first; `ready()` gives the vector; `done(sums)` gets the sums. All threads call them.
// EARLY stages are brought before the block's turn, and the others when it has the vector, which would wait behind them.
template <typename Format, int STAGES, int EARLY, typename Waits, typename RowsOf, typename GroupOf, typename Ready, typename Done>
__device__ __forceinline__ void ring_rows(const Walk &walk, int from, int to, int blocks, u8 *stages, Waits &turn, RowsOf rows_of,
                                          GroupOf group_of, Ready ready, Done done) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    u8 *mine = stages + warp * STAGES * walk.stride;
    float *parts = (float *)(stages + warps * STAGES * walk.stride); // [tiles + warps, TILE]
    const int begin = from + (to - from) * warp / warps, end = from + (to - from) * (warp + 1) / warps;
    int tile = begin / blocks, j = begin % blocks;
    // The next piece to be brought.
    Bringer<Format> bringer;
    bringer.blocks = blocks;
    int next = begin, next_tile = tile, next_j = j;
    if (begin < end) bringer.go(rows_of(tile), j, lane);
    auto bring = [&](int stage) {
        if (next < end) {
            bringer.bring(mine + stage * walk.stride, lane);
            if (++next_j == blocks && next + 1 < end) bringer.go(rows_of(++next_tile), next_j = 0, lane);
            next++;
        }
        end_copies();
    };
#pragma unroll 1
    for (int stage = 0; stage < EARLY; stage++) bring(stage);
    turn.wait();
    turn.mark(0);
    const Vector x = ready();
    turn.mark(2);
#pragma unroll 1
    for (int stage = EARLY; stage < STAGES; stage++) bring(stage);
    __syncthreads();
    turn.mark(3);
    Sums sums;
    if (begin == end) sums.write(parts + (tile - from / blocks + warp) * TILE, lane); // others of its tile count this warp
    int stage = 0;
#pragma unroll 1
    for (int piece = begin; piece < end; piece++) {
        wait_for_copies<STAGES - 1>();
        __syncwarp();
        const auto held = unpacked_piece<Format>(mine + stage * walk.stride, rows_of(tile), blocks, j, lane);
        __syncwarp(); // all have read what is overwritten now
        bring(stage);
        Tile<Format>::add(held, x, group_of(tile) + j * PIECE, lane, sums);
        if (++stage == STAGES) stage = 0;
        if (++j == blocks || piece + 1 == end) {
            sums.write(parts + (tile - from / blocks + warp) * TILE, lane);
            sums = Sums();
            tile++, j = 0;
        }
    }
    turn.mark(4);
    __syncthreads();
    turn.mark(5);
    done(RingSums{parts, from, to, blocks, warps});
    turn.mark(7);
}

// Of rows that all meet the whole vector.
template <typename Format, int STAGES, int EARLY, typename RowsOf, typename Ready, typename Done>
__device__ __forceinline__ void ring_rows(const Walk &walk, int from, int to, int blocks, u8 *stages, Turn &turn, RowsOf rows_of,
                                          Ready ready, Done done) {
    ring_rows<Format, STAGES, EARLY>(walk, from, to, blocks, stages, turn, rows_of, [](int) { return 0; }, ready, done);
}
