// A small Qwen2 / Qwen3 inference engine for the CPU: paged KV cache, fused QKV and gate/up products, tiled prefill attention with an
// online softmax, split-KV decode attention, blocked products over block-quantised weights. It dumps its stages with qdiff_tap.h.
//
//   engine MODEL --tokens FILE [--passes 7,5,1] [--decoded FILE] [--kv f16]
#include "qdiff_tap.h"
#include "gguf.h"
#include "quants.h"
#include "gemm.h"
#include "ops.h"
#include "cache.h"
#include "attention.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

struct Layer {
    std::vector<float> attn_norm, ffn_norm, qkv_bias, q_norm, k_norm;
    Matrix qkv;      // rows: queries, keys, values
    Matrix out;
    Matrix gate_up;  // in runs of GU_RUN rows of gate, then as many of up
    Matrix down;
};

struct Model {
    int layers, width, heads, kv_heads, dim, ffn, vocab, context;
    float eps, base;
    bool qwen3, has_bias;
    Matrix embedding, head;
    std::vector<float> final_norm;
    std::vector<Layer> layer;
    RopeTable rope;
};

static Model load(const Gguf &file) {
    Model m;
    const std::string arch = file.text("general.architecture");
    if (arch != "qwen2" && arch != "qwen3") fail("only qwen2 and qwen3");
    m.qwen3 = arch == "qwen3";
    auto key = [&](const char *name) { return arch + "." + name; };
    m.layers = (int)file.integer(key("block_count"));
    m.width = (int)file.integer(key("embedding_length"));
    m.heads = (int)file.integer(key("attention.head_count"));
    m.kv_heads = (int)file.integer(key("attention.head_count_kv"), m.heads);
    m.dim = (int)file.integer(key("attention.key_length"), m.width / m.heads);
    m.ffn = (int)file.integer(key("feed_forward_length"));
    m.context = (int)file.integer(key("context_length"));
    m.eps = (float)file.real(key("attention.layer_norm_rms_epsilon"));
    m.base = (float)file.real(key("rope.freq_base"), 10000.0);
    m.embedding = matrix_of(file.tensor("token_embd.weight"));
    m.vocab = m.embedding.rows;
    m.head = file.has("output.weight") ? matrix_of(file.tensor("output.weight")) : m.embedding;
    m.final_norm = vector_of(file.tensor("output_norm.weight"));
    for (int l = 0; l < m.layers; l++) {
        const std::string p = "blk." + std::to_string(l) + ".";
        auto matrix = [&](const char *name) { return matrix_of(file.tensor(p + name)); };
        auto vec = [&](const char *name) { return vector_of(file.tensor(p + name)); };
        Layer a;
        a.attn_norm = vec("attn_norm.weight");
        a.ffn_norm = vec("ffn_norm.weight");
        a.qkv = stack({matrix("attn_q.weight"), matrix("attn_k.weight"), matrix("attn_v.weight")});
        m.has_bias = file.has(p + "attn_q.bias");
        if (m.has_bias) {
            for (const char *name : {"attn_q.bias", "attn_k.bias", "attn_v.bias"}) {
                const std::vector<float> b = vec(name);
                a.qkv_bias.insert(a.qkv_bias.end(), b.begin(), b.end());
            }
        }
        if (m.qwen3) a.q_norm = vec("attn_q_norm.weight"), a.k_norm = vec("attn_k_norm.weight");
        a.out = matrix("attn_output.weight");
        a.gate_up = interleave(matrix("ffn_gate.weight"), matrix("ffn_up.weight"), GU_RUN);
        a.down = matrix("ffn_down.weight");
        m.layer.push_back(a);
    }
    m.rope = RopeTable(m.dim, m.base, m.context);
    return m;
}

struct Engine {
    const Model &m;
    PagedCache cache;
    qdiff_tap *qd;
    int position = 0;

    Engine(const Model &m, bool half_cache, qdiff_tap *qd)
        : m(m), cache(m.layers, m.kv_heads, m.dim, m.context, half_cache), qd(qd) {}

    void rows(const char *name, int layer, const float *x, int t, int width) { QDIFF_ROWS(qd, name, layer, x, QDIFF_F32, t, width); }
    void strided(const char *name, int layer, const float *x, int t, int width, int stride) {
        const int64_t dims[2] = {t, width}, strides[2] = {stride, 1};
        QDIFF_TAP(qd, name, layer, x, QDIFF_F32, 2, dims, strides);
    }
    void cube(const char *name, int layer, const float *x, int a, int b, int c) {
        const int64_t dims[3] = {a, b, c};
        QDIFF_TAP(qd, name, layer, x, QDIFF_F32, 3, dims, NULL);
    }

