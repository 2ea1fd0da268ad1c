// y[t, i] = W[token[t], i]. Grid (T), block: threads over i.
// tokens [T], W [V, E] in blocks, y [T, E].

template <typename Format>
__device__ void embed(const u32 *tokens, const u8 *w, size_t row_bytes, float *y, int width) {
    const int t = blockIdx.x;
    const u8 *row = w + (size_t)tokens[t] * row_bytes;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        y[(size_t)t * width + i] = Format::at(row, i);
    }
}

#define EMBED(F)                                                                                   \
    extern "C" __global__ void embed_##F(const u32 *tokens, const u8 *w, size_t row_bytes, float *y, \
                                         int width) {                                              \
        embed<F>(tokens, w, row_bytes, y, width);                                                  \
    }
EMBED(F32) EMBED(F16) EMBED(BF16) EMBED(Q4_0) EMBED(Q4_1) EMBED(Q5_0) EMBED(Q5_1) EMBED(Q8_0)
EMBED(Q4_K) EMBED(Q5_K) EMBED(Q6_K)
