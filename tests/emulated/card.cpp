// Two cards that are not there: the functions of CUDA's driver, of NVRTC, of cuBLAS and of NCCL that qdiff calls, over the memory of the host. A
// kernel is compiled by the machine's C++ compiler and run by `machine.h`; everything is done when it is asked for, so that streams and
// events have nothing to wait for. While a stream is captured, what is asked for is kept, and done when the graph is launched. What another
// stream is given in the meantime is done where the captured one waits for it: as late as may be. Whatever is not here fails to be found,
// and qdiff says so.
//
// QDIFF_EMULATED names a folder with the kernels in plain C++ (`emulated.rs` writes them) and `machine.h`.
#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <regex>
#include <sstream>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

typedef int Result;
typedef unsigned long long Device;
enum { SUCCESS = 0, INVALID = 1, OUT_OF_MEMORY = 2, NOT_FOUND = 500, COMPILE_FAILED = 6 };

struct Launch { // CUlaunchConfig
    unsigned grid[3], block[3], shared;
    void *stream, *attributes;
    unsigned count;
};
typedef void (*Run)(const void *params, const unsigned *grid, unsigned threads, unsigned shared);
struct Function {
    Run run;
    size_t params;
};
struct Program {
    std::string text, log, machine_code;
    std::vector<std::string> kernels, names;
};
// Something that a graph does: it may be given another kernel and other parameters.
struct Node {
    std::function<Result(const Node &)> run;
    Launch launch;
    std::string params;
    Node *next;
};
typedef std::vector<std::shared_ptr<Node>> Nodes;
struct Graph {
    Nodes nodes;
};
struct Stream {
    std::shared_ptr<Nodes> captured; // nothing where it is not captured
    Node *last;
};
struct Event {
    std::shared_ptr<Nodes> captured; // what the stream was given that it was recorded on
};
constexpr size_t MEMORY = (size_t)4 << 30;
static size_t taken;
static std::map<Device, size_t> sizes;
static std::mutex lock;

static std::string read(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}
static void write(const std::string &path, const std::string &text) { std::ofstream(path, std::ios::binary) << text; }

// Does it, or keeps it for the graph that is captured.
template <class Do>
static Result asked(Stream *stream, Do run) {
    if (!stream || !stream->captured) return run();
    stream->captured->push_back(std::make_shared<Node>(Node{[run](const Node &) { return run(); }, {}, {}, nullptr}));
    return stream->last = stream->captured->back().get(), SUCCESS;
}

// What a node does that launches a kernel.
static std::function<Result(const Node &)> launching(Function *function) {
    return [function](const Node &node) {
        return function->run(node.params.data(), node.launch.grid, node.launch.block[0], node.launch.shared), SUCCESS;
    };
}

