// y[t, n] at the last key n of each whole block of keys up to the position of row t: d^-1/2 sum_h max(0, q[t, h] . key), the key
// being the mean of the block's rows of k, normed, times w, and rotated to the position of its first row; 0 at other keys. A
// block of threads for each row and block of keys; grid (T ceil(N / block)). q [T, H, d], k [N, d] in the cache's type, w [d],
// frequency [rotated / 2], y [T, N]; shared memory: d floats.

#include "blocks.cuh"
#include "kv_types.cuh"
#include "reduce.cuh"

struct BlockScoresParams {
    const float *q;
    const void *k;
    const float *w, *frequency;
    float *y;
    int heads, d, block, rotated, first, keys;
    float eps, magnitude;
};

template <typename Kv>
__global__ void block_scores(const __grid_constant__ BlockScoresParams p) {
    extern __shared__ __align__(16) u8 shared[];
    float *key = (float *)shared;
    const int blocks = (p.keys + p.block - 1) / p.block, b = blockIdx.x % blocks, t = blockIdx.x / blocks;
    const int begin = b * p.block, last = begin + p.block - 1;
    const bool whole = last < min(p.keys, p.first + t + 1);
    float *y = p.y + (size_t)t * p.keys;
    for (int n = begin + threadIdx.x; n <= last && n < p.keys; n += blockDim.x) {
        if (n < last || !whole) y[n] = 0.0f;
    }
    if (!whole) return;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < p.d; i += blockDim.x) {
        float sum = 0.0f;
        for (int r = 0; r < p.block; r++) sum += Kv::get(kv_elements<Kv>(p.k)[(size_t)(begin + r) * p.d + i]);
        key[i] = sum / (float)p.block;
        squares = fmaf(key[i], key[i], squares);
    }
    const float scale = 1.0f / sqrtf(reduce_sum(squares) / (float)p.d + p.eps);
    for (int i = threadIdx.x; i < p.d; i += blockDim.x) key[i] = key[i] * scale * p.w[i];
    __syncthreads();
    const int planes = p.rotated / 2;
    for (int i = threadIdx.x; i < planes; i += blockDim.x) {
        float s, c;
        sincosf((float)begin * p.frequency[i], &s, &c);
        s *= p.magnitude, c *= p.magnitude;
        const float x0 = key[i], x1 = key[i + planes];
        key[i] = x0 * c - x1 * s;
        key[i + planes] = x0 * s + x1 * c;
    }
    __syncthreads();
    float score = 0.0f;
    for (int h = 0; h < p.heads; h++) {
        const float *q = p.q + ((size_t)t * p.heads + h) * p.d;
        float sum = 0.0f;
        for (int i = threadIdx.x; i < p.d; i += blockDim.x) sum = fmaf(q[i], key[i], sum);
        score += fmaxf(reduce_sum(sum), 0.0f);
    }
    if (threadIdx.x == 0) y[last] = score / sqrtf((float)p.d);
}
