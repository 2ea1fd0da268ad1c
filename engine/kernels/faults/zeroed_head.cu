// FAULT: one head is not computed, and stays 0. A thread an element. y [T, heads, d].

struct ZeroedHeadParams {
    float *y;
    int heads, d, head, count;
};

__global__ void zeroed_head(const __grid_constant__ ZeroedHeadParams p) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.count && (i / p.d) % p.heads == p.head) p.y[i] = 0.0f;
}