// NCCL: each rank in a thread of its own, which waits for the others.
struct Ranks {
    std::mutex lock;
    std::condition_variable changed;
    std::vector<const float *> parts; // what each rank gives
    int given = 0, taken = 0;
    unsigned round = 0;
    bool ended = false;
};
struct Rank {
    std::shared_ptr<Ranks> all;
    int rank;
};
// Meets the other ranks, shows what each gives, and lets none of them go on before all have read it.
template <class Read>
static Result meet(Rank *own, const float *part, Read read) {
    Ranks &all = *own->all;
    std::unique_lock<std::mutex> held(all.lock);
    const auto until = [&](auto done) {
        all.changed.wait(held, [&] { return all.ended || done(); });
        return !all.ended;
    };
    const int count = (int)all.parts.size();
    const unsigned round = all.round;
    all.parts[own->rank] = part;
    if (++all.given == count) all.changed.notify_all();
    if (!until([&] { return all.given == count || all.round != round; })) return INVALID;
    const auto write = read(all.parts);
    if (++all.taken == count) {
        all.given = all.taken = 0;
        all.round++;
        all.changed.notify_all();
    }
    if (!until([&] { return all.round != round; })) return INVALID;
    return write(), SUCCESS;
}
extern "C" {
Result cuInit(unsigned) { return SUCCESS; }
Result cuDriverGetVersion(int *version) { return *version = 13000, SUCCESS; }
Result cuGetErrorName(Result, const char **text) { return *text = "an error of the emulated card", SUCCESS; }
Result cuGetErrorString(Result, const char **text) { return cuGetErrorName(0, text); }
Result cuDeviceGetCount(int *count) { return *count = 2, SUCCESS; }
Result cuDeviceGet(int *device, int ordinal) { return *device = ordinal, SUCCESS; }
Result cuDeviceGetName(char *name, int length, int) { return snprintf(name, length, "emulated card"), SUCCESS; }
Result cuDeviceTotalMem_v2(size_t *bytes, int) { return *bytes = MEMORY, SUCCESS; }
Result cuDeviceGetAttribute(int *value, int what, int) {
    switch (what) {
    case 16: *value = 4; break;           // multiprocessors
    case 39: *value = 2048; break;        // threads of one
    case 75: *value = 8; break;           // compute capability
    case 97: *value = 163 << 10; break;   // shared memory of a block
    default: *value = 0;                  // no clusters, no memory pools
    }
    return SUCCESS;
}
Result cuDevicePrimaryCtxRetain(void **context, int) { return *context = &taken, SUCCESS; }
Result cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
Result cuCtxGetCurrent(void **context) { return *context = &taken, SUCCESS; }
Result cuCtxSetCurrent(void *) { return SUCCESS; }
Result cuCtxSynchronize() { return SUCCESS; }

Result cuStreamCreate(Stream **stream, unsigned) { return *stream = new Stream{}, SUCCESS; }
Result cuStreamDestroy_v2(Stream *stream) { return delete stream, SUCCESS; }
Result cuStreamSynchronize(Stream *stream) { return stream && stream->captured ? INVALID : SUCCESS; }
Result cuStreamWaitEvent(Stream *stream, Event *event, unsigned) {
    if (!event->captured || event->captured == stream->captured) return SUCCESS;
    if (!stream->captured) { // it takes part in the capture from here on
        return stream->captured = std::make_shared<Nodes>(), SUCCESS;
    }
    for (auto &node : *event->captured) stream->captured->push_back(node);
    return event->captured->clear(), SUCCESS;
}
Result cuStreamIsCapturing(Stream *stream, int *status) { return *status = stream->captured ? 1 : 0, SUCCESS; }
Result cuStreamBeginCapture_v2(Stream *stream, int) { return stream->captured = std::make_shared<Nodes>(), SUCCESS; }
Result cuStreamGetCaptureInfo_v3(Stream *stream, int *status, void *, void *, Node *const **nodes, void *, size_t *count) {
    cuStreamIsCapturing(stream, status);
    return *nodes = &stream->last, *count = 1, SUCCESS;
}
Result cuStreamEndCapture(Stream *stream, Graph **graph) {
    *graph = new Graph{*stream->captured};
    return stream->captured = nullptr, SUCCESS;
}
Result cuGraphInstantiateWithFlags(Graph **ready, Graph *graph, unsigned long long) {
    return *ready = new Graph(*graph), SUCCESS;
}
// A graph that is one chain: each node is known by its place in it.
Result cuGraphGetRootNodes(Graph *graph, Node **node, size_t *count) {
    *count = graph->nodes.empty() ? 0 : 1;
    for (size_t i = 0; i < graph->nodes.size(); i++) graph->nodes[i]->next = i + 1 < graph->nodes.size() ? graph->nodes[i + 1].get() : nullptr;
    return *node = *count ? graph->nodes[0].get() : nullptr, SUCCESS;
}
Result cuGraphNodeGetDependentNodes_v2(Node *node, Node **next, void *, size_t *count) {
    return *next = node->next, *count = node->next ? 1 : 0, SUCCESS;
}
Result cuGraphDestroy(Graph *graph) { return delete graph, SUCCESS; }
Result cuGraphExecDestroy(Graph *graph) { return delete graph, SUCCESS; }
Result cuGraphLaunch(Graph *graph, Stream *) {
    for (auto &node : graph->nodes) {
        if (Result failed = node->run(*node)) return failed;
    }
    return SUCCESS;
}
Result cuEventCreate(Event **event, unsigned) { return *event = new Event{}, SUCCESS; }
Result cuEventDestroy_v2(Event *event) { return delete event, SUCCESS; }
Result cuEventRecord(Event *event, Stream *stream) {
    return event->captured = stream ? stream->captured : nullptr, SUCCESS;
}
Result cuEventSynchronize(void *) { return SUCCESS; }
Result cuEventQuery(void *) { return SUCCESS; }

Result cuMemGetInfo_v2(size_t *free, size_t *all) { return *all = MEMORY, *free = MEMORY - taken, SUCCESS; }
Result cuMemAlloc_v2(Device *at, size_t bytes) {
    std::lock_guard<std::mutex> guard(lock);
    if (bytes > MEMORY - taken) return OUT_OF_MEMORY;
    *at = (Device)aligned_alloc(512, (bytes + 511) / 512 * 512);
    return taken += sizes[*at] = bytes, SUCCESS;
}
Result cuMemFree_v2(Device at) {
    std::lock_guard<std::mutex> guard(lock);
    return taken -= sizes[at], sizes.erase(at), free((void *)at), SUCCESS;
}
Result cuMemHostAlloc(void **at, size_t bytes, unsigned) { return *at = malloc(bytes), SUCCESS; }
Result cuMemFreeHost(void *at) { return free(at), SUCCESS; }
Result cuMemsetD8Async(Device at, unsigned char value, size_t bytes, Stream *stream) {
    return asked(stream, [=] { return memset((void *)at, value, bytes), SUCCESS; });
}
Result cuMemcpyHtoD_v2(Device to, const void *from, size_t bytes) { return memcpy((void *)to, from, bytes), SUCCESS; }
Result cuMemcpyHtoDAsync_v2(Device to, const void *from, size_t bytes, void *) { return cuMemcpyHtoD_v2(to, from, bytes); }
Result cuMemcpyDtoH_v2(void *to, Device from, size_t bytes) { return memcpy(to, (void *)from, bytes), SUCCESS; }
Result cuMemcpyDtoHAsync_v2(void *to, Device from, size_t bytes, void *) { return cuMemcpyDtoH_v2(to, from, bytes); }
Result cuMemcpyDtoDAsync_v2(Device to, Device from, size_t bytes, Stream *stream) {
    return asked(stream, [=] { return memcpy((void *)to, (void *)from, bytes), SUCCESS; });
}

Result cuModuleLoadData(void **module, const void *machine_code) {
    // A library, with its length before it.
    size_t bytes;
    memcpy(&bytes, machine_code, sizeof(bytes));
    char path[] = "/tmp/qdiff-emulated-XXXXXX";
    close(mkstemp(path));
    write(path, std::string((const char *)machine_code + sizeof(bytes), bytes));
    *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!*module) fprintf(stderr, "%s\n", dlerror());
    return unlink(path), *module ? SUCCESS : INVALID;
}
Result cuModuleUnload(void *) { return SUCCESS; }
Result cuModuleGetFunction(Function **function, void *module, const char *name) {
    void *run = dlsym(module, name), *params = dlsym(module, (std::string(name) + "_params").c_str());
    if (!run || !params) return NOT_FOUND;
    return *function = new Function{(Run)run, *(const size_t *)params}, SUCCESS;
}
Result cuFuncGetParamInfo(Function *function, size_t, size_t *offset, size_t *size) {
    return *offset = 0, *size = function->params, SUCCESS;
}
Result cuFuncGetAttribute(int *value, int, Function *) { return *value = 48 << 10, SUCCESS; }
Result cuFuncSetAttribute(Function *, int, int) { return SUCCESS; }
Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, Function *, int, size_t) { return *blocks = 1, SUCCESS; }
Result cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, Function *, int, size_t, unsigned) {
    return *blocks = 1, SUCCESS;
}
Result cuLaunchKernelEx(const Launch *launch, Function *function, void **params, void **) {
    if (launch->block[1] != 1 || launch->block[2] != 1) return INVALID;
    Stream *stream = (Stream *)launch->stream;
    const Node node = {launching(function), *launch, std::string((const char *)*params, function->params), nullptr};
    if (!stream || !stream->captured) return node.run(node);
    stream->captured->push_back(std::make_shared<Node>(node));
    return stream->last = stream->captured->back().get(), SUCCESS;
}
struct NodeParams { // CUDA_KERNEL_NODE_PARAMS
    void *function;
    unsigned grid[3], block[3], shared;
    void **params;
};
Result cuGraphExecKernelNodeSetParams_v2(Graph *, Node *node, const NodeParams *given) {
    // The nodes of a graph that is ready are those that were captured.
    node->run = launching((Function *)given->function);
    std::copy(given->grid, given->grid + 3, node->launch.grid);
    memcpy(node->params.data(), *given->params, node->params.size());
    return SUCCESS;
}

