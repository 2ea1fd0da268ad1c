// What a decode step takes at least with the bytes of a model, what taps add to it, and how fast weights are unpacked and
// multiplied. docs/card-limits.md holds the engine against these limits. Weights are noise.
//
// nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -I engine/kernels engine/bench/floors.cu -o floors
//
// 1. Layers: five kernels a layer and the head, captured as the engine captures a decode step, with the bytes of weights and caches
//    that each kernel of the engine reads. Before its turn a block fills a ring by copies in bulk. On its turn it reads the vector of
//    the kernel before, measures it, multiplies every float that the ring brings, and writes its part of the next vector. No bytes
//    are unpacked, and nothing is split into digits. Rings take a multiprocessor or half of one, so that two kernels have room. Also
//    three kernels a layer, of which the first has the bytes of three and runs on 16 multiprocessors, as two clusters of eight would.
//    And five kernels a layer, of which all but attention also split the vector into digits, with the engine's code; with the 0.5B in
//    F16 into three halves, also with an ffn_down whose blocks split half of it each, as the engine's do.
//    And five kernels a layer whose vectors their makers have split or measured ("handed"): each 16 elements, a tile's rows, have a
//    scale, a sum and a sum of squares. Their readers multiply the digits, and scale for the norm what comes out; or they split by
//    the scales that they are told. Or they split what is not scaled by the norm yet, and scale what comes out ("scale last").
// 2. Taps: that step of the 0.5B, the host waiting for each. Its kernels store as many bytes as every stage has; beside the next step
//    a second stream computes the checksums of the rows of the caches, all blocks at once or some at a time, clears the slot and
//    brings it to the host. And parcels of a prefill's taps, which are copied aside and brought to the host through a ring.
// 3. Unpacking: warps on all multiprocessors unpack weights of shared memory and multiply them with a vector, again and again.
//
// All three compare with f64 what the kernels leave, and with the source what was copied. The program fails where they differ.

#include "fused/ring.cuh"
#include "kv.cuh"
namespace newest {
#include "fused/cache_rows.cu"
}

constexpr int MULTIPLIERS = 256;  // threads; a warp more brings
constexpr int PIECE_BYTES = 4096; // a float4 for each of them
constexpr int KEPT = 4096;        // elements of the vector that are multiplied, at most
constexpr int WARPS = MULTIPLIERS / 32;

struct PhaseParams {
    const float *x;
    float *next, *stored; // `stored` is a stage; null where nothing is tapped
    const u8 *from;
    int pieces, n, m, of_stage;
};

// The multipliers' barrier.
__device__ __forceinline__ void meet() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

template <int STAGES>
__global__ void __launch_bounds__(MULTIPLIERS + 32) phase(const __grid_constant__ PhaseParams p) {
    extern __shared__ __align__(1024) u8 shared[];
    __shared__ __align__(8) Barrier there[STAGES], taken[STAGES];
    __shared__ float parts[2][WARPS];
    float4 *x = (float4 *)(shared + STAGES * PIECE_BYTES);
    let_begin();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) make_barrier(&there[i], 1), make_barrier(&taken[i], WARPS);
        show_barriers();
    }
    __syncthreads();
    const int mine = (p.pieces - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp == WARPS) {
        if (lane != 0) return;
#pragma unroll 1
        for (int i = 0; i < mine; i++) {
            const int stage = i % STAGES;
            if (i >= STAGES) wait_for(&taken[stage], (i / STAGES - 1) & 1);
            arrive_and_expect(&there[stage], PIECE_BYTES);
            copy_in_bulk(shared + stage * PIECE_BYTES, p.from + ((size_t)i * gridDim.x + blockIdx.x) * PIECE_BYTES, PIECE_BYTES, &there[stage]);
        }
        return;
    }
    wait_for_turn();
    float squares = 0.0f;
    for (int i = threadIdx.x; i < p.n / 4; i += MULTIPLIERS) {
        const float4 v = __ldcg((const float4 *)p.x + i);
        squares = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, squares))));
        if (i < KEPT / 4) x[i] = v;
    }
    squares = warp_sum(squares);
    if (lane == 0) parts[0][warp] = squares;
    meet();
    float all = 0.0f;
#pragma unroll
    for (int i = 0; i < WARPS; i++) all += parts[0][i];
    const float scale = __frsqrt_rn(all / (float)p.n + 1e-6f);
    const u32 fours = min(p.n, KEPT) / 4;
    float sum = 0.0f;
#pragma unroll 1
    for (int i = 0; i < mine; i++) {
        const int stage = i % STAGES;
        wait_for(&there[stage], i / STAGES & 1);
        const float4 w = ((const float4 *)(shared + stage * PIECE_BYTES))[threadIdx.x];
        const float4 e = x[((u32)(i * gridDim.x + blockIdx.x) * MULTIPLIERS + threadIdx.x) % fours];
        sum = fmaf(w.x, e.x, fmaf(w.y, e.y, fmaf(w.z, e.z, fmaf(w.w, e.w, sum))));
        __syncwarp();
        if (lane == 0) arrive(&taken[stage]);
    }
    sum = warp_sum(sum);
    if (lane == 0) parts[1][warp] = sum * scale * 1e-3f;
    meet();
    auto write = [&](float *to, int count) {
        const int each = (count + gridDim.x - 1) / gridDim.x;
        for (int i = threadIdx.x; i < each && (int)blockIdx.x * each + i < count; i += MULTIPLIERS) {
            to[blockIdx.x * each + i] = parts[1][i % WARPS] * (float)(1 + i % 5); // no two neighbours are alike
        }
    };
    if (p.stored) write(p.stored, p.of_stage);
    write(p.next, p.m);
}

// Element i of a vector in shared memory: from four digits, or from three halves.
template <typename Format>
__device__ __forceinline__ float element_of(const Vector &x, int i) {
    typedef typename Tile<Format>::X X;
    const u8 *group = x.groups + i / 32 * X::GROUP;
    const float by = x.scales[i / 32].x;
    if constexpr (same_type<X, Parts<HalfPart>>) {
        const u16 *half = (const u16 *)group + HalfPart::place(i % 32);
        return (half_bits(half[0]) + (half_bits(half[32]) + half_bits(half[64]))) * by;
    } else {
        const int word = i % 32 / 4;
        const signed char *digit = (const signed char *)group + 4 * (word % 4 * 2 + word / 4) + i % 4;
        return ((float)digit[0] + 256.0f * ((float)digit[32] + 256.0f * ((float)digit[64] + 256.0f * (float)digit[96]))) * by;
    }
}

// The same, but after its measure the block also splits the vector as Format takes it, if `split` says so; HALF: half of it, every
// other block the second. The warp that brings helps.
template <typename Format, int STAGES, bool HALF>
__global__ void __launch_bounds__(MULTIPLIERS + 32) splitting(const __grid_constant__ PhaseParams p, const __grid_constant__ int split) {
    extern __shared__ __align__(1024) u8 shared[];
    __shared__ __align__(8) Barrier there[STAGES], taken[STAGES];
    __shared__ float parts[2][WARPS + 1];
    float4 *x = (float4 *)(shared + STAGES * PIECE_BYTES);
    let_begin();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) make_barrier(&there[i], 1), make_barrier(&taken[i], WARPS);
        show_barriers();
    }
    __syncthreads();
    const int mine = (p.pieces - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    auto bring = [&](int i) {
        const int stage = i % STAGES;
        arrive_and_expect(&there[stage], PIECE_BYTES);
        copy_in_bulk(shared + stage * PIECE_BYTES, p.from + ((size_t)i * gridDim.x + blockIdx.x) * PIECE_BYTES, PIECE_BYTES, &there[stage]);
    };
    if (warp == WARPS && lane == 0) {
#pragma unroll 1
        for (int i = 0; i < min(mine, STAGES); i++) bring(i);
    }
    __syncwarp();
    wait_for_turn();
    float squares = 0.0f;
    for (int i = threadIdx.x; i < p.n / 4; i += MULTIPLIERS + 32) {
        const float4 v = __ldcg((const float4 *)p.x + i);
        squares = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, squares))));
        if (i < KEPT / 4) x[i] = v;
    }
    squares = warp_sum(squares);
    if (lane == 0) parts[0][warp] = squares;
    __syncthreads();
    float all = 0.0f;
