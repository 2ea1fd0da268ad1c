#pragma once

#include "fused/tile.cuh"

// How a block makes its rows of a product with one vector: by tiles, whose weights are
// fetched before its turn.

template <typename L, typename R>
constexpr bool same_type = false;
template <typename T>
constexpr bool same_type<T, T> = true;

// How a block goes through its rows.
struct Walk {
    int tiles;  // at a time, one of a warp or more warps to one
    int sets;   // of so many tiles, one after another
    int chunk;  // groups of a row at a time
    int stages; // of shared memory, one or two: chunks on their way at once
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
#pragma unroll(T::ATOM < 8 ? 2 : 1)
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

// Makes the rows of a block: TILES tiles of one format, whose rows fit shared memory whole
// and whose unpacked weights fit the registers: no warp has more than HELD atoms.
// `rows_of(tile)` says which rows a tile is; `ready()` gives the vector; `done(results)`
// gets the sums. All threads call them.
//
// All that does not depend on the vector is done before the block's turn: the turn takes a
// microsecond or two, of which every instruction counts.
template <typename Format, int TILES, int HELD, typename RowsOf, typename Ready, typename Done>
__device__ __forceinline__ void hold_rows(const Walk &walk, Span span, u8 *stage, Turn &turn, RowsOf rows_of,
                                          Ready ready, Done done) {
    typedef Tile<Format> T;
    constexpr int TEAM = MOST_WARPS / TILES;
    __shared__ float parts[MOST_WARPS * TILE];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, tile = warp / TEAM, member = warp % TEAM;
#pragma unroll 1
    for (int i = 0; i < TILES; i++) {
        fetch_tile<Format>(rows_of(i), span.all, span.first, span.groups, stage + i * walk.stride);
    }
    end_copies();
    wait_for_copies<0>();
    __syncthreads();
    const int atoms = (span.groups + T::ATOM - 1) / T::ATOM;
    const int begin = atoms * member / TEAM, end = atoms * (member + 1) / TEAM;
    const u8 *at = stage + tile * walk.stride;
    typename T::Held held[HELD] = {}; // zeros where there are fewer
    // A rolled loop, through which what is held moves up: unrolled, its code would take
    // longer to be fetched than to be run.
#pragma unroll 1
    for (int i = 0; i < HELD; i++) {
#pragma unroll
        for (int k = 0; k + 1 < HELD; k++) held[k] = held[k + 1];
        held[HELD - 1] = {};
        if (begin + i < end) held[HELD - 1] = T::hold(at, span.groups, (begin + i) * T::ATOM, lane);
    }
    turn.wait();
    turn.mark(0);
    const Vector x = ready();
    turn.mark(2);
    __syncthreads();
    turn.mark(3);
    Sums sums;
    if (atoms > 0) { // else there is no group to meet
#pragma unroll
        for (int i = 0; i < HELD; i++) T::add(held[i], x, max(min(begin + i, end - 1), 0) * T::ATOM, lane, sums);
    }
    turn.mark(4);
    sums.write(parts + warp * TILE, lane);
    __syncthreads();
    turn.mark(5);
    done(Results<TEAM>{parts});
    turn.mark(7);
}

// Makes the rows of a block of any length: set after set of `walk.tiles` tiles, even ones of
// format A and odd ones of B, in pieces where they do not fit shared memory whole. As
// `hold_rows`, but `ready` gives the vector for both formats, `rows_of` and `done` are told
// the set, and weights are unpacked as they are multiplied.
template <typename A, typename B, typename RowsOf, typename Ready, typename Done>
__device__ __forceinline__ void walk_rows(const Walk &walk, Span span, u8 *stages, Turn &turn, RowsOf rows_of,
                                          Ready ready, Done done) {
    __shared__ float parts[MOST_WARPS * TILE];
    __shared__ float whole_sums[MOST_WARPS * TILE];
    const int groups = span.groups, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int team = blockDim.x / 32 / walk.tiles, tile = warp / team, member = warp % team;
    const int chunks = max((groups + walk.chunk - 1) / walk.chunk, 1);
    // The block's last set may be one that is not there.
    int sets = walk.sets;
    while (sets > 0 && rows_of(sets - 1, 0).row0 >= rows_of(sets - 1, 0).m) sets--;
    const int passes = sets * chunks;
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
    turn.wait();
    turn.mark(0);
    const Vectors x = ready();
    turn.mark(2);
    Sums sums;
    int set = 0, chunk = 0, stage = 0;
#pragma unroll 1
    for (int pass = 0; pass < passes; pass++) {
        if (walk.stages == 1) wait_for_copies<0>();
        else wait_for_copies<1>();
        __syncthreads();
        if (pass < 2) turn.mark(3 + 2 * pass);
        const int j0 = chunk * walk.chunk, here = min(walk.chunk, groups - j0);
        const u8 *at = stages + stage * stage_bytes + tile * walk.stride;
        if (same_type<A, B> || tile % 2 == 0) add_share<A>(at, here, member, team, x.a, j0, lane, sums);
        else add_share<B>(at, here, member, team, x.b, j0, lane, sums);
        if (pass < 2) turn.mark(4 + 2 * pass);
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
        done(set++, Results<1>{whole_sums});
    }
}

// Bytes of x in shared memory for two formats.
template <typename A, typename B>
__device__ __forceinline__ int vector_bytes(int n) {
    typedef typename Tile<A>::X XA;
    typedef typename Tile<B>::X XB;
    const int bytes = padded_groups(n) * (XA::GROUP + 8 + (same_type<XA, XB> ? 0 : XB::GROUP + 8));
    return (bytes + 15) / 16 * 16; // what stands behind them is copied by 16 bytes
}

// How many times 32 fours a warp takes side by side of a vector for these formats: see `prepare`.
template <typename... Formats>
constexpr int run_of = ((Tile<Formats>::X::BLOCK > 128) || ...) ? 2 : 1;

template <typename A, typename B, int RUN, int AT_ONCE, typename Get>
__device__ __forceinline__ Vectors prepare_both(u8 *shared, int n, Get get) {
    typedef typename Tile<A>::X XA;
    typedef typename Tile<B>::X XB;
    constexpr bool SUMS = Tile<A>::SUMS || Tile<B>::SUMS;
    const Vector a = prepare<XA, RUN, AT_ONCE, SUMS>(shared, n, get);
    if constexpr (same_type<XA, XB>) return {a, a};
    else return {a, prepare<XB, RUN, AT_ONCE, SUMS>(shared + padded_groups(n) * (XA::GROUP + 8), n, get)};
}
