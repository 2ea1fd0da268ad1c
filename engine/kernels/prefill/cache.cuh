#pragma once

#include "kv.cuh"
#include "prefill/operand.cuh"

// How the caches stand in tiles.

// A tile of heads of D elements: its keys, which are so few that two tiles fit the shared
// memory of every card, and its bytes, of keys and values in two halves of two bytes each.
template <int D>
struct CacheTile {
    static constexpr int KEYS = D <= 64 ? 64 : 32, BYTES = 4 * KEYS * D * 2;
};
// Where 16 bytes of a row of d halves stand: eight rows, which `ldmatrix` reads at once, share no bank.
__device__ __forceinline__ int place_in_tile(int d, int row, int unit) {
    const int turn = d >= 64 ? row % 8 : row / 2 % 4;
    return row * d * 2 + 16 * (unit ^ turn);
}
