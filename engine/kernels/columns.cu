// y[r, i] = x[r, first + i / run * stride + i % run], a thread an element: runs of a row at equal distances.
// x [rows, n], y [rows, width].

struct ColumnsParams {
    const float *x;
    float *y;
    int n, first, run, stride, width, count;
};

__global__ void columns(const __grid_constant__ ColumnsParams p) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= p.count) return;
    const int r = at / p.width, i = at % p.width;
    p.y[at] = p.x[(size_t)r * p.n + p.first + i / p.run * p.stride + i % p.run];
}
