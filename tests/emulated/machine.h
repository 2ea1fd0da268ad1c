// A GPU's block of threads on a CPU, as far as the kernels ask for one: threads
// are fibers that take turns at barriers and at what a warp does together. Blocks run
// one after another, so shared memory is static; those of a cluster, whose shared memory
// is all dynamic, run together.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __shared__ static
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __grid_constant__

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};
static dim3 threadIdx, blockIdx, blockDim, gridDim;

struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct alignas(8) uint2 {
    uint32_t x, y;
};
static float4 make_float4(float a, float b, float c, float d) { return {a, b, c, d}; }
static float2 make_float2(float a, float b) { return {a, b}; }
static uint2 make_uint2(uint32_t a, uint32_t b) { return {a, b}; }

static uint32_t __float_as_uint(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
static float __uint_as_float(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static float __fmul_rn(float a, float b) { return a * b; }
static float __fadd_rn(float a, float b) { return a + b; }
static float __fsub_rn(float a, float b) { return a - b; }
static float rsqrtf(float a) { return (float)(1.0 / std::sqrt((double)a)); }
static int __float2int_rz(float a) { // what fits no integer becomes the nearest one
    return a != a ? 0 : a >= 2147483648.0f ? INT32_MAX : a < -2147483648.0f ? INT32_MIN : (int)a;
}
static int __float2int_rn(float a) { return a != a ? 0 : (int)std::nearbyint((double)a); }
static uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t which) {
    const uint64_t both = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) r |= (uint32_t)(both >> (8 * ((which >> (4 * i)) & 7)) & 255) << (8 * i);
    return r;
}
template <class T>
static T __ldcg(const T *p) {
    return *p;
}
static uint32_t atomicOr(uint32_t *at, uint32_t bits) { return *at |= bits; }
static int max(int a, int b) { return a > b ? a : b; }
static int min(int a, int b) { return a < b ? a : b; }
static uint32_t max(uint32_t a, uint32_t b) { return a > b ? a : b; }
static uint32_t min(uint32_t a, uint32_t b) { return a < b ? a : b; }

template <class T>
static T atomicMax(T *at, T v) {
    const T was = *at;
    *at = std::max(was, v);
    return was;
}
static uint32_t atomicAdd(uint32_t *at, uint32_t v) { return (*at += v) - v; }
static unsigned long long atomicExch(unsigned long long *at, unsigned long long v) { return std::exchange(*at, v); }
static void __threadfence() {}
static void __threadfence_system() {}
static void atomicMin(uint32_t *at, uint32_t v) { *at = std::min(*at, v); }

// Halves.
static float half_to_float(uint16_t h) {
    const int exponent = h >> 10 & 31, fraction = h & 1023;
    float v = exponent == 31 ? (fraction ? NAN : INFINITY)
              : exponent     ? std::ldexp(1024.0f + fraction, exponent - 25)
                             : std::ldexp((float)fraction, -24);
    return h & 0x8000 ? -v : v;
}
static uint16_t float_to_half(float v) { // to the nearest, ties to even
    const uint16_t sign = __float_as_uint(v) >> 16 & 0x8000;
    const float a = std::fabs(v);
    if (a == 0) return sign;
    if (a != a) return sign | 0x7e00;
    if (a >= 65520.0f) return sign | 0x7c00;
    int exponent;
    std::frexp(a, &exponent);
    const int unit = std::max(exponent - 11, -24); // of the last place
    const float steps = std::nearbyint(std::ldexp(a, -unit));
    if (unit == -24) return sign | (uint16_t)steps; // a carry makes the smallest normal
    return sign | (uint16_t)(((exponent + 14) << 10) + ((int)steps - 1024));
}
static float brain_to_float(uint16_t h) { return __uint_as_float((uint32_t)h << 16); }

static uint32_t machine_subtract_halves(uint32_t a, uint32_t b) {
    uint32_t d = 0;
    for (int i = 0; i < 32; i += 16) {
        d |= (uint32_t)float_to_half(half_to_float((uint16_t)(a >> i)) - half_to_float((uint16_t)(b >> i))) << i;
    }
    return d;
}
static uint32_t machine_multiply_halves(uint32_t a, uint32_t b) {
    uint32_t d = 0;
    for (int i = 0; i < 32; i += 16) {
        d |= (uint32_t)float_to_half(half_to_float((uint16_t)(a >> i)) * half_to_float((uint16_t)(b >> i))) << i;
    }
    return d;
}
static float __int_as_float(int i) { return __uint_as_float((uint32_t)i); }
static uint32_t __cvta_generic_to_shared(const void *) { return 0; } // for instructions that are not emulated