    // One pass over the model; gives the token of the largest logit of the last row.
    int forward(const std::vector<int32_t> &tokens) {
        const int T = (int)tokens.size(), E = m.width, H = m.heads, G = m.kv_heads, D = m.dim, F = m.ffn;
        const int first = position, keys = first + T;
        const int QW = H * D, KW = G * D, W = QW + 2 * KW;
        QDIFF_STEP(qd, first, tokens.data(), T);
        std::vector<float> x((size_t)T * E), h((size_t)T * E), qkv((size_t)T * W), context((size_t)T * QW), out((size_t)T * E);
        std::vector<float> gate_up((size_t)T * 2 * F + GU_RUN), gate((size_t)T * F), up((size_t)T * F), act((size_t)T * F), down((size_t)T * E);
        std::vector<float> q((size_t)T * QW), k((size_t)T * KW), v((size_t)T * KW);
        std::vector<float> scores((size_t)H * T * keys), weights((size_t)H * T * keys);
        for (int t = 0; t < T; t++) unpack_row(m.embedding, tokens[t], x.data() + (size_t)t * E);
        rows("embed", -1, x.data(), T, E);
        cache.reserve(keys);
        for (int l = 0; l < m.layers; l++) {
            const Layer &a = m.layer[l];
            rms_norm(x.data(), a.attn_norm.data(), h.data(), T, E, m.eps);
            rows("attn_norm", l, h.data(), T, E);

            product(a.qkv, h.data(), T, qkv.data(), W);
            strided("q_proj", l, qkv.data(), T, QW, W);
            strided("k_proj", l, qkv.data() + QW, T, KW, W);
            strided("v_proj", l, qkv.data() + QW + KW, T, KW, W);
            if (m.has_bias) {
                add_bias(qkv.data(), a.qkv_bias.data(), T, W);
                strided("q_biased", l, qkv.data(), T, QW, W);
                strided("k_biased", l, qkv.data() + QW, T, KW, W);
                strided("v_biased", l, qkv.data() + QW + KW, T, KW, W);
            }
            split_qkv(qkv.data(), T, QW, KW, q.data(), k.data(), v.data());
            if (m.qwen3) {
                rms_norm(q.data(), a.q_norm.data(), q.data(), T * H, D, m.eps);
                rms_norm(k.data(), a.k_norm.data(), k.data(), T * G, D, m.eps);
                rows("q_normed", l, q.data(), T, QW);
                rows("k_normed", l, k.data(), T, KW);
            }
            rotate(q.data(), m.rope, T, H, D, first);
            rotate(k.data(), m.rope, T, G, D, first);
            cube("q_rope", l, q.data(), T, H, D);
            cube("k_rope", l, k.data(), T, G, D);
            cache.write(l, k.data(), v.data(), first, T);
            if (qd) {
                std::vector<float> all((size_t)keys * KW);
                cache.read_keys(l, keys, all.data());
                cube("k_cache", l, all.data(), keys, G, D);
                cache.read_values(l, keys, all.data());
                cube("v_cache", l, all.data(), keys, G, D);
            }
            AttentionJob job = {q.data(), &cache, l, context.data(), scores.data(), weights.data(), T, H, G, D, first, keys,
                                1.0f / std::sqrt((float)D)};
            if (T == 1) attend_decode(job);
            else attend_prefill(job);
            cube("attn_scores", l, scores.data(), H, T, keys);
            cube("attn_weights", l, weights.data(), H, T, keys);
            rows("attn_context", l, context.data(), T, QW);

            product(a.out, context.data(), T, out.data(), E);
            rows("attn_out", l, out.data(), T, E);
            add_norm(x.data(), out.data(), a.ffn_norm.data(), h.data(), T, E, m.eps);
            rows("attn_residual", l, x.data(), T, E);
            rows("ffn_norm", l, h.data(), T, E);

            product(a.gate_up, h.data(), T, gate_up.data(), 2 * F);
            swiglu(gate_up.data(), T, F, gate.data(), up.data(), act.data());
            rows("ffn_gate", l, gate.data(), T, F);
            rows("ffn_up", l, up.data(), T, F);
            rows("ffn_act", l, act.data(), T, F);
            product_split(a.down, act.data(), T, down.data(), E);
            rows("ffn_down", l, down.data(), T, E);
            for (size_t i = 0; i < x.size(); i++) x[i] += down[i];
            rows("layer_out", l, x.data(), T, E);
        }
        // The head makes logits of the last row alone.
        std::vector<float> last(E), logits(m.vocab), normed((size_t)T * E);
        rms_norm(x.data(), m.final_norm.data(), normed.data(), T, E, m.eps);
        rows("final_norm", -1, normed.data(), T, E);
        std::memcpy(last.data(), normed.data() + (size_t)(T - 1) * E, sizeof(float) * E);
        product(m.head, last.data(), 1, logits.data(), m.vocab);
        rows("logits", -1, logits.data(), 1, m.vocab);
        if (qd) QDIFF_STEP_END(qd);
        position += T;
        int best = 0;
        for (int i = 1; i < m.vocab; i++) best = logits[i] > logits[best] ? i : best;
        return best;
    }
};

static std::vector<int32_t> ids_of(const std::string &path) {
    std::ifstream in(path);
    std::vector<int32_t> ids;
    for (int id; in >> id;) ids.push_back(id);
    return ids;
}

int main(int argc, char **argv) {
    std::string model, tokens, decoded, passes, kv = "f32";
    for (int i = 1; i < argc; i++) {
        const std::string a = argv[i];
        auto value = [&] { return i + 1 < argc ? std::string(argv[++i]) : std::string(); };
        if (a == "--tokens") tokens = value();
        else if (a == "--decoded") decoded = value();
        else if (a == "--passes") passes = value();
        else if (a == "--kv") kv = value();
        else model = a;
    }
    const Gguf file(model);
    const Model m = load(file);
    const std::vector<int32_t> prompt = ids_of(tokens), fed = decoded.empty() ? std::vector<int32_t>() : ids_of(decoded);
    std::vector<int> lengths;
    for (const char *at = passes.c_str(); *at;) {
        lengths.push_back(std::atoi(at));
        at += std::strcspn(at, ",");
        at += *at == ',';
    }
    if (lengths.empty()) lengths.push_back((int)prompt.size());
    qdiff_tap *qd = QDIFF_BEGIN_WITH("paged-cpu", kv == "f16" ? "\"arithmetic\": {\"kv\": \"f16\"}, \"sampler\": \"told\"" : "\"sampler\": \"told\"");
    Engine engine(m, kv == "f16", qd);
    size_t begin = 0;
    for (int n : lengths) {
        engine.forward({prompt.begin() + begin, prompt.begin() + begin + n});
        begin += n;
    }
    for (int32_t id : fed) engine.forward({id});
    QDIFF_END(qd);
    return 0;
}
