// The token's embedding, and the step's position into device memory, where the
// kernels after it find it. The host gives both in memory of its own, or as parameters,
// which it then sets in the captured graph before each step. One block.
// W [V, E] in blocks, x [E].

#include "fused/decode.cuh"

struct EmbedTokenParams {
    Weights w;
    float *x;
    int *position_at;
    const volatile int *given; // token and position; null where the parameters say them
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
    if ((int)threadIdx.x >= max(groups, 1)) return;
    const u32 token = p.given ? (u32)p.given[0] : p.token;
    if (threadIdx.x == 0) *p.position_at = p.given ? +p.given[1]: p.position;
    for (int g = threadIdx.x; g < groups; g += blockDim.x) {
        float value[32];
        Format::unpack(Format::load(p.w, (size_t)token * groups + g), g % 8, value);
#pragma unroll
        for (int i = 0; i < 32; i++) p.x[32 * g + i] = value[i];
    }
}
