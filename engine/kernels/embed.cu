// y[t, i] = W[token[t], i]. Grid (T), block: threads over groups of 32 elements.
// tokens [T], W [V, E] in blocks, y [T, E].

template <typename Format>
__device__ void embed(const u32 *tokens, const Weights &w, float *y, int width) {
    const int groups = width / 32;
    y += (size_t)blockIdx.x * width;
    for (int g = threadIdx.x; g < groups; g += blockDim.x) {
        float value[32];
        Format::unpack(Format::load(w, (size_t)tokens[blockIdx.x] * groups + g), g % 8, value);
#pragma unroll
        for (int i = 0; i < 32; i++) y[32 * g + i] = value[i];
    }
}

#define INSTANCE(F)                                                                                     \
    extern "C" __global__ void embed_##F(const u32 *tokens, const Weights w, float *y, int width) { \
        embed<F>(tokens, w, y, width);                                                                  \
    }
