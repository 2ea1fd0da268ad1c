// FAULT: GELU (the tanh form) where the model has SiLU. A thread an element.

struct GeluParams {
    const float *gate, *up;
    float *y;
    int count;
};

__global__ void gelu(const __grid_constant__ GeluParams p) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.count) return;
    const float g = p.gate[i];
    p.y[i] = 0.5f * g * (1.0f + tanhf(0.7978845608028654f * (g + 0.044715f * g * g * g))) * p.up[i];
}
