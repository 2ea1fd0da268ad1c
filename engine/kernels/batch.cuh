#pragma once

// The rows of a step of several sequences, as data. For one sequence from position `first` on, the common case,
// all pointers are null: row t has position first + t, and slot n of a cache holds position n.
struct Batch {
    const int *positions; // of each row in its sequence
    const int *slots;     // of the caches, which each row is written to
    const int *tables;    // the block tables: of each sequence, the slot of each of its positions
    const int *starts;    // of each row, where in `tables` that of its sequence begins

    __device__ __forceinline__ int position(int first, int t) const { return positions ? positions[t] : first + t; }
    // The slot that holds position n of the sequence of row t.
    __device__ __forceinline__ int slot(int t, int n) const { return tables ? tables[starts[t] + n] : n; }
    // The place of element i of all rows, each of `width`, in a cache.
    __device__ __forceinline__ size_t element(int first, int width, int i) const {
        return slots ? (size_t)slots[i / width] * width + i % width : (size_t)first * width + i;
    }
};
