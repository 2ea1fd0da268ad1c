// The kernels of a mixture of experts against their definitions in double precision, thread by thread on a CPU: those of a decode
// step, and the products of a longer one.
#include "fixtures.h"

#include "fused/expert_act.cu"
#include "fused/expert_down.cu"
#include "fused/router.cu"
namespace longer {
#include "prefill/expert_rows.cu"
}

// The values of a vector, and of the rows of one expert with it.
static Doubles doubles(const float *v, size_t count) { return Doubles(v, v + count); }
static Matrix of_expert(const Matrix &w, int experts, int expert) {
    const size_t count = w.values.size() / experts;
    return {{}, w.n, w.m / experts, Doubles(w.values.begin() + expert * count, w.values.begin() + (expert + 1) * count)};
}
static void append(Doubles &to, const Doubles &more) { to.insert(to.end(), more.begin(), more.end()); }

// Products of each chosen expert with its row of x, or with the one of all.
static void compare_experts(const char *what, const float *y, const Matrix &w, int experts, const std::vector<int> &chosen, const float *x,
                            int rows) {
    Doubles right, size;
    for (size_t i = 0; i < chosen.size(); i++) {
        Doubles y, s;
        of_expert(w, experts, chosen[i]).times(doubles(x + i * rows / chosen.size() * w.n, w.n), y, s);
        append(right, y), append(size, s);
    }
    compare(what, y, right, size, PRODUCT);
}

// Bytes of a piece of a tile, as `Task::ring` counts them, and the blocks' threads.
template <class F>
static int piece_bytes() {
    int bytes = 0;
    for (int plane = 0; plane < Tile<F>::PLANES; plane++) bytes += TILE * Bringer<F>::pitch(plane);
    return bytes;
}

// A decode step of a token, with rings of two stages or without.
template <class R, class F, bool RINGS>
static void step(int n, int m, int experts, int taken, int blocks, bool normalised) {
    printf("step<%s> of %d x %d, %d of %d experts\n", format<F>().name, n, m, taken, experts);
    constexpr int RING = RINGS ? 2 : 0;
    const int warps = RINGS ? 4 : PLAIN_WARPS;
    const Matrix w = matrix<R>(n, experts), gate = matrix<F>(n, m * experts), up = matrix<F>(n, m * experts);
    const Matrix down = matrix<F>(m, n * experts);
    const std::vector<float> x = vector_of(n), weight = vector_of(n);

    RouterParams r{};
    r.x.base = copied(x), r.norm = copied(weight), r.w = w.planes, r.normed = unwritten(n), r.y = unwritten(experts);
    r.norm_tap = unwritten(n), r.y_tap = unwritten(experts), r.n = n, r.m = experts, r.eps = 1e-6f;
    launch({(unsigned)(experts + ROUTER_ROWS - 1) / ROUTER_ROWS}, 32 * ROUTER_WARPS, n / 32 * 4 * LINE, [&] { router<R, 1>(r); });
    const Doubles normed = norm_of(x, weight);
    compare("norm", r.normed, normed, magnitudes(normed), PRODUCT), compare("tap of it", r.norm_tap, normed, magnitudes(normed), PRODUCT);
    compare_experts("logits", r.y, w, 1, {0}, r.normed, 1), compare_experts("tap of them", r.y_tap, w, 1, {0}, r.normed, 1);

    ExpertActParams a{};
    a.x = r.normed, a.gate = gate.planes, a.up = up.planes, a.y = unwritten(taken * m), a.n = n, a.m = m;
    a.gate_tap = unwritten(taken * m), a.up_tap = unwritten(taken * m), a.y_tap = unwritten(taken * m);
    // Two that are alike: the first comes first.
    r.y[experts - 1] = r.y[0];
    a.choice = {r.y, unwritten(taken), unwritten(taken), unwritten(experts), unwritten(taken), unwritten(taken), unwritten(taken),
                experts, taken, normalised};
    a.walk.stride = RINGS ? piece_bytes<F>() : 0;
    int shared = choice_bytes(a.choice);
    if constexpr (RINGS) {
        const int tiles = taken * m / (TILE / 2);
        shared += vector_bytes<F, F>(n) + warps * RING * a.walk.stride + ((tiles + blocks - 1) / blocks + warps) * TILE * 4;
    } else {
        shared += n / 32 * 4 * LINE;
    }
    launch({(unsigned)blocks}, 32 * warps, shared, [&] { expert_act<F, F, RING>(a); });
    double total = 0, of_chosen = 0;
    for (int e = 0; e < experts; e++) total += std::exp((double)r.y[e]);
    Doubles probs, weights;
    std::vector<int> order, chosen;
    for (int e = 0; e < experts; e++) probs.push_back(std::exp((double)r.y[e]) / total), order.push_back(e);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return r.y[a] > r.y[b]; });
    for (int i = 0; i < taken; i++) chosen.push_back(order[i]), weights.push_back(probs[order[i]]), of_chosen += probs[order[i]];
    compare("probabilities", a.choice.probs_tap, probs, probs, 1e-5);
    for (int i = 0; i < taken; i++) wrong += a.choice.chosen[i] != chosen[i] || a.choice.chosen_tap[i] != chosen[i];
    compare("their weights", a.choice.weights_tap, weights, weights, 1e-5);
    if (normalised) {
        for (double &v : weights) v /= of_chosen;
        compare("shares", a.choice.shares_tap, weights, weights, 1e-5);
    }
    compare("weights", a.choice.weights, weights, weights, 1e-5);
    compare_experts("gate", a.gate_tap, gate, experts, chosen, r.normed, 1), compare_experts("up", a.up_tap, up, experts, chosen, r.normed, 1);
    Doubles act;
    for (int i = 0; i < taken * m; i++) act.push_back(a.gate_tap[i] / (1.0 + std::exp(-(double)a.gate_tap[i])) * a.up_tap[i]);
    // What is below the least float may be zero.
    Doubles act_size = magnitudes(act);
    for (double &v : act_size) v += 1e-29;
    compare("act", a.y, act, act_size, 1e-5), compare("tap of it", a.y_tap, act, act_size, 1e-5);

    ExpertDownParams d{};
    d.x = a.y, d.chosen = a.choice.chosen, d.weights = a.choice.weights, d.base = copied(vector_of(n)), d.w = down.planes, d.y = unwritten(n);
    d.down_tap = unwritten(taken * n), d.sum_tap = unwritten(n), d.y_tap = unwritten(n), d.n = m, d.m = n, d.taken = taken;
    d.walk.stride = a.walk.stride;
    const int rows = RINGS ? TILE : 1, each = (n / rows + blocks - 1) / blocks;
    shared = (8 * taken + 15) / 16 * 16 + (4 * taken * rows * each + 15) / 16 * 16;
    if constexpr (RINGS) shared += vector_bytes<F, F>(taken * m) + warps * RING * d.walk.stride + (taken * each + warps) * TILE * 4;
    else shared += taken * m / 32 * 4 * LINE;
    launch({(unsigned)blocks}, 32 * warps, shared, [&] { expert_down<F, RING>(d); });
    compare_experts("down", d.down_tap, down, experts, chosen, a.y, taken);
    Doubles sum(n), size(n);
    for (int i = 0; i < taken * n; i++) {
        const double term = (double)a.choice.weights[i / n] * d.down_tap[i];
        sum[i % n] += term, size[i % n] += std::fabs(term);
    }
    compare("sum", d.sum_tap, sum, size, PRODUCT);
    for (int i = 0; i < n; i++) sum[i] += d.base[i], size[i] += std::fabs(d.base[i]);
    compare("stream", d.y, sum, size, PRODUCT), compare("tap of it", d.y_tap, sum, size, PRODUCT);
}

