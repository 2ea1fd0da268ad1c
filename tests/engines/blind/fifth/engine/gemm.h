// Products with matrices that stay in their format.
#pragma once
#include "quants.h"
#include <algorithm>

// Rows may lie in several tensors of different formats: each row says where it is.
struct Row {
    const uint8_t *data;
    uint32_t type;
};
struct Matrix {
    int rows = 0, cols = 0;
    std::vector<Row> row;
};

inline Matrix matrix_of(const Tensor &t) {
    Matrix m;
    m.cols = (int)t.extents[0];
    m.rows = (int)t.extents[1];
    const size_t stride = (size_t)m.cols / block_weights(t.type) * block_bytes(t.type);
    for (int r = 0; r < m.rows; r++) m.row.push_back({t.data + stride * r, t.type});
    return m;
}
inline std::vector<float> vector_of(const Tensor &t) {
    if (t.type != F32) fail("a vector that is not F32");
    std::vector<float> v(t.extents[0]);
    std::memcpy(v.data(), t.data, 4 * v.size());
    return v;
}
// One matrix below the other.
inline Matrix stack(const std::vector<Matrix> &parts) {
    Matrix m;
    m.cols = parts[0].cols;
    for (const Matrix &p : parts) {
        m.row.insert(m.row.end(), p.row.begin(), p.row.end());
        m.rows += p.rows;
    }
    return m;
}
// Runs of `run` rows of a, then of b, and so on; the last run may be shorter.
constexpr int GU_RUN = 16;
inline Matrix interleave(const Matrix &a, const Matrix &b, int run) {
    Matrix m;
    m.cols = a.cols;
    for (int r = 0; r < a.rows; r += run) {
        const int n = std::min(run, a.rows - r);
        m.row.insert(m.row.end(), a.row.begin() + r, a.row.begin() + r + n);
        m.row.insert(m.row.end(), b.row.begin() + r, b.row.begin() + r + n);
    }
    m.rows = (int)m.row.size();
    return m;
}

inline void unpack_row(const Matrix &m, int r, float *y) { unpack(m.row[r].type, m.row[r].data, 0, m.cols, y); }

constexpr int MB = 8;   // tokens of a tile
constexpr int NB = 32;  // outputs of a tile
constexpr int KB = 128; // of the sum at a time

// Adds to c[MB][NB] what a slice of `depth` of the sum gives, of `mt` tokens and `nt` outputs.
inline void micro(const float *x, int ldx, const float *panel, int depth, int mt, int nt, float *c) {
    for (int i = 0; i < mt; i++) {
        const float *a = x + (size_t)i * ldx;
        for (int j = 0; j < nt; j++) {
            const float *b = panel + (size_t)j * KB;
            float s[4] = {0, 0, 0, 0};
            int k = 0;
            for (; k + 4 <= depth; k += 4) {
                s[0] += a[k] * b[k];
                s[1] += a[k + 1] * b[k + 1];
                s[2] += a[k + 2] * b[k + 2];
                s[3] += a[k + 3] * b[k + 3];
            }
            for (; k < depth; k++) s[0] += a[k] * b[k];
            c[i * NB + j] += (s[0] + s[1]) + (s[2] + s[3]);
        }
    }
}

// y[t, o] of outputs o, over the columns from `k_begin` to `k_end`; many tokens.
inline void gemm(const Matrix &w, const float *x, int T, float *y, int ldy, int k_begin, int k_end) {
    std::vector<float> panel((size_t)NB * KB), tiles((size_t)((T + MB - 1) / MB) * MB * NB);
    for (int n0 = 0; n0 < w.rows; n0 += NB) {
        const int nt = std::min(NB, w.rows - n0);
        std::fill(tiles.begin(), tiles.end(), 0.0f);
        for (int k0 = k_begin; k0 < k_end; k0 += KB) {
            const int depth = std::min(KB, k_end - k0);
            for (int j = 0; j < nt; j++) unpack(w.row[n0 + j].type, w.row[n0 + j].data, k0, depth, panel.data() + (size_t)j * KB);
            for (int m0 = 0; m0 < T; m0 += MB) {
                const int mt = std::min(MB, T - m0);
                micro(x + (size_t)m0 * w.cols + k0, w.cols, panel.data(), depth, mt, nt, tiles.data() + (size_t)m0 * NB);
            }
        }
        for (int t = 0; t < T; t++) {
            for (int j = 0; j < nt; j++) y[(size_t)t * ldy + n0 + j] = tiles[(size_t)t * NB + j];
        }
    }
}

// Of one token: a row at a time, in pieces of 256.
inline void gemv(const Matrix &w, const float *x, float *y, int k_begin, int k_end) {
    float piece[256];
    for (int o = 0; o < w.rows; o++) {
        float sum = 0.0f;
        for (int k0 = k_begin; k0 < k_end; k0 += 256) {
            const int depth = std::min(256, k_end - k0);
            unpack(w.row[o].type, w.row[o].data, k0, depth, piece);
            float s[8] = {0, 0, 0, 0, 0, 0, 0, 0};
            const int whole = depth / 8 * 8;
            for (int k = 0; k < whole; k += 8) {
                for (int i = 0; i < 8; i++) s[i] += x[k0 + k + i] * piece[k + i];
            }
            float rest = 0.0f;
            for (int k = whole; k < depth; k++) rest += x[k0 + k] * piece[k];
            sum += (((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]))) + rest;
        }
        y[o] = sum;
    }
}

inline void product(const Matrix &w, const float *x, int T, float *y, int ldy) {
    if (T == 1) gemv(w, x, y, 0, w.cols);
    else gemm(w, x, T, y, ldy, 0, w.cols);
}

// The sum in SPLIT_K parts of whole groups of 32, which are added up at the end.
constexpr int SPLIT_K = 3;
inline void product_split(const Matrix &w, const float *x, int T, float *y, int ldy) {
    const int groups = (w.cols + 31) / 32, each = (groups + SPLIT_K - 1) / SPLIT_K;
    std::vector<float> parts((size_t)SPLIT_K * T * ldy, 0.0f);
    for (int s = 0; s < SPLIT_K; s++) {
        const int begin = std::min(s * each * 32, w.cols), end = std::min((s + 1) * each * 32, w.cols);
        float *to = parts.data() + (size_t)s * T * ldy;
        if (begin == end) continue;
        if (T == 1) gemv(w, x, to, begin, end);
        else gemm(w, x, T, to, ldy, begin, end);
    }
    for (size_t i = 0; i < (size_t)T * ldy; i++) {
        float sum = parts[i];
        for (int s = 1; s < SPLIT_K; s++) sum += parts[(size_t)s * T * ldy + i];
        y[i] = sum;
    }
}
