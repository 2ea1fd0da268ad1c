#pragma once

#include "kv.cuh"
#include "prefill/operand.cuh"

// The layout of the caches in tiles.

// A tile of heads of D elements: keys and values in two halves of two bytes each, so many that
// two tiles fit the shared memory of every card; then what a key's sums are multiplied
// with, key by key, what those of the values are, and which keys have a value that is no
// number: such a value is kept as zero, and a query that sees its key gets no number.
template <int D>
struct CacheTile {
    static constexpr int KEYS = D <= 64 ? 64 : 32, PLANE = KEYS * D * 2;
    static constexpr int SCALES = 4 * PLANE, LAST = SCALES + 4 * KEYS, BYTES = LAST + 16;
    struct Last {
        float values;
        u32 reserved, without[2]; // of 32 keys each
    };
    static_assert(sizeof(Last) == 16, "what ends a tile");
};
