// Rotation of the first `rotated` elements of each head in planes by position * frequency[i], times `magnitude`; the pairs of
// a plane are (i, i + rotated/2) or, adjacent, (2i, 2i + 1). The other elements stay. A thread per plane or element that
// stays, grid (ceil(T * heads * (d - rotated/2) / block)). x, y [T, heads, d], frequency [rotated/2].

#include "batch.cuh"

struct RopeParams {
    const float *x, *frequency;
    float *y;
    int heads, d, adjacent, first, tokens, rotated;
    float magnitude;
    Batch batch;
};

__global__ void rope(const __grid_constant__ RopeParams p) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    const int planes = p.rotated / 2, units = p.d - planes;
    if (at >= p.tokens * p.heads * units) return;
    const int i = at % units, head = at / units; // head counts over all tokens
    const int t = head / p.heads;
    if (i >= planes) {
        const size_t stays = (size_t)head * p.d + planes + i;
        p.y[stays] = p.x[stays];
        return;
    }
    float s, c;
    sincosf((float)p.batch.position(p.first, t) * p.frequency[i], &s, &c);
    s *= p.magnitude, c *= p.magnitude;
    const size_t base = (size_t)head * p.d;
    const size_t a = base + (p.adjacent ? 2 * i : i), b = base + (p.adjacent ? 2 * i + 1 : i + planes);
    const float x0 = p.x[a], x1 = p.x[b];
    p.y[a] = x0 * c - x1 * s;
    p.y[b] = x0 * s + x1 * c;
}
