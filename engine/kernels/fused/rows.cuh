#pragma once

#include "barriers.cuh"
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

// Brings `here` groups of `count` rows from row0 on, from group j0 on, to those from `at` on of a tile.
template <typename Format>
__device__ __forceinline__ void fetch_rows(const Weights &w, int row0, int count, int at, int groups, int j0, int here,
                                           u8 *to, Copiers by) {
    typedef Tile<Format> T;
#pragma unroll
    for (int plane = 0; plane < T::PLANES; plane++) {
        const int width = T::width(plane, here);
        fetch_plane(w.plane[plane], T::width(plane, groups), row0, count, T::width(plane, j0), width, to + at * pitch_of(width),
                    by);
        to += plane_bytes(width);
    }
}

// Brings `here` groups of a tile's rows, from j0 on.
template <typename Format>
__device__ __forceinline__ void fetch_tile(const Rows &rows, int groups, int j0, int here, u8 *to,
                                           Copiers by = Copiers::block()) {
    const int count = min(TILE, rows.m - rows.row0);
    if (count > 0) fetch_rows<Format>(*rows.w, rows.row0, count, 0, groups, j0, here, to, by);
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
// microsecond or two, of which every instruction counts. `meanwhile` is done while the weights are on their way.
struct Nothing {
    __device__ __forceinline__ void operator()() const {}
};
template <typename Format, int TILES, int HELD, typename RowsOf, typename Ready, typename Done, typename Meanwhile = Nothing>
__device__ __forceinline__ void hold_rows(const Walk &walk, Span span, u8 *stage, Turn &turn, RowsOf rows_of,
                                          Ready ready, Done done, Meanwhile meanwhile = {}) {
    typedef Tile<Format> T;
    constexpr int TEAM = MOST_WARPS / TILES;
    __shared__ float parts[MOST_WARPS * TILE];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, tile = warp / TEAM, member = warp % TEAM;
#pragma unroll 1
    for (int i = 0; i < TILES; i++) {
        fetch_tile<Format>(rows_of(i), span.all, span.first, span.groups, stage + i * walk.stride);
    }
    end_copies();
    meanwhile();
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
#pragma unroll
    for (int i = 0; i < HELD; i++) T::add(held[i], x, max(min(begin + i, end - 1), 0) * T::ATOM, lane, sums);
    if (atoms == 0) sums = Sums(); // there was no group to meet
    turn.mark(4);
    sums.write(parts + warp * TILE, lane);
    __syncthreads();
    turn.mark(5);
    done(Results<TEAM>{parts});
    turn.mark(7);
}

// Makes the rows of a block of any length: set after set of `walk.tiles` tiles, even ones of
// format A and odd ones of B, in pieces where they do not fit shared memory whole. As
// `hold_rows`, but `ready` gives the vector for both formats, `rows_of` and `done` take
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

// Brings all of a tile's rows, which are TILE, in bulk: a warp's work, of which `there` tells.
template <typename Format>
__device__ __forceinline__ void bring_tile(const Rows &rows, int groups, u8 *to, Barrier *there, int lane) {
    typedef Tile<Format> T;
    int bytes = 0;
#pragma unroll
    for (int plane = 0; plane < T::PLANES; plane++) bytes += TILE * T::width(plane, groups);
    if (lane == 0) arrive_and_expect(there, bytes);
    __syncwarp();
#pragma unroll
    for (int plane = 0; plane < T::PLANES; plane++) {
        const int width = T::width(plane, groups);
        const u8 *from = rows.w->plane[plane] + (size_t)rows.row0 * width;
        if (width % 16 != 0) { // they stay unchanged
            if (lane == 0) copy_in_bulk(to, from, TILE * width, there);
        } else if (lane < TILE) {
            copy_in_bulk(to + lane * pitch_of(width), from + lane * width, width, there);
        }
        to += plane_bytes(width);
    }
}

constexpr int OWN_STAGES = 2; // of a warp that makes tiles alone, at most

// Makes the rows of a block of any length on Hopper: each of WARPS warps at most tile after tile for itself, whole, with
// `walk.stages` stages of its own, so that no barrier of the block stands between them. `rows_of(set)` says which rows a warp's
// tile is, whole ones; `ready()` gives the vector; `done(row, sum)` gets the sums.
template <typename Format, int WARPS, typename RowsOf, typename Ready, typename Done>
__device__ __forceinline__ void own_rows(const Walk &walk, int groups, u8 *stages, Turn &turn, RowsOf rows_of, Ready ready,
                                         Done done) {
    typedef Tile<Format> T;
    __shared__ __align__(8) Barrier barriers[WARPS * OWN_STAGES];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Barrier *there = barriers + warp * OWN_STAGES;
    u8 *mine = stages + warp * walk.stages * walk.stride;
    if (lane == 0) {
        for (int i = 0; i < walk.stages; i++) make_barrier(&there[i], 1);
        show_barriers();
    }
    __syncwarp();
    auto fetch = [&](int set, int stage) {
        if (set < walk.sets && rows_of(set).row0 < rows_of(set).m) {
            bring_tile<Format>(rows_of(set), groups, mine + stage * walk.stride, &there[stage], lane);
        }
    };
    for (int set = 0; set < walk.stages; set++) fetch(set, set);
    turn.wait();
    turn.mark(0);
    const Vector x = ready();
    turn.mark(2);
    __syncthreads();
    turn.mark(3);
    const int atoms = (groups + T::ATOM - 1) / T::ATOM;
    int stage = 0;
    u32 parity = 0;
#pragma unroll 1
    for (int set = 0; set < walk.sets; set++) {
        const Rows rows = rows_of(set);
        if (rows.row0 >= rows.m) break;
        wait_for(&there[stage], parity);
        if (set == 0) turn.mark(4);
        const u8 *at = mine + stage * walk.stride;
        Sums sums;
#pragma unroll(T::ATOM < 8 ? 4 : 1)
        for (int i = 0; i < atoms; i++) T::add(T::hold(at, groups, i * T::ATOM, lane), x, i * T::ATOM, lane, sums);
        __syncwarp(); // all have read what is overwritten now
        fetch(set + walk.stages, stage);
        sums.give(lane, [&](int row, float v) { done(rows.row0 + row, v); });
        if (set == 0) turn.mark(5);
        if (++stage == walk.stages) stage = 0, parity ^= 1;
    }
}

// Makes the rows of a block whose `count` tiles of one format all fit shared memory: its warps share out the atoms of them all,
// of which each unpacks the first HELD before the block's turn. `fetch(tile, to)` brings a tile; `ready()` gives the vector;
// `done(results)` gets the sums, each in parts by atoms.
template <typename Format, int HELD, int WARPS>
struct SharedRows {
    typedef Tile<Format> T;
    const float *parts; // [count, atoms, TILE]
    int atoms;
    __device__ __forceinline__ float operator()(int tile, int row) const {
        const float *of = parts + tile * atoms * TILE + row;
        float sum = of[0];
        for (int k = 1; k < atoms; k++) sum += of[k * TILE];
        return sum;
    }
    template <typename Fetch, typename Ready, typename Done>
    static __device__ __forceinline__ void make(const Walk &walk, int count, int groups, u8 *stages, Turn &turn, Fetch fetch,
                                                Ready ready, Done done) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, atoms = (groups + T::ATOM - 1) / T::ATOM;
        float *parts = (float *)(stages + walk.tiles * walk.stride);
#pragma unroll 1
        for (int i = 0; i < count; i++) fetch(i, stages + i * walk.stride);
        end_copies();
        wait_for_copies<0>();
        __syncthreads();
        const int all = count * atoms;
        auto unpacked = [&](int i) { return T::hold(stages + i / atoms * walk.stride, groups, i % atoms * T::ATOM, lane); };
        auto add = [&](int i, const typename T::Held &held, const Vector &x) {
            Sums sums;
            T::add(held, x, i % atoms * T::ATOM, lane, sums);
            sums.write(parts + i * TILE, lane);
        };
        typename T::Held held[HELD > 0 ? HELD : 1] = {};
#pragma unroll 1
        for (int k = 0; k < HELD; k++) {
#pragma unroll
            for (int to = 0; to + 1 < HELD; to++) held[to] = held[to + 1];
            held[HELD - 1] = {};
            if (warp + k * WARPS < all) held[HELD - 1] = unpacked(warp + k * WARPS);
        }
        turn.wait();
        turn.mark(0);
        const Vector x = ready();
        turn.mark(2);
        __syncthreads();
        turn.mark(3);
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            if (warp + k * WARPS < all) add(warp + k * WARPS, held[k], x);
        }
        turn.mark(4);
#pragma unroll 1
        for (int i = warp + HELD * WARPS; i < all; i += WARPS) add(i, unpacked(i), x);
        turn.mark(5);
        __syncthreads();
        done(SharedRows{parts, atoms});
        turn.mark(7);
    }
};

