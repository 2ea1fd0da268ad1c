#pragma once

// Block-wide reductions over up to 1024 threads; every thread gets the result.

template <typename Combine>
__device__ float reduce(float v, Combine combine) {
    __shared__ float partial[32];
    __syncthreads();
    for (int step = 16; step > 0; step /= 2) v = combine(v, __shfl_xor_sync(0xffffffffu, v, step));
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
    __syncthreads();
    float r = partial[0];
    for (int i = 1; i < (int)(blockDim.x / 32); i++) r = combine(r, partial[i]);
    return r;
}

__device__ float reduce_sum(float v) {
    return reduce(v, [](float a, float b) { return a + b; });
}

// The sum over the THREADS threads of which this one is, whole warps.
template <int THREADS>
__device__ float sum_of_group(float v) {
    static_assert(THREADS % 32 == 0, "a group is whole warps");
    __shared__ float partial[32];
    __syncthreads();
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
    __syncthreads();
    float r = 0.0f;
    for (int i = 0; i < THREADS / 32; i++) r += partial[threadIdx.x / THREADS * (THREADS / 32) + i];
    return r;
}

__device__ float reduce_max(float v) {
    return reduce(v, [](float a, float b) { return fmaxf(a, b); });
}
