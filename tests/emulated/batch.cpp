// The kernels of single nodes, and the fused ones of a pass, on rows of several sequences, against their definitions in double
// precision and against themselves on each sequence alone, thread by thread on a CPU.
#include "fixtures.h"

#include "fused/decode.cuh"
#include "fused/shares.cuh"
#include "prefill/cache.cuh"
#include "prefill/cache_tiles.cu"
#include "prefill/head_rows.cu"
namespace shares {
#include "fused/attention.cu"
}
namespace joined {
#include "prefill/join_shares.cu"
}
namespace together {
#include "prefill/attention_rows.cu"
}

#include "attn_context.cu"
#include "attn_scores.cu"
#include "attn_weights.cu"
#include "kv_cache.cu"
#include "rope.cu"

static int *numbers(const std::vector<int> &v) {
    int *at = room<int>(v.size());
    std::copy(v.begin(), v.end(), at);
    return at;
}

// The rows that a step has of a sequence, and the slots of all its positions.
struct Sequence {
    std::vector<int> rows, slots;
};

template <class Kv>
struct Step {
    int heads, kv_heads, d, tokens, keys;
    float scale;
    std::vector<float> q, k, v, frequency;
    typename Kv::Type *cache[2];
    float *rotated, *scores, *weights, *context;

    // Everything that attention does of rows that are `tokens` from `first` on, or what `batch` says.
    void run(int first, Batch batch) {
        const int width = kv_heads * d, pairs = heads * tokens * keys;
        auto flat = [](int count) { return dim3{(unsigned)(count + 63) / 64}; };
        float *turned = unwritten(tokens * width);
        rotated = unwritten(tokens * heads * d), scores = unwritten(pairs), weights = unwritten(pairs);
        context = unwritten(tokens * heads * d);
        RopeParams query{copied(q), copied(frequency), rotated, heads, d, 0, first, tokens, d, 1.0f, batch};
        launch(flat(tokens * heads * d / 2), 64, 0, [&] { rope(query); });
        RopeParams key{copied(k), copied(frequency), turned, kv_heads, d, 1, first, tokens, d, 1.0f, batch};
        launch(flat(tokens * width / 2), 64, 0, [&] { rope(key); });
        KvCacheParams put[2] = {{turned, cache[0], width, first, tokens, batch},
                                {copied(v), cache[1], width, first, tokens, batch}};
        for (auto &p : put) launch(flat(tokens * width), 64, 0, [&] { kv_cache<Kv>(p); });
        AttnScoresParams s{rotated, cache[0], scores, heads, kv_heads, d, first, tokens, keys, batch};
        launch({(unsigned)(tokens * ((keys + 1) / 2)), (unsigned)heads}, 64, 0, [&] { attn_scores<Kv>(s); });
        AttnWeightsParams w{scores, weights, scale, first, tokens, keys, batch};
        launch({(unsigned)tokens, (unsigned)heads}, 64, 0, [&] { attn_weights(w); });
        AttnContextParams c{weights, cache[1], context, heads, kv_heads, d, first, tokens, keys, batch};
        launch({(unsigned)tokens, (unsigned)heads}, 64, 0, [&] { attn_context<Kv>(c); });
    }
};

// What attention makes.
struct Made {
    float *scores, *weights, *context;
};

// Numbers below n in any order.
static std::vector<int> order_of(int n) {
    std::vector<int> order(n);
    for (int i = 0; i < n; i++) order[i] = i;
    std::shuffle(order.begin(), order.end(), noise);
    return order;
}

static void same(const char *what, const float *a, const float *b, int count) {
    if (memcmp(a, b, 4 * count) == 0) return;
    printf("  %s is another than of the sequence alone\n", what), wrong++;
}

