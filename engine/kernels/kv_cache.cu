// cache[first + t, :] = rows[t, :], a thread an element.
// rows [T, width], cache [capacity, width].

extern "C" __global__ void kv_cache(const float *rows, float *cache, int width, int first, int tokens) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < tokens * width) cache[(size_t)first * width + i] = rows[i];
}