#pragma unroll
    for (int i = 0; i <= WARPS; i++) all += parts[0][i];
    const float scale = __frsqrt_rn(all / (float)p.n + 1e-6f);
    float sum = 0.0f;
    if (split) {
        const float4 *from = (const float4 *)p.x;
        const int n = HALF ? p.n / 2 : p.n, first = HALF ? blockIdx.x % 2 * n / 4 : 0;
        const Vector made = prepare_both<Format, Format, run_of<Format>, 3>((u8 *)(x + KEPT / 4), n, [&](int i) {
            const float4 v = first + i < KEPT / 4 ? x[first + i] : __ldcg(from + first + i);
            return make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale);
        }).a;
        __syncthreads();
        // An element of each thread, so that what was split is compared.
        sum = element_of<Format>(made, threadIdx.x % n);
    }
    if (warp == WARPS) {
        if (lane != 0) return;
#pragma unroll 1
        for (int i = STAGES; i < mine; i++) {
            wait_for(&taken[i % STAGES], (i / STAGES - 1) & 1);
            bring(i);
        }
        return;
    }
    const u32 fours = min(p.n, KEPT) / 4;
#pragma unroll 1
    for (int i = 0; i < mine; i++) {
        const int stage = i % STAGES;
        wait_for(&there[stage], i / STAGES & 1);
        const float4 w = ((const float4 *)(shared + stage * PIECE_BYTES))[threadIdx.x];
        const float4 e = x[((u32)(i * gridDim.x + blockIdx.x) * MULTIPLIERS + threadIdx.x) % fours];
        sum = fmaf(w.x, e.x, fmaf(w.y, e.y, fmaf(w.z, e.z, fmaf(w.w, e.w, sum))));
        __syncwarp();
        if (lane == 0) arrive(&taken[stage]);
    }
    sum = warp_sum(sum);
    if (lane == 0) parts[1][warp] = sum * scale * 1e-3f;
    meet();
    const int each = (p.m + gridDim.x - 1) / gridDim.x;
    for (int i = threadIdx.x; i < each && (int)blockIdx.x * each + i < p.m; i += MULTIPLIERS) {
        p.next[blockIdx.x * each + i] = parts[1][i % WARPS] * (float)(1 + i % 5);
    }
}

// How a kernel takes its vector: as floats that it measures; splits besides; as digits that the kernel before has made; as floats
// that this one has measured, by which it splits without a word between threads; or splits what is not measured yet.
enum Way { FLOATS, SPLIT, DIGITS, MEASURED, BEFORE };

constexpr int UNIT = 16; // elements, the rows of a tile, that share a scale

// This lane's word of a unit, an element a lane of half a warp, whose largest magnitude is given: one digit of four elements.
__device__ __forceinline__ u32 word_of_unit(float v, u32 largest, float &inverse) {
    const int lane = threadIdx.x % 32;
    float scale;
    scale_of(largest, 29, scale, inverse);
    const u32 mine = (u32)(__float2int_rn(v * scale) + 0x00808080) ^ 0x00808080u;
    const u32 beside = __shfl_xor_sync(0xffffffffu, mine, 1);
    const u32 two = lane % 2 == 0 ? __byte_perm(mine, beside, 0x6240) : __byte_perm(beside, mine, 0x7351);
    const u32 across = __shfl_xor_sync(0xffffffffu, two, 2);
    return lane % 4 < 2 ? __byte_perm(two, across, 0x5410) : __byte_perm(across, two, 0x7632);
}

// A vector as its makers leave it, besides its floats: the words of each unit, what an integer of it is worth, and the sums of its
// squares and of its elements.
struct Handed {
    u32 *digits;
    float4 *units;
};
// With SETS 3 the vector is the sum of three, as the residual stream is the sum of its value before ffn_down and of the two halves of ffn_down.
struct HandedParams {
    PhaseParams p;
    Handed from, to; // `to` is null where the next kernel wants floats alone
    Handed more[2];
    const float *more_floats[2];
};

// Leaves 16 elements, one a lane of a half of a warp. All lanes call it; `there` says whether a half has any.
__device__ __forceinline__ void hand(const Handed &to, int unit, bool there, float v) {
    const int lane = threadIdx.x % 32;
    u32 largest = __float_as_uint(v) & 0x7fffffffu;
    float squares = v * v, sum = v, inverse;
#pragma unroll
    for (int step = 1; step < UNIT; step *= 2) {
        largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, step));
        squares += __shfl_xor_sync(0xffffffffu, squares, step);
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    }
    const u32 word = word_of_unit(v, largest, inverse);
    if (!there) return;
    to.digits[unit * UNIT + lane % UNIT] = word;
    if (lane % UNIT == 0) to.units[unit] = make_float4(inverse, squares, sum, 0.0f);
}

// A vector of floats split by the scales that its makers found: as `prepare`, but no thread waits for another.
template <typename X, int RUN, typename Get>
__device__ __forceinline__ Vector prepare_measured(u8 *shared, int n, const float4 *units, Get get) {
    const int groups = padded_groups(n), items = n / 4, lane = threadIdx.x % 32;
    const Vector x = {shared, (float2 *)(shared + groups * X::GROUP)};
#pragma unroll 1
    for (int k0 = 0; four_of<RUN>(k0) - lane < items; k0 += RUN) {
        float4 v[RUN];
        u32 inverse[RUN];
        float sum[RUN];
#pragma unroll
        for (int k = 0; k < RUN; k++) {
            const int i = min(four_of<RUN>(k0 + k), items - 1);
            v[k] = get(i);
            const float4 a = __ldcg(units + i / 8 * 2), b = __ldcg(units + i / 8 * 2 + 1);
            inverse[k] = max(__float_as_uint(a.x), __float_as_uint(b.x)), sum[k] = a.z + b.z;
        }
        if constexpr (X::BLOCK == 256) inverse[0] = inverse[1] = warp_largest(max(inverse[0], inverse[1]));
#pragma unroll
        for (int k = 0; k < RUN; k++) {
            const int i = four_of<RUN>(k0 + k);
            if (i >= items) continue;
            const float by = X::put(x.groups + i / 8 * X::GROUP, i % 8, v[k], min((inverse[k] >> 23) + 29u, 255u) << 23);
            if (i % 8 == 0) x.scales[i / 8] = make_float2(by, sum[k]);
        }
    }
    return x;
}

// The warp that brings tells the multipliers the norm's factor, for which it does not wait.
__device__ __forceinline__ void tell_norm() { asm volatile("bar.arrive 2, 288;" ::: "memory"); }
__device__ __forceinline__ void wait_for_norm() { asm volatile("bar.sync 2, 288;" ::: "memory"); }

