// cache[first + t, :] = rows[t, :] in the cache's type, a thread an element.
// rows [T, width], cache [capacity, width].

template <typename Kv>
__device__ void kv_cache(const float *rows, typename Kv::Type *cache, int width, int first, int tokens) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < tokens * width) cache[(size_t)first * width + i] = Kv::put(rows[i]);
}

#define INSTANCE(K)                                                                                               \
    extern "C" __global__ void kv_cache_##K(const float *rows, K::Type *cache, int width, int first, int tokens) { \
        kv_cache<K>(rows, cache, width, first, tokens);                                                           \
    }