// Products of many tokens, each with experts of its own, so many lines at a time.
template <class F>
static void products(int n, int m, int experts, int tokens, int taken, bool of_token, int at_once) {
    printf("products<%s> of %d x %d, %d tokens, %d of %d experts\n", format<F>().name, n, m, tokens, taken, experts);
    const Matrix w = matrix<F>(n, m * experts);
    const int lines = tokens * taken, rows = of_token ? tokens : lines;
    std::vector<int> chosen;
    std::vector<float> told;
    // One of them most often, and one never.
    for (int i = 0; i < lines; i++) chosen.push_back(noise() % 3 ? 1 : noise() % (experts - 1)), told.push_back(chosen.back());
    longer::ExpertRowsParams p{copied(vector_of(rows * n)), copied(told), w.planes, unwritten((size_t)lines * m), n, m, experts, lines,
                               of_token ? taken : 1, at_once};
    launch({(unsigned)(m + longer::OUTPUTS - 1) / longer::OUTPUTS, (unsigned)experts}, 32 * longer::WARPS, at_once * n / 32 * 4 * LINE,
           [&] { longer::expert_rows<F>(p); });
    compare_experts("product", p.y, w, experts, chosen, p.x, rows);
}

int main() {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    // Through rings: blocks of more tiles and of fewer, one with nothing to do; one expert alone, and all.
    step<F32, Q4_K, true>(512, 256, 11, 5, 7, true), step<Q8_0, Q5_K, true>(256, 512, 3, 3, 5, false);
    step<F16, Q6_K, true>(768, 256, 5, 1, 3, true), step<F32, Q4_K, true>(256, 768, 40, 8, 9, true);
    // Without: rows of few groups and of odd numbers of them.
    step<F32, Q8_0, false>(160, 96, 11, 5, 3, true), step<F32, F16, false>(1088, 32, 3, 2, 4, false);
    step<Q4_K, Q4_K, false>(256, 256, 9, 2, 2, true), step<BF16, F32, false>(64, 64, 4, 4, 1, true);
    // More experts than a warp has in registers.
    step<F32, F16, false>(64, 32, 300, 4, 2, true);
    products<Q4_K>(256, 40, 5, 9, 3, true, 8), products<Q8_0>(96, 33, 7, 40, 2, false, 8), products<F32>(64, 32, 3, 5, 1, true, 1);
    products<Q6_K>(512, 5, 4, 7, 2, false, 3), products<F16>(32, 8, 3, 2100, 2, true, 8);
    printf("%d wrong\n", wrong);
    return wrong != 0;
}
