// y[t, n] = 1 at the keys of the `picks` blocks of the largest values, of those that row t sees whole, and at the keys that it
// sees behind them; else 0. A block's value is at its last key; of equal values the first block comes first, and NaN last. A
// thread counts the values that come before its own. Grid (T), block: threads over the blocks of keys. x, y [T, N].

struct TopBlocksParams {
    const float *x;
    float *y;
    int picks, block, first, keys;
};

__global__ void top_blocks(const __grid_constant__ TopBlocksParams p) {
    const float *x = p.x + (size_t)blockIdx.x * p.keys;
    float *y = p.y + (size_t)blockIdx.x * p.keys;
    const int seen = min(p.keys, p.first + (int)blockIdx.x + 1), whole = seen / p.block;
    for (int b = threadIdx.x; b < whole; b += blockDim.x) {
        const float own = x[(b + 1) * p.block - 1];
        int before = 0;
        for (int j = 0; j < whole; j++) {
            const float other = x[(j + 1) * p.block - 1];
            const bool alike = other == own || (other != other && own != own);
            const bool larger = other > own || (own != own && other == other);
            before += larger || (alike && j < b);
        }
        for (int r = 0; r < p.block; r++) y[b * p.block + r] = before < p.picks ? 1.0f : 0.0f;
    }
    for (int n = whole * p.block + threadIdx.x; n < p.keys; n += blockDim.x) y[n] = n < seen ? 1.0f : 0.0f;
}