// Where a thread goes on, and going from one to another: on this machine without a call of the system.
#if defined(__x86_64__)
typedef void *FiberContext; // its stack, on which lies what a function keeps
extern "C" void machine_switch(FiberContext *from, FiberContext to) __attribute__((visibility("hidden")));
asm(".text\n.p2align 4\n.type machine_switch, @function\nmachine_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
static void begin_at(FiberContext &context, char *stack, size_t bytes, void (*entry)()) {
    void **top = (void **)(((uintptr_t)stack + bytes) / 16 * 16);
    top[-2] = (void *)entry; // where it returns to first
    context = top - 8;
}
static void go(FiberContext &from, FiberContext &to) { machine_switch(&from, to); }
#else
typedef ucontext_t FiberContext;
static void begin_at(FiberContext &context, char *stack, size_t bytes, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack, context.uc_stack.ss_size = bytes, context.uc_link = nullptr;
    makecontext(&context, entry, 0);
}
static void go(FiberContext &from, FiberContext &to) { swapcontext(&from, &to); }
#endif

// The block that runs.
struct Fiber {
    FiberContext context;
    std::unique_ptr<char[]> stack;
    bool done;
};
static std::vector<Fiber> fibers;
static FiberContext scheduler;
static std::function<void()> kernel_body;
// A block, or those of a cluster: threads of one, and what counts for all.
constexpr int MOST_BLOCKS = 8;
static int current, threads_of_block, blocks_at_once, arrived_cluster, round_cluster;
static int alive[MOST_BLOCKS], arrived_block[MOST_BLOCKS], round_block[MOST_BLOCKS], arrived_warp[32], round_warp[32];
static uint8_t *shared_memory, *shared_memories[MOST_BLOCKS];

static void give_way() { go(fibers[current].context, scheduler); }
static void __syncthreads() {
    const int block = current / threads_of_block, round = round_block[block];
    if (++arrived_block[block] == alive[block]) arrived_block[block] = 0, round_block[block]++;
    else while (round_block[block] == round) give_way();
}
static void machine_cluster_barrier() {
    const int round = round_cluster;
    if (++arrived_cluster == blocks_at_once * threads_of_block) arrived_cluster = 0, round_cluster++;
    else while (round_cluster == round) give_way();
}
static float4 machine_of_rank(const float4 *mine, int rank) {
    return *(const float4 *)((const uint8_t *)mine - shared_memory + shared_memories[rank]);
}
static void __syncwarp() {
    const int warp = current / 32, round = round_warp[warp];
    if (++arrived_warp[warp] == 32) arrived_warp[warp] = 0, round_warp[warp]++;
    else while (round_warp[warp] == round) give_way();
}
// What a lane lays open to its warp; two sets, as a lane is one round ahead at most.
struct Shown {
    uint32_t v[8];
    const uint8_t *row;
};
static Shown shown[2][1024];
static const Shown *show(const Shown &mine) {
    Shown *all = shown[round_warp[current / 32] & 1];
    all[current] = mine;
    __syncwarp();
    return all + current / 32 * 32;
}
template <class T>
static T from_lane(T v, int lane) {
    Shown s;
    memcpy(s.v, &v, sizeof(T));
    const Shown *all = show(s);
    T r;
    memcpy(&r, all[lane].v, sizeof(T));
    return r;
}
template <class T>
static T __shfl_xor_sync(unsigned, T v, int mask) {
    return from_lane(v, current % 32 ^ mask);
}
template <class T>
static T __shfl_sync(unsigned, T v, int lane, int width = 32) {
    return from_lane(v, current % 32 / width * width + lane % width);
}
static uint32_t machine_largest(uint32_t v) {
    for (int step = 16; step > 0; step /= 2) v = std::max(v, __shfl_xor_sync(0xffffffffu, v, step));
    return v;
}

// The instructions of the tensor cores, by the tables of PTX.
static void machine_load_matrices(uint32_t *r, const uint8_t *row) {
    if ((uintptr_t)row % 16) printf("a row of ldmatrix at no multiple of 16\n"), abort();
    Shown s;
    s.row = row;
    const Shown *all = show(s);
    for (int m = 0; m < 4; m++) memcpy(&r[m], all[8 * m + current % 32 / 4].row + 4 * (current % 4), 4);
    __syncwarp(); // the rows may be written afterwards
}
// Of 8 rows of 16 bytes the elements of a column, two rows of each.
static void machine_load_transposed(uint32_t *r, const uint8_t *row) {
    if ((uintptr_t)row % 16) printf("a row of ldmatrix at no multiple of 16\n"), abort();
    Shown s;
    s.row = row;
    const Shown *all = show(s);
    const int lane = current % 32;
    for (int m = 0; m < 4; m++) {
        uint16_t two[2];
        for (int i = 0; i < 2; i++) memcpy(&two[i], all[8 * m + 2 * (lane % 4) + i].row + 2 * (lane / 4), 2);
        r[m] = two[0] | (uint32_t)two[1] << 16;
    }
    __syncwarp();
}
template <class Weight = int8_t>
static int products_of_bytes(uint32_t a, uint32_t b) {
    int sum = 0;
    for (int i = 0; i < 4; i++) sum += (Weight)(a >> (8 * i)) * (int8_t)(b >> (8 * i));
    return sum;
}
template <class C, class F>
static void machine_multiply(C *c, const Shown &mine, F product) {
    const Shown *all = show(mine);
    for (int i = 0; i < 4; i++) {
        const int row = current % 32 / 4, column = 2 * (current % 4) + i % 2;
        double sum = 0;
        for (int t = 0; t < 4; t++) sum += product(all[4 * row + t].v, all[4 * column + t].v + 4, i / 2);
        c[i] = (C)(c[i] + sum);
    }
}
template <class Weight = int8_t>
static void machine_multiply32(int *c, const uint32_t *a, uint2 b) {
    machine_multiply(c, Shown{{a[0], a[1], a[2], a[3], b.x, b.y}}, [](const uint32_t *a, const uint32_t *b, int lower) {
        return products_of_bytes<Weight>(a[lower], b[0]) + products_of_bytes<Weight>(a[2 + lower], b[1]);
    });
}
static void machine_multiply16(int *c, uint32_t a0, uint32_t a1, uint32_t b) {
    machine_multiply(c, Shown{{a0, a1, 0, 0, b}}, [](const uint32_t *a, const uint32_t *b, int lower) {
        return products_of_bytes(a[lower], b[0]);
    });
}
static void machine_multiply_floats(float *c, const uint32_t *a, uint2 b, float (*value)(uint16_t)) {
    machine_multiply(c, Shown{{a[0], a[1], a[2], a[3], b.x, b.y}}, [=](const uint32_t *a, const uint32_t *b, int lower) {
        double sum = 0;
        for (int k = 0; k < 2; k++) {
            for (int i = 0; i < 32; i += 16) {
                sum += (double)value((uint16_t)(a[2 * k + lower] >> i)) * value((uint16_t)(b[k] >> i));
            }
        }
        return sum;
    });
}

// What four warps make of 16 halves of rows of 128 bytes, `eight` bytes from eight to eight: a warp's 16 rows at once. The
// sixteens of a row are turned by the three bits of their address above.
static uintptr_t machine_place(const uint8_t *rows, int eight, int row, int byte) {
    const uintptr_t at = (uintptr_t)rows + row / 8 * eight + row % 8 * 128 + byte;
    return at ^ (at >> 7 & 7) << 4;
}
static void machine_multiply_rows(float *s, const uint32_t *a, const uint8_t *rows, int eight, int count, bool plus) {
    const int lane = current % 32;
    auto word = [&](int row, int byte) { return *(const uint32_t *)machine_place(rows, eight, row, byte); };
    for (int j = 0; j < count / 8; j++) {
        const int row = 8 * j + lane / 4, byte = lane % 4 * 4;
        for (int e = 0; !plus && e < 4; e++) s[4 * j + e] = 0;
        machine_multiply_floats(s + 4 * j, a, {word(row, byte), word(row, 16 + byte)}, half_to_float);
    }
}
static void machine_multiply_group(float *s, const uint32_t *a, const uint8_t *rows, bool plus) {
    machine_multiply_rows(s, a, rows, 1024, 64, plus);
}
static void machine_multiply_keys(float *s, const uint32_t *a, const uint8_t *rows, int eight, bool plus) {
    machine_multiply_rows(s, a, rows, eight, 32, plus);
}
// Of 64 halves of each of 16 rows, summed over the rows.
static void machine_multiply_values(float *s, const uint32_t *a, const uint8_t *rows, int eight, bool plus) {
    const int lane = current % 32;
    for (int j = 0; j < 8; j++) {
        auto two = [&](int row) {
            auto half = [&](int row) { return *(const uint16_t *)machine_place(rows, eight, row, 2 * (8 * j + lane / 4)); };
            return half(row) | (uint32_t)half(row + 1) << 16;
        };
        for (int e = 0; !plus && e < 4; e++) s[4 * j + e] = 0;
        machine_multiply_floats(s + 4 * j, a, {two(2 * (lane % 4)), two(8 + 2 * (lane % 4))}, half_to_float);
    }
}

// Of weights in shared memory, turned alike: this warp's 16 of 64 rows, by 128 tokens.
static void machine_multiply_wide(float *s, const uint8_t *a, const uint8_t *b, bool plus) {
    const int lane = current % 32, warp = current / 32 % 4;
    uint32_t of[4];
    for (int i = 0; i < 4; i++) {
        const uintptr_t at = (uintptr_t)a + 128 * (16 * warp + lane / 4 + 8 * (i % 2)) + 16 * (i / 2) + lane % 4 * 4;
        of[i] = *(const uint32_t *)(at ^ (at >> 7 & 7) << 4);
    }
    for (int half = 0; half < 2; half++) machine_multiply_group(s + 32 * half, of, b + 64 * 128 * half, plus);
}

// A barrier that counts: arrivals of a round, those to come, bytes to come, and the round's parity.
struct MachineBarrier {
    uint16_t arrivals, left;
    int32_t bytes : 24;
    uint32_t parity : 1, made : 7;
    void over() {
        if (left == 0 && bytes == 0) parity ^= 1, left = arrivals;
    }
};
static MachineBarrier *machine_barrier(unsigned long long *at) {
    if (((MachineBarrier *)at)->made != 1) printf("a barrier that was not made\n"), abort();
    return (MachineBarrier *)at;
}
static void machine_make_barrier(unsigned long long *at, uint32_t arrivals) {
    const MachineBarrier made = {(uint16_t)arrivals, (uint16_t)arrivals, 0, 0, 1};
    static_assert(sizeof(made) == 8, "as large as a barrier");
    memcpy(at, &made, 8);
}
static void machine_arrive(unsigned long long *at, uint32_t bytes) {
    MachineBarrier *barrier = machine_barrier(at);
    if (barrier->left == 0) printf("more arrive at a barrier than it counts\n"), abort();
    barrier->left--, barrier->bytes += (int32_t)bytes, barrier->over();
}
static bool machine_is_over(unsigned long long *at, uint32_t parity) {
    const bool over = machine_barrier(at)->parity != parity;
    if (!over) give_way();
    return over;
}
static void machine_copy_in_bulk(uint8_t *to, const uint8_t *from, uint32_t bytes, unsigned long long *at) {
    if (((uintptr_t)to | (uintptr_t)from | bytes) % 16) printf("a copy in bulk at no multiple of 16\n"), abort();
    memcpy(to, from, bytes);
    machine_barrier(at)->bytes -= (int32_t)bytes, machine_barrier(at)->over();
}

static void thread_of_block() {
    kernel_body();
    fibers[current].done = true;
    const int block = current / threads_of_block;
    alive[block]--;
    if (alive[block] > 0 && arrived_block[block] == alive[block]) arrived_block[block] = 0, round_block[block]++;
    give_way();
}
// Runs a kernel: block after block, `shared` bytes of shared memory each, or as many blocks along y at once as a cluster has.
static void launch(dim3 grid, int threads, size_t shared, std::function<void()> kernel, int cluster = 1) {
    constexpr size_t STACK = 256 << 10;
    const int all = threads * cluster;
    if (cluster > MOST_BLOCKS || all > 1024 || grid.y % cluster) printf("no such cluster\n"), abort();
    while ((int)fibers.size() < all) fibers.push_back({{}, std::unique_ptr<char[]>(new char[STACK]), true});
    constexpr size_t alignment = 1024;
    kernel_body = kernel, gridDim = grid, blockDim = {(unsigned)threads, 1, 1};
    threads_of_block = threads, blocks_at_once = cluster;
    for (unsigned z = 0; z < grid.z; z++) for (unsigned y = 0; y < grid.y; y += cluster) {
        for (unsigned x = 0; x < grid.x; x++) {
            blockIdx = {x, y, z};
            arrived_cluster = 0;
            for (int block = 0; block < cluster; block++) {
                // To the byte, so that a sanitizer sees who writes beyond; its begin as a card has it.
                shared_memories[block] = (uint8_t *)std::aligned_alloc(alignment, (shared + alignment - 1) / alignment * alignment);
                memset(shared_memories[block], 0xff, shared);
                alive[block] = threads, arrived_block[block] = 0;
            }
            shared_memory = shared_memories[0];
            std::fill(std::begin(arrived_warp), std::end(arrived_warp), 0);
            for (int i = 0; i < all; i++) {
                Fiber &fiber = fibers[i];
                begin_at(fiber.context, fiber.stack.get(), STACK, thread_of_block);
                fiber.done = false;
            }
            auto left = [&] { return std::any_of(alive, alive + cluster, [](int threads) { return threads > 0; }); };
            for (long turns = 0; left(); turns++) {
                if (turns > 1000000) printf("threads wait for each other\n"), abort();
                for (int i = 0; i < all; i++) {
                    if (fibers[i].done) continue;
                    current = i, threadIdx.x = i % threads;
                    if (cluster > 1) blockIdx.y = y + i / threads, shared_memory = shared_memories[i / threads];
                    go(scheduler, fibers[i].context);
                }
            }
            for (int block = 0; block < cluster; block++) free(shared_memories[block]);
        }
    }
}
