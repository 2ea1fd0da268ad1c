// The id of the largest logit, the lowest among equals. The last block to finish
// writes it, and leaves best and arrived at 0 as it found them.
// Grid (blocks), block 256. logits [V], best and arrived [1], token in host memory.

// A logit and its id as one number that orders as they do: larger logits above
// smaller, lower ids above higher; NaN below everything.
__device__ __forceinline__ unsigned long long key_of(float v, u32 id) {
    u32 bits = __float_as_uint(v);
    bits = v != v ? 0 : (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
    return ((unsigned long long)bits << 32) | (0xffffffffu - id);
}

extern "C" __global__ void __launch_bounds__(256) argmax(const float *logits, int m, unsigned long long *best,
                                                         u32 *arrived, u32 *token) {
    __shared__ unsigned long long warps[8];
    wait_for_previous();
    unsigned long long most = 0;
    for (int i = blockIdx.x * 256 + threadIdx.x; i < m; i += gridDim.x * 256) {
        const unsigned long long k = key_of(logits[i], i);
        most = k > most ? k : most;
    }
    for (int step = 16; step > 0; step /= 2) {
        const unsigned long long other = __shfl_xor_sync(0xffffffffu, most, step);
        most = other > most ? other : most;
    }
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = most;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int i = 1; i < 8; i++) most = warps[i] > most ? warps[i] : most;
    atomicMax(best, most);
    __threadfence();
    if (atomicAdd(arrived, 1) == gridDim.x - 1) {
        __threadfence();
        *token = 0xffffffffu - (u32)atomicExch(best, 0);
        *arrived = 0;
        __threadfence_system();
    }
}
