// The caches as `attention_rows.cu` takes them: by tiles of KEYS keys, keys first, then
// values, each as two halves of 11 bits (`operand.cuh`), the tile's largest magnitude
// brought to below 2^15. A block a tile of one head, grid (ceil(N / KEYS), G).
// k, v [capacity, G, D]; tiles [G, ceil(N / KEYS), 4, KEYS, D], scales [G, ceil(N / KEYS), 2].

#include "prefill/cache.cuh"

struct CacheTilesParams {
    const void *k, *v;
    u8 *tiles;
    float *scales; // what a tile's sums are multiplied with
    int kv_heads, keys;
};

template <typename Kv, int D>
__global__ void cache_tiles(const __grid_constant__ CacheTilesParams p) {
    constexpr int KEYS = CacheTile<D>::KEYS;
    let_begin();
    wait_for_turn();
    const int tile = blockIdx.x, head = blockIdx.y;
    u8 *to = p.tiles + (size_t)(head * gridDim.x + tile) * CacheTile<D>::BYTES;
    for (int which = 0; which < 2; which++) {
        const auto *from = (const typename Kv::Type *)(which == 0 ? p.k : p.v);
        auto four = [&](int i) {
            const int key = tile * KEYS + i / (D / 4);
            if (key >= p.keys) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            return Kv::get4(from + ((size_t)key * p.kv_heads + head) * D + i % (D / 4) * 4);
        };
        u32 largest = 0;
        for (int i = threadIdx.x; i < KEYS * D / 4; i += blockDim.x) largest = max(largest, largest_of(four(i)));
        float scale, inverse;
        HalfPart::scale(block_largest(largest), scale, inverse);
        if (threadIdx.x == 0) p.scales[2 * (head * gridDim.x + tile) + which] = inverse;
        for (int i = threadIdx.x; i < KEYS * D / 4; i += blockDim.x) {
            const float4 v = four(i);
            float e[4] = {v.x * scale, v.y * scale, v.z * scale, v.w * scale};
            const int key = i / (D / 4), at = i % (D / 4);
#pragma unroll
            for (int part = 0; part < 2; part++) {
                u32 bits[4];
#pragma unroll
                for (int k = 0; k < 4; k++) bits[k] = HalfPart::split(e[k]);
                *(uint2 *)(to + (2 * which + part) * (KEYS * D * 2) + place_in_tile(D, key, at / 2) + at % 2 * 8) =
                    make_uint2(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16);
            }
        }
    }
}
