// Rotation of each head in d/2 planes by position * frequency[i]; the pairs of a
// plane are (i, i + d/2) or, adjacent, (2i, 2i + 1). A thread per plane, grid
// (ceil(T * heads * d/2 / block)). x, y [T, heads, d], frequency [d/2].

#include "batch.cuh"

struct RopeParams {
    const float *x, *frequency;
    float *y;
    int heads, d, adjacent, first, tokens;
    Batch batch;
};

__global__ void rope(const __grid_constant__ RopeParams p) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    const int planes = p.d / 2;
    if (at >= p.tokens * p.heads * planes) return;
    const int i = at % planes, head = at / planes; // head counts over all tokens
    const int t = head / p.heads;
    float s, c;
    sincosf((float)p.batch.position(p.first, t) * p.frequency[i], &s, &c);
    const size_t base = (size_t)head * p.d;
    const size_t a = base + (p.adjacent ? 2 * i : i), b = base + (p.adjacent ? 2 * i + 1 : i + planes);
    const float x0 = p.x[a], x1 = p.x[b];
    p.y[a] = x0 * c - x1 * s;
    p.y[b] = x0 * s + x1 * c;
}
