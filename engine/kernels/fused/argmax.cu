// The id of the largest logit, the lowest among equals (`best.cuh`). Grid (blocks), block THREADS. logits [V].

#include "fused/best.cuh"

constexpr int THREADS = 256;

struct ArgmaxParams {
    const float *logits;
    Best best;
    int m;
    Stamp *stamps; // null where it is not timed
};

__global__ void __launch_bounds__(THREADS) argmax(const __grid_constant__ ArgmaxParams p) {
    Turn turn(p.stamps);
    turn.wait();
    unsigned long long most = 0;
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < p.m; i += gridDim.x * THREADS) {
        const unsigned long long k = key_of(p.logits[i], i);
        most = k > most ? k : most;
    }
    tell_best(most, p.best);
}
