// Rotation of each head in d/2 planes by position * frequency[i]; the pairs of a
// plane are (i, i + d/2) or, adjacent, (2i, 2i + 1). A thread per plane, grid
// (ceil(T * heads * d/2 / block)). x, y [T, heads, d], frequency [d/2].

extern "C" __global__ void rope(const float *x, const float *frequency, float *y, int heads, int d,
                                int adjacent, int first, int tokens) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    const int planes = d / 2;
    if (at >= tokens * heads * planes) return;
    const int i = at % planes, head = at / planes; // head counts over all tokens
    const int t = head / heads;
    float s, c;
    sincosf((float)(first + t) * frequency[i], &s, &c);
    const size_t base = (size_t)head * d;
    const size_t a = base + (adjacent ? 2 * i : i), b = base + (adjacent ? 2 * i + 1 : i + planes);
    const float x0 = x[a], x1 = x[b];
    y[a] = x0 * c - x1 * s;
    y[b] = x0 * s + x1 * c;
}
