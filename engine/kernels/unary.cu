// y = f(x), a thread an element.

struct UnaryParams {
    const float *x;
    float *y;
    int count;
};

struct Sigmoid {
    static __device__ __forceinline__ float of(float x) { return 1.0f / (1.0f + expf(-x)); }
};
struct Silu {
    static __device__ __forceinline__ float of(float x) { return x / (1.0f + expf(-x)); }
};

template <typename Function>
__global__ void unary(const __grid_constant__ UnaryParams p) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.count) p.y[i] = Function::of(p.x[i]);
}
