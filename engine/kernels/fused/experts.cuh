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

// Bytes of shared memory that a choice takes: of probabilities, and of the chosen places. `choice_bytes` in
// engine/src/cuda/mixture.rs takes as many.
__device__ __forceinline__ int choice_bytes(const Choice &c) { return (4 * (c.experts + c.taken) + 15) / 16 * 16; }

struct Chosen {
    float *probs; // [experts]
    int *places;  // [taken], the most probable first

    // Softmax, and the place of each expert among all by its probability: of equals the lower index comes first, NaN last, as in
    // top_k.cu. Each block does it for itself, which is faster than to wait for another one. All threads call it.
    static __device__ __forceinline__ Chosen among(const Choice &c, u8 *shared) {
        const Chosen of = {(float *)shared, (int *)shared + c.experts};
        const int lane = threadIdx.x % 32, part = threadIdx.x % 4, all = c.experts;
        if (threadIdx.x < 32) {
            float largest = -3.402823466e38f, total = 0.0f;
            for (int i = lane; i < all; i += 32) {
                of.probs[i] = __ldcg(c.logits + i);
                largest = fmaxf(largest, of.probs[i]);
            }
            largest = warp_max(largest);
            for (int i = lane; i < all; i += 32) {
                of.probs[i] = expf(of.probs[i] - largest);
                total += of.probs[i];
            }
            total = warp_sum(total);
            for (int i = lane; i < all; i += 32) of.probs[i] = tap(of_first(c.probs_tap), i, of.probs[i] / total);
        }
        __syncthreads();
        // Four threads count who comes before an expert.
        for (int first = 0; first < all; first += blockDim.x / 4) {
            const int i = first + threadIdx.x / 4;
            const float own = i < all ? of.probs[i] : 0.0f;
            int before = 0;
            for (int j = part; j < all; j += 4) {
                const float other = of.probs[j];
                const bool alike = other == own || (other != other && own != own);
                const bool larger = other > own || (own != own && other == other);
                before += larger || (alike && j < i);
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
        for (int r = 0; r < c.taken; r++) total += probs[places[r]];
        for (int r = threadIdx.x; r < c.taken; r += 32) {
            float weight = tap(c.weights_tap, r, probs[places[r]]);
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
