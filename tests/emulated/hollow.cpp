// A Hopper card that is not there and computes nothing: the functions of CUDA's driver and of cuBLAS that qdiff calls. It says what an H200
// says of itself, so that qdiff plans for one; it takes the machine code that the real NVRTC makes, and refuses a launch that an H200
// would refuse. What it gives back is zeros. Whatever is not here fails to be found, and qdiff says so.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <elf.h>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <vector>

typedef int Result;
typedef unsigned long long Device;
enum { SUCCESS = 0, INVALID = 1, OUT_OF_MEMORY = 2, NOT_FOUND = 500, OUT_OF_RESOURCES = 701 };

// What a multiprocessor of Hopper has.
constexpr int PROCESSORS = 132, THREADS = 2048, BLOCKS = 32, REGISTERS = 64 << 10, SHARED = 228 << 10, SHARED_BLOCK = 227 << 10;
constexpr int RESERVED = 1 << 10; // of shared memory, of a block: machine code counts it too
constexpr size_t MEMORY = (size_t)140 << 30;

struct Launch { // CUlaunchConfig
    unsigned grid[3], block[3], shared;
    void *stream, *attributes;
    unsigned count;
};
struct Function {
    size_t params = 0;
    int registers = 0, fixed = 0, allowed = 48 << 10; // of a thread; bytes of shared memory
};
typedef std::map<std::string, Function> Module;
struct Node {
    Function *function; // nothing where it is no kernel
    Node *next;
};
typedef std::vector<std::shared_ptr<Node>> Graph;
struct Stream {
    std::shared_ptr<Graph> captured; // nothing where it is not captured
    Node *last;
};
struct Event {
    std::shared_ptr<Graph> captured;
};
static size_t taken;
static std::map<Device, size_t> sizes;
static std::mutex lock;

