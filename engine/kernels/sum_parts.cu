// y[i] = parts[0, i] + parts[1, i] + ..., in this order; a thread an element.
// parts [shares, count], y [count].

extern "C" __global__ void sum_parts(const float *parts, float *y, int shares, int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float sum = parts[i];
    for (int s = 1; s < shares; s++) sum += parts[(size_t)s * count + i];
    y[i] = sum;
}
