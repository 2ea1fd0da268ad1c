// delta_q_normed, delta_k_normed, delta_state and delta_out of one token: the gated delta rule as in delta_net.cu, with the norms of q and
// k made by each warp for itself. A warp makes EACH rows of the transposed state of a head, which it has in registers before its
// turn. Grid (heads, ceil(D / ROWS)), block 32 x STEP_WARPS. act [2 key_heads D + heads D] is q, k and v; beta, decay [heads], state
// [heads, D, D], y [heads, D].

#include "fused/decode.cuh"

struct DeltaStepParams {
    const float *act, *beta, *decay;
    float *state, *y;
    float *q_tap, *k_tap, *state_tap, *y_tap; // null where not wanted
    int heads, key_heads;
    float q_eps, k_eps;
    Stamp *stamps; // null where it is not timed
};

constexpr int STEP_WARPS = 8; // of a block
constexpr int EACH = 4;       // rows of a warp
constexpr int ROWS = STEP_WARPS * EACH;

template <int D>
__global__ void __launch_bounds__(32 * STEP_WARPS) delta_step(const __grid_constant__ DeltaStepParams p) {
    constexpr int RUNS = (D + 31) / 32; // elements of a row that a lane has
    Turn turn(p.stamps);
    const int lane = threadIdx.x % 32, h = blockIdx.x, key = h % p.key_heads;
    const int first = blockIdx.y * ROWS + threadIdx.x / 32 * EACH;
    auto has = [&](int k) { return D % 32 == 0 || lane + 32 * k < D; };
    // Nobody but this block writes these rows.
    float m[EACH][RUNS];
#pragma unroll
    for (int r = 0; r < EACH; r++) {
#pragma unroll
        for (int k = 0; k < RUNS; k++) {
            const bool is = first + r < D && has(k);
            m[r][k] = is ? p.state[((size_t)h * D + first + r) * D + lane + 32 * k] : 0.0f;
        }
    }
    turn.wait();
    turn.mark(0);
    const float decay = expf(__ldcg(p.decay + h)), beta = __ldcg(p.beta + h), root = sqrtf((float)D);
    const float *of_q = p.act + (size_t)key * D, *of_k = of_q + (size_t)p.key_heads * D;
    const float *of_v = p.act + 2 * (size_t)p.key_heads * D + (size_t)h * D;
    float q[RUNS], k[RUNS], value[EACH], q_squares = 0.0f, k_squares = 0.0f;
#pragma unroll
    for (int i = 0; i < RUNS; i++) {
        q[i] = has(i) ? __ldcg(of_q + lane + 32 * i) : 0.0f;
        k[i] = has(i) ? __ldcg(of_k + lane + 32 * i) : 0.0f;
    }
#pragma unroll
    for (int r = 0; r < EACH; r++) value[r] = first + r < D ? __ldcg(of_v + first + r) : 0.0f;
#pragma unroll
    for (int i = 0; i < RUNS; i++) q_squares = fmaf(q[i], q[i], q_squares), k_squares = fmaf(k[i], k[i], k_squares);
    const float q_root = sqrtf(warp_sum(q_squares) + p.q_eps), k_root = sqrtf(warp_sum(k_squares) + p.k_eps);
    // The first head that reads a key head writes it.
    const bool taps = h < p.key_heads && first == 0;
#pragma unroll
    for (int i = 0; i < RUNS; i++) {
        q[i] = tap(taps && has(i) ? p.q_tap : nullptr, key * D + lane + 32 * i, q[i] / q_root);
        k[i] = tap(taps && has(i) ? p.k_tap : nullptr, key * D + lane + 32 * i, k[i] / k_root);
    }
    turn.mark(1);
    float out[EACH];
#pragma unroll
    for (int r = 0; r < EACH; r++) {
        float dot = 0.0f;
#pragma unroll
        for (int i = 0; i < RUNS; i++) {
            m[r][i] *= decay;
            dot = fmaf(m[r][i], k[i], dot);
        }
        const float delta = (value[r] - warp_sum(dot)) * beta;
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < RUNS; i++) {
            m[r][i] = fmaf(delta, k[i], m[r][i]);
            sum = fmaf(m[r][i], q[i], sum);
        }
        out[r] = warp_sum(sum);
    }
    turn.mark(2);
#pragma unroll
    for (int r = 0; r < EACH; r++) {
        if (first + r >= D) break;
        if (lane == 0) p.y[(size_t)h * D + first + r] = tap(p.y_tap, (size_t)h * D + first + r, out[r] / root);
#pragma unroll
        for (int i = 0; i < RUNS; i++) {
            const size_t at = ((size_t)h * D + first + r) * D + lane + 32 * i;
            if (has(i)) p.state[at] = tap(p.state_tap, at, m[r][i]);
        }
    }
}