// Does nothing, or keeps that for the graph that is captured.
static Result asked(Stream *stream, Function *function = nullptr) {
    if (stream && stream->captured) {
        stream->captured->push_back(std::make_shared<Node>(Node{function, nullptr}));
        stream->last = stream->captured->back().get();
    }
    return SUCCESS;
}
// Blocks of a kernel that a multiprocessor holds.
static int held(const Function *f, int threads, int shared) {
    const int warps = (threads + 31) / 32, of_warp = (f->registers * 32 + 255) / 256 * 256;
    int most = std::min(BLOCKS, THREADS / (32 * warps));
    if (of_warp) most = std::min(most, REGISTERS / of_warp / 4 * 4 / warps);
    return std::min(most, SHARED / ((shared + f->fixed + RESERVED + 127) / 128 * 128));
}
extern "C" {
Result cuInit(unsigned) { return SUCCESS; }
Result cuDriverGetVersion(int *version) { return *version = 13000, SUCCESS; }
Result cuGetErrorName(Result, const char **text) { return *text = "an error of the hollow card", SUCCESS; }
Result cuGetErrorString(Result, const char **text) { return cuGetErrorName(0, text); }
Result cuDeviceGetCount(int *count) { return *count = 1, SUCCESS; }
Result cuDeviceGet(int *device, int ordinal) { return *device = ordinal, SUCCESS; }
Result cuDeviceGetName(char *name, int length, int) { return snprintf(name, length, "hollow card"), SUCCESS; }
Result cuDeviceTotalMem_v2(size_t *bytes, int) { return *bytes = MEMORY, SUCCESS; }
Result cuDeviceGetAttribute(int *value, int what, int) {
    const std::map<int, int> known = {{16, PROCESSORS}, {39, THREADS}, {75, 9}, {76, 0}, {97, SHARED_BLOCK}, {120, 1}}; // 120: clusters
    const auto found = known.find(what);
    return *value = found == known.end() ? 0 : found->second, SUCCESS;
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
    if (!stream->captured) return stream->captured = std::make_shared<Graph>(), SUCCESS;
    for (auto &node : *event->captured) stream->captured->push_back(node);
    return event->captured->clear(), SUCCESS;
}
Result cuStreamIsCapturing(Stream *stream, int *status) { return *status = stream->captured ? 1 : 0, SUCCESS; }
Result cuStreamBeginCapture_v2(Stream *stream, int) { return stream->captured = std::make_shared<Graph>(), SUCCESS; }
Result cuStreamGetCaptureInfo_v3(Stream *stream, int *status, void *, void *, Node *const **nodes, void *, size_t *count) {
    cuStreamIsCapturing(stream, status);
    return *nodes = &stream->last, *count = 1, SUCCESS;
}
Result cuStreamEndCapture(Stream *stream, Graph **graph) {
    *graph = new Graph(*stream->captured);
    return stream->captured = nullptr, SUCCESS;
}
Result cuGraphInstantiateWithFlags(Graph **ready, Graph *graph, unsigned long long) { return *ready = new Graph(*graph), SUCCESS; }
Result cuGraphGetRootNodes(Graph *graph, Node **node, size_t *count) {
    for (size_t i = 0; i + 1 < graph->size(); i++) (*graph)[i]->next = (*graph)[i + 1].get();
    *count = graph->empty() ? 0 : 1;
    return *node = *count ? graph->front().get() : nullptr, SUCCESS;
}
Result cuGraphNodeGetDependentNodes_v2(Node *node, Node **next, void *, size_t *count) {
    return *next = node->next, *count = node->next ? 1 : 0, SUCCESS;
}
Result cuGraphDestroy(Graph *graph) { return delete graph, SUCCESS; }
Result cuGraphExecDestroy(Graph *graph) { return delete graph, SUCCESS; }
Result cuGraphLaunch(Graph *, Stream *) { return SUCCESS; }
Result cuEventCreate(Event **event, unsigned) { return *event = new Event{}, SUCCESS; }
Result cuEventDestroy_v2(Event *event) { return delete event, SUCCESS; }
Result cuEventRecord(Event *event, Stream *stream) { return event->captured = stream ? stream->captured : nullptr, SUCCESS; }
Result cuEventSynchronize(void *) { return SUCCESS; }
Result cuEventQuery(void *) { return SUCCESS; }
Result cuEventElapsedTime_v2(float *ms, void *, void *) { return *ms = 1, SUCCESS; }

Result cuMemGetInfo_v2(size_t *free, size_t *all) { return *all = MEMORY, *free = MEMORY - taken, SUCCESS; }
// Pages that nobody touches take no memory.
Result cuMemAlloc_v2(Device *at, size_t bytes) {
    std::lock_guard<std::mutex> guard(lock);
    if (bytes > MEMORY - taken) return OUT_OF_MEMORY;
    void *pages = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) return OUT_OF_MEMORY;
    return *at = (Device)pages, taken += sizes[*at] = bytes, SUCCESS;
}
Result cuMemFree_v2(Device at) {
    std::lock_guard<std::mutex> guard(lock);
    munmap((void *)at, sizes[at]);
    return taken -= sizes[at], sizes.erase(at), SUCCESS;
}
Result cuMemHostAlloc(void **at, size_t bytes, unsigned) { return *at = calloc(bytes, 1), SUCCESS; }
Result cuMemFreeHost(void *at) { return free(at), SUCCESS; }
Result cuMemsetD8Async(Device, unsigned char, size_t, Stream *stream) { return asked(stream); }
Result cuMemcpyHtoD_v2(Device, const void *, size_t) { return SUCCESS; }
Result cuMemcpyHtoDAsync_v2(Device, const void *, size_t, Stream *) { return SUCCESS; }
Result cuMemcpyDtoH_v2(void *to, Device, size_t bytes) { return memset(to, 0, bytes), SUCCESS; }
Result cuMemcpyDtoHAsync_v2(void *to, Device, size_t bytes, Stream *) { return memset(to, 0, bytes), SUCCESS; }
Result cuMemcpyDtoDAsync_v2(Device, Device, size_t, Stream *stream) { return asked(stream); }

