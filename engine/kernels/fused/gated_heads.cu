// q_half, gate_half, q/k_normed, q/k_rope and both caches of one token, from the products that `mixer_in` leaves: a head of q, k or v a
// block, an element a thread. The first `rotated` elements of a head are rotated, the others stay. Grid (H + 2G), block D.
// both [H, 2, D], of each head q and then its gate; k, v [G, D]; q, gate [H, D], caches [capacity, G, D].

#include "fused/decode.cuh"
#include "kv.cuh"

struct GatedHeadsParams {
    const float *both, *k, *v;
    const float *norm[2];
    const float *frequency;
    const int *position_at;
    float *q, *gate;
    void *k_cache, *v_cache;
    float *half_tap, *gate_tap, *normed_tap[2], *rope_tap[2]; // null where not wanted
    int heads, kv_heads, rotated;
    float eps;
    Stamp *stamps; // null where it is not timed
};

template <typename Kv, int D>
__global__ void __launch_bounds__(D) gated_heads(const __grid_constant__ GatedHeadsParams p) {
    static_assert(D % 32 == 0, "a head is whole warps");
    __shared__ float normed[D];
    Turn turn(p.stamps);
    const int i = threadIdx.x, block = blockIdx.x, half = p.rotated / 2, position = __ldcg(p.position_at);
    const int part = block < p.heads ? 0 : block < p.heads + p.kv_heads ? 1 : 2;
    const int head = block - (part == 0 ? 0 : part == 1 ? p.heads : p.heads + p.kv_heads), at = head * D + i;
    float sine = 0.0f, cosine = 1.0f, weight = 1.0f;
    if (part < 2) {
        if (i < p.rotated) sincosf((float)position * p.frequency[i % half], &sine, &cosine);
        weight = p.norm[part][i];
    }
    typedef typename Kv::Type Type;
    const size_t row = (size_t)position * p.kv_heads * D;
    turn.wait();
    turn.mark(0);
    if (part == 2) {
        ((Type *)p.v_cache)[row + at] = Kv::put(__ldcg(p.v + at));
        return;
    }
    float x;
    if (part == 0) {
        x = tap(p.half_tap, at, __ldcg(p.both + (size_t)2 * head * D + i));
        p.gate[at] = tap(p.gate_tap, at, __ldcg(p.both + (size_t)(2 * head + 1) * D + i));
    } else {
        x = __ldcg(p.k + at);
    }
    const float scale = 1.0f / sqrtf(reduce_sum(x * x) / (float)D + p.eps);
    x = tap(p.normed_tap[part], at, x * scale * weight);
    normed[i] = x;
    __syncthreads();
    if (i < p.rotated) {
        const float other = normed[i < half ? i + half : i - half];
        x = i < half ? x * cosine - other * sine : other * sine + x * cosine;
    }
    x = tap(p.rope_tap[part], at, x);
    if (part == 0) p.q[at] = x;
    else ((Type *)p.k_cache)[row + at] = Kv::put(x);
}