// Sequences with so many tokens before the step and in it, their slots anywhere among `slots` and their rows in any order;
// the last one begins with the first tokens of the first one, in the same slots.
// Fused attention of heads that share one of the cache by GROUP; 0 for heads that it is not made for.
template <class Kv, int D, int GROUP>
static void batch(int kv_heads, std::vector<std::pair<int, int>> lengths, int shared) {
    const int group = GROUP ? GROUP : 2, heads = kv_heads * group, width = kv_heads * D;
    printf("a batch of %zu sequences, %d heads of %d\n", lengths.size(), heads, D);
    std::vector<int> free, order;
    int tokens = 0, keys = 0;
    for (auto [before, now] : lengths) keys += before + now, tokens += now;
    keys -= shared;
    for (int i = 0; i < keys; i++) free.push_back(i);
    for (int i = 0; i < tokens; i++) order.push_back(i);
    std::shuffle(free.begin(), free.end(), noise), std::shuffle(order.begin(), order.end(), noise);
    std::vector<Sequence> sequences;
    std::vector<int> positions(tokens), written(tokens), starts(tokens), tables;
    for (auto [before, now] : lengths) {
        Sequence sequence;
        if (sequences.size() + 1 == lengths.size()) {
            sequence.slots.assign(sequences[0].slots.begin(), sequences[0].slots.begin() + shared);
        }
        while ((int)sequence.slots.size() < before + now) sequence.slots.push_back(free.back()), free.pop_back();
        for (int i = 0; i < now; i++) sequence.rows.push_back(order.back()), order.pop_back();
        std::sort(sequence.rows.begin(), sequence.rows.end());
        for (int i = 0; i < now; i++) {
            const int row = sequence.rows[i];
            positions[row] = before + i, written[row] = sequence.slots[before + i], starts[row] = (int)tables.size();
        }
        tables.insert(tables.end(), sequence.slots.begin(), sequence.slots.end());
        sequences.push_back(sequence);
    }
    Step<Kv> all{heads, kv_heads, D, tokens, keys, 1.0f / std::sqrt((float)D)};
    all.q = vector_of(tokens * heads * D), all.k = vector_of(tokens * width), all.v = vector_of(tokens * width);
    for (int i = 0; i < D / 2; i++) all.frequency.push_back((float)std::pow(1e4, -2.0 * i / D));
    std::vector<float> old[2] = {vector_of(keys * width), vector_of(keys * width)};
    for (int c = 0; c < 2; c++) {
        all.cache[c] = room<typename Kv::Type>(keys * width);
        for (int i = 0; i < keys * width; i++) all.cache[c][i] = Kv::put(old[c][i]);
    }
    const Batch rows{numbers(positions), numbers(written), numbers(tables), numbers(starts)};
    all.run(keys, rows);
    const size_t pairs = (size_t)heads * tokens * keys;
    // Row by row, in three shares at most.
    Made alone_rows{all.scores, all.weights, all.context}, in_tiles = alone_rows;
    if constexpr (GROUP > 0) {
        constexpr int SHARES_AT_MOST = 3;
        const size_t parts = (size_t)tokens * heads * SHARES_AT_MOST;
        alone_rows = {unwritten(pairs), unwritten(pairs), unwritten(tokens * heads * D)};
        in_tiles = {unwritten(pairs), unwritten(pairs), unwritten(tokens * heads * D)};
        std::vector<int> any = order_of(tokens);
        shares::AttentionParams p{};
        p.q = all.rotated, p.k = all.cache[0], p.v = all.cache[1], p.scale = all.scale, p.batch = rows, p.rows = numbers(any);
        p.partial = {unwritten(parts * D), (float2 *)unwritten(2 * parts)};
        p.scores_tap = alone_rows.scores, p.weights_tap = alone_rows.weights, p.tokens = tokens, p.keys = keys;
        const size_t stage = 2 * KEYS * D * sizeof(typename Kv::Type), sums = (size_t)shares::THREADS * 16 * GROUP;
        launch({(unsigned)kv_heads, SHARES_AT_MOST, (unsigned)tokens}, shares::THREADS, stage + std::max(stage, sums),
               [&] { shares::attention<Kv, D, GROUP, KEYS, false, true, true>(p); });
        joined::JoinSharesParams j{p.partial, rows, p.rows, alone_rows.context, p.scores_tap, p.weights_tap, heads, SHARES_AT_MOST, tokens, keys};
        launch({(unsigned)(heads + joined::WARPS - 1) / joined::WARPS, (unsigned)tokens}, 32 * joined::WARPS, 0, [&] { joined::join_shares<D>(j); });
    }

    for (size_t s = 0; s < sequences.size(); s++) {
        const auto [before, now] = lengths[s];
        const Sequence &own = sequences[s];
        const int seen = before + now;
        // Alone: the same rows, and a cache whose slots are its positions.
        Step<Kv> alone{heads, kv_heads, D, now, seen, all.scale};
        alone.frequency = all.frequency;
        for (int row : own.rows) {
            auto take = [&](std::vector<float> &to, const std::vector<float> &from, int n) {
                to.insert(to.end(), from.begin() + (size_t)row * n, from.begin() + (size_t)(row + 1) * n);
            };
            take(alone.q, all.q, heads * D), take(alone.k, all.k, width), take(alone.v, all.v, width);
        }
        for (int c = 0; c < 2; c++) {
            alone.cache[c] = room<typename Kv::Type>(seen * width);
            for (int n = 0; n < before; n++) {
                for (int i = 0; i < width; i++) alone.cache[c][n * width + i] = Kv::put(old[c][own.slots[n] * width + i]);
            }
        }
        alone.run(before, Batch{});
        if constexpr (GROUP > 0) { // in tiles, its rows behind each other among those of the pass
            typedef CacheTile<D> Tile;
            const unsigned tiles = (seen + Tile::KEYS - 1) / Tile::KEYS;
            CacheTilesParams cut{all.cache[0], all.cache[1], room<u8>((size_t)kv_heads * tiles * Tile::BYTES), kv_heads, seen, numbers(own.slots)};
            launch({tiles, (unsigned)kv_heads}, Tile::KEYS * D / 4, 0, [&] { cache_tiles<Kv, D, Tile::KEYS>(cut); });
            Made at{unwritten(pairs), unwritten(pairs), unwritten(tokens * heads * D)};
            const int row0 = tokens - now;
            together::AttentionRowsParams p{alone.rotated, cut.tiles, at.context + row0 * heads * D, at.scores + row0 * keys,
                                            at.weights + row0 * keys, heads, kv_heads, before, now, all.scale, tokens, keys};
            launch({(unsigned)(now * group + together::ROWS - 1) / together::ROWS, (unsigned)kv_heads}, 2 * together::THREADS, 4 * Tile::BYTES,
                   [&] { together::attention_rows<D, true, Tile::BYTES, 2>(p); });
            for (int i = 0; i < now; i++) { // where the definitions look for them
                const int row = own.rows[i];
                std::copy_n(at.context + (row0 + i) * heads * D, heads * D, in_tiles.context + row * heads * D);
                for (int h = 0; h < heads; h++) {
                    std::copy_n(at.scores + (h * tokens + row0 + i) * keys, keys, in_tiles.scores + (h * tokens + row) * keys);
                    std::copy_n(at.weights + (h * tokens + row0 + i) * keys, keys, in_tiles.weights + (h * tokens + row) * keys);
                }
            }
        }
        for (int c = 0; c < 2; c++) {
            for (int n = 0; n < seen; n++) {
                if (memcmp(&alone.cache[c][n * width], &all.cache[c][own.slots[n] * width], sizeof(alone.cache[c][0]) * width)) {
                    printf("  position %d of sequence %zu is not in its slot\n", n, s), wrong++;
                }
            }
        }
        for (int i = 0; i < now; i++) {
            const int row = own.rows[i], last = before + i;
            same("q", all.rotated + row * heads * D, alone.rotated + i * heads * D, heads * D);
            same("the context", all.context + row * heads * D, alone.context + i * heads * D, heads * D);
            for (int h = 0; h < heads; h++) {
                same("a row of scores", all.scores + (h * tokens + row) * keys, alone.scores + (h * now + i) * seen, last + 1);
                same("a row of weights", all.weights + (h * tokens + row) * keys, alone.weights + (h * now + i) * seen, last + 1);
            }
            for (const Made &made : {Made{all.scores, all.weights, all.context}, alone_rows, in_tiles}) for (int h = 0; h < heads; h++) {
                const float *scores = made.scores + (h * tokens + row) * keys, *weights = made.weights + (h * tokens + row) * keys;
                for (int n = last + 1; n < keys; n++) {
                    if (scores[n] != 0 || weights[n] != 0) printf("  key %d is none of row %d\n", n, row), wrong++;
                }
                // Their definitions.
                Doubles right, size, sum(D), most(D);
                double largest = -INFINITY, total = 0;
                for (int n = 0; n <= last; n++) {
                    double score = 0, magnitude = 1e-20;
                    for (int j = 0; j < D; j++) {
                        const double product = (double)all.rotated[(row * heads + h) * D + j] *
                                               Kv::get(all.cache[0][own.slots[n] * width + h / group * D + j]);
                        score += product, magnitude += std::fabs(product);
                    }
                    right.push_back(score), size.push_back(magnitude), largest = std::max(largest, score * all.scale);
                }
                compare("scores", scores, right, size, PRODUCT);
                Doubles exact;
                for (int n = 0; n <= last; n++) exact.push_back(std::exp(scores[n] * all.scale - largest)), total += exact.back();
                for (double &w : exact) w /= total;
                compare("weights", weights, exact, Doubles(last + 1, 1), 2e-5);
                for (int n = 0; n <= last; n++) {
                    for (int j = 0; j < D; j++) {
                        const double product = weights[n] * (double)Kv::get(all.cache[1][own.slots[n] * width + h / group * D + j]);
                        sum[j] += product, most[j] += std::fabs(product);
                    }
                }
                compare("context", made.context + (row * heads + h) * D, sum, most, GROUP ? 2e-5 : PRODUCT);
            }
            for (int h = 0; h < heads; h++) {
                Doubles turned(D), magnitude(D);
                for (int j = 0; j < D / 2; j++) {
                    // The angle as f32 has it; its error is the definition's business.
                    const double angle = (float)last * all.frequency[j], a = all.q[(row * heads + h) * D + j], b = all.q[(row * heads + h) * D + j + D / 2];
                    turned[j] = a * std::cos(angle) - b * std::sin(angle), turned[j + D / 2] = a * std::sin(angle) + b * std::cos(angle);
                    magnitude[j] = magnitude[j + D / 2] = std::fabs(a) + std::fabs(b);
                }
                compare("q_rope", all.rotated + (row * heads + h) * D, turned, magnitude, PRODUCT);
            }
        }
    }
}

