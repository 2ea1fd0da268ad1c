// ffn_norm, ffn_gate, ffn_up and ffn_act of one token. A warp makes rows of both
// projections, one after the other; grid (blocks), block 256.
// x [n], gate and up [m, n] in blocks, y [m].

struct FfnTaps { // null where not wanted
    float *norm, *gate, *up;
};

template <typename Gate, typename Up>
__device__ void ffn_act(const float *x, const float *norm, float eps, const Weights &wg, const Weights &wu, float *y,
                        int n, int m, const FfnTaps &taps) {
    extern __shared__ __align__(16) float shared[];
    const int lane = threadIdx.x % 32, groups = n / 32, step = gridDim.x * 8;
    int row = blockIdx.x * 8 + threadIdx.x / 32;
    RowDot<Gate> gate;
    RowDot<Up> up;
    if (row < m) {
        gate.start(wg, row, groups, lane);
        up.start(wu, row, groups, lane);
    }
    wait_for_previous();
    norm_to_shared(x, norm, eps, n, shared, taps.norm);
    for (; row < m; row += step) {
        RowDot<Gate> this_gate = gate;
        RowDot<Up> this_up = up;
        if (row + step < m) {
            gate.start(wg, row + step, groups, lane);
            up.start(wu, row + step, groups, lane);
        }
        const float g = warp_sum(this_gate.finish(wg, row, groups, lane, 32, shared));
        const float u = warp_sum(this_up.finish(wu, row, groups, lane, 32, shared));
        if (lane == 0) {
            tap(taps.gate, row, g);
            tap(taps.up, row, u);
            y[row] = g / (1.0f + expf(-g)) * u;
        }
    }
}

#define INSTANCE(NAME, G, U)                                                                                      \
    extern "C" __global__ void __launch_bounds__(256)                                                             \
    NAME(const float *x, const float *norm, float eps, const Weights wg, const Weights wu, float *y, int n, int m, \
         const FfnTaps taps) {                                                                                    \
        ffn_act<G, U>(x, norm, eps, wg, wu, y, n, m, taps);                                                       \
    }
