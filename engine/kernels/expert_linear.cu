// y[l, o] = W[expert of l, o, :] . x of l, in f32, for each line l of T tokens with k chosen experts each. x of a line is
// its own row, or its token's. A warp per output; grid (T k ceil(m / warps)), block 32 x warps.
// x [T, k, n] or [T, n], chosen [T, k], W [experts, m, n] in blocks, y [T, k, m].

#include "blocks.cuh"
#include "choice.cuh"

struct ExpertLinearParams {
    const float *x, *chosen;
    Weights w;
    float *y;
    int n, m, experts, lines_of_row;
};

template <typename Format>
__global__ void expert_linear(const __grid_constant__ ExpertLinearParams p) {
    const int warps = blockDim.x / 32, blocks = (p.m + warps - 1) / warps;
    const int o = blockIdx.x % blocks * warps + threadIdx.x / 32, line = blockIdx.x / blocks;
    if (o >= p.m) return;
    const int lane = threadIdx.x % 32, groups = p.n / 32;
    const int expert = place_of(p.chosen[line], p.experts);
    const float *row = p.x + (size_t)(line / p.lines_of_row) * p.n;
    float sum = 0.0f;
    if (expert >= 0) {
        const size_t first = ((size_t)expert * p.m + o) * groups;
        for (int g = lane; g < groups; g += 32) {
            float value[32];
            Format::unpack(Format::load(p.w, first + g), g % 8, value);
            const float4 *x = (const float4 *)(row + 32 * g);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float4 v = x[i];
                sum = fmaf(value[4 * i], v.x, sum);
                sum = fmaf(value[4 * i + 1], v.y, sum);
                sum = fmaf(value[4 * i + 2], v.z, sum);
                sum = fmaf(value[4 * i + 3], v.w, sum);
            }
        }
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0) p.y[(size_t)line * p.m + o] = expert < 0 ? unknown() : sum;
}