template <typename Format, int STAGES, Way WAY, int SETS>
__global__ void __launch_bounds__(MULTIPLIERS + 32) handed(const __grid_constant__ HandedParams h) {
    extern __shared__ __align__(1024) u8 shared[];
    __shared__ __align__(8) Barrier there[STAGES], taken[STAGES];
    __shared__ float parts[2][WARPS + 1], norm, squares_of[WAY == BEFORE ? MULTIPLIERS + 32 : 1];
    const PhaseParams &p = h.p;
    u8 *area = shared + STAGES * PIECE_BYTES;
    let_begin();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) make_barrier(&there[i], 1), make_barrier(&taken[i], WARPS);
        show_barriers();
    }
    __syncthreads();
    const int mine = (p.pieces - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    auto bring = [&](int i) {
        const int stage = i % STAGES;
        arrive_and_expect(&there[stage], PIECE_BYTES);
        copy_in_bulk(shared + stage * PIECE_BYTES, p.from + ((size_t)i * gridDim.x + blockIdx.x) * PIECE_BYTES, PIECE_BYTES, &there[stage]);
    };
    if (warp == WARPS && lane == 0) {
#pragma unroll 1
        for (int i = 0; i < min(mine, STAGES); i++) bring(i);
    }
    __syncwarp();
    wait_for_turn();
    constexpr bool UNITS = WAY == DIGITS && SETS == 1; // the maker also gives sums of squares
    float4 *x = (float4 *)area;
    u32 *digits = (u32 *)area;
    float4 *units = (float4 *)(digits + SETS * p.n);
    float sum = 0.0f, squares = 0.0f;
    auto add = [&](float4 v) { squares = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, squares)))); };
    // An element of each thread, so that what was split is compared.
    [[maybe_unused]] auto element = [&](const Vector &of) { return element_of<Format>(of, threadIdx.x % p.n); };
    if constexpr (WAY == DIGITS) {
#pragma unroll
        for (int set = 0; set < SETS; set++) {
            const Handed &from = set == 0 ? h.from : h.more[set - 1];
            for (int i = threadIdx.x; i < p.n / 4; i += MULTIPLIERS + 32) copy16(digits + set * p.n + 4 * i, from.digits + 4 * i);
            for (int i = threadIdx.x; i < p.n / UNIT; i += MULTIPLIERS + 32) copy16(units + set * (p.n / UNIT) + i, from.units + i);
        }
        end_copies();
        if constexpr (SETS > 1) { // only who adds them all has their squares
            for (int i = threadIdx.x; i < p.n / 4; i += MULTIPLIERS + 32) {
                const float4 a = __ldcg((const float4 *)p.x + i), b = __ldcg((const float4 *)h.more_floats[0] + i), c = __ldcg((const float4 *)h.more_floats[1] + i);
                add(make_float4(a.x + (b.x + c.x), a.y + (b.y + c.y), a.z + (b.z + c.z), a.w + (b.w + c.w)));
            }
        }
    } else if constexpr (WAY == MEASURED) {
        const float4 *from = (const float4 *)p.x;
        const Vector of = prepare_measured<typename Tile<Format>::X, run_of<Format>>(area + 4 * KEPT, p.n, h.from.units, [&](int i) {
            const float4 v = __ldcg(from + i);
            if (i < KEPT / 4) x[i] = v;
            return v;
        });
        if (warp == WARPS) {
            for (int i = lane; i < p.n / UNIT; i += 32) squares += __ldcg(&h.from.units[i].y);
        }
        __syncthreads();
        sum = element(of);
    } else if constexpr (WAY == BEFORE) {
        constexpr int RUN = run_of<Format>;
        const float4 *from = (const float4 *)p.x;
        int k = 0;
        const Vector of = prepare_both<Format, Format, RUN, 3>(area + 4 * KEPT, p.n, [&](int i) {
            const float4 v = __ldcg(from + i);
            if (four_of<RUN>(k++) == i) add(v); // and not what is there again
            if (i < KEPT / 4) x[i] = v;
            return v;
        }).a;
        squares_of[threadIdx.x] = squares;
        __syncthreads();
        sum = element(of);
    } else {
        for (int i = threadIdx.x; i < p.n / 4; i += MULTIPLIERS + 32) {
            const float4 v = __ldcg((const float4 *)p.x + i);
            add(v);
            if (i < KEPT / 4) x[i] = v;
        }
    }
    auto scale_of_squares = [&](float all) { return __frsqrt_rn(all / (float)p.n + 1e-6f); };
    if constexpr (WAY == FLOATS || WAY == SPLIT || SETS > 1) {
        squares = warp_sum(squares);
        if (lane == 0) parts[0][warp] = squares;
    }
    if constexpr (WAY == DIGITS) wait_for_copies<0>();
    if constexpr (WAY != MEASURED && WAY != BEFORE) __syncthreads();
    if constexpr (WAY == SPLIT) {
        float all = 0.0f;
#pragma unroll
        for (int i = 0; i <= WARPS; i++) all += parts[0][i];
        const float scale = scale_of_squares(all);
        const float4 *from = (const float4 *)p.x;
        const Vector of = prepare_both<Format, Format, run_of<Format>, 3>(area + 4 * KEPT, p.n, [&](int i) {
            const float4 v = i < KEPT / 4 ? x[i] : __ldcg(from + i);
            return make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale);
        }).a;
        __syncthreads();
        sum = element(of);
    }
    if (warp == WARPS) { // the norm's factor is wanted at the end alone
        if constexpr (UNITS) {
            for (int i = lane; i < p.n / UNIT; i += 32) squares += units[i].y;
        }
        if constexpr (WAY == BEFORE) {
            squares = 0.0f;
#pragma unroll
            for (int k = 0; k <= WARPS; k++) squares += squares_of[32 * k + lane];
        }
        float all = UNITS || WAY == MEASURED || WAY == BEFORE ? squares : lane <= WARPS ? parts[0][lane] : 0.0f;
        all = warp_sum(all);
        if (lane == 0) norm = scale_of_squares(all);
        tell_norm();
        if (lane != 0) return;
#pragma unroll 1
        for (int i = STAGES; i < mine; i++) {
            wait_for(&taken[i % STAGES], (i / STAGES - 1) & 1);
            bring(i);
        }
        return;
    }
    const u32 fours = (WAY == DIGITS ? p.n : min(p.n, KEPT)) / 4;
#pragma unroll 1
    for (int i = 0; i < mine; i++) {
        const int stage = i % STAGES;
        wait_for(&there[stage], i / STAGES & 1);
        const u32 at = ((u32)(i * gridDim.x + blockIdx.x) * MULTIPLIERS + threadIdx.x) % fours;
        if constexpr (WAY == DIGITS) { // four integers of a word of all that the ring brings, by four elements
            const uint4 w = ((const uint4 *)(shared + stage * PIECE_BYTES))[threadIdx.x];
            const int four = (int)((w.x << 8 ^ w.y ^ w.z >> 8 ^ w.w) & 0x3f3f3f3fu);
#pragma unroll
            for (int set = 0; set < SETS; set++) {
                const uint4 e = ((const uint4 *)(digits + set * p.n))[at];
                const int low = __dp4a(four, (int)e.x, 256 * __dp4a(four, (int)e.y, 0)), high = __dp4a(four, (int)e.z, 256 * __dp4a(four, (int)e.w, 0));
                sum = fmaf(fmaf((float)high, 65536.0f, (float)low), units[set * (p.n / UNIT) + at / 4].x, sum);
            }
        } else {
            const float4 w = ((const float4 *)(shared + stage * PIECE_BYTES))[threadIdx.x], e = x[at];
            sum = fmaf(w.x, e.x, fmaf(w.y, e.y, fmaf(w.z, e.z, fmaf(w.w, e.w, sum))));
        }
        __syncwarp();
        if (lane == 0) arrive(&taken[stage]);
    }
    sum = warp_sum(sum);
    if (lane == 0) parts[1][warp] = sum * (WAY == DIGITS ? 1e-4f : 1e-3f);
    wait_for_norm();
    // Half a warp makes what shares a scale, as 16 lanes of the engine do.
    for (int k = warp * 2; (int)blockIdx.x + k * (int)gridDim.x < p.m / UNIT; k += 2 * WARPS) {
        const int half = k + lane / UNIT, unit = blockIdx.x + half * gridDim.x, i = half * UNIT + lane % UNIT;
        const bool has = unit < p.m / UNIT;
        const float v = parts[1][i % WARPS] * norm * (float)(1 + i % 5);
        if (has) p.next[unit * UNIT + lane % UNIT] = v;
        if (h.to.digits) hand(h.to, unit, has, v);
    }
}

constexpr int UNPACKERS = 16, GROUPS = 64; // warps of a block, groups of the vector

struct UnpackParams {
    Weights w; // [blocks * UNPACKERS * OWN * TILE, 256]
    const float *x;
    float *y; // [blocks * UNPACKERS * TILE]
    int rounds;
};

