// y[t, r] = the place of the r-th largest value of x[t], r from 0 to k - 1. Of equal values the one at the lower place
// comes first, as in llama.cpp's CUDA backend; NaN comes last. A thread counts the values that come before its own.
// Grid (T), block: threads over the values. x [T, n], y [T, k].

struct TopKParams {
    const float *x;
    float *y;
    int n, k;
};

__global__ void top_k(const __grid_constant__ TopKParams p) {
    const float *x = p.x + (size_t)blockIdx.x * p.n;
    float *y = p.y + (size_t)blockIdx.x * p.k;
    for (int i = threadIdx.x; i < p.n; i += blockDim.x) {
        const float own = x[i];
        int before = 0;
        for (int j = 0; j < p.n; j++) {
            const float other = x[j];
            const bool alike = other == own || (other != other && own != own);
            const bool larger = other > own || (own != own && other == other);
            before += larger || (alike && j < i);
        }
        if (before < p.k) y[before] = (float)i;
    }
}
