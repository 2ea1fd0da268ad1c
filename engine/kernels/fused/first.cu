// The token's embedding, and the step's token and position from host memory
// into device memory, where the kernels after it find them. One block.
// W [V, E] in blocks, x [E].

template <typename Format>
__device__ void first(const volatile Step *host, Step *step, const Weights &w, float *x, int width) {
    let_next_start();
    wait_for_previous();
    const u32 token = host->token;
    const int position = host->position, groups = width / 32;
    if (threadIdx.x == 0) {
        step->token = token;
        step->position = position;
    }
    for (int g = threadIdx.x; g < groups; g += blockDim.x) {
        float value[32];
        Format::unpack(Format::load(w, (size_t)token * groups + g), g % 8, value);
#pragma unroll
        for (int i = 0; i < 32; i++) x[32 * g + i] = value[i];
    }
}

#define INSTANCE(F)                                                                                       \
    extern "C" __global__ void first_##F(const volatile Step *host, Step *step, const Weights w, float *x, \
                                         int width) {                                                     \
        first<F>(host, step, w, x, width);                                                                \
    }
