// y[l, o] = W[expert of l, o, :] . x of l, in f32, for each line l of T tokens with k chosen experts each; x of a line is its own
// row, or its token's. A block makes OUTPUTS outputs of one expert for all lines that chose it, so many at a time that shared memory
// holds their rows: what is unpacked of a weight serves them all. Lines of an expert go in their order.
// Grid (ceil(m / OUTPUTS), experts), block 32 x WARPS. x [T, k, n] or [T, n], chosen [T, k], W [experts, m, n] in blocks,
// y [T, k, m].

#include "choice.cuh"
#include "fused/experts.cuh"

struct ExpertRowsParams {
    const float *x, *chosen;
    Weights w;
    float *y;
    int n, m, experts, lines, lines_of_row;
    int at_once; // lines, LINES at most
};

constexpr int WARPS = 8;
constexpr int ROWS = 4; // of a warp
constexpr int OUTPUTS = WARPS * ROWS;
constexpr int LINES = 8;
constexpr int WINDOW = 4096; // lines that are looked through at a time

// Which lines of those from `first` on chose an expert, and how many. All threads call it.
__device__ __forceinline__ int list_lines(const ExpertRowsParams &p, int first, int expert, int *list) {
    __shared__ int of_warps[WARPS];
    constexpr int EACH = WINDOW / (32 * WARPS);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, begin = first + threadIdx.x * EACH;
    auto mine = [&](int i) { return begin + i < p.lines && place_of(p.chosen[begin + i], p.experts) == expert; };
    int count = 0;
    for (int i = 0; i < EACH; i++) count += mine(i);
    int up_to = count;
    for (int step = 1; step < 32; step *= 2) {
        const int before = __shfl_sync(0xffffffffu, up_to, max(lane - step, 0));
        if (lane >= step) up_to += before;
    }
    __syncthreads(); // the window before is done
    if (lane == 31) of_warps[warp] = up_to;
    __syncthreads();
    int at = up_to - count, all = 0;
    for (int k = 0; k < WARPS; k++) {
        if (k < warp) at += of_warps[k];
        all += of_warps[k];
    }
    for (int i = 0; i < EACH; i++) {
        if (mine(i)) list[at++] = begin + i;
    }
    __syncthreads();
    return all;
}

template <typename Format>
__global__ void __launch_bounds__(32 * WARPS, 1) expert_rows(const __grid_constant__ ExpertRowsParams p) {
    extern __shared__ __align__(16) u8 shared[];
    __shared__ int list[WINDOW];
    wait_for_turn();
    float *x = (float *)shared;
    const int lane = threadIdx.x % 32, groups = p.n / 32, expert = blockIdx.y;
    const int row0 = blockIdx.x * OUTPUTS + threadIdx.x / 32 * ROWS, rows = min(ROWS, p.m - row0);
    for (int first = 0; first < p.lines; first += WINDOW) {
        const int count = list_lines(p, first, expert, list);
        for (int from = 0; from < count; from += p.at_once) {
            const int here = min(p.at_once, count - from);
            __syncthreads(); // the lines before are done
            for (int i = 0; i < here; i++) {
                const float4 *of = (const float4 *)(p.x + (size_t)(list[from + i] / p.lines_of_row) * p.n);
                lay_out(x + i * groups * LINE, p.n, [&](int k) { return of[k]; });
            }
            __syncthreads();
            float sums[LINES][ROWS] = {};
            for (int g = lane; g < groups; g += 32) {
                float value[ROWS][32];
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    const size_t row = (size_t)expert * p.m + min(row0 + r, p.m - 1);
                    Format::unpack(Format::load(p.w, row * groups + g), g % 8, value[r]);
                }
#pragma unroll
                for (int i = 0; i < LINES; i++) {
                    if (i >= here) break;
                    const float4 *of = (const float4 *)(x + (i * groups + g) * LINE);
#pragma unroll
                    for (int k = 0; k < 8; k++) {
                        const float4 v = of[k];
#pragma unroll
                        for (int r = 0; r < ROWS; r++) {
                            sums[i][r] = fmaf(value[r][4 * k], v.x, sums[i][r]);
                            sums[i][r] = fmaf(value[r][4 * k + 1], v.y, sums[i][r]);
                            sums[i][r] = fmaf(value[r][4 * k + 2], v.z, sums[i][r]);
                            sums[i][r] = fmaf(value[r][4 * k + 3], v.w, sums[i][r]);
                        }
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < LINES; i++) {
                if (i >= here) break;
                float *y = p.y + (size_t)list[from + i] * p.m + row0;
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    const float sum = warp_sum(sums[i][r]);
                    if (lane == r && r < rows) y[r] = sum;
                }
            }
        }
    }
}
