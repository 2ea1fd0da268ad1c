// The newest row of each of some caches as f32, for taps, and whether any row before
// it is another than it was: then not the newest alone must travel. A checksum of every
// row is kept; after the newest comes the first row before it that has changed, or
// all ones, as they were before.
// Grid (caches, ceil((newest + 1) / ROWS)), block THREADS. cache [rows, width], sums
// [rows], out [width + 1].

#include "fused/decode.cuh"
#include "kv.cuh"

constexpr int THREADS = 128;
constexpr int ROWS = 64;   // of a block
constexpr int AT_ONCE = 4; // of a warp

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

// Element i's share of its row's checksum: a mixture of bits and place that no change of one
// element leaves as it is, and that changes of several undo as seldom as chance does.
__device__ __forceinline__ unsigned long long mixed(unsigned long long bits, int i) {
    unsigned long long h = (bits + 1) * 0x9e3779b97f4a7c15ull ^ (i + 1) * 0xc2b2ae3d27d4eb4full;
    h = (h ^ h >> 29) * 0xbf58476d1ce4e5b9ull;
    return h ^ h >> 32;
}

template <typename Kv>
__global__ void __launch_bounds__(THREADS) cache_rows(const __grid_constant__ CacheRowsParams p) {
    const TappedCache of = p.caches[blockIdx.x];
    const auto *cache = (const typename Kv::Type *)of.cache;
    float *out = p.out + of.at;
    const int lane = threadIdx.x % 32, end = min((int)(blockIdx.y + 1) * ROWS, p.newest + 1);
    for (int row = blockIdx.y * ROWS + threadIdx.x / 32 * AT_ONCE; row < end; row += THREADS / 32 * AT_ONCE) {
        unsigned long long sum[AT_ONCE] = {};
#pragma unroll 4
        for (int i = lane; i < p.width; i += 32) {
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                // A row beyond the last is the last again.
                const auto v = __ldcg(cache + (size_t)min(row + k, end - 1) * p.width + i);
                sum[k] += mixed(bits_of(v), i);
                if (row + k == p.newest) out[i] = Kv::get(v);
            }
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            for (int step = 16; step > 0; step /= 2) sum[k] += __shfl_xor_sync(0xffffffffu, sum[k], step);
            const int n = row + k;
            if (lane != 0 || n >= end) continue;
            if (n < p.known && of.sums[n] != sum[k]) atomicMin((u32 *)out + p.width, (u32)n);
            of.sums[n] = sum[k];
        }
    }
}