// Of machine code the kernels, and what each takes of a multiprocessor.
Result cuModuleLoadData(Module **module, const void *code) {
    const auto *base = (const uint8_t *)code;
    const auto *head = (const Elf64_Ehdr *)base;
    if (memcmp(base, ELFMAG, SELFMAG)) return INVALID;
    const auto *sections = (const Elf64_Shdr *)(base + head->e_shoff);
    const char *names = (const char *)base + sections[head->e_shstrndx].sh_offset;
    *module = new Module;
    std::map<unsigned, std::string> symbols; // names of kernels
    std::map<unsigned, int> registers;
    for (const auto *section = sections; section < sections + head->e_shnum; section++) {
        const std::string name = names + section->sh_name;
        const auto of = [&](const std::string &kind) { return name.rfind(kind, 0) == 0 ? &(**module)[name.substr(kind.size())] : nullptr; };
        if (of(".text.")) symbols[section->sh_info & 0xffffff] = name.substr(strlen(".text."));
        const uint8_t *at = base + section->sh_offset, *end = at + section->sh_size;
        const bool facts = name.rfind(".nv.info", 0) == 0;
        while (facts && at + 4 <= end) { // a form, what it is about, and a value or the length of one
            const int value = at[2] | at[3] << 8;
            if (at[1] == 0x19) of(".nv.info.")->params = value; // bytes of the parameters
            if (at[1] == 0x2f) { // registers of a thread, by the kernel's symbol
                uint32_t pair[2];
                memcpy(pair, at + 4, sizeof(pair));
                registers[pair[0]] = (int)pair[1];
            }
            at += 4 + (at[0] == 4 ? value : 0);
        }
        if (name.rfind(".nv.shared._", 0) == 0) of(".nv.shared.")->fixed = (int)section->sh_size - RESERVED;
    }
    for (const auto &[symbol, name] : symbols) {
        if (!registers.count(symbol)) return INVALID;
        (**module)[name].registers = registers[symbol];
    }
    return SUCCESS;
}
Result cuModuleUnload(void *) { return SUCCESS; }
Result cuModuleGetFunction(Function **function, Module *module, const char *name) {
    const auto found = module->find(name);
    if (found == module->end()) return NOT_FOUND;
    return *function = &found->second, SUCCESS;
}
Result cuFuncGetParamInfo(Function *function, size_t, size_t *offset, size_t *size) { return *offset = 0, *size = function->params, SUCCESS; }
Result cuFuncGetAttribute(int *value, int, Function *f) { return *value = f->allowed, SUCCESS; }
Result cuFuncSetAttribute(Function *f, int what, int value) {
    if (what != 8) return SUCCESS; // bytes of shared memory that a launch may ask for
    return value + f->fixed > SHARED_BLOCK ? INVALID : (f->allowed = value, SUCCESS);
}
Result cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, Function *f, int threads, size_t shared, unsigned) {
    return *blocks = held(f, threads, (int)shared), SUCCESS;
}
Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, Function *f, int threads, size_t shared) {
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, f, threads, shared, 0);
}
// Of 16, the largest that a kernel may ask for; a card holds a few less than its multiprocessors would allow.
Result cuOccupancyMaxActiveClusters(int *clusters, Function *f, const Launch *l) {
    return *clusters = PROCESSORS / 16 * held(f, l->block[0], l->shared), SUCCESS;
}
Result cuLaunchKernelEx(const Launch *l, Function *f, void **, void **) {
    const auto [threads, rest] = std::pair(l->block[0], l->block[1] * l->block[2]);
    const bool whole = l->grid[0] && l->grid[1] && l->grid[2] && l->grid[1] < 65536 && l->grid[2] < 65536;
    if (!whole || !threads || rest != 1 || threads > 1024 || (int)l->shared > std::max(f->allowed, (48 << 10) - f->fixed)) return INVALID;
    if (!held(f, threads, l->shared)) return OUT_OF_RESOURCES;
    return asked((Stream *)l->stream, f);
}
Result cuGraphExecKernelNodeSetParams_v2(Graph *, Node *node, const void *) { return node->function ? SUCCESS : INVALID; }

Result cublasCreate_v2(void **handle) { return *handle = &taken, SUCCESS; }
Result cublasDestroy_v2(void *) { return SUCCESS; }
Result cublasSetStream_v2(void *, void *) { return SUCCESS; }
Result cublasSetMathMode(void *, int) { return SUCCESS; }
Result cublasSgemm_v2(void *, int, int, int, int, int, const float *, const float *, int, const float *, int, const float *, float *, int) {
    return SUCCESS;
}
}
