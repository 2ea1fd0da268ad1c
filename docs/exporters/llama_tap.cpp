// Runs llama.cpp on given tokens, on the CPU or on the GPUs that llama.cpp was built for, and dumps every stage through llama.cpp's
// own eval callback.
//
//     c++ -std=c++17 -I tap -I llama.cpp/include -I llama.cpp/ggml/include docs/exporters/llama_tap.cpp
//         -L BUILD -lllama -lggml -lggml-cpu -lggml-base -o llama_tap
//     qdiff stages >stages
//     qdiff run --subject 'cmd: ./llama_tap {model} stages {tokens} {decoded} f32'
//
// The table that `qdiff stages` prints says which tensor is which stage. TOKENS and DECODED are files with one token id per line: the
// prompt, and the tokens to feed after the prompt, one by one. The last word is the number type of the KV cache. A further word names
// llama.cpp's split mode (none, layer, row or tensor) and runs the model on GPUs, with flash attention, because `tensor` needs it; then
// neither scores nor weights are dumped. In the mode `tensor`, ggml ends the process when a product is read of which each GPU has a
// part (ggml-backend-meta.cpp).

#include "qdiff_tap.h"

#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "gguf.h"
#include "llama.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

[[noreturn]] static void die(const std::string &why) {
    fprintf(stderr, "llama_tap: %s\n", why.c_str());
    exit(1);
}

struct Stage {
    std::string name, shape; // q_rope; T, H, D
};

struct Taps {
    std::map<std::string, Stage> stages; // by what the callback shows: "Qcur ROPE", "MUL_MAT with blk.N.attn_output.weight"
    qdiff_tap *qd;
    int64_t keys, cells, kv_heads; // tokens so far; those that the caches have room for
    std::vector<uint8_t> fetched;  // a tensor that is not in host memory
};

// The rows `| stage | shape | meaning | llama.cpp | ...` of the table.
static std::map<std::string, Stage> stages(const char *path) {
    std::map<std::string, Stage> found;
    std::ifstream file(path);
    const std::regex row(R"(\| `(\w+)`[^|]*\| \[([^\]]*)\] \|[^|]*\| ([^|]*) \|.*)");
    std::smatch part;
    for (std::string line; std::getline(file, line);) {
        if (std::regex_match(line, part, row)) {
            found[std::regex_replace(part[3].str(), std::regex("`"), "")] = {part[1], part[2]};
        }
    }
    if (found.empty()) {
        die(std::string(path) + " is not what `qdiff stages` prints");
    }
    return found;
}

// The stage of a tensor, or null, and its layer, or -1.
static const Stage *find(const Taps &taps, const ggml_tensor *t, int *layer) {
    if (!(t->flags & GGML_TENSOR_FLAG_COMPUTE)) {
        return nullptr;
    }
    // Qcur-3, cache_k_l3 (view), blk.3.attn_output.weight
    static const std::regex emitted(R"(([^ ]*?)(?:(?:-|_l)(\d+))?(?: \(.*)?)"), weight(R"(blk\.(\d+)\.(.*))");
    const std::string op = ggml_op_name(t->op), name = t->name;
    std::smatch part;
    *layer = -1;
    auto at = taps.stages.end();
    if (std::regex_match(name, part, emitted)) {
        at = taps.stages.find(part[1].str() + " " + op);
        *layer = part[2].matched ? std::stoi(part[2]) : -1;
    }
    if (at == taps.stages.end() && t->src[0]) {
        const std::string source = t->src[0]->name;
        if (std::regex_match(source, part, weight)) {
            at = taps.stages.find(op + " with blk.N." + part[2].str());
            *layer = std::stoi(part[1]);
        }
    }
    return at == taps.stages.end() ? nullptr : &at->second;
}

