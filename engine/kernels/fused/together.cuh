#pragma once

#include "fused/decode.cuh"
#include "fused/shares.cuh"

// The shares of a token's attention put together once, by the last block that leaves one: `attn_out`, each of whose blocks would
// read all of them, finds the context. The order of adding does not depend on who comes last.

// Shared memory of who puts the shares of GROUP heads together.
template <int GROUP, int THREADS>
struct Scratch {
    float4 parts[THREADS];
    float factors[GROUP][SPLITS], by[GROUP];
    u32 before; // blocks that had come
};

// Whether this block is the last of `blocks` to come here, whose writes it then sees. `arrived` is left at 0 as it was found.
__device__ __forceinline__ bool is_last(u32 *arrived, int blocks, u32 &before) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) before = atomicAdd(arrived, 1);
    __syncthreads();
    if (before + 1 != (u32)blocks) return false;
    __threadfence();
    if (threadIdx.x == 0) *arrived = 0;
    return true;
}

// Puts the shares of a head of the cache together: of its group's fours every RANKS-th, from `rank` on. A thread adds every PARTS-th
// share of a four, and the parts are added in their order. The measures of the head's shares begin at `measures`.
template <int D, int GROUP, int RANKS, int THREADS>
__device__ __forceinline__ void put_together(const Partial &partial, float *context, int live, int kv_head, int rank, int measures,
                                             Scratch<GROUP, THREADS> &scratch) {
    constexpr int FOURS = GROUP * D / 4, EACH = FOURS / RANKS, AT_ONCE = EACH < THREADS ? EACH : THREADS;
    constexpr int PARTS = THREADS / AT_ONCE < 16 ? THREADS / AT_ONCE : 16, BATCH = 12;
    static_assert(FOURS % RANKS == 0 && SPLITS == 64, "a lane measures two shares");
    const int part = threadIdx.x / AT_ONCE, lane = threadIdx.x % 32;
#pragma unroll 1
    for (int e = 0; e < EACH; e += AT_ONCE) {
        const int at = e + threadIdx.x % AT_ONCE, i = min(at, EACH - 1) * RANKS + rank, of_head = i / (D / 4);
        const bool there = part < PARTS && at < EACH;
        const float4 *sums = (const float4 *)partial.sums + (size_t)(kv_head * GROUP + of_head) * SPLITS * (D / 4) + i % (D / 4);
        float4 share[BATCH];
        auto ask = [&](int first) {
#pragma unroll
            for (int k = 0; k < BATCH; k++) {
                const int n = first + k * PARTS;
                share[k] = there && n < live ? __ldcg(sums + (size_t)n * (D / 4)) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            }
        };
        ask(part);
        if (e == 0) {
#pragma unroll 1
            for (int head = threadIdx.x / 32; head < GROUP; head += THREADS / 32) {
                float2 measure[2];
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    const int n = lane + 32 * k;
                    measure[k] = n < live ? __ldcg(partial.measures + measures + (kv_head * GROUP + head) * SPLITS + n)
                                          : make_float2(-3.402823466e38f, 0.0f);
                }
                const float most = warp_max(fmaxf(measure[0].x, measure[1].x));
                float total = 0.0f;
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    const float f = expf(measure[k].x - most);
                    scratch.factors[head][lane + 32 * k] = f;
                    total = fmaf(measure[k].y, f, total);
                }
                total = warp_sum(total);
                if (lane == 0) scratch.by[head] = 1.0f / total;
            }
        }
        __syncthreads();
        float4 s = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
        for (int first = part; first < live; first += BATCH * PARTS) {
            if (first > part) ask(first);
#pragma unroll
            for (int k = 0; k < BATCH; k++) { // a share that is not there adds zeros
                const float f = scratch.factors[of_head][min(first + k * PARTS, SPLITS - 1)];
                s.x = fmaf(share[k].x, f, s.x), s.y = fmaf(share[k].y, f, s.y), s.z = fmaf(share[k].z, f, s.z), s.w = fmaf(share[k].w, f, s.w);
            }
        }
        if (PARTS > 1) {
            scratch.parts[threadIdx.x] = s;
            __syncthreads();
#pragma unroll
            for (int k = 1; k < PARTS; k++) {
                const float4 more = scratch.parts[k * AT_ONCE + threadIdx.x % AT_ONCE];
                s.x += more.x, s.y += more.y, s.z += more.z, s.w += more.w;
            }
        }
        if (part == 0 && there) {
            const float by = scratch.by[of_head];
            ((float4 *)context)[kv_head * FOURS + i] = make_float4(s.x * by, s.y * by, s.z * by, s.w * by);
        }
    }
}
