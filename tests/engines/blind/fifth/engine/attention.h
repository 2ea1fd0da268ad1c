// Attention over the paged cache. Weights are kept for the tap on their way: a tile's weights are written relative to the running
// maximum, and rescaled and divided as the sums are.
#pragma once
#include "cache.h"
#include <algorithm>
#include <cmath>
#include <vector>

struct AttentionJob {
    const float *q; // [T, H, D]
    const PagedCache *cache;
    int layer;
    float *context;           // [T, H, D]
    float *scores, *weights;  // [H, T, keys]
    int T, heads, kv_heads, dim, first, keys;
    float scale;
};

inline float dot(const float *a, const float *b, int n) {
    float s[4] = {0, 0, 0, 0};
    int i = 0;
    for (; i + 4 <= n; i += 4) {
        s[0] += a[i] * b[i];
        s[1] += a[i + 1] * b[i + 1];
        s[2] += a[i + 2] * b[i + 2];
        s[3] += a[i + 3] * b[i + 3];
    }
    for (; i < n; i++) s[0] += a[i] * b[i];
    return (s[0] + s[1]) + (s[2] + s[3]);
}

// What a row of queries has of the keys so far.
struct Running {
    float most = -INFINITY, total = 0.0f;
    std::vector<float> sum; // [D]
};

// Takes in the keys from `begin` to `end` of one page, of a row and a head; `weights` are those of the row, from key 0 on, of which
// those from `seen` on have been written.
inline void take_tile(const AttentionJob &j, int kv_head, const float *scores, float *weights, int seen, int begin, int end, Running &r) {
    float most = r.most;
    for (int n = begin; n < end; n++) most = std::max(most, scores[n] * j.scale);
    const float less = std::exp(r.most - most);
    for (int i = 0; i < j.dim; i++) r.sum[i] *= less;
    for (int n = seen; n < begin; n++) weights[n] *= less;
    r.total *= less;
    for (int n = begin; n < end; n++) {
        const float w = std::exp(scores[n] * j.scale - most);
        weights[n] = w;
        r.total += w;
        const float *v = j.cache->value(j.layer, kv_head, n);
        for (int i = 0; i < j.dim; i++) r.sum[i] += w * v[(size_t)i * PAGE];
    }
    r.most = most;
}

constexpr int Q_TILE = 8; // queries of a tile

inline void attend_prefill(const AttentionJob &j) {
    const int group = j.heads / j.kv_heads;
    std::fill(j.weights, j.weights + (size_t)j.heads * j.T * j.keys, 0.0f);
    std::fill(j.scores, j.scores + (size_t)j.heads * j.T * j.keys, 0.0f);
    for (int h = 0; h < j.heads; h++) {
        const int kv_head = h / group;
        for (int q0 = 0; q0 < j.T; q0 += Q_TILE) {
            const int rows = std::min(Q_TILE, j.T - q0);
            Running running[Q_TILE];
            for (auto &r : running) r.sum.assign(j.dim, 0.0f);
            // Tiles of keys up to the last that the last query of the tile sees.
            const int last = j.first + q0 + rows - 1;
            for (int k0 = 0; k0 <= last; k0 += PAGE) {
                const int k1 = std::min(k0 + PAGE, j.keys);
                for (int i = 0; i < rows; i++) {
                    const int t = q0 + i, end = std::min(k1, j.first + t + 1);
                    if (end <= k0) continue;
                    float *scores = j.scores + ((size_t)h * j.T + t) * j.keys, *weights = j.weights + ((size_t)h * j.T + t) * j.keys;
                    const float *query = j.q + ((size_t)t * j.heads + h) * j.dim;
                    for (int n = k0; n < end; n++) scores[n] = dot(query, j.cache->key(j.layer, kv_head, n), j.dim);
                    take_tile(j, kv_head, scores, weights, 0, k0, end, running[i]);
                }
            }
            for (int i = 0; i < rows; i++) {
                const int t = q0 + i;
                float *weights = j.weights + ((size_t)h * j.T + t) * j.keys;
                float *to = j.context + ((size_t)t * j.heads + h) * j.dim;
                for (int e = 0; e < j.dim; e++) to[e] = running[i].sum[e] / running[i].total;
                for (int n = 0; n < j.keys; n++) weights[n] /= running[i].total;
            }
        }
    }
}

constexpr int SPLITS = 4;     // of the keys at most
constexpr int LEAST_PAGES = 2; // of a split at least, where there are so many
constexpr int H_TILE = 4;      // heads that are taken together

// One query: its keys in splits of whole pages, each for itself, and then put together.
inline void attend_decode(const AttentionJob &j) {
    const int group = j.heads / j.kv_heads;
    const int pages = (j.keys + PAGE - 1) / PAGE;
    const int each = std::max((pages + SPLITS - 1) / SPLITS, LEAST_PAGES);
    const int splits = (pages + each - 1) / each;
    for (int h0 = 0; h0 < j.heads; h0 += H_TILE) {
        for (int h = h0; h < std::min(h0 + H_TILE, j.heads); h++) {
            const int kv_head = h / group;
            const float *query = j.q + (size_t)h * j.dim;
            float *scores = j.scores + (size_t)h * j.keys, *weights = j.weights + (size_t)h * j.keys;
            Running part[SPLITS];
            float lse[SPLITS], top = -INFINITY; // of each split: the logarithm of its sum of exponentials
            for (int s = 0; s < splits; s++) {
                part[s].sum.assign(j.dim, 0.0f);
                const int begin = s * each * PAGE, end = std::min((s + 1) * each * PAGE, j.keys);
                for (int k0 = begin; k0 < end; k0 += PAGE) {
                    const int k1 = std::min(k0 + PAGE, end);
                    for (int n = k0; n < k1; n++) scores[n] = dot(query, j.cache->key(j.layer, kv_head, n), j.dim);
                    take_tile(j, kv_head, scores, weights, begin, k0, k1, part[s]);
                }
                lse[s] = part[s].most + std::log(part[s].total);
                top = std::max(top, lse[s]);
            }
            // Put the splits together.
            float total = 0.0f;
            std::vector<float> sum(j.dim, 0.0f);
            for (int s = 0; s < splits; s++) {
                const float share = std::exp(lse[s] - top), factor = share / part[s].total;
                total += share;
                for (int e = 0; e < j.dim; e++) sum[e] += part[s].sum[e] * factor;
                const int begin = s * each * PAGE, end = std::min((s + 1) * each * PAGE, j.keys);
                for (int n = begin; n < end; n++) weights[n] *= factor;
            }
            for (int e = 0; e < j.dim; e++) j.context[(size_t)h * j.dim + e] = sum[e] / total;
            for (int n = 0; n < j.keys; n++) weights[n] /= total;
        }
    }
}
