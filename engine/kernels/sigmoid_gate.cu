// y = sigmoid(gate) x, a thread an element.

struct SigmoidGateParams {
    const float *gate, *x;
    float *y;
    int count;
};

__global__ void sigmoid_gate(const __grid_constant__ SigmoidGateParams p) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.count) p.y[i] = p.x[i] / (1.0f + expf(-p.gate[i]));
}
