// y[t, o] = W[o, :] . x[t, :] on the tensor cores, to f32 accuracy: each operand
// is split into two tf32 parts, and three products of parts are summed in f32
// (two where the weights fit one part). What is left out is below 2^-21 of a
// product. A block makes 64 tokens x 64 outputs, a warp 32 x 32; 32 elements of
// the sum at a time go through shared memory, the next 32 meanwhile through
// registers. Grid (ceil(m / 64), ceil(T / 64)), block 128.
// x [T, n], W [m, n] in blocks, y [T, m].

#define TILE 64
#define STRIDE 36 // of a row of 32 in shared memory: no two of a warp's reads share a bank

__device__ __forceinline__ u32 tf32(float v) {
    u32 bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(v));
    return bits;
}

struct Parts { u32 high, low; };

__device__ __forceinline__ Parts split(float v) {
    Parts p;
    p.high = tf32(v);
    p.low = tf32(v - __uint_as_float(p.high));
    return p;
}

__device__ __forceinline__ void multiply(float *c, const u32 *a, const u32 *b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <typename Format>
__device__ void gemm(const float *x, const Weights &w, float *y, int n, int m, int tokens) {
    __shared__ float xs[2][TILE * STRIDE];
    __shared__ float ws[2][TILE * STRIDE];
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const int groups = n / 32;
    const int out0 = blockIdx.x * TILE, token0 = blockIdx.y * TILE;
    const int row = tid % TILE;            // of the tile, for whichever operand this thread brings
    const bool brings_weights = tid < TILE; // the other half of the block brings x
    const bool inside = brings_weights ? out0 + row < m : token0 + row < tokens;

    typename Format::Raw raw;
    float4 part[8];
    auto fetch = [&](int g) {
        if (!inside) return;
        if (brings_weights) {
            raw = Format::load(w, (size_t)(out0 + row) * groups + g);
        } else {
            const float4 *from = (const float4 *)(x + (size_t)(token0 + row) * n + 32 * g);
#pragma unroll
            for (int i = 0; i < 8; i++) part[i] = from[i];
        }
    };
    auto put = [&](int g) {
        float4 *to = (float4 *)((brings_weights ? ws : xs)[g % 2] + row * STRIDE);
        if (!inside) {
#pragma unroll
            for (int i = 0; i < 8; i++) to[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        } else if (brings_weights) {
            float v[32];
            Format::unpack(raw, g % 8, v);
#pragma unroll
            for (int i = 0; i < 8; i++) to[i] = make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++) to[i] = part[i];
        }
    };

    float c[2][4][4] = {};
    const int token_at = 32 * (warp / 2), out_at = 32 * (warp % 2);
    const int quad = lane / 4, pair = lane % 4;
    fetch(0);
    put(0);
    __syncthreads();
    for (int g = 0; g < groups; g++) {
        if (g + 1 < groups) fetch(g + 1);
        const float *xt = xs[g % 2] + token_at * STRIDE, *wt = ws[g % 2] + out_at * STRIDE;
#pragma unroll
        for (int k = 0; k < 32; k += 8) {
            u32 ah[2][4], al[2][4], bh[4][2], bl[4][2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const Parts p = split(xt[(16 * i + quad + 8 * (e % 2)) * STRIDE + k + pair + 4 * (e / 2)]);
                    ah[i][e] = p.high;
                    al[i][e] = p.low;
                }
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const Parts p = split(wt[(8 * j + quad) * STRIDE + k + pair + 4 * e]);
                    bh[j][e] = p.high;
                    bl[j][e] = p.low;
                }
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    // The small products first.
                    if (!Format::halves) multiply(c[i][j], ah[i], bl[j]);
                    multiply(c[i][j], al[i], bh[j]);
                    multiply(c[i][j], ah[i], bh[j]);
                }
            }
        }
        if (g + 1 < groups) put(g + 1);
        __syncthreads();
    }
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

#define INSTANCE(F)                                                                                      \
    extern "C" __global__ void __launch_bounds__(128) gemm_##F(const float *x, const Weights w, float *y, int n, \
                                                               int m, int tokens) {                      \
        gemm<F>(x, w, y, n, m, tokens);                                                                  \
    }
