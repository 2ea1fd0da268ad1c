// A card that is not there: the functions of CUDA's driver, of NVRTC and of cuBLAS that qdiff calls, over the memory of the host. A kernel is
// compiled by the machine's C++ compiler and run by `machine.h`; everything is done when it is asked for, so that streams and
// events have nothing to wait for. Whatever is not here fails to be found, and qdiff says so.
//
// QDIFF_EMULATED names a folder with the kernels in plain C++ (`emulated.rs` writes them) and `machine.h`.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fstream>
#include <map>
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

extern "C" {
Result cuInit(unsigned) { return SUCCESS; }
Result cuDriverGetVersion(int *version) { return *version = 13000, SUCCESS; }
Result cuGetErrorName(Result, const char **text) { return *text = "an error of the emulated card", SUCCESS; }
Result cuGetErrorString(Result, const char **text) { return cuGetErrorName(0, text); }
Result cuDeviceGetCount(int *count) { return *count = 1, SUCCESS; }
Result cuDeviceGet(int *device, int) { return *device = 0, SUCCESS; }
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

Result cuStreamCreate(void **stream, unsigned) { return *stream = new char, SUCCESS; }
Result cuStreamDestroy_v2(void *stream) { return delete (char *)stream, SUCCESS; }
Result cuStreamSynchronize(void *) { return SUCCESS; }
Result cuStreamWaitEvent(void *, void *, unsigned) { return SUCCESS; }
Result cuEventCreate(void **event, unsigned) { return *event = new char, SUCCESS; }
Result cuEventDestroy_v2(void *event) { return delete (char *)event, SUCCESS; }
Result cuEventRecord(void *, void *) { return SUCCESS; }
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
Result cuMemsetD8Async(Device at, unsigned char value, size_t bytes, void *) {
    return memset((void *)at, value, bytes), SUCCESS;
}
Result cuMemcpyHtoD_v2(Device to, const void *from, size_t bytes) { return memcpy((void *)to, from, bytes), SUCCESS; }
Result cuMemcpyHtoDAsync_v2(Device to, const void *from, size_t bytes, void *) { return cuMemcpyHtoD_v2(to, from, bytes); }
Result cuMemcpyDtoH_v2(void *to, Device from, size_t bytes) { return memcpy(to, (void *)from, bytes), SUCCESS; }
Result cuMemcpyDtoHAsync_v2(void *to, Device from, size_t bytes, void *) { return cuMemcpyDtoH_v2(to, from, bytes); }
Result cuMemcpyDtoDAsync_v2(Device to, Device from, size_t bytes, void *) {
    return memcpy((void *)to, (void *)from, bytes), SUCCESS;
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
Result cuLaunchKernelEx(const Launch *launch, Function *function, void **params, void **) {
    if (launch->block[1] != 1 || launch->block[2] != 1) return INVALID;
    return function->run(*params, launch->grid, launch->block[0], launch->shared), SUCCESS;
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