// Bytes of x in shared memory for two formats.
template <typename A, typename B>
__device__ __forceinline__ int vector_bytes(int n) {
    typedef typename Tile<A>::X XA;
    typedef typename Tile<B>::X XB;
    const int bytes = padded_groups(n) * (XA::GROUP + 8 + (same_type<XA, XB> ? 0 : XB::GROUP + 8));
    return (bytes + 15) / 16 * 16; // the bytes behind them are copied by 16
}

// How many times 32 fours a warp takes side by side of a vector for these formats: see `prepare`.
template <typename... Formats>
constexpr int run_of = ((Tile<Formats>::X::BLOCK > 128) || ...) ? 2 : 1;

// Pads the vectors that `prepare_both` makes.
template <typename A, typename B>
__device__ __forceinline__ void pad_both(u8 *shared, int n) {
    typedef typename Tile<A>::X XA;
    typedef typename Tile<B>::X XB;
    pad<XA>(shared, n);
    if constexpr (!same_type<XA, XB>) pad<XB>(shared + padded_groups(n) * (XA::GROUP + 8), n);
}

// PADS: they are not padded yet.
template <typename A, typename B, int RUN, int AT_ONCE, bool PADS = true, bool ONCE = false, typename Get>
__device__ __forceinline__ Vectors prepare_both(u8 *shared, int n, Get get) {
    typedef typename Tile<A>::X XA;
    typedef typename Tile<B>::X XB;
    constexpr bool SUMS = Tile<A>::SUMS || Tile<B>::SUMS;
    if (PADS) pad_both<A, B>(shared, n);
    const Vector a = prepare<XA, RUN, AT_ONCE, SUMS, ONCE>(shared, n, get);
    if constexpr (same_type<XA, XB>) return {a, a};
    else return {a, prepare<XB, RUN, AT_ONCE, SUMS, ONCE>(shared + padded_groups(n) * (XA::GROUP + 8), n, get)};
}
