// A paged KV cache: pages of PAGE tokens, taken from a pool in an order that is not that of the positions. Keys of a page and head
// are [PAGE, D], values are [D, PAGE].
#pragma once
#include "quants.h"

constexpr int PAGE = 16;

class PagedCache {
    int layers, heads, dim, pages;
    bool half;
    std::vector<float> k, v;
    std::vector<int> table; // of each logical page, the physical one
    size_t page_floats() const { return (size_t)heads * PAGE * dim; }
    float stored(float x) const { return half ? half_to_float(float_to_half(x)) : x; }
    size_t page_at(int layer, int page, int head) const {
        return ((size_t)layer * pages + page) * page_floats() + (size_t)head * PAGE * dim;
    }

public:
    PagedCache(int layers, int heads, int dim, int context, bool half)
        : layers(layers), heads(heads), dim(dim), pages((context + PAGE - 1) / PAGE), half(half) {
        k.assign((size_t)layers * pages * page_floats(), 0.0f);
        v.assign((size_t)layers * pages * page_floats(), 0.0f);
    }
    // Takes pages for so many positions.
    void reserve(int positions) {
        while ((int)table.size() * PAGE < positions) {
            const int n = (int)table.size();
            // From both ends of the pool in turn.
            table.push_back(n % 2 ? n / 2 : pages - 1 - n / 2);
        }
    }
    // Where the key of a position begins; its elements are next to each other.
    const float *key(int layer, int head, int position) const {
        return k.data() + page_at(layer, table[position / PAGE], head) + (size_t)(position % PAGE) * dim;
    }
    // Where the first element of the value of a position is; the next ones are PAGE apart.
    const float *value(int layer, int head, int position) const {
        return v.data() + page_at(layer, table[position / PAGE], head) + position % PAGE;
    }
    void write(int layer, const float *keys, const float *values, int first, int T) {
        for (int t = 0; t < T; t++) {
            const int position = first + t, page = table[position / PAGE], slot = position % PAGE;
            for (int h = 0; h < heads; h++) {
                const float *from_k = keys + ((size_t)t * heads + h) * dim, *from_v = values + ((size_t)t * heads + h) * dim;
                float *to_k = k.data() + page_at(layer, page, h) + (size_t)slot * dim;
                float *to_v = v.data() + page_at(layer, page, h) + slot;
                for (int i = 0; i < dim; i++) {
                    to_k[i] = stored(from_k[i]);
                    to_v[(size_t)i * PAGE] = stored(from_v[i]);
                }
            }
        }
    }
    // All rows in the order of positions, [positions, heads, dim].
    void read_keys(int layer, int positions, float *to) const {
        for (int p = 0; p < positions; p++) {
            for (int h = 0; h < heads; h++) std::memcpy(to + ((size_t)p * heads + h) * dim, key(layer, h, p), sizeof(float) * dim);
        }
    }
    void read_values(int layer, int positions, float *to) const {
        for (int p = 0; p < positions; p++) {
            for (int h = 0; h < heads; h++) {
                const float *from = value(layer, h, p);
                for (int i = 0; i < dim; i++) to[((size_t)p * heads + h) * dim + i] = from[(size_t)i * PAGE];
            }
        }
    }
};