// A warp's OWN pieces, one after another, against eight groups after eight of the vector.
template <typename Format, int OWN>
__global__ void __launch_bounds__(32 * UNPACKERS, 1) unpack(const __grid_constant__ UnpackParams p) {
    typedef Tile<Format> T;
    extern __shared__ __align__(1024) u8 shared[];
    const int lane = threadIdx.x % 32, warp = blockIdx.x * UNPACKERS + threadIdx.x / 32;
    const float4 *from = (const float4 *)p.x;
    const Vector x = prepare_both<Format, Format, run_of<Format>, 3>(shared, 32 * GROUPS, [&](int i) { return __ldcg(from + i); }).a;
    int stride = 0;
    for (int plane = 0; plane < T::PLANES; plane++) stride += plane_bytes(T::width(plane, PIECE));
    u8 *mine = shared + vector_bytes<Format, Format>(32 * GROUPS) + threadIdx.x / 32 * OWN * stride;
    for (int i = 0; i < OWN; i++) {
        fetch_tile<Format>({&p.w, (warp * OWN + i) * TILE, 1 << 30}, PIECE, 0, PIECE, mine + i * stride, Copiers::one_warp());
    }
    end_copies();
    wait_for_copies<0>();
    __syncthreads();
    Sums sums;
#pragma unroll 1
    for (int round = 0; round < p.rounds; round++) {
        const u8 *tile = mine + round % OWN * stride;
#pragma unroll
        for (int j = 0; j < PIECE; j += T::ATOM) T::add(T::hold(tile, PIECE, j, lane), x, round % (GROUPS / PIECE) * PIECE + j, lane, sums);
    }
    sums.write(p.y + warp * TILE, lane);
}

