// y = f(share x), a thread an element.

struct CurveParams {
    const float *x;
    float *y;
    float share;
    int count;
};

struct SiluOfShare {
    static __device__ __forceinline__ float of(float x) { return x / (1.0f + expf(-x)); }
};
struct TwiceSigmoidOfShare {
    static __device__ __forceinline__ float of(float x) { return 2.0f / (1.0f + expf(-x)); }
};
// The sigmoid of the root of |x|, at least 1e-3, with the sign of x; of 0 for 0.
struct SigmoidOfRoot {
    static __device__ __forceinline__ float of(float x) {
        const float root = sqrtf(fmaxf(fabsf(x), 1e-6f));
        return 1.0f / (1.0f + expf(x > 0.0f ? -root : x < 0.0f ? root : x));
    }
};

template <typename Function>
__global__ void curve(const __grid_constant__ CurveParams p) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.count) p.y[i] = Function::of(p.x[i] * p.share);
}