// Values are read here and now: later operations overwrite them.
static bool callback(ggml_tensor *t, bool ask, void *user) {
    Taps &taps = *static_cast<Taps *>(user);
    int layer;
    const Stage *stage = find(taps, t, &layer);
    if (ask || !stage) {
        return stage || !ask;
    }
    const std::map<ggml_type, qdiff_dtype> types = {
        {GGML_TYPE_F32, QDIFF_F32}, {GGML_TYPE_F16, QDIFF_F16}, {GGML_TYPE_BF16, QDIFF_BF16}};
    const int64_t size = ggml_type_size(t->type);
    // ggml counts axes from the other end.
    const int ndim = 1 + (int)std::count(stage->shape.begin(), stage->shape.end(), ',');
    std::vector<int64_t> dims, strides;
    if (stage->shape[0] == 'N') {
        // A whole cache. A cache that is written one element per row is transposed: cells fastest.
        const int64_t width = ggml_nelements(t) / taps.cells, head = width / taps.kv_heads;
        const bool transposed = t->ne[0] == 1;
        dims = {taps.keys, taps.kv_heads, head};
        strides = {transposed ? 1 : width, head * (transposed ? taps.cells : 1), transposed ? taps.cells : 1};
    } else {
        for (int axis = ndim - 1; axis >= 0; axis--) {
            dims.push_back(t->ne[axis]);
            strides.push_back((int64_t)t->nb[axis] / size);
        }
        if (stage->shape.back() == 'N') {
            dims.back() = taps.keys; // keys are padded
        }
    }
    const ggml_tensor *owner = t->view_src ? t->view_src : t;
    const void *data = t->data;
    if (owner->buffer && !ggml_backend_buffer_is_host(owner->buffer)) {
        taps.fetched.resize(ggml_nbytes(t));
        ggml_backend_tensor_get(t, taps.fetched.data(), 0, taps.fetched.size());
        data = taps.fetched.data();
    }
    QDIFF_TAP(taps.qd, stage->name.c_str(), layer, data, types.at(t->type), ndim, dims.data(), strides.data());
    return true;
}

// The arithmetic, as JSON: the formats to which this ggml converts activations for the weights of the file, and the KV cache.
static std::string arithmetic(const char *model, ggml_type kv, bool on_gpu) {
    gguf_context *file = gguf_init_from_file(model, {true, nullptr});
    std::set<ggml_type> types;
    for (int64_t i = file ? gguf_get_n_tensors(file) : 0; i-- > 0;) {
        types.insert(gguf_get_tensor_type(file, i));
    }
    gguf_free(file);
    std::string rules;
    if (on_gpu) {
        // ggml-cuda: mmvq.cu for up to 8 tokens, mmq.cu for more, whose sums some formats want; fattn-mma-f16.cuh.
        const std::set<ggml_type> plain = {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16};
        const std::set<ggml_type> summed = {GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_1, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K};
        for (ggml_type type : types) {
            if (!plain.count(type)) {
                const std::string weights = std::string("{\"weights\": \"") + ggml_type_name(type) + "\", ";
                rules += (rules.empty() ? "" : ", ") + weights + "\"up_to\": 8, \"activations\": \"q8_1_mmvq\"}, " + weights +
                         "\"activations\": \"q8_1_mmq_" + (summed.count(type) ? "ds4" : "d4") + "\"}";
            }
        }
        return "\"arithmetic\": {\"linear\": [" + rules + "], \"attention\": [{\"scores\": \"f16\", \"context\": \"f16\", " +
               "\"accumulation\": \"f16\"}], \"functions\": \"fast\", \"kv\": \"" + ggml_type_name(kv) + "\"}";
    }
    for (ggml_type type : types) {
        const ggml_type dot = ggml_get_type_traits_cpu(type)->vec_dot_type;
        if (dot != GGML_TYPE_F32) {
            rules += std::string(rules.empty() ? "" : ", ") + "{\"weights\": \"" + ggml_type_name(type) +
                     "\", \"activations\": \"" + ggml_type_name(dot) + "\"}";
        }
    }
    const std::string name = ggml_type_name(kv);
    // Queries and attention weights are multiplied with cached rows, as activations are with weights.
    const std::string rule =
        kv == GGML_TYPE_F32 ? "" : "{\"scores\": \"" + name + "\", \"context\": \"" + name + "\"}";
    return "\"arithmetic\": {\"linear\": [" + rules + "], \"attention\": [" + rule + "], \"kv\": \"" + name + "\"}";
}

static std::vector<int32_t> ids(const char *path) {
    std::ifstream file(path);
    return {std::istream_iterator<int32_t>(file), std::istream_iterator<int32_t>()};
}

