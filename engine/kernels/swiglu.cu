// y = g / (1 + exp(-g)) u, a thread an element. gate g and up u [T, F].

struct SwiGluParams {
    const float *gate, *up;
    float *y;
    int count;
};

__global__ void swiglu(const __grid_constant__ SwiGluParams p) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.count) p.y[i] = p.gate[i] / (1.0f + expf(-p.gate[i])) * p.up[i];
}
