// As much of the CUDA runtime as the tap and its test call, on the CPU: a stream is a thread that does one thing after the
// other, a graph is a list of them. It shows that the tap's own work is in the stream's order, and its locks; what the real
// runtime allows while a stream is captured it does not know.
#ifndef CUDA_RUNTIME_API_STUB_H
#define CUDA_RUNTIME_API_STUB_H

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#define CUDART_CB
enum cudaError_t { cudaSuccess, cudaErrorNotPermitted };
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeRelaxed };
enum { cudaHostAllocDefault = 0 };

typedef std::vector<std::function<void()>> *cudaGraph_t;
typedef cudaGraph_t cudaGraphExec_t;

struct StubStream {
    std::mutex lock;
    std::condition_variable changed;
    std::deque<std::function<void()>> open;
    bool busy = false, ended = false;
    cudaGraph_t capture = nullptr;
    std::thread worker{[this] {
        std::unique_lock<std::mutex> held(lock);
        for (;;) {
            changed.wait(held, [this] { return ended || !open.empty(); });
            if (open.empty()) {
                return;
            }
            std::function<void()> next = std::move(open.front());
            open.pop_front();
            busy = true;
            held.unlock();
            next();
            held.lock();
            busy = false;
            changed.notify_all();
        }
    }};

    cudaError_t put(std::function<void()> what) {
        std::lock_guard<std::mutex> held(lock);
        if (capture) {
            capture->push_back(std::move(what));
        } else {
            open.push_back(std::move(what));
            changed.notify_all();
        }
        return cudaSuccess;
    }
    cudaError_t wait() {
        std::unique_lock<std::mutex> held(lock);
        if (capture) {
            return cudaErrorNotPermitted;
        }
        changed.wait(held, [this] { return open.empty() && !busy; });
        return cudaSuccess;
    }
    ~StubStream() {
        {
            std::lock_guard<std::mutex> held(lock);
            ended = true;
            changed.notify_all();
        }
        worker.join();
    }
};
typedef StubStream *cudaStream_t;

inline std::vector<StubStream *> &stub_streams() {
    static std::vector<StubStream *> all;
    return all;
}
inline cudaStreamCaptureMode &stub_mode() {
    static thread_local cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    return mode;
}

inline const char *cudaGetErrorString(cudaError_t) { return "not permitted"; }
inline cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    *stream = new StubStream;
    stub_streams().push_back(*stream);
    return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    stub_streams().clear();
    delete stream;
    return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return stream->wait(); }
inline cudaError_t cudaDeviceSynchronize() {
    for (StubStream *stream : stub_streams()) {
        if (cudaError_t error = stream->wait()) {
            return error;
        }
    }
    return cudaSuccess;
}
inline cudaError_t cudaMalloc(void **place, size_t bytes) {
    *place = malloc(bytes);
    return cudaSuccess;
}
inline cudaError_t cudaFree(void *place) {
    free(place);
    return cudaSuccess;
}
inline cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode) {
    std::swap(*mode, stub_mode());
    return cudaSuccess;
}
inline cudaError_t cudaHostAlloc(void **place, size_t bytes, unsigned) {
    for (StubStream *stream : stub_streams()) {
        std::lock_guard<std::mutex> held(stream->lock);
        if (stream->capture && stub_mode() != cudaStreamCaptureModeRelaxed) {
            return cudaErrorNotPermitted;
        }
    }
    *place = malloc(bytes);
    return cudaSuccess;
}
inline cudaError_t cudaFreeHost(void *place) { return cudaFree(place); }
inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
    return stream->put([=] { memcpy(to, from, bytes); });
}
inline cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*call)(void *), void *with) {
    return stream->put([=] { call(with); });
}
inline cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status) {
    std::lock_guard<std::mutex> held(stream->lock);
    *status = stream->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
inline cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    std::lock_guard<std::mutex> held(stream->lock);
    stream->capture = new std::vector<std::function<void()>>;
    return cudaSuccess;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    std::lock_guard<std::mutex> held(stream->lock);
    *graph = stream->capture;
    stream->capture = nullptr;
    return cudaSuccess;
}
inline cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long) {
    *exec = new std::vector<std::function<void()>>(*graph);
    return cudaSuccess;
}
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    return stream->put([=] {
        for (auto &node : *exec) {
            node();
        }
    });
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete graph;
    return cudaSuccess;
}
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return cudaGraphDestroy(exec); }

#endif
