// cache[slot of row t, :] = rows[t, :] in the cache's type, a thread an element or a block of them.
// rows [T, width], cache [capacity, width].

#include "batch.cuh"
#include "kv_types.cuh"

struct KvCacheParams {
    const float *rows;
    void *cache;
    int width, first, tokens;
    Batch batch;
};

template <typename Kv>
__global__ void kv_cache(const __grid_constant__ KvCacheParams p) {
    const int i = (blockIdx.x * blockDim.x + threadIdx.x) * KV_UNIT<Kv>;
    if (i >= p.tokens * p.width) return;
    if constexpr (KV_UNIT<Kv> == 1) {
        ((typename Kv::Type *)p.cache)[p.batch.element(p.first, p.width, i)] = Kv::put(p.rows[i]);
    } else {
        Kv::store(p.rows + i, ((typename Kv::Type *)p.cache)[p.batch.element(p.first, p.width, i) / KV_UNIT<Kv>]);
    }
}
