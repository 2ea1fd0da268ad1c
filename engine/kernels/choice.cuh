#pragma once

// A choice among `count` places, which is kept as a float; -1 where it is none of them.
__device__ __forceinline__ int place_of(float choice, int count) {
    return choice >= 0.0f && choice < (float)count && choice == floorf(choice) ? (int)choice : -1;
}

// What is picked by a choice that is none.
__device__ __forceinline__ float unknown() { return __int_as_float(0x7fffffff); }
