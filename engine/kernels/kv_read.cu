// out[i] = cache[i] as f32, for taps; a thread an element.

#include "kv_types.cuh"

struct KvReadParams {
    const void *cache;
    float *out;
    int count;
};

template <typename Kv>
__global__ void kv_read(const __grid_constant__ KvReadParams p) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.count) p.out[i] = Kv::get(kv_elements<Kv>(p.cache)[i]);
}