#ifndef EMULATED
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#define CK(x)                                                                                    \
    do {                                                                                         \
        cudaError_t e_ = (x);                                                                    \
        if (e_) {                                                                                \
            printf("%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(e_));                    \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

constexpr size_t BYTES = 1024 << 20, NOISE = 16 << 20; // of all weights, and floats of noise in them
constexpr int WHOLE = 46, HALF = 22;                   // stages of a ring
static int processors, wrong = 0;
static double copied; // bytes a second of a copy within the card, read and written
static cudaStream_t s;
static u8 *memory;
static std::vector<float> noise(NOISE);

template <typename T>
static T *room(size_t count) {
    void *at;
    CK(cudaMalloc(&at, count * sizeof(T) + 256));
    return (T *)at;
}
template <typename T>
static std::vector<T> read(const T *at, size_t count) {
    std::vector<T> host(count);
    CK(cudaMemcpy(host.data(), at, count * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
}
static void judge(bool right, const char *what) {
    if (!right) wrong++, printf("WRONG: %s\n", what);
}

struct Launch {
    int grid;
    PhaseParams p;
    int split = 0; // whether its vector is split; 2: half of it by each block
};
// The bytes of an element of each of a model's matrices, of half of the layers and of the others.
struct Shape {
    const char *name;
    int layers, e, f, kv, vocab;
    double most, value[2], down[2], head;
};
constexpr double Q4K = 4.5 / 8, Q50 = 5.5 / 8, Q6K = 6.5625 / 8, Q80 = 8.5 / 8, F16_BYTES = 2;
static const Shape SMALL = {"0.5B in Q4_K_M", 24, 896, 4864, 128, 151936, Q50, {Q80, Q50}, {Q6K, Q4K}, Q80};
static const Shape SHAPES[] = {
    SMALL,
    {"0.5B in F16", 24, 896, 4864, 128, 151936, F16_BYTES, {F16_BYTES, F16_BYTES}, {F16_BYTES, F16_BYTES}, F16_BYTES},
    {"1.5B in Q4_K_M", 28, 1536, 8960, 256, 151936, Q4K, {Q6K, Q4K}, {Q6K, Q4K}, Q6K},
    {"the 7B's shape in Q4_K_M", 28, 3584, 18944, 512, 152064, Q4K, {Q6K, Q4K}, {Q6K, Q4K}, Q6K},
    {"the 32B's shape in Q4_K_M", 64, 5120, 27648, 1024, 152064, Q4K, {Q6K, Q4K}, {Q6K, Q4K}, Q6K},
};
static float *vectors[2];

// The launches of a step after so many tokens: the kernels of so many layers, and HEAD: the head. THREE: with one kernel in the place
// of the first three.
static std::vector<Launch> step_of(const Shape &of, int layers, int tokens, bool three, bool head) {
    std::vector<Launch> all;
    size_t at = 0;
    auto add = [&](int grid, double bytes, int n, int m) {
        const int pieces = (int)(bytes / PIECE_BYTES) + 1;
        if (at + (size_t)pieces * PIECE_BYTES > BYTES) at = 0;
        const int i = (int)all.size() % 2;
        all.push_back({grid, {vectors[i], vectors[1 - i], nullptr, memory + at, pieces, n, m, 0}});
        at += (size_t)pieces * PIECE_BYTES;
    };
    const double e = of.e, kv = of.kv, f = of.f;
    for (int l = 0; l < layers; l++) {
        // A long cache is kept in f16.
        const double qkv = e * (e + kv) * of.most + e * kv * of.value[l % 2], out = e * e * of.most;
        const double keys = 2.0 * tokens * kv * (tokens > 512 ? 2 : 4);
        if (three) {
            add(16, qkv + keys + out, of.e, of.e);
        } else {
            add(processors, qkv, of.e, of.e), add(processors, keys, of.e, of.e), add(processors, out, of.e, of.e);
        }
        add(processors, 2 * e * f * of.most, of.e, of.f), add(processors, e * f * of.down[l % 2], of.f, of.e);
    }
    if (head) add(processors, e * of.vocab * of.head, of.e, of.e);
    return all;
}
static size_t bytes_of(const std::vector<Launch> &all) {
    size_t bytes = 0;
    for (const Launch &l : all) bytes += (size_t)l.p.pieces * PIECE_BYTES;
    return bytes;
}

// The captured step, its kernels with rings of so many stages.
static cudaGraphExec_t captured(const std::vector<Launch> &all, int stages) {
    auto *kernel = stages == WHOLE ? phase<WHOLE> : phase<HALF>;
    const int shared = stages * PIECE_BYTES + 4 * KEPT;
    CK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute early[1];
    early[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early[0].val.programmaticStreamSerializationAllowed = 1;
    c.blockDim = dim3(MULTIPLIERS + 32), c.dynamicSmemBytes = shared, c.stream = s, c.attrs = early;
    CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    for (const Launch &l : all) {
        c.gridDim = dim3(l.grid), c.numAttrs = &l != &all[0];
        CK(cudaLaunchKernelEx(&c, kernel, l.p));
    }
    cudaGraph_t g;
    cudaGraphExec_t e;
    CK(cudaStreamEndCapture(s, &g)); CK(cudaGraphInstantiate(&e, g, 0));
    CK(cudaGraphDestroy(g));
    return e;
}
// The same with kernels that split their vectors; null where so many stages have no room.
template <typename Format, int STAGES>
static cudaGraphExec_t captured_splitting(const std::vector<Launch> &all) {
    auto *whole = splitting<Format, STAGES, false>, *half = splitting<Format, STAGES, true>;
    auto shared_of = [](const Launch &l) { return STAGES * PIECE_BYTES + 4 * KEPT + ((l.p.n / 32 + 1) / 2 * 2 * (Tile<Format>::X::GROUP + 8) + 15) / 16 * 16; };
    int most = 0;
    for (const Launch &l : all) most = std::max(most, shared_of(l));
    if (most > (227 << 10) - 1024) return nullptr;
    for (auto *kernel : {whole, half}) CK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute early[1];
    early[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early[0].val.programmaticStreamSerializationAllowed = 1;
    c.blockDim = dim3(MULTIPLIERS + 32), c.stream = s, c.attrs = early;
    CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    for (const Launch &l : all) {
        c.gridDim = dim3(l.grid), c.dynamicSmemBytes = shared_of(l), c.numAttrs = &l != &all[0];
        CK(cudaLaunchKernelEx(&c, l.split == 2 ? half : whole, l.p, l.split));
    }
    cudaGraph_t g;
    cudaGraphExec_t e;
    CK(cudaStreamEndCapture(s, &g)); CK(cudaGraphInstantiate(&e, g, 0));
    CK(cudaGraphDestroy(g));
    return e;
}
// Microseconds of `run`, the median of many.
static double timed(const std::function<void()> &run) {
    cudaEvent_t a, b;
    CK(cudaEventCreate(&a)); CK(cudaEventCreate(&b));
    std::vector<float> us;
    for (int i = 0; i < 35; i++) {
        float ms;
        CK(cudaEventRecord(a, s));
        run();
        CK(cudaEventRecord(b, s));
        CK(cudaEventSynchronize(b));
        CK(cudaEventElapsedTime(&ms, a, b));
        if (i >= 4) us.push_back(1e3f * ms);
    }
    CK(cudaEventDestroy(a)); CK(cudaEventDestroy(b));
    std::sort(us.begin(), us.end());
    return us[us.size() / 2];
}

// What a launch leaves of x, by its definition: the sums of each warp of each block.
static std::vector<double> defined(const Launch &l, const std::vector<double> &x) {
    double squares = 0;
    for (int i = 0; i < l.p.n; i++) squares += x[i] * x[i];
    const double scale = 1e-3 / std::sqrt(squares / l.p.n + 1e-6);
    const size_t fours = std::min(l.p.n, KEPT) / 4, first = (size_t)(l.p.from - memory) / 4;
    std::vector<double> sums((size_t)l.grid * WARPS);
    for (int piece = 0; piece < l.p.pieces; piece++) {
        const float *w = noise.data() + (first + (size_t)piece * PIECE_BYTES / 4) % NOISE;
        for (size_t t = 0; t < MULTIPLIERS; t++) {
            const double *e = x.data() + ((size_t)piece * MULTIPLIERS + t) % fours * 4;
            double sum = 0;
            for (int k = 0; k < 4; k++) sum += w[4 * t + k] * e[k];
            sums[piece % l.grid * WARPS + t / 32] += sum * scale;
        }
    }
    const int n = l.split == 2 ? l.p.n / 2 : l.p.n;
    for (int i = 0; l.split && i < l.grid * MULTIPLIERS; i++) {
        sums[i / 32] += x[(l.split == 2 ? i / MULTIPLIERS % 2 * n : 0) + i % MULTIPLIERS % n] * (1e3 * scale) * scale;
    }
    return sums;
}
static std::vector<double> written(const Launch &l, const std::vector<double> &sums, int count) {
    const int each = (count + l.grid - 1) / l.grid;
    std::vector<double> y(count);
    for (int i = 0; i < count; i++) y[i] = sums[i / each * WARPS + i % each % WARPS] * (1 + i % each % 5);
    return y;
}
// Sums of positive numbers: f32 is that near.
static bool near(const std::vector<float> &y, const std::vector<double> &want) {
    for (size_t i = 0; i < want.size(); i++) {
        if (!(std::fabs(y[i] - want[i]) <= 3e-4 * want[i])) return false;
    }
    return true;
}
// Whether the last vector of a step and all that its kernels store are as defined.
static bool right(const std::vector<Launch> &all, cudaGraphExec_t e) {
    CK(cudaMemcpy(vectors[0], noise.data(), 4 * all[0].p.n, cudaMemcpyHostToDevice));
    CK(cudaGraphLaunch(e, s));
    CK(cudaStreamSynchronize(s));
    CK(cudaGraphExecDestroy(e));
    std::vector<double> x(noise.begin(), noise.begin() + all[0].p.n);
    bool good = true;
    for (const Launch &l : all) {
        const std::vector<double> sums = defined(l, x);
        x = written(l, sums, l.p.m);
        if (l.p.stored) good = good && near(read(l.p.stored, l.p.of_stage), written(l, sums, l.p.of_stage));
    }
    return good && near(read(all.back().p.next, x.size()), x);
}

static void layers() {
    for (const Shape &of : SHAPES) {
        const bool small = of.e < 2048, halves = of.most == F16_BYTES;
        for (int tokens : {512, 8192, 32000}) {
            if (tokens > 512 && (!small || halves)) continue;
            for (bool three : {false, true}) {
                if (three && (!small || halves || tokens > 512)) continue;
                const std::vector<Launch> all = step_of(of, of.layers, tokens, three, true);
                double us[2];
                for (int i : {0, 1}) {
                    const int stages = i == 0 ? WHOLE : HALF;
                    const std::vector<Launch> one = step_of(of, 1, tokens, three, false);
                    judge(right(one, captured(one, stages)), of.name);
                    cudaGraphExec_t e = captured(all, stages);
                    us[i] = timed([&] { CK(cudaGraphLaunch(e, s)); });
                    CK(cudaGraphExecDestroy(e));
                }
                const double least = std::min(us[0], us[1]), bytes = (double)bytes_of(all);
                printf("layers: %-26s after %5d tokens, %s kernels a layer, %8.1f MB: %7.1f us with a multiprocessor a ring, %7.1f with half of one; "
                       "at least %5.1f %% of a copy's bandwidth, at most %5.0f steps a second\n",
                       of.name, tokens, three ? "three" : "five", bytes * 1e-6, us[0], us[1], 100 * bytes / least / copied * 1e6, 1e6 / least);
            }
        }
    }
}

// `down`: how ffn_down splits its vector.
template <typename Format>
static void splits(const Shape &of, int down = 1) {
    constexpr bool HALVES = same_type<Format, F16>;
    for (int tokens : {512, 8192, 32000}) {
        if (tokens > 512 && (of.e > 2048 || HALVES)) continue;
        auto made = [&](int layers, bool head) {
            std::vector<Launch> all = step_of(of, layers, tokens, false, head);
            // Attention splits nothing.
            for (size_t i = 0; i < all.size(); i++) all[i].split = i % 5 == 4 ? down : i % 5 != 1;
            return all;
        };
        auto captures = [](const std::vector<Launch> &all) {
            return std::vector<cudaGraphExec_t>{captured_splitting<Format, 40>(all), captured_splitting<Format, 24>(all), captured_splitting<Format, 14>(all)};
        };
        const std::vector<Launch> all = made(of.layers, true), one = made(1, false);
        for (cudaGraphExec_t e : captures(one)) if (e) judge(right(one, e), of.name);
        double least = INFINITY;
        for (cudaGraphExec_t e : captures(all)) {
            if (!e) continue;
            least = std::min(least, timed([&] { CK(cudaGraphLaunch(e, s)); }));
            CK(cudaGraphExecDestroy(e));
        }
        const double bytes = (double)bytes_of(all);
        printf("%s: %-26s after %5d tokens, five kernels a layer, of which four split their vector%s: %7.1f us, %5.1f %% of a copy's bandwidth, at most "
               "%5.0f steps a second\n", HALVES ? "halves" : "digits", of.name, tokens, down == 2 ? ", a block of ffn_down half of it" : "", least,
               100 * bytes / least / copied * 1e6, 1e6 / least);
    }
}

// How the kernels of a layer take their vectors, attn_qkv (and the head), attention, attn_out, ffn_act, ffn_down, and whether the
// vectors of the first are the sum of three.
struct Hands {
    const char *what;
    Way ways[5];
    bool sums;
};
static const Hands HANDS[] = {
    {"of which four read digits", {DIGITS, FLOATS, DIGITS, DIGITS, DIGITS}, false},
    {"of which four read digits, attn_qkv and the head those of three vectors", {DIGITS, FLOATS, DIGITS, DIGITS, DIGITS}, true},
    {"of which three read digits, and attn_out splits", {DIGITS, FLOATS, SPLIT, DIGITS, DIGITS}, false},
    {"of which two read digits, and attn_qkv, attn_out and the head split", {SPLIT, FLOATS, SPLIT, DIGITS, DIGITS}, false},
    {"of which four split, and scale last", {BEFORE, FLOATS, BEFORE, BEFORE, BEFORE}, false},
    {"of which two read digits, attn_out splits, attn_qkv and the head scale last", {BEFORE, FLOATS, SPLIT, DIGITS, DIGITS}, false},
    {"of which four split by the scales that they are told", {MEASURED, FLOATS, MEASURED, MEASURED, MEASURED}, false},
    {"of which three split by the scales that they are told, and attn_out splits", {MEASURED, FLOATS, SPLIT, MEASURED, MEASURED}, false},
};
struct Hand {
    int grid;
    HandedParams h;
    Way way;
    int sets;
};
static Handed lefts[2], more_lefts[2];
static float *more_floats[2];

__global__ void leave_all(const float *x, Handed to, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x, unit = i / UNIT;
    hand(to, unit, i < n, i < n ? x[i] : 0.0f);
}
static std::vector<Hand> hands_of(const std::vector<Launch> &all, const Hands &hands) {
    std::vector<Hand> to;
    auto way_of = [&](size_t i) { return hands.ways[i % 5]; };
    for (size_t i = 0; i < all.size(); i++) {
        const Way way = way_of(i);
        const bool last = i + 1 == all.size(), leaves = !last && (way_of(i + 1) == DIGITS || way_of(i + 1) == MEASURED);
        HandedParams h = {all[i].p, lefts[i % 2], leaves ? lefts[1 - i % 2] : Handed{}, {more_lefts[0], more_lefts[1]}, {more_floats[0], more_floats[1]}};
        to.push_back({all[i].grid, h, way, hands.sums && i % 5 == 0 ? 3 : 1});
    }
    return to;
}
template <typename Format, int STAGES>
static cudaGraphExec_t captured_hands(const std::vector<Hand> &all) {
    auto kernel_of = [](const Hand &l) {
        if (l.way == DIGITS && l.sets == 3) return handed<Format, STAGES, DIGITS, 3>;
        return l.way == DIGITS ? handed<Format, STAGES, DIGITS, 1> : l.way == SPLIT ? handed<Format, STAGES, SPLIT, 1>
               : l.way == MEASURED ? handed<Format, STAGES, MEASURED, 1> : l.way == BEFORE ? handed<Format, STAGES, BEFORE, 1> : handed<Format, STAGES, FLOATS, 1>;
    };
    auto shared_of = [](const Hand &l) {
        const int n = l.h.p.n, digits = (n / 32 + 1) / 2 * 2 * (Tile<Format>::X::GROUP + 8);
        return STAGES * PIECE_BYTES + (l.way == DIGITS ? l.sets * 5 * n : 4 * KEPT + (l.way == FLOATS ? 0 : digits)) + 16;
    };
    for (const Hand &l : all) {
        if (shared_of(l) > (227 << 10) - 2048) return nullptr;
        CK(cudaFuncSetAttribute(kernel_of(l), cudaFuncAttributeMaxDynamicSharedMemorySize, (227 << 10) - 2048));
    }
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute early[1];
    early[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early[0].val.programmaticStreamSerializationAllowed = 1;
    c.blockDim = dim3(MULTIPLIERS + 32), c.stream = s, c.attrs = early;
    CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    for (const Hand &l : all) {
        c.gridDim = dim3(l.grid), c.dynamicSmemBytes = shared_of(l), c.numAttrs = &l != &all[0];
        CK(cudaLaunchKernelEx(&c, kernel_of(l), l.h));
    }
    cudaGraph_t g;
    cudaGraphExec_t e;
    CK(cudaStreamEndCapture(s, &g)); CK(cudaGraphInstantiate(&e, g, 0));
    CK(cudaGraphDestroy(g));
    return e;
}
// What a launch leaves of x, by its definition.
static std::vector<double> defined_of_hand(const Hand &l, std::vector<double> x) {
    const PhaseParams &p = l.h.p;
    for (int i = 0; l.sets == 3 && i < p.n; i++) x[i] += (double)noise[7000 + i] + noise[50000 + i];
    double squares = 0;
    for (int i = 0; i < p.n; i++) squares += x[i] * x[i];
    const double norm = 1.0 / std::sqrt(squares / p.n + 1e-6), factor = l.way == DIGITS ? 1e-4 : 1e-3;
    const size_t fours = (l.way == DIGITS ? p.n : std::min(p.n, KEPT)) / 4, first = (size_t)(p.from - memory) / 4;
    std::vector<double> sums((size_t)l.grid * WARPS);
    for (int piece = 0; piece < p.pieces; piece++) {
        const float *w = noise.data() + (first + (size_t)piece * PIECE_BYTES / 4) % NOISE;
        for (size_t t = 0; t < MULTIPLIERS; t++) {
            const double *e = x.data() + ((size_t)piece * MULTIPLIERS + t) % fours * 4;
            u32 bits[4];
            memcpy(bits, w + 4 * t, 16);
            const u32 word = bits[0] << 8 ^ bits[1] ^ bits[2] >> 8 ^ bits[3];
            double sum = 0;
            for (int k = 0; k < 4; k++) sum += (l.way == DIGITS ? (double)(word >> (8 * k) & 63) : (double)w[4 * t + k]) * e[k];
            sums[piece % l.grid * WARPS + t / 32] += sum;
        }
    }
    for (int i = 0; (l.way == SPLIT || l.way == MEASURED || l.way == BEFORE) && i < l.grid * MULTIPLIERS; i++) sums[i / 32] += x[i % MULTIPLIERS % p.n] * (l.way == SPLIT ? norm : 1);
    std::vector<double> y(p.m);
    for (int i = 0; i < p.m; i++) {
        const int unit = i / UNIT, j = unit / l.grid * UNIT + i % UNIT;
        y[i] = sums[unit % l.grid * WARPS + j % WARPS] * factor * norm * (1 + j % 5);
    }
    return y;
}
static bool right_hands(const std::vector<Hand> &all, cudaGraphExec_t e) {
    const int n = all[0].h.p.n;
    CK(cudaMemcpy(vectors[0], noise.data(), 4 * n, cudaMemcpyHostToDevice));
    leave_all<<<(n + 255) / 256, 256, 0, s>>>(vectors[0], lefts[0], n);
    CK(cudaGraphLaunch(e, s));
    CK(cudaStreamSynchronize(s));
    CK(cudaGraphExecDestroy(e));
    std::vector<double> x(noise.begin(), noise.begin() + n);
    for (const Hand &l : all) x = defined_of_hand(l, x);
    return near(read(all.back().h.p.next, x.size()), x);
}
template <typename Format>
static void handing(const Shape &of) {
    auto captures = [](const std::vector<Hand> &all) {
        return std::vector<cudaGraphExec_t>{captured_hands<Format, 40>(all), captured_hands<Format, 24>(all), captured_hands<Format, 14>(all)};
    };
    const std::vector<Launch> launches = step_of(of, of.layers, 512, false, true);
    // A layer, and what comes first of the next one, which reads what the last of this one leaves.
    std::vector<Launch> some = step_of(of, 2, 512, false, false);
    some.resize(6);
    const double bytes = (double)bytes_of(launches);
    for (const Hands &hands : HANDS) {
        // Weights in F16 meet no digits.
        if (same_type<Format, F16> && std::count(hands.ways, hands.ways + 5, DIGITS)) continue;
        const std::vector<Hand> all = hands_of(launches, hands), one = hands_of(some, hands);
        for (cudaGraphExec_t e : captures(one)) if (e) judge(right_hands(one, e), hands.what);
        double least = INFINITY;
        for (cudaGraphExec_t e : captures(all)) {
            if (!e) continue;
            least = std::min(least, timed([&] { CK(cudaGraphLaunch(e, s)); }));
            CK(cudaGraphExecDestroy(e));
        }
        printf("handed: %-26s after   512 tokens, five kernels a layer, %-79s %7.1f us, %5.1f %% of a copy's bandwidth, at most %5.0f steps a second\n",
               of.name, hands.what, least, 100 * bytes / least / copied * 1e6, 1e6 / least);
    }
}

constexpr int CACHES = 48, ROWS_OF_CACHES = 640, WIDTH = 128;
constexpr size_t SLOT = 4340864; // bytes of every stage of a decode step of the 0.5B after 512 tokens

static void taps() {
    std::vector<Launch> all = step_of(SMALL, SMALL.layers, 512, false, true);
    float *slots[2], *rows = room<float>((size_t)CACHES * ROWS_OF_CACHES * WIDTH), *newest_rows = room<float>(CACHES * (WIDTH + 1)), *host;
    for (float *&slot : slots) slot = room<float>(SLOT / 4);
    CK(cudaMallocHost(&host, SLOT));
    unsigned long long *sums = room<unsigned long long>(CACHES * ROWS_OF_CACHES);
    for (int i = 0; i < CACHES; i++) {
        CK(cudaMemcpy(rows + (size_t)i * ROWS_OF_CACHES * WIDTH, noise.data() + i * 1000, 4 * ROWS_OF_CACHES * WIDTH, cudaMemcpyHostToDevice));
    }
    std::vector<newest::TappedCache> told;
    for (int i = 0; i < CACHES; i++) {
        told.push_back({rows + (size_t)i * ROWS_OF_CACHES * WIDTH, sums + i * ROWS_OF_CACHES, (unsigned long long)i * (WIDTH + 1)});
    }
    newest::TappedCache *caches = room<newest::TappedCache>(CACHES);
    CK(cudaMemcpy(caches, told.data(), sizeof(told[0]) * CACHES, cudaMemcpyHostToDevice));
    cudaStream_t beside;
    cudaEvent_t done[2], brought[2];
    CK(cudaStreamCreateWithFlags(&beside, cudaStreamNonBlocking));
    for (auto *events : {done, brought}) {
        for (int i : {0, 1}) CK(cudaEventCreateWithFlags(&events[i], cudaEventDisableTiming));
    }
    // The rows of so many caches at a time.
    auto check_rows = [&](int at_once) {
        for (int i = 0; i < CACHES; i += at_once) {
            const newest::CacheRowsParams p = {caches + i, newest_rows, WIDTH, ROWS_OF_CACHES - 1, ROWS_OF_CACHES};
            newest::cache_rows<KvF32><<<dim3(at_once, (ROWS_OF_CACHES + newest::ROWS - 1) / newest::ROWS), newest::THREADS, 0, beside>>>(p);
        }
    };
    // Where each kernel stores its part of a slot.
    auto stored_at = [&](float *slot) {
        const int each = SLOT / 4 / all.size();
        for (size_t i = 0; i < all.size(); i++) all[i].p.stored = slot ? slot + i * each : nullptr, all[i].p.of_stage = slot ? each : 0;
    };
    stored_at(slots[0]);
    judge(right(all, captured(all, HALF)), "stages that are stored");
    CK(cudaMemset(sums, 0, 8 * CACHES * ROWS_OF_CACHES)); CK(cudaMemset(newest_rows, 0xff, 4 * CACHES * (WIDTH + 1)));
    CK(cudaDeviceSynchronize());
    for (int at_once : {CACHES, 6}) check_rows(at_once); // the second finds what the first left
    CK(cudaDeviceSynchronize());
    {
        const auto got = read(sums, CACHES * ROWS_OF_CACHES);
        const auto out = read(newest_rows, CACHES * (WIDTH + 1));
        bool good = true;
        for (int i = 0; i < CACHES; i++) {
            const float *of = noise.data() + i * 1000;
            for (int row = 0; row < ROWS_OF_CACHES; row++) {
                unsigned long long sum = 0;
                for (int k = 0; k < WIDTH; k++) {
                    u32 bits;
                    memcpy(&bits, of + row * WIDTH + k, 4);
                    unsigned long long h = (bits + 1ull) * 0x9e3779b97f4a7c15ull ^ (k + 1ull) * 0xc2b2ae3d27d4eb4full;
                    h = (h ^ h >> 29) * 0xbf58476d1ce4e5b9ull;
                    sum += h ^ h >> 32;
                }
                good = good && got[i * ROWS_OF_CACHES + row] == sum;
            }
            good = good && !memcmp(&out[i * (WIDTH + 1)], of + (ROWS_OF_CACHES - 1) * WIDTH, 4 * WIDTH);
            u32 changed;
            memcpy(&changed, &out[i * (WIDTH + 1) + WIDTH], 4);
            good = good && (changed == ~0u || changed < (u32)ROWS_OF_CACHES);
        }
        judge(good, "checksums of rows");
    }
    struct Way {
        const char *what;
        bool stores, brings;
        int caches; // of which rows are summed at a time
    };
    const Way WAYS[] = {{"no taps", false, false, 0},
                        {"every stage stored", true, false, 0},
                        {"and brought to the host, the slot cleared", true, true, 0},
                        {"and rows of caches summed, all at once", true, true, CACHES},
                        {"and rows of caches summed, 12 caches at a time", true, true, 12},
                        {"and rows of caches summed, 4 caches at a time", true, true, 4},
                        {"rows of caches summed, no stage stored", false, false, CACHES}};
    cudaGraphExec_t plain, tapped[2];
    stored_at(nullptr);
    plain = captured(all, HALF);
    for (int i : {0, 1}) stored_at(slots[i]), tapped[i] = captured(all, HALF);
    std::vector<double> us[std::size(WAYS)];
    for (int round = 0; round < 5; round++) {
        for (const Way &way : WAYS) {
            for (int i = 0; i < 200; i++) {
                const int turn = i % 2;
                const auto began = std::chrono::steady_clock::now();
                if (way.brings && i > 1) CK(cudaStreamWaitEvent(s, brought[turn], 0));
                CK(cudaGraphLaunch(way.stores ? tapped[turn] : plain, s));
                CK(cudaEventRecord(done[turn], s));
                if (way.brings || way.caches) CK(cudaStreamWaitEvent(beside, done[turn], 0));
                if (way.caches) check_rows(way.caches);
                if (way.brings) {
                    CK(cudaMemcpyAsync(host, slots[turn], SLOT, cudaMemcpyDeviceToHost, beside));
                    CK(cudaMemsetAsync(slots[turn], 0, SLOT, beside));
                    CK(cudaEventRecord(brought[turn], beside));
                }
                CK(cudaEventSynchronize(done[turn]));
                if (i >= 20) us[&way - WAYS].push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - began).count());
            }
            CK(cudaDeviceSynchronize());
        }
    }
    double without = 0;
    for (const Way &way : WAYS) {
        auto &all_us = us[&way - WAYS];
        std::sort(all_us.begin(), all_us.end());
        const double median = all_us[all_us.size() / 2];
        if (&way == WAYS) without = median;
        printf("taps: a step of the 0.5B as the host waits for it, %-50s %6.1f us, %4.1f %% slower\n", way.what, median, 100 * (1 - without / median));
    }
    CK(cudaGraphExecDestroy(plain));
    for (cudaGraphExec_t e : tapped) CK(cudaGraphExecDestroy(e));
}

// Parcels as `readback.rs` brings them, without kernels between them.
static void parcels() {
    constexpr size_t RING = 64 << 20, MOST = 256 << 20;
    u8 *host, *aside = room<u8>(RING);
    cudaStream_t copies;
    CK(cudaMallocHost(&host, MOST));
    CK(cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking));
    // Bytes a second of each run.
    auto told = [&](const char *what, size_t parcel, std::vector<double> runs) {
        std::sort(runs.begin(), runs.end());
        printf("link: %-38s of %6.2f MB: median %5.2f GB/s, best %5.2f, worst %5.2f\n", what, parcel * 1e-6, runs[runs.size() / 2] * 1e-9,
               runs.back() * 1e-9, runs[0] * 1e-9);
    };
    auto seconds = [](auto run) {
        const auto began = std::chrono::steady_clock::now();
        run();
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    };
    std::vector<double> runs;
    for (int i = 0; i < 12; i++) {
        const double took = seconds([&] {
            CK(cudaMemcpyAsync(host, memory, MOST, cudaMemcpyDeviceToHost, copies));
            CK(cudaStreamSynchronize(copies));
        });
        if (i > 1) runs.push_back(MOST / took);
    }
    told("one copy", MOST, runs);
    // The 0.5B after 512 tokens: keys, a vector of each token, gates, scores; and the largest parcel.
    for (size_t parcel : {(size_t)512 * 128 * 4, (size_t)512 * 896 * 4, (size_t)512 * 4864 * 4, (size_t)14 * 512 * 512 * 4, RING / 4}) {
        const size_t places = RING / parcel, count = BYTES / parcel;
        std::vector<cudaEvent_t> filled(places), arrived(places);
        for (auto *events : {&filled, &arrived}) {
            for (cudaEvent_t &e : *events) CK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
        }
        runs.clear();
        for (int run = 0; run < 7; run++) {
            memset(host, 0, RING);
            const double took = seconds([&] {
                for (size_t i = 0; i < count; i++) {
                    const size_t at = i % places;
                    if (i >= places) CK(cudaEventSynchronize(arrived[at]));
                    CK(cudaMemcpyAsync(aside + at * parcel, memory + i * parcel, parcel, cudaMemcpyDeviceToDevice, s));
                    CK(cudaEventRecord(filled[at], s));
                    CK(cudaStreamWaitEvent(copies, filled[at], 0));
                    CK(cudaMemcpyAsync(host + at * parcel, aside + at * parcel, parcel, cudaMemcpyDeviceToHost, copies));
                    CK(cudaEventRecord(arrived[at], copies));
                }
                CK(cudaStreamSynchronize(copies));
            });
            for (size_t at = 0; at < places; at++) {
                const size_t last = (count - 1 - at) / places * places + at; // the last parcel of this place
                const u8 *noise_of = (const u8 *)noise.data();
                bool same = true;
                for (size_t k = 0; k < parcel; k += 4096) {
                    const size_t from = (last * parcel + k) % (4 * NOISE);
                    same = same && host[at * parcel + k] == noise_of[from];
                }
                judge(same, "a parcel");
            }
            if (run > 1) runs.push_back(count * parcel / took);
        }
        told("parcels through a ring", parcel, runs);
        for (auto *events : {&filled, &arrived}) for (cudaEvent_t e : *events) CK(cudaEventDestroy(e));
    }
    CK(cudaFreeHost(host)); CK(cudaFree(aside));
}

template <typename F>
__global__ void weights_of(Weights w, size_t groups, float *to) {
    const size_t g = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (g < groups) F::unpack(F::load(w, g), g % 8, to + 32 * g);
}

// `planes`: bytes of a plane for 256 weights, and which plane has halves that scale, or begins each 16 bytes with two of them.
template <typename F, int OWN = 2>
static void unpacking(const char *name, std::vector<int> planes, int scales, bool heads = false) {
    const int rows = processors * UNPACKERS * OWN * TILE;
    Weights w = {};
    int bytes = 0;
    for (size_t i = 0; i < planes.size(); i++) {
        std::vector<u16> raw((size_t)rows * planes[i] / 2);
        u32 state = 7 + (u32)i;
        for (u16 &v : raw) v = (u16)((state = state * 1664525u + 1013904223u) >> 16);
        for (size_t k = 0; (int)i == scales && k < raw.size(); k++) {
            if (!heads || k % 8 < 2) raw[k] = (raw[k] & 0x83ff) | 0x2000;
        }
        u8 *at = room<u8>(2 * raw.size());
        CK(cudaMemcpy(at, raw.data(), 2 * raw.size(), cudaMemcpyHostToDevice));
        w.plane[i] = at, bytes += planes[i];
    }
    std::vector<float> x(32 * GROUPS);
    for (size_t i = 0; i < x.size(); i++) x[i] = noise[i] - 0.75f;
    float *x_at = room<float>(x.size()), *y = room<float>((size_t)rows / OWN), *unpacked = room<float>((size_t)rows * 256);
    CK(cudaMemcpy(x_at, x.data(), 4 * x.size(), cudaMemcpyHostToDevice));
    int shared = GROUPS * (Tile<F>::X::GROUP + 8) + 16;
    for (int plane : planes) {
        const int pitch = plane % 16 == 0 ? (plane / 16 | 1) * 16 : plane;
        shared += UNPACKERS * OWN * ((TILE * pitch + 15) / 16 * 16);
    }
    CK(cudaFuncSetAttribute(unpack<F, OWN>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    UnpackParams p = {w, x_at, y, 64};
    unpack<F, OWN><<<processors, 32 * UNPACKERS, shared, s>>>(p);
    const size_t groups = (size_t)rows * 8;
    weights_of<F><<<(groups + 255) / 256, 256, 0, s>>>(w, groups, unpacked);
    CK(cudaStreamSynchronize(s));
    CK(cudaGetLastError());
    const auto values = read(unpacked, (size_t)rows * 256);
    const auto got = read(y, rows / OWN);
    double most = 0;
    for (int i = 0; i < rows / OWN; i++) {
        double sum = 0, all = 0;
        for (int round = 0; round < p.rounds; round++) {
            const float *of = &values[((size_t)(i / TILE * OWN + round % OWN) * TILE + i % TILE) * 256], *with = &x[round % (GROUPS / PIECE) * 256];
            for (int k = 0; k < 256; k++) sum += (double)of[k] * with[k], all += std::fabs((double)of[k] * with[k]);
        }
        const double off = std::fabs(got[i] - sum) / all * 16777216.0;
        most = std::max(most, std::isnan(off) ? INFINITY : off);
    }
    judge(most < 64, name);
    p.rounds = 8192;
    const double us = timed([&] { unpack<F, OWN><<<processors, 32 * UNPACKERS, shared, s>>>(p); });
    p.rounds = 1024;
    // Less what a launch takes besides.
    const double short_us = timed([&] { unpack<F, OWN><<<processors, 32 * UNPACKERS, shared, s>>>(p); });
    const double each = 1e6 * (8192 - 1024) * processors * UNPACKERS * TILE * 256 / (us - short_us);
    cudaFuncAttributes about;
    CK(cudaFuncGetAttributes(&about, unpack<F, OWN>));
    printf("unpacking: %-5s %6.2f T weights a second, %5.2f TB/s of blocks, %.1f weights a cycle of a multiprocessor at 1.98 GHz; %d registers, "
           "%zu spilt; off by %.2f u of the sum of magnitudes\n", name, each * 1e-12, each * bytes / 256 * 1e-12, each / processors / 1.98e9,
           about.numRegs, about.localSizeBytes, most);
    for (size_t i = 0; i < planes.size(); i++) CK(cudaFree((void *)w.plane[i]));
    CK(cudaFree(x_at)); CK(cudaFree(y)); CK(cudaFree(unpacked));
}

// With "handed" only the steps that split their vectors, and those whose vectors are handed over so.
int main(int argc, char **argv) {
    const bool whole = argc < 2 || strcmp(argv[1], "handed") != 0;
    setvbuf(stdout, nullptr, _IONBF, 0);
    cudaDeviceProp about;
    CK(cudaGetDeviceProperties(&about, 0));
    processors = about.multiProcessorCount;
    CK(cudaStreamCreate(&s));
    memory = room<u8>(BYTES);
    for (float *&v : vectors) v = room<float>(32768);
    for (size_t i = 0; i < NOISE; i++) { // from a half to one
        const u32 bits = 0x3f000000u | ((u32)i * 2654435761u >> 9);
        memcpy(&noise[i], &bits, 4);
    }
    for (size_t at = 0; at < BYTES; at += 4 * NOISE) CK(cudaMemcpy(memory + at, noise.data(), 4 * NOISE, cudaMemcpyHostToDevice));
    copied = 1e6 * BYTES / timed([&] { CK(cudaMemcpyAsync(memory + BYTES / 2, memory, BYTES / 2, cudaMemcpyDeviceToDevice, s)); });
    printf("%s, %d multiprocessors; a copy moves %.0f GB/s\n", about.name, processors, copied * 1e-9);
    if (whole) layers();
    splits<Q5_0>(SHAPES[0]);
    for (int down : {1, 2}) splits<F16>(SHAPES[1], down);
    for (int i : {2, 3, 4}) splits<Q4_K>(SHAPES[i]);
    for (Handed *left : {&lefts[0], &lefts[1], &more_lefts[0], &more_lefts[1]}) *left = {room<u32>(32768), room<float4>(32768 / UNIT)};
    for (int i : {0, 1}) {
        more_floats[i] = room<float>(32768);
        CK(cudaMemcpy(more_floats[i], noise.data() + (i == 0 ? 7000 : 50000), 4 * 32768, cudaMemcpyHostToDevice));
        leave_all<<<32768 / 256, 256, 0, s>>>(more_floats[i], more_lefts[i], 32768);
    }
    handing<Q5_0>(SHAPES[0]);
    handing<F16>(SHAPES[1]);
    for (int i : {2, 3, 4}) handing<Q4_K>(SHAPES[i]);
    if (!whole) {
        printf(wrong ? "%d are WRONG\n" : "all is right\n", wrong);
        return wrong != 0;
    }
    taps();
    parcels();
    unpacking<Q4_K>("Q4_K", {128, 16}, 1, true);
    unpacking<Q6_K>("Q6_K", {128, 64, 16, 2}, 3);
    unpacking<Q5_0>("Q5_0", {128, 32, 16}, 2);
    unpacking<Q8_0>("Q8_0", {256, 16}, 1);
    unpacking<F16, 1>("F16", {512}, 0);
    printf(wrong ? "%d are WRONG\n" : "all is right\n", wrong);
    return wrong != 0;
}
#endif
