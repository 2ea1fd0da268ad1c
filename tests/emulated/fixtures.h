// What the kernels are tested with: weights that are noise in every format, as `blocks.cuh`
// unpacks them; vectors of which some elements are 300 times as large as others.
#pragma once
#include "machine.h"

#include "blocks.cuh"

typedef std::vector<double> Doubles;
static std::mt19937 noise(7);
static int wrong = 0;

// A format's name, the bytes of a block in each plane, the weights of a block, and its plane of halves that scale.
struct Format {
    const char *name;
    std::vector<int> bytes;
    int block, scales;
};
template <class F>
static Format format();
#define FORMAT(F, block, scales, ...)            \
    template <>                                  \
    Format format<F>() {                         \
        return {#F, {__VA_ARGS__}, block, scales}; \
    }
FORMAT(F32, 1, -1, 4)
FORMAT(F16, 1, 0, 2)
FORMAT(BF16, 1, -1, 2)
FORMAT(Q4_0, 32, 1, 16, 2)
FORMAT(Q4_1, 32, 1, 16, 4)
FORMAT(Q5_0, 32, 2, 16, 4, 2)
FORMAT(Q5_1, 32, 2, 16, 4, 4)
FORMAT(Q8_0, 32, 1, 32, 2)
FORMAT(Q4_K, 256, 1, 128, 16)
FORMAT(Q5_K, 256, 2, 128, 32, 16)
FORMAT(Q6_K, 256, 3, 128, 64, 16, 2)

template <class T>
static T *room(size_t count) {
    return (T *)std::aligned_alloc(256, (count * sizeof(T) / 256 + 1) * 256);
}
static float *unwritten(size_t count) {
    float *at = room<float>(count);
    std::fill(at, at + count, NAN);
    return at;
}
static float *copied(const std::vector<float> &v) {
    float *at = room<float>(v.size());
    std::copy(v.begin(), v.end(), at);
    return at;
}
static std::vector<float> vector_of(int n, float size = 1.0f) {
    std::normal_distribution<float> normal;
    std::vector<float> v(n);
    for (float &e : v) e = normal(noise) * size * (noise() % 97 == 0 ? 300.0f : 1.0f);
    return v;
}

struct Matrix {
    Weights planes;
    int n, m;
    Doubles values;
    // Products with x, and the sums of their magnitudes.
    void times(const Doubles &x, Doubles &y, Doubles &size) const {
        y.assign(m, 0), size.assign(m, 0);
        for (int o = 0; o < m; o++) {
            for (int i = 0; i < n; i++) {
                const double product = values[(size_t)o * n + i] * x[i];
                y[o] += product, size[o] += std::fabs(product);
            }
        }
    }
};
template <class F>
static Matrix matrix(int n, int m) {
    const Format f = format<F>();
    Matrix matrix{{}, n, m, {}};
    const size_t blocks = (size_t)n * m / f.block;
    auto small = [] { return float_to_half((0.002f + noise() % 1000 * 4e-6f) * (noise() % 2 ? 1 : -1)); };
    for (size_t p = 0; p < f.bytes.size(); p++) {
        u8 *plane = room<u8>(f.bytes[p] * blocks);
        for (size_t i = 0; i < f.bytes[p] * blocks; i++) plane[i] = (u8)noise();
        u16 *halves = (u16 *)plane;
        if (f.block == 1 && f.bytes[p] == 4) {
            for (size_t i = 0; i < blocks; i++) ((float *)plane)[i] = half_to_float(small()) * 1.0001f;
        } else if (f.block == 1) {
            for (size_t i = 0; i < blocks; i++) {
                halves[i] = f.scales == 0 ? small() : (u16)(__float_as_uint(half_to_float(small())) >> 16);
            }
        } else if ((int)p == f.scales) {
            // Only the first two halves of a block's head of scales.
            for (size_t i = 0; i < f.bytes[p] * blocks / 2; i++) {
                if (f.bytes[p] < 16 || i % 8 < 2) halves[i] = small();
            }
        }
        matrix.planes.plane[p] = plane;
    }
    float group[32];
    for (size_t g = 0; g < (size_t)n * m / 32; g++) {
        F::unpack(F::load(matrix.planes, g), (int)(g % 8), group);
        matrix.values.insert(matrix.values.end(), group, group + 32);
    }
    return matrix;
}

static void compare(const char *what, const float *y, const Doubles &right, const Doubles &size, double allowed) {
    double worst = 0;
    int at = 0;
    for (size_t i = 0; i < right.size(); i++) {
        const double off = std::fabs(y[i] - right[i]) / (size[i] + 1e-30);
        if (!(off <= worst)) worst = off, at = (int)i;
    }
    if (worst < allowed) return;
    printf("  %s: element %d is %g and not %g\n", what, at, y[at], right[at]);
    wrong++;
}
constexpr double PRODUCT = 1e-6; // of the sum of magnitudes: what f32 loses of it in any order

static Doubles norm_of(const std::vector<float> &x, const std::vector<float> &weight) {
    double squares = 0;
    for (float v : x) squares += (double)v * v;
    Doubles y;
    for (size_t i = 0; i < x.size(); i++) y.push_back(x[i] / std::sqrt(squares / x.size() + 1e-6) * weight[i]);
    return y;
}
static Doubles magnitudes(const Doubles &of) {
    Doubles all;
    for (double v : of) all.push_back(std::fabs(v));
    return all;
}
