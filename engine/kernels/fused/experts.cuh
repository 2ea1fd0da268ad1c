#pragma once

#include "fused/ring.cuh"

// The experts of a token, in a decode step: who is chosen, and products with rows of the chosen ones alone.

// From the router's logits to the chosen experts and their weights.
struct Choice {
    const float *logits;
    float *chosen, *weights;                                       // for the kernel after it
    float *probs_tap, *chosen_tap, *weights_tap, *shares_tap;      // null where not wanted
    int experts, taken, normalised;
};

// Bytes of shared memory that a choice takes: of probabilities, by four, and of the chosen places. `choice_bytes` in
// engine/src/cuda/mixture.rs takes as many.
__device__ __forceinline__ int fours_of(int experts) { return (experts + 3) / 4; }
__device__ __forceinline__ int choice_bytes(const Choice &c) { return (16 * fours_of(c.experts) + 4 * c.taken + 15) / 16 * 16; }

struct Chosen {
    int *keys;   // of each expert the bits of its probability, which order as it does; -1 where that is no number
    int *places; // [taken], the most probable first

    static constexpr int OWN = 8; // experts that a lane has in registers

    __device__ __forceinline__ float prob(int expert) const { return keys[expert] < 0 ? __int_as_float(0x7fffffff) : __int_as_float(keys[expert]); }

    // Softmax, and the place of each expert among all by its probability: of equals the lower index comes first, NaN last, as in
    // top_k.cu. Each block does it for itself, which is faster than to wait for another one. All threads call it.
    static __device__ __forceinline__ Chosen among(const Choice &c, u8 *shared) {
        const Chosen of = {(int *)shared, (int *)shared + 4 * fours_of(c.experts)};
        const int lane = threadIdx.x % 32, part = threadIdx.x % 4, all = c.experts;
        float *scores = (float *)shared;
        for (int i = threadIdx.x; i < all; i += blockDim.x) scores[i] = __ldcg(c.logits + i);
        __syncthreads();
        if (threadIdx.x < 32) {
            float own[OWN], largest = -3.402823466e38f, total = 0.0f;
#pragma unroll
            for (int k = 0; k < OWN; k++) {
                own[k] = lane + 32 * k < all ? scores[lane + 32 * k] : -3.402823466e38f;
                largest = fmaxf(largest, own[k]);
            }
            for (int i = lane + 32 * OWN; i < all; i += 32) largest = fmaxf(largest, scores[i]);
            largest = warp_max(largest);
#pragma unroll
            for (int k = 0; k < OWN; k++) {
                own[k] = lane + 32 * k < all ? expf(own[k] - largest) : 0.0f;
                total += own[k];
            }
            for (int i = lane + 32 * OWN; i < all; i += 32) total += expf(scores[i] - largest);
            total = warp_sum(total);
            auto put = [&](int i, float power) {
                const float prob = tap(of_first(c.probs_tap), i, power / total);
                of.keys[i] = prob == prob ? (int)__float_as_uint(prob) : -1;
            };
#pragma unroll
            for (int k = 0; k < OWN; k++) {
                if (lane + 32 * k < all) put(lane + 32 * k, own[k]);
            }
            for (int i = lane + 32 * OWN; i < all; i += 32) put(i, expf(scores[i] - largest));
        }
        __syncthreads();
        // Four threads count who comes before an expert: who has more, and of equals those before it.
        for (int first = 0; first < all; first += blockDim.x / 4) {
            const int i = first + threadIdx.x / 4, own = i < all ? of.keys[i] : 0;
            int before = 0;
#pragma unroll 4
            for (int j = part; j < fours_of(all); j += 4) {
                const uint4 four = ((const uint4 *)of.keys)[j];
                const int theirs[4] = {(int)four.x, (int)four.y, (int)four.z, (int)four.w};
#pragma unroll
                for (int k = 0; k < 4; k++) before += 4 * j + k < all && theirs[k] > own - (4 * j + k < i);
            }
            before += __shfl_xor_sync(0xffffffffu, before, 1);
            before += __shfl_xor_sync(0xffffffffu, before, 2);
            if (i < all && part == 0 && before < c.taken) of.places[before] = i;
        }
        __syncthreads();
        return of;
    }

    // The first block alone writes what all of them have.
    template <typename T>
    static __device__ __forceinline__ T *of_first(T *to) { return blockIdx.x == 0 ? to : nullptr; }

    // Tells the choice and its weights to the kernel after this one.
    __device__ __forceinline__ void tell(const Choice &c) const {
        if (blockIdx.x != 0 || threadIdx.x >= 32) return;
        float total = 0.0f;
        for (int r = 0; r < c.taken; r++) total += prob(places[r]);
        for (int r = threadIdx.x; r < c.taken; r += 32) {
            float weight = tap(c.weights_tap, r, prob(places[r]));
            if (c.normalised) weight = tap(c.shares_tap, r, weight / fmaxf(total, 6.103515625e-5f));
            c.weights[r] = weight;
            c.chosen[r] = tap(c.chosen_tap, r, (float)places[r]);
        }
    }
};

// A turn that has come.
struct Had {
    Turn &turn;
    __device__ __forceinline__ void wait() {}
    __device__ __forceinline__ void mark(int i) { turn.mark(i); }
};

// Rows as they are, for products without tensor cores: a lane meets a group of 32 elements at a time, and those of a warp's lanes
// share no bank.
constexpr int LINE = 36; // floats from group to group

// Brings n elements, four at a time, all threads of a block.
template <typename Get>
__device__ __forceinline__ void lay_out(float *to, int n, Get get) {
    for (int i = threadIdx.x; i < n / 4; i += blockDim.x) *(float4 *)(to + i / 8 * LINE + i % 8 * 4) = get(i);
}

// Adds the products of group g of a row with those of x.
template <typename Format>
__device__ __forceinline__ void add_group(const typename Format::Raw &raw, const float *x, int g, float4 &sum) {
    float value[32];
    Format::unpack(raw, g % 8, value);
    const float4 *of = (const float4 *)(x + g * LINE);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float4 v = of[i];
        sum.x = fmaf(value[4 * i], v.x, sum.x);
        sum.y = fmaf(value[4 * i + 1], v.y, sum.y);
        sum.z = fmaf(value[4 * i + 2], v.z, sum.z);
        sum.w = fmaf(value[4 * i + 3], v.w, sum.w);
    }
}

__device__ __forceinline__ float warp_sum_of(float4 v) { return warp_sum((v.x + v.y) + (v.z + v.w)); }

// A row of W with x, by a warp; all of its lanes have the sum.
template <typename Format>
__device__ __forceinline__ float dot(const Weights &w, size_t row, int groups, const float *x) {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int g = threadIdx.x % 32; g < groups; g += 32) add_group<Format>(Format::load(w, row * groups + g), x, g, sum);
    return warp_sum_of(sum);
}
