// An engine on CUDA whose decode steps are replays of one captured graph. `scripts/tap-round` compiles it with nvcc on a
// machine with a GPU; the suite compiles it against tests/tap/stub, which runs streams and graphs in a thread.
//
// Usage: graph marks     QDIFF_STEP_ON before each launch of the graph
//        graph counted   QDIFF_STEP_ON inside the captured graph: the steps count themselves
//        graph forgotten none at all: the tap must report that only the last replay would be seen
#define QDIFF_TAP_CUDA
#include "qdiff_tap.h"
#include "values.h"
#include <cuda_runtime.h>
#include <string>
#include <vector>

static void ok(cudaError_t error, const char *what) { must(error == cudaSuccess, what); }
#define OK(call) ok(call, #call)

struct Tap {
    std::string name;
    int layer;
    int64_t dims[2];
    float *input, *output;
    std::vector<float> host;
};

#ifdef __CUDACC__
__global__ void compute(const float *in, float *out, int64_t n) {
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        out[i] = in[i];
    }
}
static void layer(const Tap &tap, cudaStream_t stream) {
    compute<<<1, 256, 0, stream>>>(tap.input, tap.output, tap.dims[0] * tap.dims[1]);
}
#else
static void layer(const Tap &tap, cudaStream_t stream) {
    const size_t bytes = tap.host.size() * sizeof(float);
    OK(cudaMemcpyAsync(tap.output, tap.input, bytes, cudaMemcpyDeviceToDevice, stream));
}
#endif

// Computes the taps of a step on the stream, each in the same buffer as the one before: only a copy that is in the stream's
// order sees it.
static void forward(qdiff_tap *qd, std::vector<Tap> &taps, cudaStream_t stream) {
    for (Tap &tap : taps) {
        layer(tap, stream);
        QDIFF_TAP_ON(qd, tap.name.c_str(), tap.layer, tap.output, QDIFF_F32, 2, tap.dims, NULL, stream);
    }
}

static void feed(std::vector<Tap> &taps, cudaStream_t stream) {
    for (Tap &tap : taps) {
        OK(cudaMemcpyAsync(tap.input, tap.host.data(), tap.host.size() * sizeof(float), cudaMemcpyHostToDevice, stream));
    }
}

int main(int argc, char **argv) {
    must(argc == 2, "graph marks|counted|forgotten");
    const std::string way = argv[1];
    qdiff_tap *qd = QDIFF_BEGIN("an engine on CUDA");
    struct Step {
        values head;
        std::vector<Tap> taps;
    };
    std::vector<Step> steps;
    values v = open_values();
    size_t largest = 0;
    while (next(&v)) {
        if (v.is_step) {
            steps.push_back({v, {}});
        } else {
            const size_t count = (size_t)(v.rows * v.width);
            steps.back().taps.push_back({v.name, v.layer, {v.rows, v.width}, NULL, NULL,
                                         std::vector<float>(v.data, v.data + count)});
            largest = count > largest ? count : largest;
            free(v.data);
        }
    }
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    float *output;
    OK(cudaMalloc((void **)&output, largest * sizeof(float)));
    // The decode steps share the inputs of the first of them, which the graph reads.
    for (size_t i = 0; i < steps.size(); i++) {
        for (size_t t = 0; t < steps[i].taps.size(); t++) {
            Tap &tap = steps[i].taps[t];
            tap.output = output;
            if (i < 2) {
                OK(cudaMalloc((void **)&tap.input, tap.host.size() * sizeof(float)));
            } else {
                tap.input = steps[1].taps[t].input;
            }
        }
    }
    const values &prompt = steps[0].head;
    QDIFF_STEP_ON(qd, prompt.first, prompt.tokens, prompt.n, stream);
    feed(steps[0].taps, stream);
    forward(qd, steps[0].taps, stream);

    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    if (way == "counted") {
        QDIFF_STEP_ON(qd, 0, steps[1].head.tokens, 1, stream);
    }
    forward(qd, steps[1].taps, stream);
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    for (size_t i = 1; i < steps.size(); i++) {
        const values &head = steps[i].head;
        if (way == "marks") {
            QDIFF_STEP_ON(qd, head.first, head.tokens, head.n, stream);
        }
        feed(steps[i].taps, stream);
        OK(cudaGraphLaunch(exec, stream));
    }
    OK(cudaStreamSynchronize(stream));
    QDIFF_END(qd);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    for (size_t i = 0; i < 2 && i < steps.size(); i++) {
        for (Tap &tap : steps[i].taps) {
            OK(cudaFree(tap.input));
        }
    }
    OK(cudaFree(output));
    OK(cudaStreamDestroy(stream));
}
