// FAULT: GELU (the tanh form) where the model has SiLU. A thread an element.

extern "C" __global__ void gelu(const float *gate, const float *up, float *y, int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const float g = gate[i];
    y[i] = 0.5f * g * (1.0f + tanhf(0.7978845608028654f * (g + 0.044715f * g * g * g))) * up[i];
}
