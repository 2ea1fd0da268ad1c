// The caches as `attention_rows.cu` takes them: by tiles (`cache.cuh`), keys and values as two
// halves of 11 bits (`operand.cuh`), the largest magnitude of a key, and of the values of
// a tile, brought to below 2^15. A block a tile of one head, a thread four elements of a
// key; grid (ceil(N / KEYS), G), block KEYS * D / 4.
// k, v [capacity, G, D]; tiles [G, ceil(N / KEYS)]. Key n stands in slot `table[n]`.

#include "prefill/cache.cuh"

struct CacheTilesParams {
    const void *k, *v;
    u8 *tiles;
    int kv_heads, keys;
    const int *table; // null where key n stands in slot n
};

__device__ __forceinline__ bool is_number(float v) { return magnitude(v) < 0x7f800000u; }

template <typename Kv, int D, int TILE_KEYS>
__global__ void __launch_bounds__(TILE_KEYS *D / 4) cache_tiles(const __grid_constant__ CacheTilesParams p) {
    typedef CacheTile<D> Tile;
    static_assert(TILE_KEYS == Tile::KEYS, "keys of a tile in engine/src/cuda/prefill.rs");
    constexpr int FOURS = D / 4; // threads that share a key
    __shared__ u32 without[2];
    let_begin();
    if (threadIdx.x < 2) without[threadIdx.x] = 0;
    __syncthreads();
    wait_for_turn();
    const int tile = blockIdx.x, head = blockIdx.y, i = threadIdx.x;
    u8 *to = p.tiles + (size_t)(head * gridDim.x + tile) * Tile::BYTES;
    auto four = [&](const void *cache) {
        const int key = tile * Tile::KEYS + i / FOURS;
        if (key >= p.keys) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        const auto *from = (const typename Kv::Type *)cache;
        const size_t slot = p.table ? p.table[key] : key;
        return Kv::get4(from + (slot * p.kv_heads + head) * D + i % FOURS * 4);
    };
    auto put = [&](int plane, float4 v, float scale) {
        float e[4] = {v.x * scale, v.y * scale, v.z * scale, v.w * scale};
#pragma unroll
        for (int part = 0; part < 2; part++) {
            u32 bits[4];
#pragma unroll
            for (int k = 0; k < 4; k++) bits[k] = HalfPart::split(e[k]);
            u8 *row = to + (plane + part) * Tile::PLANE + place_in_tile(D, i / FOURS, i % FOURS / 2);
            *(uint2 *)(row + i % 2 * 8) = make_uint2(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16);
        }
    };
    const float4 key = four(p.k), value = four(p.v);
    float scale, inverse;
    u32 largest = largest_of(key);
    for (int step = 1; step < FOURS; step *= 2) largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    HalfPart::scale(largest, scale, inverse);
    if (i % FOURS == 0) ((float *)(to + Tile::SCALES))[i / FOURS] = inverse;
    put(0, key, scale);
    if (largest_of(value) >= 0x7f800000u) atomicOr(&without[i / FOURS / 32], 1u << (i / FOURS % 32));
    auto number = [](float e) { return is_number(e) ? e : 0.0f; }; // zero for what is no number
    const float4 numbers = make_float4(number(value.x), number(value.y), number(value.z), number(value.w));
    HalfPart::scale(block_largest(largest_of(numbers)), scale, inverse);
    put(2, numbers, scale);
    if (i == 0) *(typename Tile::Last *)(to + Tile::LAST) = {inverse, 0, {without[0], without[1]}};
}
