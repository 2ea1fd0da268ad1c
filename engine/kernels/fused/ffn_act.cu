// ffn_norm, ffn_gate, ffn_up and ffn_act of one token. A warp makes a row of
// both projections; grid (ceil(m / 8)), block 256.
// x [n], gate and up [m, n] in blocks, y [m].

struct FfnTaps { // null where not wanted
    float *norm, *gate, *up;
};

template <typename Gate, typename Up>
__device__ void ffn_act(const float *x, const float *norm, float eps, const Weights &wg, const Weights &wu, float *y,
                        int n, int m, const FfnTaps &taps) {
    extern __shared__ __align__(16) float shared[];
    let_next_start();
    const int row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32, groups = n / 32;
    RowDot<Gate> gate;
    RowDot<Up> up;
    if (row < m) {
        gate.start(wg, row, groups, lane);
        up.start(wu, row, groups, lane);
    }
    wait_for_previous();
    norm_to_shared(x, norm, eps, n, shared, taps.norm);
    if (row >= m) return;
    const float g = warp_sum(gate.finish(wg, row, groups, lane, 32, shared));
    const float u = warp_sum(up.finish(wu, row, groups, lane, 32, shared));
    if (lane == 0) {
        tap(taps.gate, row, g);
        tap(taps.up, row, u);
        y[row] = g / (1.0f + expf(-g)) * u;
    }
}

#define INSTANCE(NAME, G, U)                                                                                      \
    extern "C" __global__ void __launch_bounds__(256)                                                             \
    NAME(const float *x, const float *norm, float eps, const Weights wg, const Weights wu, float *y, int n, int m, \
         const FfnTaps taps) {                                                                                    \
        ffn_act<G, U>(x, norm, eps, wg, wu, y, n, m, taps);                                                       \
    }