const char *ncclGetErrorString(Result) { return "another rank has ended"; }
Result ncclGroupStart() { return SUCCESS; }
Result ncclGroupEnd() { return SUCCESS; }
Result ncclCommInitAll(Rank **ranks, int count, const int *) {
    const auto all = std::make_shared<Ranks>();
    all->parts.resize(count);
    for (int rank = 0; rank < count; rank++) ranks[rank] = new Rank{all, rank};
    return SUCCESS;
}
Result ncclCommAbort(Rank *own) { // a graph may still have it: it stays
    std::lock_guard<std::mutex> held(own->all->lock);
    return own->all->ended = true, own->all->changed.notify_all(), SUCCESS;
}
Result ncclAllReduce(const float *from, float *to, size_t count, int, int, Rank *own, Stream *stream) {
    return asked(stream, [=] {
        return meet(own, from, [=](const std::vector<const float *> &parts) {
            std::vector<float> sum(count);
            for (const float *part : parts) {
                for (size_t i = 0; i < count; i++) sum[i] += part[i];
            }
            return [=] { std::copy(sum.begin(), sum.end(), to); };
        });
    });
}
Result ncclBroadcast(const float *from, float *to, size_t count, int, int root, Rank *own, Stream *stream) {
    return asked(stream, [=] {
        return meet(own, from, [=](const std::vector<const float *> &parts) {
            std::vector<float> sent(parts[root], parts[root] + count);
            return [=] { std::copy(sent.begin(), sent.end(), to); };
        });
    });
}

