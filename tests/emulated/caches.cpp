// Rows of 64 elements, which come on stdin, through a cache of type KV whose slots are in backward order: what the cache holds,
// byte for byte in the order of the rows, and its elements as f32.
#include "fixtures.h"

#include "kv_cache.cu"
#include "kv_read.cu"

int main() {
    std::vector<float> rows;
    for (float v; fread(&v, sizeof(v), 1, stdin) == 1;) rows.push_back(v);
    constexpr int WIDTH = 64;
    const int count = (int)rows.size(), tokens = count / WIDTH, bytes = sizeof(KV::Type), units = WIDTH / KV_UNIT<KV>;
    auto blocks = [](int count) { return dim3{(unsigned)(count + 63) / 64}; };
    int *slots = room<int>(tokens);
    for (int t = 0; t < tokens; t++) slots[t] = tokens - 1 - t;
    KV::Type *cache = room<KV::Type>(units * tokens);
    float *read = unwritten(count);
    launch(blocks(units * tokens), 64, 0, [&] { kv_cache<KV>({copied(rows), cache, WIDTH, 0, tokens, Batch{nullptr, slots}}); });
    launch(blocks(count), 64, 0, [&] { kv_read<KV>({cache, read, count}); });
    for (int t = 0; t < tokens; t++) fwrite(cache + slots[t] * units, bytes, units, stdout);
    for (int t = 0; t < tokens; t++) fwrite(read + slots[t] * WIDTH, sizeof(float), WIDTH, stdout);
}