int main(int argc, char **argv) {
    const std::map<std::string, llama_split_mode> splits = {
        {"none", LLAMA_SPLIT_MODE_NONE}, {"layer", LLAMA_SPLIT_MODE_LAYER},
        {"row", LLAMA_SPLIT_MODE_ROW}, {"tensor", LLAMA_SPLIT_MODE_TENSOR}};
    const bool on_gpu = argc == 7;
    if ((argc != 6 && !on_gpu) || (on_gpu && !splits.count(argv[6]))) {
        die("usage: llama_tap MODEL STAGES TOKENS DECODED f32|f16|bf16 [none|layer|row|tensor]");
    }
    const std::map<std::string, ggml_type> numbers = {
        {"f32", GGML_TYPE_F32}, {"f16", GGML_TYPE_F16}, {"bf16", GGML_TYPE_BF16}};
    const std::vector<int32_t> prompt = ids(argv[3]), decoded = ids(argv[4]);
    if (!numbers.count(argv[5]) || prompt.empty()) {
        die("the KV cache is f32, f16 or bf16, and TOKENS names at least one token");
    }
    const ggml_type kv = numbers.at(argv[5]);
    llama_log_set([](ggml_log_level level, const char *text, void *) {
        if (level == GGML_LOG_LEVEL_ERROR) {
            fputs(text, stderr);
        }
    }, nullptr);
    llama_backend_init();

    ggml_backend_dev_t cpu_alone[] = {nullptr};
    llama_model_params how = llama_model_default_params();
    how.devices = on_gpu ? nullptr : cpu_alone;
    how.n_gpu_layers = on_gpu ? 999 : 0;
    how.split_mode = on_gpu ? splits.at(argv[6]) : how.split_mode;
    how.use_extra_bufts = false; // repacked weights are multiplied by other kernels, with other activations
    llama_model *model = llama_model_load_from_file(argv[1], how);
    if (!model) {
        die(std::string("llama.cpp cannot load ") + argv[1]);
    }
    const std::string declared = arithmetic(argv[1], kv, on_gpu), name = on_gpu ? std::string("llama.cpp, split ") + argv[6] : "llama.cpp";
    Taps taps = {stages(argv[2]), QDIFF_BEGIN_WITH(name.c_str(), declared.c_str()), 0, 0, llama_model_n_head_kv(model), {}};
    taps.stages["kqv_out RESHAPE"] = taps.stages.at("kqv_out CONT"); // of flash attention
    llama_context_params params = llama_context_default_params();
    params.n_ctx = (uint32_t)(prompt.size() + decoded.size());
    params.n_batch = params.n_ubatch = params.n_outputs_max = (uint32_t)prompt.size(); // the prompt in one step
    // Flash attention shows neither scores nor weights.
    params.flash_attn_type = on_gpu ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.type_k = params.type_v = kv;
    params.cb_eval = callback;
    params.cb_eval_user_data = &taps;
    llama_context *context = llama_init_from_model(model, params);
    if (!taps.qd || !context) {
        die(taps.qd ? "llama.cpp cannot make a context" : "QDIFF_DUMP does not name the folder to dump to");
    }
    taps.cells = llama_n_ctx(context);

    std::vector<std::vector<int32_t>> steps = {prompt};
    for (int32_t id : decoded) {
        steps.push_back({id});
    }
    for (const std::vector<int32_t> &tokens : steps) {
        const int first = (int)taps.keys;
        llama_batch batch = llama_batch_init((int32_t)tokens.size(), 0, 1);
        for (int32_t id : tokens) {
            const int i = batch.n_tokens++;
            batch.token[i] = id;
            batch.pos[i] = first + i;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i] = 1; // else the last layer drops this row after attention
        }
        taps.keys += batch.n_tokens;
        QDIFF_STEP(taps.qd, first, tokens.data(), tokens.size());
        if (llama_decode(context, batch) != 0) {
            die("llama.cpp failed at position " + std::to_string(first));
        }
        llama_batch_free(batch);
    }
    QDIFF_END(taps.qd);
    llama_free(context);
    llama_model_free(model);
}
