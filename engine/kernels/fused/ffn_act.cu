// ffn_norm, ffn_gate, ffn_up and ffn_act of one token. A warp makes rows of both
// projections, one after the other; grid (blocks), block THREADS.
// x [n], gate and up [m, n] in blocks, y [m].

#include "fused/decode.cuh"

constexpr int THREADS = 256;

struct FfnActParams {
    const float *x, *norm;
    Weights gate, up;
    float *y;
    float *norm_tap, *gate_tap, *up_tap, *y_tap; // null where not wanted
    int n, m;
    float eps;
};

template <typename Gate, typename Up>
__global__ void __launch_bounds__(THREADS) ffn_act(FfnActParams p) {
    extern __shared__ __align__(16) float shared[];
    const int lane = threadIdx.x % 32, groups = p.n / 32, step = gridDim.x * (THREADS / 32);
    int row = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    RowDot<Gate> gate;
    RowDot<Up> up;
    if (row < p.m) {
        gate.start(p.gate, row, groups, lane);
        up.start(p.up, row, groups, lane);
    }
    wait_for_previous();
    norm_to_shared(p.x, p.norm, p.eps, p.n, shared, p.norm_tap);
    for (; row < p.m; row += step) {
        RowDot<Gate> this_gate = gate;
        RowDot<Up> this_up = up;
        if (row + step < p.m) {
            gate.start(p.gate, row + step, groups, lane);
            up.start(p.up, row + step, groups, lane);
        }
        const float g_sum = warp_sum(this_gate.finish(p.gate, row, groups, lane, 32, shared));
        const float u_sum = warp_sum(this_up.finish(p.up, row, groups, lane, 32, shared));
        if (lane == 0) {
            const float g = tap(p.gate_tap, row, g_sum), u = tap(p.up_tap, row, u_sum);
            p.y[row] = tap(p.y_tap, row, g / (1.0f + expf(-g)) * u);
        }
    }
}
