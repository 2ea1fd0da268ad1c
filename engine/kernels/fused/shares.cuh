#pragma once

// How the keys of a token are shared out to blocks of `attention`, and what each
// leaves for `attn_out` to put together.

constexpr int KEYS = 64;   // of a share at least, and of a tile
constexpr int SPLITS = 64; // shares of a head of the cache at most

struct Shares {
    int keys, share, live;
    __device__ __forceinline__ Shares(int keys, int splits) : keys(keys) {
        share = max((keys + splits - 1) / splits, KEYS);
        live = (keys + share - 1) / share;
    }
};

// What a share leaves of a query head: the sum of its values, weighted relative to
// its largest score, [SPLITS, D]; the largest and the sum of the weights, [SPLITS].
struct Partial {
    float *sums;
    float2 *measures;
};