// cuBLAS: of column-major matrices, a turned and b not, c = a b.
Result cublasCreate_v2(void **handle) { return *handle = &taken, SUCCESS; }
Result cublasDestroy_v2(void *) { return SUCCESS; }
Result cublasSetStream_v2(void *, void *) { return SUCCESS; }
Result cublasSetMathMode(void *, int) { return SUCCESS; }
Result cublasSgemm_v2(void *, int turned, int plain, int m, int columns, int n, const float *, const float *a, int of_a,
                      const float *b, int of_b, const float *, float *c, int of_c) {
    if (turned != 1 || plain != 0) return INVALID;
    for (int j = 0; j < columns; j++) {
        for (int i = 0; i < m; i++) {
            float sum[4] = {};
            for (int k = 0; k < n; k++) sum[k % 4] += a[(size_t)i * of_a + k] * b[(size_t)j * of_b + k];
            c[(size_t)j * of_c + i] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
        }
    }
    return SUCCESS;
}

// NVRTC.
Result nvrtcVersion(int *major, int *minor) { return *major = 0, *minor = 1, SUCCESS; }
const char *nvrtcGetErrorString(Result) { return "the C++ compiler refuses the kernel"; }
Result nvrtcCreateProgram(Program **program, const char *text, const char *, int, const char *const *, const char *const *) {
    return *program = new Program{text}, SUCCESS;
}
Result nvrtcDestroyProgram(Program **program) { return delete *program, SUCCESS; }
Result nvrtcAddNameExpression(Program *program, const char *kernel) {
    program->kernels.push_back(kernel);
    program->names.push_back("emulated_" + std::to_string(program->names.size()));
    return SUCCESS;
}
Result nvrtcCompileProgram(Program *program, int, const char *const *) {
    const char *folder = getenv("QDIFF_EMULATED");
    char scratch[] = "/tmp/qdiff-emulated-XXXXXX";
    if (!folder || !mkdtemp(scratch)) return INVALID;
    const std::string at = scratch;
    static const std::regex offset("__INTADDR__\\(&\\(\\((\\w+) \\*\\)0\\)->(\\w+)\\)");
    std::string text = "#include \"machine.h\"\n" + std::regex_replace(program->text, offset, "__builtin_offsetof($1, $2)");
    text += "template <class P> void run(void (*kernel)(P), const void *params, const unsigned *grid, unsigned threads, unsigned shared) {\n"
            "    const P p = *(const P *)params;\n"
            "    launch({grid[0], grid[1], grid[2]}, threads, shared, [&] { kernel(p); });\n"
            "}\n"
            "template <class P> constexpr size_t size_of(void (*)(P)) { return sizeof(P); }\n";
    for (size_t i = 0; i < program->kernels.size(); i++) {
        const std::string &name = program->names[i], &kernel = program->kernels[i];
        text += "extern \"C\" void " + name + "(const void *params, const unsigned *grid, unsigned threads, unsigned shared) { run(" +
                kernel + ", params, grid, threads, shared); }\n";
        text += "extern \"C\" const size_t " + name + "_params = size_of(" + kernel + ");\n";
    }
    write(at + "/kernel.cpp", text);
    const std::string command = "c++ -std=c++17 -O2 -w -shared -fPIC -I '" + std::string(folder) + "' -o " + at + "/kernel.so " + at +
                                "/kernel.cpp 2>" + at + "/log";
    const int status = system(command.c_str());
    program->log = read(at + "/log");
    const std::string library = read(at + "/kernel.so");
    const size_t bytes = library.size();
    program->machine_code.assign((const char *)&bytes, sizeof(bytes));
    program->machine_code += library;
    for (const char *file : {"/kernel.cpp", "/kernel.so", "/log"}) unlink((at + file).c_str());
    rmdir(scratch);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? SUCCESS : COMPILE_FAILED;
}
Result nvrtcGetLoweredName(Program *program, const char *kernel, const char **name) {
    for (size_t i = 0; i < program->kernels.size(); i++) {
        if (program->kernels[i] == kernel) return *name = program->names[i].c_str(), SUCCESS;
    }
    return INVALID;
}
Result nvrtcGetCUBINSize(Program *program, size_t *bytes) { return *bytes = program->machine_code.size(), SUCCESS; }
Result nvrtcGetCUBIN(Program *program, char *to) {
    return memcpy(to, program->machine_code.data(), program->machine_code.size()), SUCCESS;
}
Result nvrtcGetProgramLogSize(Program *program, size_t *bytes) { return *bytes = program->log.size() + 1, SUCCESS; }
Result nvrtcGetProgramLog(Program *program, char *to) { return strcpy(to, program->log.c_str()), SUCCESS; }
}
