// y[i] = parts[0, i] + parts[1, i] + ..., in this order; a thread an element.
// parts [shares, count], y [count].

struct SumPartsParams {
    const float *parts;
    float *y;
    int shares, count;
};

__global__ void sum_parts(const __grid_constant__ SumPartsParams p) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.count) return;
    float sum = p.parts[i];
    for (int s = 1; s < p.shares; s++) sum += p.parts[(size_t)s * p.count + i];
    p.y[i] = sum;
}
