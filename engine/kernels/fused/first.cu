// The token's embedding, and the step's position into device memory, where the
// kernels after it find it. Both are parameters, which the host sets in the
// captured graph before each step. One block.
// W [V, E] in blocks, x [E].

template <typename Format>
__device__ void first(u32 token, int position, int *position_at, const Weights &w, float *x, int width) {
    wait_for_previous();
    const int groups = width / 32;
    if (threadIdx.x == 0) *position_at = position;
    for (int g = threadIdx.x; g < groups; g += blockDim.x) {
        float value[32];
        Format::unpack(Format::load(w, (size_t)token * groups + g), g % 8, value);
#pragma unroll
        for (int i = 0; i < 32; i++) x[32 * g + i] = value[i];
    }
}

#define INSTANCE(F)                                                                                           \
    extern "C" __global__ void first_##F(u32 token, int position, int *position_at, const Weights w, float *x, int width) { \
        first<F>(token, position, position_at, w, x, width);                                                         \
    }
