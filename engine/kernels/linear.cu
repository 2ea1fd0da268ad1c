// y[t, o] = sum_i W[o, i] x[t, i]. A warp per output, TOKENS tokens at a time,
// so that each weight is unpacked once per TOKENS products.
// Grid (ceil(m / warps), ceil(T / TOKENS)), block 32 x warps.
// x [T, n], W [m, n] in blocks, y [T, m].

#define TOKENS 8

template <typename Format>
__device__ void linear(const float *x, const u8 *w, size_t row_bytes, float *y, int n, int m, int tokens) {
    const int o = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int first = blockIdx.y * TOKENS;
    if (o >= m) return;
    const u8 *row = w + (size_t)o * row_bytes;
    float sum[TOKENS];
#pragma unroll
    for (int t = 0; t < TOKENS; t++) sum[t] = 0.0f;
    for (int i = lane; i < n; i += 32) {
        const float value = Format::at(row, i);
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            if (first + t < tokens) sum[t] = fmaf(value, x[(size_t)(first + t) * n + i], sum[t]);
        }
    }
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
        float s = sum[t];
        for (int step = 16; step > 0; step /= 2) s += __shfl_xor_sync(0xffffffffu, s, step);
        if (lane == 0 && first + t < tokens) y[(size_t)(first + t) * m + o] = s;
    }
}

#define LINEAR(F)                                                                                     \
    extern "C" __global__ void linear_##F(const float *x, const u8 *w, size_t row_bytes, float *y, int n, \
                                          int m, int tokens) {                                        \
        linear<F>(x, w, row_bytes, y, n, m, tokens);                                                  \
    }
LINEAR(F32) LINEAR(F16) LINEAR(BF16) LINEAR(Q4_0) LINEAR(Q4_1) LINEAR(Q5_0) LINEAR(Q5_1) LINEAR(Q8_0)
LINEAR(Q4_K) LINEAR(Q5_K) LINEAR(Q6_K)
