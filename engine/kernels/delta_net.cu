// The gated delta rule, token by token: row j of the transposed state M of head h belongs to element j of the value, and
// M_j <- e^g M_j, delta = beta (v_j - M_j . k), M_j <- M_j + delta k, y_j = M_j . q / sqrt(d). k and q are those of head
// h mod key_heads. A warp per row of the state, which it keeps in shared memory; grid (heads, ceil(d / warps)), block
// 32 x warps. q, k [T, key_heads, d], v, y [T, heads, d], g, beta [T, heads], from, before, to [heads, d, d].
// Of `before`, which keeps the state before the step, `to` and `y` those that are wanted; `to` may be `from`.

#include "blocks.cuh"

struct DeltaNetParams {
    const float *q, *k, *v, *g, *beta, *from;
    float *before, *to, *y;
    int heads, key_heads, d, tokens;
};

__device__ __forceinline__ float sum_of_warp(float v) {
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}

__global__ void delta_net(const __grid_constant__ DeltaNetParams p) {
    extern __shared__ __align__(16) u8 shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int h = blockIdx.x, j = blockIdx.y * (blockDim.x / 32) + warp;
    if (j >= p.d) return;
    // Each lane reads and writes elements of its own.
    float *m = (float *)shared + warp * p.d;
    const size_t row = ((size_t)h * p.d + j) * p.d;
    for (int i = lane; i < p.d; i += 32) {
        m[i] = p.from[row + i];
        if (p.before) p.before[row + i] = m[i];
    }
    const float root = sqrtf((float)p.d);
    for (int t = 0; t < p.tokens; t++) {
        const size_t at = (size_t)t * p.heads + h, key = ((size_t)t * p.key_heads + h % p.key_heads) * p.d;
        const float decay = expf(p.g[at]);
        float dot = 0.0f;
        for (int i = lane; i < p.d; i += 32) {
            m[i] *= decay;
            dot = fmaf(m[i], p.k[key + i], dot);
        }
        const float delta = (p.v[at * p.d + j] - sum_of_warp(dot)) * p.beta[at];
        float out = 0.0f;
        for (int i = lane; i < p.d; i += 32) {
            m[i] = fmaf(delta, p.k[key + i], m[i]);
            out = fmaf(m[i], p.q[key + i], out);
        }
        if (!p.y) continue;
        out = sum_of_warp(out);
        if (lane == 0) p.y[at * p.d + j] = out / root;
    }
    if (!p.to) return;
    for (int i = lane; i < p.d; i += 32) p.to[row + i] = m[i];
}
