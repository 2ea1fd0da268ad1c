// y[t, o] = W[o, :] . x[t, :] on the tensor cores, to f32 accuracy: each operand
// is split into two tf32 parts, and three products of parts are summed in f32
// (two where the weights fit one part). What is left out is below 2^-21 of a
// product. The tensor cores round their sums towards zero, so that long sums
// would drift: every 32 elements their sum is added to the result in true f32.
//
// A block makes 64 tokens x 64 outputs of one share of the sum, a warp 32 x 32
// of it. 32 elements of the sum at a time stand in shared memory, split; the next
// 32 are fetched meanwhile. Shares go to y + z * T * m, to be added by sum_parts.
// Grid (ceil(m / TILE), ceil(T / TILE), shares), block THREADS.
// x [T, n], W [m, n] in blocks, y [shares, T, m].

#include "blocks.cuh"

constexpr int TILE = 64;
constexpr int STRIDE = 36; // of a row of 32 in shared memory: no two of a warp's reads share a bank
constexpr int THREADS = 2 * TILE;
constexpr int STAGES = 2;
[[maybe_unused]] constexpr int SHARED_BYTES = STAGES * 4 * TILE * STRIDE * 4; // of four parts of 4-byte words

struct GemmParams {
    const float *x;
    Weights w;
    float *y;
    int n, m, tokens;
};

__device__ __forceinline__ u32 tf32(float v) {
    u32 bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(v));
    return bits;
}

__device__ __forceinline__ void multiply(float *c, const u32 *a, const u32 *b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Rows of 32 in shared memory as two parts.
struct Operand {
    u32 *high, *low;
    // Half a block brings the rows: P threads next to each other share a row, so
    // that they read one line of memory, and bring a piece of it from each of P
    // groups of rows. v holds a thread's pieces one after another.
    template <int P, bool Exact>
    __device__ __forceinline__ void put(int thread, const float4 *v) {
        constexpr int WIDTH = 8 / P; // float4s of a piece
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int at = row_of<P>(thread, i / WIDTH) * STRIDE + 4 * (WIDTH * (thread % P) + i % WIDTH);
            if (Exact) {
                *(float4 *)(high + at) = v[i];
                continue;
            }
            const uint4 h = {tf32(v[i].x), tf32(v[i].y), tf32(v[i].z), tf32(v[i].w)};
            *(uint4 *)(high + at) = h;
            *(uint4 *)(low + at) = {tf32(v[i].x - __uint_as_float(h.x)), tf32(v[i].y - __uint_as_float(h.y)),
                                    tf32(v[i].z - __uint_as_float(h.z)), tf32(v[i].w - __uint_as_float(h.w))};
        }
    }
    template <int P>
    static __device__ __forceinline__ int row_of(int thread, int piece) {
        return TILE / P * piece + thread / P;
    }
};

template <typename Format>
__global__ void __launch_bounds__(THREADS) gemm(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(16) u32 shared[]; // [STAGES][x high, x low, w high, w low][TILE * STRIDE]
    const int m = p.m, tokens = p.tokens;
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const int groups = p.n / 32;
    const int share = (groups + gridDim.z - 1) / gridDim.z;
    const int begin = blockIdx.z * share, end = min(groups, begin + share);
    const int out0 = blockIdx.x * TILE, token0 = blockIdx.y * TILE;
    const int thread = tid % TILE;          // of the half block that brings an operand
    const bool brings_weights = tid < TILE; // the other half brings x
    auto operand = [&](int stage, int which) {
        u32 *at = shared + (4 * stage + 2 * which) * TILE * STRIDE;
        return Operand{at, at + TILE * STRIDE};
    };

    // Where a thread's first piece stands, in units of 16 bytes from the first
    // group, and how many rows from its own on there are. Its next piece is
    // TILE * groups further on.
    const int sharing = brings_weights ? Format::lanes_per_group : 8;
    const int row = (brings_weights ? out0 : token0) + thread / sharing;
    const u32 from = sharing * (u32)row * groups + thread % sharing;
    const int left = (brings_weights ? m : tokens) - row;

    typename Format::Raw raw;
    float4 part[8];
    auto fetch = [&](int g) {
        if (!brings_weights) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                part[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (TILE / 8 * i < left) part[i] = ((const float4 *)p.x)[from + 8 * g + i * TILE * groups];
            }
        } else if constexpr (Format::lanes_per_group == 1) {
            if (left > 0) raw = Format::load(p.w, from + g);
        } else {
#pragma unroll
            for (int i = 0; i < Format::lanes_per_group; i++) {
                raw.v[i] = make_uint4(0, 0, 0, 0);
                if (TILE / Format::lanes_per_group * i < left) {
                    raw.v[i] = at128(p.w.plane[0], from + Format::lanes_per_group * g + i * TILE * groups);
                }
            }
        }
    };
    auto put = [&](int g) {
        Operand to = operand((g - begin) % STAGES, brings_weights);
        if (!brings_weights) {
            to.put<8, false>(thread, part);
            return;
        }
        if (Format::lanes_per_group > 1 || left > 0) {
            Format::unpack(raw, g % 8, (float *)part);
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++) part[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
        to.put<Format::lanes_per_group, Format::exact_in_tf32>(thread, part);
    };

    float c[2][4][4] = {};
    const int token_at = 32 * (warp / 2), out_at = 32 * (warp % 2);
    const int quad = lane / 4, pair = lane % 4;
    if (begin < end) {
        fetch(begin);
        put(begin);
    }
    __syncthreads();
    for (int g = begin; g < end; g++) {
        if (g + 1 < end) fetch(g + 1);
        float sum[2][4][4] = {};
        const Operand xs = operand((g - begin) % STAGES, 0), ws = operand((g - begin) % STAGES, 1);
        const int x0 = (token_at + quad) * STRIDE + pair, w0 = (out_at + quad) * STRIDE + pair;
#pragma unroll
        for (int k = 0; k < 32; k += 8) {
            u32 ah[2][4], al[2][4], bh[4][2], bl[4][2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int at = x0 + (16 * i + 8 * (e % 2)) * STRIDE + k + 4 * (e / 2);
                    ah[i][e] = xs.high[at];
                    al[i][e] = xs.low[at];
                }
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int at = w0 + 8 * j * STRIDE + k + 4 * e;
                    bh[j][e] = ws.high[at];
                    if (!Format::exact_in_tf32) bl[j][e] = ws.low[at];
                }
            }
            // The small products first.
#pragma unroll
            for (int i = 0; i < 2; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    if (!Format::exact_in_tf32) multiply(sum[i][j], ah[i], bl[j]);
                    multiply(sum[i][j], al[i], bh[j]);
                }
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) multiply(sum[i][j], ah[i], bh[j]);
            }
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
#pragma unroll
                for (int e = 0; e < 4; e++) c[i][j][e] += sum[i][j][e];
            }
        }
        if (g + 1 < end) put(g + 1);
        __syncthreads();
    }
    float *y = p.y + (size_t)blockIdx.z * tokens * m;
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int t = token0 + token_at + 16 * i + quad + 8 * (e / 2);
                const int o = out0 + out_at + 8 * j + 2 * pair + e % 2;
                if (t < tokens && o < m) y[(size_t)t * m + o] = c[i][j][e];
            }
        }
    }
}
