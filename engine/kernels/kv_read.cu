// out[i] = cache[i] as f32, for taps; a thread an element.

template <typename Kv>
__device__ void kv_read(const typename Kv::Type *cache, float *out, int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = Kv::get(cache[i]);
}

#define INSTANCE(K)                                                                           \
    extern "C" __global__ void kv_read_##K(const K::Type *cache, float *out, int count) {     \
        kv_read<K>(cache, out, count);                                                        \
    }
