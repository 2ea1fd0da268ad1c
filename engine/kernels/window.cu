// The last rows that a convolution has seen, the oldest first: what `state` was goes to `before`, and the last rows of both and
// of the step to `state`. A thread per channel; grid (ceil(n / block)). x [T, n], state and before [rows, n].

struct WindowParams {
    const float *x;
    float *state, *before;
    int n, rows, tokens;
};

__global__ void window(const __grid_constant__ WindowParams p) {
    const int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= p.n) return;
    for (int r = 0; r < p.rows; r++) p.before[r * p.n + c] = p.state[r * p.n + c];
    for (int r = 0; r < p.rows; r++) {
        const int from = r + p.tokens;
        p.state[r * p.n + c] = from < p.rows ? p.before[from * p.n + c] : p.x[(size_t)(from - p.rows) * p.n + c];
    }
}
