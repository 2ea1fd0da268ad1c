// y[t, i] = W[token[t], i]. Grid (T), block: threads over groups of 32 elements.
// tokens [T], W [V, E] in blocks, y [T, E].

#include "blocks.cuh"

struct EmbedParams {
    const u32 *tokens;
    Weights w;
    float *y;
    int width;
};

template <typename Format>
__global__ void embed(const __grid_constant__ EmbedParams p) {
    const int groups = p.width / 32;
    float *y = p.y + (size_t)blockIdx.x * p.width;
    for (int g = threadIdx.x; g < groups; g += blockDim.x) {
        float value[32];
        Format::unpack(Format::load(p.w, (size_t)p.tokens[blockIdx.x] * groups + g), g % 8, value);
#pragma unroll
        for (int i = 0; i < 32; i++) y[32 * g + i] = value[i];
    }
}