// Projections, rotation and caches of rows of three sequences, against the same of each alone, bit by bit.
template <class Kv, int D, bool NORM>
static void heads_of_rows(int heads, int kv_heads) {
    printf("head_rows of three sequences, %d heads of %d\n", heads, D);
    typedef typename Kv::Type Type;
    const std::vector<std::pair<int, int>> lengths = {{5, 2}, {0, 4}, {9, 1}}; // before, and now
    const int tokens = 7, capacity = 21, width[3] = {heads * D, kv_heads * D, kv_heads * D};
    HeadRowsParams all{};
    std::vector<float> parts[3], frequency;
    for (int i = 0; i < D / 2; i++) frequency.push_back((float)std::pow(1e4, -2.0 * i / D));
    for (int i = 0; i < 3; i++) {
        parts[i] = vector_of(tokens * width[i]);
        if (!NORM) all.bias[i] = copied(vector_of(width[i]));
        else if (i < 2) all.head_norm[i] = copied(vector_of(D));
    }
    auto given = [&](HeadRowsParams &p, const std::vector<int> &rows, int slots) {
        for (int i = 0; i < 3; i++) {
            std::vector<float> own;
            for (int row : rows) own.insert(own.end(), parts[i].begin() + row * width[i], parts[i].begin() + (row + 1) * width[i]);
            const float *at = copied(own);
            p.product[i] = {at, at, (unsigned long long)own.size(), 1, 0, 0};
        }
        p.q = unwritten(rows.size() * width[0]), p.k_cache = room<Type>((size_t)slots * width[1]), p.v_cache = room<Type>((size_t)slots * width[1]);
        p.frequency = copied(frequency), p.heads = heads, p.kv_heads = kv_heads, p.eps = 1e-6f;
        launch({(unsigned)rows.size()}, 96, 0, [&] { head_rows<Kv, D>(p); });
    };
    const std::vector<int> order = order_of(tokens), slots = order_of(capacity);
    std::vector<int> positions(tokens), written(tokens);
    for (int s = 0, at = 0; s < 3; s++) {
        for (int i = 0; i < lengths[s].second; i++, at++) positions[order[at]] = lengths[s].first + i, written[order[at]] = slots[at];
    }
    all.batch = Batch{numbers(positions), numbers(written), nullptr, nullptr};
    std::vector<int> every(tokens);
    for (int i = 0; i < tokens; i++) every[i] = i;
    given(all, every, capacity);
    for (int s = 0, at = 0; s < 3; s++) {
        HeadRowsParams alone = all;
        alone.batch = Batch{}, alone.first = lengths[s].first;
        const std::vector<int> own(order.begin() + at, order.begin() + at + lengths[s].second);
        given(alone, own, lengths[s].first + lengths[s].second);
        for (int i = 0; i < lengths[s].second; i++, at++) {
            same("q", all.q + order[at] * width[0], alone.q + i * width[0], width[0]);
            const size_t here = (size_t)written[order[at]] * width[1], there = (size_t)(lengths[s].first + i) * width[1];
            for (auto cache : {&HeadRowsParams::k_cache, &HeadRowsParams::v_cache}) {
                if (memcmp((Type *)(all.*cache) + here, (Type *)(alone.*cache) + there, sizeof(Type) * width[1])) {
                    printf("  row %d of sequence %d is not in its slot\n", i, s), wrong++;
                }
            }
        }
    }
}

int main() {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    batch<KvF32, 6, 0>(2, {{0, 5}, {3, 1}, {4, 9}}, 0);
    // A prefix of 7 that two sequences have, one of them at its first tokens; a prefill in chunks; a decode step beside.
    batch<KvF32, 64, 7>(1, {{7, 5}, {0, 1}, {7, 17}}, 7), batch<KvF16, 64, 1>(4, {{7, 1}, {12, 1}, {7, 4}, {20, 1}, {3, 2}}, 3);
    batch<KvF16, 128, 4>(1, {{0, 1}, {33, 1}, {0, 3}}, 0);
    // Several tiles, and shares of several tiles.
    batch<KvF32, 32, 3>(2, {{190, 1}, {64, 12}, {60, 1}}, 60);
    heads_of_rows<KvF32, 64, false>(4, 2), heads_of_rows<KvF16, 32, true>(2, 2);
    printf("%d wrong\n", wrong);
    return wrong != 0;
}
