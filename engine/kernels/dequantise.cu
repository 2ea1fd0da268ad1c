// y[o, i] = W[o, i] as f32, for a matrix product that knows no blocks. A thread
// per group of 32; grid (ceil(groups / block)). W in blocks, y [m, n].

#include "blocks.cuh"

struct DequantiseParams {
    Weights w;
    float *y;
    int groups;
};

template <typename Format>
__global__ void dequantise(const __grid_constant__ DequantiseParams p) {
    const int g = blockIdx.x * blockDim.x + threadIdx.x;
    if (g >= p.groups) return;
    float value[32];
    // Rows hold whole blocks, so that the group's place in its block is its number's.
    Format::unpack(Format::load(p.w, g), g % 8, value);
    float4 *to = (float4 *)(p.y + 32 * (size_t)g);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        to[i] = make_float4(value[4 * i], value[4 * i + 1], value[4 * i + 2], value[4 * i + 3]);
    }
}
