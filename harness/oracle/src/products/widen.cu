// Weights in f64: as they are, their magnitudes, or their squares. A product of two f32 is exact in f64.

enum { AS_THEY_ARE, MAGNITUDES, SQUARES };

__global__ void widen(const float *from, double *to, long long count, int as) {
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        double w = from[i];
        to[i] = as == AS_THEY_ARE ? w : as == MAGNITUDES ? fabs(w) : w * w;
    }
}
