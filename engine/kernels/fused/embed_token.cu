// The token's embedding, and the step's position into device memory, where the
// kernels after it find it. Both are parameters, which the host sets in the
// captured graph before each step. One block.
// W [V, E] in blocks, x [E].

#include "fused/decode.cuh"

struct EmbedTokenParams {
    Weights w;
    float *x;
    int *position_at;
    int width;
    u32 token;
    int position;
    Stamp *stamps; // null where it is not timed
};

template <typename Format>
__global__ void embed_token(const __grid_constant__ EmbedTokenParams p) {
    Turn turn(p.stamps);
    turn.wait();
    const int groups = p.width / 32;
    if (threadIdx.x == 0) *p.position_at = p.position;
    for (int g = threadIdx.x; g < groups; g += blockDim.x) {
        float value[32];
        Format::unpack(Format::load(p.w, (size_t)p.token * groups + g), g % 8, value);
#pragma unroll
        for (int i = 0; i < 32; i++) p.x[32 * g + i] = value[i];
    }
}
