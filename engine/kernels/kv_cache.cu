// cache[first + t, :] = rows[t, :] in the cache's type, a thread an element.
// rows [T, width], cache [capacity, width].

#include "kv.cuh"

struct KvCacheParams {
    const float *rows;
    void *cache;
    int width, first, tokens;
};

template <typename Kv>
__global__ void kv_cache(const __grid_constant__ KvCacheParams p) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.tokens * p.width) return;
    ((typename Kv::Type *)p.cache)[(size_t)p.first * p.width + i] = Kv::put(p.rows[i]);
}
