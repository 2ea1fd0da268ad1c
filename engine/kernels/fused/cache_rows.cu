// The newest row of each of some caches as f32, for taps, and whether any row before
// it is another than it was: then not the newest alone must travel. A checksum of every
// row is kept; behind the newest stands the first row before it that has changed, or
// the largest number there is.
// Grid (caches). cache [rows, width], sums [rows], out [width + 1].

#include "fused/decode.cuh"
#include "kv.cuh"

struct TappedCache {
    const void *cache;
    unsigned long long *sums;
    unsigned long long at; // of its place in out, in elements
};

struct CacheRowsParams {
    const TappedCache *caches;
    float *out;
    int width, newest;
    int known; // rows whose checksum there is
};

__device__ __forceinline__ unsigned long long bits_of(float v) { return __float_as_uint(v); }
__device__ __forceinline__ unsigned long long bits_of(u16 v) { return v; }

// A warp a row. Factors are odd, so that no element changes unseen.
template <typename Kv>
__global__ void cache_rows(const __grid_constant__ CacheRowsParams p) {
    __shared__ u32 changed;
    const TappedCache of = p.caches[blockIdx.x];
    const auto *cache = (const typename Kv::Type *)of.cache;
    float *out = p.out + of.at;
    if (threadIdx.x == 0) changed = 0xffffffffu;
    __syncthreads();
    for (int n = threadIdx.x / 32; n <= p.newest; n += blockDim.x / 32) {
        unsigned long long sum = 0;
        for (int i = threadIdx.x % 32; i < p.width; i += 32) {
            sum += (bits_of(__ldcg(cache + (size_t)n * p.width + i)) + 1) * ((2 * i + 1) * 0x9e3779b97f4a7c15ull);
        }
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (threadIdx.x % 32 != 0) continue;
        if (n < p.known && of.sums[n] != sum) atomicMin(&changed, (u32)n);
        of.sums[n] = sum;
    }
    for (int i = threadIdx.x; i < p.width; i += blockDim.x) out[i] = Kv::get(__ldcg(cache + (size_t)p.newest * p.width + i));
    __syncthreads();
    if (threadIdx.x == 0) ((u32 *)out)[p.width] = changed;
}
