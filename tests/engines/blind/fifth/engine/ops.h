// Norms, biases, rotation, activation.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <vector>

constexpr int LANES = 8;

// The sum of squares of n elements, by LANES lanes and a tail.
inline float sum_of_squares(const float *x, int n) {
    float lane[LANES] = {};
    int i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int j = 0; j < LANES; j++) lane[j] += x[i + j] * x[i + j];
    }
    float sum = 0.0f;
    for (; i < n; i++) sum += x[i] * x[i];
    for (int j = 0; j < LANES; j++) sum += lane[j];
    return sum;
}

inline void rms_norm(const float *x, const float *w, float *y, int rows, int n, float eps) {
    for (int r = 0; r < rows; r++) {
        const float *a = x + (size_t)r * n;
        float *b = y + (size_t)r * n;
        const float scale = 1.0f / std::sqrt(sum_of_squares(a, n) / (float)n + eps);
        for (int i = 0; i < n; i++) b[i] = a[i] * scale * w[i];
    }
}

// x += add, and the norm of that, in one go over each row.
inline void add_norm(float *x, const float *add, const float *w, float *y, int rows, int n, float eps) {
    for (int r = 0; r < rows; r++) {
        float *a = x + (size_t)r * n;
        const float *d = add + (size_t)r * n;
        float *b = y + (size_t)r * n;
        for (int i = 0; i < n; i++) a[i] += d[i];
        const float scale = 1.0f / std::sqrt(sum_of_squares(a, n) / (float)n + eps);
        for (int i = 0; i < n; i++) b[i] = a[i] * scale * w[i];
    }
}

inline void add_bias(float *x, const float *b, int rows, int n) {
    for (int r = 0; r < rows; r++) {
        float *row = x + (size_t)r * n;
        for (int i = 0; i < n; i++) row[i] += b[i];
    }
}

inline void split_qkv(const float *qkv, int T, int qw, int kw, float *q, float *k, float *v) {
    const int w = qw + 2 * kw;
    for (int t = 0; t < T; t++) {
        const float *row = qkv + (size_t)t * w;
        std::memcpy(q + (size_t)t * qw, row, sizeof(float) * qw);
        std::memcpy(k + (size_t)t * kw, row + qw, sizeof(float) * kw);
        std::memcpy(v + (size_t)t * kw, row + qw + kw, sizeof(float) * kw);
    }
}

// Cosines and sines of all positions, [context, dim / 2].
struct RopeTable {
    int half = 0;
    std::vector<float> cos, sin;
    RopeTable() {}
    RopeTable(int dim, float base, int context) : half(dim / 2), cos((size_t)context * half), sin((size_t)context * half) {
        for (int i = 0; i < half; i++) {
            const double frequency = std::pow((double)base, -2.0 * i / dim);
            for (int p = 0; p < context; p++) {
                const double angle = (double)p * frequency;
                cos[(size_t)p * half + i] = (float)std::cos(angle);
                sin[(size_t)p * half + i] = (float)std::sin(angle);
            }
        }
    }
};

// Elements i and i + dim / 2 are a pair.
inline void rotate(float *x, const RopeTable &table, int T, int heads, int dim, int first) {
    const int half = dim / 2;
    for (int t = 0; t < T; t++) {
        const float *c = table.cos.data() + (size_t)(first + t) * half, *s = table.sin.data() + (size_t)(first + t) * half;
        for (int h = 0; h < heads; h++) {
            float *a = x + ((size_t)t * heads + h) * dim;
            for (int i = 0; i < half; i++) {
                const float u = a[i], v = a[i + half];
                a[i] = u * c[i] - v * s[i];
                a[i + half] = u * s[i] + v * c[i];
            }
        }
    }
}

// Takes gate and up out of their runs, and makes silu(gate) up.
inline void swiglu(const float *gate_up, int T, int F, float *gate, float *up, float *act) {
    for (int t = 0; t < T; t++) {
        const float *row = gate_up + (size_t)t * 2 * F;
        for (int r = 0; r < F; r += GU_RUN) {
            const int n = std::min(GU_RUN, F - r);
            for (int i = 0; i < n; i++) {
                const float g = row[2 * r + i], u = row[2 * r + n + i];
                gate[(size_t)t * F + r + i] = g;
                up[(size_t)t * F + r + i] = u;
                act[(size_t)t * F + r + i] = g / (1.0f + std::exp(-g)) * u;
            }
        }
    }
}
