"""The 40 bugs: what is changed where, what a right cause must say, on which public bug it is modelled, and the run that judges it."""

MODELS = {
    # name: options of `qdiff synth`
    "f32-100": "--weights F32 --layers 2 --embedding 100 --heads 5 --kv-heads 1 --head-dim 20 --ffn 200",
    "f32-120": "--weights F32 --layers 2 --embedding 120 --heads 5 --kv-heads 1 --head-dim 24 --ffn 200",
    "q3-q4k": "--arch qwen3 --weights Q4_K --layers 2 --embedding 256 --heads 8 --kv-heads 2 --head-dim 64 --ffn 768",
    "q8-192": "--weights Q8_0 --layers 3 --embedding 192 --heads 6 --kv-heads 3 --head-dim 32 --ffn 416 --tied",
    "q3-f16": "--arch qwen3 --weights F16 --layers 2 --embedding 160 --heads 5 --kv-heads 5 --head-dim 48 --ffn 360 --vocab 1000",
    "q4-224": "--weights Q4_0 --layers 2 --embedding 224 --heads 7 --kv-heads 1 --head-dim 32 --ffn 544 --seed 3",
    # of the kernels
    "k-320": "--weights Q8_0 --layers 2 --embedding 320 --heads 5 --kv-heads 1 --head-dim 64 --ffn 512",
    "k-yarn": "--weights Q8_0 --layers 2 --embedding 128 --heads 4 --kv-heads 2 --head-dim 32 --ffn 256 --set rope.scaling.type=yarn "
              "--set rope.scaling.factor=4.0 --set rope.scaling.original_context_length=256",
    "k-q6k": "--weights Q6_K --layers 2 --embedding 256 --heads 4 --kv-heads 2 --head-dim 64 --ffn 512 --vocab 700",
    "k-g4": "--weights Q8_0 --layers 2 --embedding 256 --heads 8 --kv-heads 4 --head-dim 32 --ffn 256",
    "k-g2": "--weights Q8_0 --layers 2 --embedding 128 --heads 4 --kv-heads 2 --head-dim 32 --ffn 256",
    "k-d48": "--weights F16 --layers 2 --embedding 192 --heads 4 --kv-heads 2 --head-dim 48 --ffn 320",
    "k-d128": "--weights Q8_0 --layers 2 --embedding 256 --heads 2 --kv-heads 1 --head-dim 128 --ffn 256",
    "k-d64": "--weights Q8_0 --layers 2 --embedding 256 --heads 4 --kv-heads 2 --head-dim 64 --ffn 256",
    "k-f768": "--weights Q4_K --layers 2 --embedding 256 --heads 4 --kv-heads 2 --head-dim 64 --ffn 768",
    "k-f544": "--weights Q8_0 --layers 2 --embedding 192 --heads 6 --kv-heads 2 --head-dim 32 --ffn 544",
}

BUGS = []


def bug(name, model, run, link, key, *changes, kv=None, subject=None):
    BUGS.append(dict(name=name, model=model, run=run, link=link, key=key, changes=changes, kv=kv, subject=subject))


G = "https://github.com/"

# ---------------------------------------------------------------- the engine of this folder
bug("e01-embed-pairs", "q4-224", "--prompt code --raw --length 40 -n 2", G + "amd/IRON/pull/198",
    "Embed: the row is unpacked by whole pairs of 32-weight blocks only, so the last odd block, columns 192..223 of 224, is never written and is 0, for all tokens in all steps.",
    ("gemm.h",
     "inline void unpack_row(const Matrix &m, int r, float *y) { unpack(m.row[r].type, m.row[r].data, 0, m.cols, y); }",
     "inline void unpack_row(const Matrix &m, int r, float *y) {\n    for (int at = 0; at + 64 <= m.cols; at += 64) unpack(m.row[r].type, m.row[r].data, at, 64, y + at);\n}"))
bug("e02-head-norm-eps", "q3-f16", "--prompt code --raw --length 40 -n 2", G + "Wenyueh/MinivLLM/pull/82",
    "q_normed and k_normed, all layers, positions and heads: the epsilon of the norms of heads is 1e-5 and not the file's 1e-6 (the other norms have the right one).",
    ("engine.cpp", "rms_norm(q.data(), a.q_norm.data(), q.data(), T * H, D, m.eps);", "rms_norm(q.data(), a.q_norm.data(), q.data(), T * H, D, 1e-5f);"),
    ("engine.cpp", "rms_norm(k.data(), a.k_norm.data(), k.data(), T * G, D, m.eps);", "rms_norm(k.data(), a.k_norm.data(), k.data(), T * G, D, 1e-5f);"))
bug("e03-norm-remainder", "f32-100", "--prompt code --raw --length 40 -n 2", G + "OpenNMT/CTranslate2/issues/351",
    "attn_norm, ffn_norm, final_norm, all rows: the mean of squares is wrong: the remainder of 4 elements (100 = 12*8+4) is added as a whole vector of 8, whose upper 4 lanes still hold elements 92..95, which so count twice (the sum is still divided by 100).",
    ("ops.h",
     "    int i = 0;\n    for (; i + LANES <= n; i += LANES) {\n        for (int j = 0; j < LANES; j++) lane[j] += x[i + j] * x[i + j];\n    }\n    float sum = 0.0f;\n    for (; i < n; i++) sum += x[i] * x[i];\n",
     "    float v[LANES] = {};\n    for (int i = 0; i < n; i += LANES) {\n        std::memcpy(v, x + i, sizeof(float) * std::min(LANES, n - i));\n        for (int j = 0; j < LANES; j++) lane[j] += v[j] * v[j];\n    }\n    float sum = 0.0f;\n"))
bug("e04-bias-chunk", "f32-120", "--prompt code --raw --length 40 -n 2", G + "mirage-project/mirage/issues/397",
    "q/k/v_biased, all rows: of each 32 columns of the fused q|k|v row (120+24+24) only the first 8 get their bias, the other 24 get none: the chunks of the bias are put into rows of the buffer of which only the first is read. In q: columns with c%32 < 8; in k: columns 8..15 ((120+c)%32<8); in v: columns 16..23.",
    ("ops.h", "        for (int i = 0; i < n; i++) row[i] += b[i];\n",
     "        for (int n0 = 0; n0 < n; n0 += 32) {\n            float tile[4][32] = {};\n            const int nt = std::min(32, n - n0);\n            for (int i = 0; i < nt; i++) tile[i / 8][i % 8] = b[n0 + i];\n            for (int i = 0; i < nt; i++) row[n0 + i] += tile[0][i];\n        }\n"))
bug("e05-qkv-by-groups", "q8-192", "--prompt code --raw --length 24 -n 2", G + "epfLLM/Megatron-LLM/pull/45",
    "q_rope, k_rope and v_cache (their inputs are the biased projections), all layers and rows: the fused row, which is q|k|v, is split as if it were by groups of heads (2 queries, a key, a value, for each of 3 groups), so most heads are those of other columns of the fused row (heads q 0..5, k 6..8, v 9..11): queries 2,3 are q heads 4,5; queries 4,5 are k head 2 and v head 0; keys 0,1,2 are q head 2, k head 0, v head 1; values 0,1 are q head 3 and k head 1; queries 0,1 and value 2 are right.",
    ("ops.h", "inline void split_qkv(const float *qkv, int T, int qw, int kw, float *q, float *k, float *v) {\n    const int w = qw + 2 * kw;\n    for (int t = 0; t < T; t++) {\n        const float *row = qkv + (size_t)t * w;\n        std::memcpy(q + (size_t)t * qw, row, sizeof(float) * qw);\n        std::memcpy(k + (size_t)t * kw, row + qw, sizeof(float) * kw);\n        std::memcpy(v + (size_t)t * kw, row + qw + kw, sizeof(float) * kw);\n    }\n}",
     "inline void split_qkv(const float *qkv, int T, int qw, int kw, float *q, float *k, float *v, int groups) {\n    const int w = qw + 2 * kw, dim = kw / groups, of_group = qw / groups;\n    for (int t = 0; t < T; t++) {\n        for (int g = 0; g < groups; g++) {\n            const float *row = qkv + (size_t)t * w + (size_t)g * (of_group + 2 * dim);\n            std::memcpy(q + (size_t)t * qw + (size_t)g * of_group, row, sizeof(float) * of_group);\n            std::memcpy(k + (size_t)t * kw + (size_t)g * dim, row + of_group, sizeof(float) * dim);\n            std::memcpy(v + (size_t)t * kw + (size_t)g * dim, row + of_group + dim, sizeof(float) * dim);\n        }\n    }\n}"),
    ("engine.cpp", "split_qkv(qkv.data(), T, QW, KW, q.data(), k.data(), v.data());", "split_qkv(qkv.data(), T, QW, KW, q.data(), k.data(), v.data(), G);"))
bug("e06-rope-bf16-frequency", "q3-q4k", "--prompt long --raw --length 100 -n 2", G + "sgl-project/sglang-jax/issues/1472",
    "q_rope and k_rope, all layers, positions from 1 on: the rotary frequencies are rounded to bf16 before they are multiplied by the position (angles, sines and cosines are not rounded).",
    ("ops.h", "            const double frequency = std::pow((double)base, -2.0 * i / dim);\n",
     "            const float exact = (float)std::pow((double)base, -2.0 * i / dim);\n            uint32_t bits;\n            std::memcpy(&bits, &exact, 4);\n            bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;\n            float frequency;\n            std::memcpy(&frequency, &bits, 4);\n"))
bug("e07-rope-seen-early", "q8-192", "--prompt code --raw --length 20 -n 3", G + "fla-org/flash-linear-attention/issues/766",
    "q_rope and k_rope of the decode steps, in layers from 1 on: rotated by position + 1 (layer 0 has already counted the token); layer 0 and the prefill are right.",
    ("engine.cpp", "    int position = 0;\n", "    int position = 0, seen = 0;\n"),
    ("engine.cpp", "            rotate(q.data(), m.rope, T, H, D, first);\n            rotate(k.data(), m.rope, T, G, D, first);\n",
     "            rotate(q.data(), m.rope, T, H, D, T == 1 ? seen : first);\n            rotate(k.data(), m.rope, T, G, D, T == 1 ? seen : first);\n"),
    ("engine.cpp", "            cache.write(l, k.data(), v.data(), first, T);\n", "            cache.write(l, k.data(), v.data(), first, T);\n            if (l == 0) seen += T;\n"))
bug("e08-rope-page-start", "q8-192", "--prompt code --raw --length 45 --passes 10,20,15 -n 2", G + "vllm-project/vllm-metal/pull/144",
    "q_rope and k_rope of the later parts of the prompt, all layers: the part is rotated as if it began at the page's begin, i.e. positions are less by (first of the part) % 16: 10 less in positions 10..29, 14 less in positions 30..44. The first part and decode steps are right.",
    ("engine.cpp", "            rotate(q.data(), m.rope, T, H, D, first);\n            rotate(k.data(), m.rope, T, G, D, first);\n",
     "            const int cached = T > 1 ? first / PAGE * PAGE : first;\n            rotate(q.data(), m.rope, T, H, D, cached);\n            rotate(k.data(), m.rope, T, G, D, cached);\n"))
bug("e09-mask-without-offset", "q8-192", "--prompt code --raw --length 40 --passes 7,9,24 -n 2", G + "gittensor-ai-lab/sparkinfer/issues/3",
    "attn_scores and attn_weights of the later parts of the prompt: a row sees keys up to its index in the part and not up to its position (the cached keys' count is not added): row t of a part sees keys 0..t. First part and decode are right.",
    ("attention.h", "end = std::min(k1, j.first + t + 1);", "end = std::min(k1, t + 1);"))
bug("e10-mask-tile-of-last-query", "q8-192", "--prompt code --raw --length 40 -n 2", G + "Dao-AILab/flash-attention/pull/436",
    "attn_weights (and scores beyond the token, which do not count) of the prefill: a tile (page of 16 keys) is taken without a mask when the last query of the tile of 8 sees it whole, so the earlier queries of that tile also see its keys after them: rows 8..14 see keys to 15, rows 24..30 keys to 31, rows 32..38 keys to 39; rows 0..7, 16..23 and each last row of a tile of 8 are right.",
    ("attention.h", "end = std::min(k1, j.first + t + 1);", "end = k1 - 1 <= last ? k1 : std::min(k1, j.first + t + 1);"))
bug("e11-lse-base-two", "q8-192", "--prompt long --raw --length 60 -n 3", G + "sgl-project/sglang/issues/40903",
    "attn_weights and attn_context of decode steps (keys in more than one split: 2 splits of 32 keys): the log-sum-exp of a split is in base 2 and is put together with the natural exponential: the share of each split of the sum is its right share to the power 1.4427, normalised. Within a split the weights are right relative to each other.",
    ("attention.h", "lse[s] = part[s].most + std::log(part[s].total);", "lse[s] = (part[s].most + std::log(part[s].total)) * 1.44269504f; // for exp2"))
bug("e12-split-floor", "q8-192", "--prompt long --raw --length 132 -n 3", G + "tile-ai/tilelang/pull/2010",
    "attn_scores and attn_weights of decode steps: pages are divided among 4 splits with the quotient rounded down (9 / 4 = 2), so the keys after 4 * 2 pages, from 128 on, belong to no split: their scores and weights are 0 (never made).",
    ("attention.h", "const int each = std::max((pages + SPLITS - 1) / SPLITS, LEAST_PAGES);\n    const int splits = (pages + each - 1) / each;",
     "const int each = std::max(pages / SPLITS, LEAST_PAGES);\n    const int splits = std::min((pages + each - 1) / each, SPLITS);"))
bug("e13-head-tile-over-groups", "q8-192", "--prompt code --raw --length 40 -n 3", G + "FlashML-org/FreeToken/pull/177",
    "attn_scores and attn_context of decode steps: the head of the cache is that of the first query head of a tile of 4 heads, so heads 2 and 3 use keys and values of kv head 0 instead of 1; heads 0, 1, 4, 5 are right.",
    ("attention.h", "const int kv_head = h / group;\n            const float *query = j.q + (size_t)h * j.dim;", "const int kv_head = h0 / group;\n            const float *query = j.q + (size_t)h * j.dim;"))
bug("e14-cache-chunk-page", "q8-192", "--prompt code --raw --length 40 --passes 10,30 -n 2", G + "tenstorrent/tt-metal/issues/54742",
    "k_cache and v_cache: a chunk of 8 tokens of a part is written to the page of its first token, also beyond the page's end: in the part from position 10 on, positions 16, 17 go to slots 0, 1 of page 0 (positions 0, 1 are overwritten by 16, 17; rows 16, 17 are not written), then 32, 33 go to slots 0, 1 of page 1 (positions 16, 17 hold 32, 33; rows 32, 33 are 0).",
    ("cache.h", "page = table[position / PAGE], slot = position % PAGE;", "page = table[(first + t / 8 * 8) / PAGE], slot = position % PAGE;"))
bug("e15-half-carry", "q8-192", "--prompt long --raw --length 120 --kv-type f16 -n 2", G + "Nehanth/swarmllm/issues/28",
    "k_cache and v_cache in f16: where rounding carries the mantissa over to the next power of two and the exponent is odd (lowest bit set) the carry is lost (OR instead of +), and the element is half of what it should be; about one element in 4096, all other elements are right.",
    ("quants.h", "    return (uint16_t)(sign | ((magnitude + 0xfff + odd - 0x38000000u) >> 13));\n",
     "    const uint32_t exponent = (magnitude >> 23) - 112, fraction = magnitude & 0x7fffff;\n    return (uint16_t)(sign | exponent << 10 | (fraction + 0xfff + odd) >> 13);\n"), kv="f16")
bug("e16-up-of-short-run", "f32-100", "--prompt code --raw --length 40 -n 2", G + "ROCm/aiter/pull/4398",
    "ffn_up (and what ffn_act makes of it is then right): gate and up lie in runs of 16 columns; in the last, shorter run (8 columns, 192..199 of 200) up is read 16 and not 8 columns behind gate, i.e. from the next token's row: column 192+i of a token is ffn_gate column i of the next token; in the last row of a pass (and in decode steps) it is 0.",
    ("ops.h", "u = row[2 * r + n + i];", "u = row[2 * r + GU_RUN + i];"))
bug("e17-norm-in-place", "q8-192", "--prompt code --raw --length 20 -n 3", G + "GeeeekExplorer/nano-vllm/issues/170",
    "attn_residual of decode steps, all layers: the norm before attention works in place, so the residual is attn_norm (normed and times the weight) plus attn_out instead of the layer's input plus attn_out; the prefill is right.",
    ("engine.cpp", "            rms_norm(x.data(), a.attn_norm.data(), h.data(), T, E, m.eps);\n            rows(\"attn_norm\"",
     "            if (T == 1) {\n                rms_norm(x.data(), a.attn_norm.data(), x.data(), T, E, m.eps);\n                h = x;\n            } else {\n                rms_norm(x.data(), a.attn_norm.data(), h.data(), T, E, m.eps);\n            }\n            rows(\"attn_norm\""))
bug("e18-logits-of-first-row", "q8-192", "--prompt code --raw --length 30 -n 2", G + "huggingface/transformers/issues/48703",
    "logits of the prefill (its last row): they are made of the final_norm of the first token of the pass instead of the last one's; decode steps are right.",
    ("engine.cpp", "normed.data() + (size_t)(T - 1) * E, sizeof(float) * E", "normed.data(), sizeof(float) * E"))
bug("e19-q4k-min-bits", "q3-q4k", "--prompt code --raw --length 40 -n 2", G + "paiml/trueno/issues/182",
    "Every product with a Q4_K matrix and embed: the minimum of sub-blocks 4..7 of a Q4_K block takes its upper two bits from the byte of the scale (s[j-4]) instead of from s[j]; sub-blocks 0..3 and all scales are right. Elements of embed: columns with c%256 >= 128.",
    ("quants.h", "min = (s[j + 4] >> 4) | (s[j] >> 6) << 4;", "min = (s[j + 4] >> 4) | (s[j - 4] >> 6) << 4;"))
bug("e20-gemv-tail", "f32-100", "--prompt code --raw --length 40 -n 3", G + "tile-ai/tilelang-ascend/issues/1341",
    "Products of one token (decode steps, and the logits, which are always made of one row) with 100 columns (q/k/v_proj, attn_out, ffn_gate, ffn_up, logits): the last 4 terms of the sum, k = 96..99 (100 % 8), are left out; products of many tokens and ffn_down (200 columns) are right.",
    ("gemm.h", "            for (int k = whole; k < depth; k++) rest += x[k0 + k] * piece[k];\n", ""))

# ---------------------------------------------------------------- qdiff's own kernels
TOKENS = "--tokens 40,51,0,77,90,101,12,0,0,33,64,71,80,5,17,0,28,99,110,45"
bug("k01-embed-padding-id", "k-g2", TOKENS + " -n 2", G + "PaddlePaddle/Paddle/issues/62301",
    "embed: rows of token id 0 are 0 (id 0 is taken for padding): positions 2, 7, 8, 15; all others are right.",
    ("embed.cu", "y[32 * g + i] = value[i];", "y[32 * g + i] = p.tokens[blockIdx.x] == 0 ? 0.0f : value[i];"), subject="cuda")
bug("k02-norm-whole-blocks", "k-320", "--prompt code --raw --length 24 -n 2", G + "flashinfer-ai/flashinfer/pull/3879",
    "attn_norm, ffn_norm, final_norm, all rows: the sum of squares is over the first 256 of 320 elements only (whole blocks of threads), and is divided by 320.",
    ("rms_norm.cu", "for (int i = threadIdx.x; i < p.n; i += blockDim.x) squares = fmaf(x[i], x[i], squares);",
     "for (int i = threadIdx.x; i < p.n / (int)blockDim.x * (int)blockDim.x; i += blockDim.x) squares = fmaf(x[i], x[i], squares);"), subject="cuda")
bug("k03-bias-index-of-thread", "k-320", "--prompt code --raw --length 24 -n 2", G + "1bit-MONSTER/1bit-MONSTER/issues/153",
    "q_biased (320 columns), all layers: the bias is that of the index of the thread in its block of 256, i.e. of column (320 t + c) % 256 where t is the row in the pass; k_biased and v_biased (64 columns, a divisor of 256) are right.",
    ("bias.cu", "p.b[i % p.n]", "p.b[threadIdx.x % p.n]"), subject="cuda")
bug("k04-yarn-magnitude", "k-yarn", "--prompt code --raw --length 24 -n 2", G + "turboderp-org/exllamav3/issues/259",
    "q_rope and k_rope, all: the magnitude of YaRN, 0.1 ln 4 + 1 = 1.1386, is not multiplied to sines and cosines (the result is smaller by that factor); frequencies are right.",
    ("rope.cu", "    s *= p.magnitude, c *= p.magnitude;\n", ""), subject="cuda")
bug("k05-cache-truncates", "q8-192", "--prompt code --raw --length 24 --kv-type f16 -n 2", G + "tinygrad/tinygrad/pull/18072",
    "k_cache and v_cache in f16, all rows: values are rounded towards zero and not to the nearest.",
    ("kv_cache.cu", "Kv::put(p.rows[i])", "Kv::put(__uint_as_float(__float_as_uint(p.rows[i]) & 0xffffe000u))"), subject="cuda")
bug("k06-scores-head-tail", "k-d48", "--prompt code --raw --length 24 -n 2", G + "mlc-ai/mlc-llm/pull/1889",
    "attn_scores, all heads, rows and keys: only the first 32 of the 48 elements of a head are multiplied (whole warps), elements 32..47 are left out.",
    ("attn_scores.cu", "for (int i = lane; i < p.d; i += 32) sum", "for (int i = lane; i < p.d / 32 * 32; i += 32) sum"), subject="cuda")
bug("k07-sink-zero", "q8-192", "--prompt code --raw --length 24 -n 2", G + "XPU-Forces/mojo_opset/pull/262",
    "attn_weights, all heads, rows and steps: the denominator has one more term, exp(0 - largest): a sink with a logit of 0 although the model has none.",
    ("attn_weights.cu", "    total = reduce_sum(total);\n", "    total = reduce_sum(total) + expf(0.0f - largest); // and the sink\n"), subject="cuda")
bug("k08-context-key-tail", "q8-192", "--prompt code --raw --length 30 -n 3", G + "amd/IRON/pull/198",
    "attn_context, all heads: the last (seen % 4) keys a row sees are not added (the loop takes four keys at a time and has no rest); rows at positions with (p+1) % 4 == 0 are right.",
    ("attn_context.cu", "        for (; n < seen; n++) sum[0] = fmaf(w[n], Kv::get(v[at(n)]), sum[0]);\n", ""), subject="cuda")
bug("k09-linear-floor-grid", "q8-192", "--prompt code --raw --length 40 --passes 13,7,20 -n 2", G + "Neroued/ninfer/pull/264",
    "All products of a pass of more than 8 tokens (q/k/v_proj, attn_out, ffn_gate, ffn_up, ffn_down, logits): the last tile of 8 tokens is not made if it is not full (grid rounded down): rows 8..12 of the first pass and rows 16..19 of the third hold what was in the buffer; passes of less than 9 tokens and decode are right.",
    ("linear.cu", "    if (o >= p.m) return;\n", "    if (o >= p.m || (first > 0 && first + TOKENS > p.tokens)) return;\n"), subject="cuda")
bug("k10-q6k-unsigned-scale", "k-q6k", "--prompt code --raw --length 24 -n 2", G + "vllm-project/vllm/pull/48926",
    "Every product with a Q6_K matrix and embed: the scale of the second 16 weights of each 32 is read as an unsigned byte, so negative scales become scale + 256; the first 16 of each 32 and positive scales are right.",
    ("blocks.cuh", "__fmul_rn(d, (float)(signed char)(r.scales >> 8))", "__fmul_rn(d, (float)(r.scales >> 8))"), subject="cuda")
bug("k11-total-not-rescaled", "k-g4", "--prompt long --raw --length 90 -n 3", G + "Dao-AILab/flash-attention/pull/2174",
    "attn_weights and attn_context of decode steps (91 keys: tiles 0..63 and 64..): the running denominator is not rescaled when the maximum grows in the second tile; wrong only in heads and steps whose largest score is at a key from 64 on; by a factor common to the row.",
    ("fused/attention.cu", "total[h] = total[h] * less + e;", "total[h] = total[h] + e;"), subject="cuda-fast")
bug("k12-merge-scaled-twice", "k-g2", "--prompt long --raw --length 90 -n 3", G + "HKUSTDial/flash-sparse-attention/pull/106",
    "attn_weights and attn_context of decode steps (two shares of keys: 0..63 and 64..): where shares are put together the difference of their largest scores is multiplied by the scale 1/sqrt(32) once more, so that the share with the smaller maximum counts too much.",
    ("fused/attn_out.cu", "factor[k] = expf(measure[k].x - most);", "factor[k] = expf((measure[k].x - most) * (1.0f / sqrtf((float)D)));"), subject="cuda-fast")
bug("k13-packed-mask", "k-g2", "--prompt code --raw --length 40 -n 2", G + "Dao-AILab/flash-attention/pull/2528",
    "attn_scores and attn_weights of the prefill: the token's index is divided by the heads per kv head (2) once more in the mask: row t sees keys 0..t/2 instead of 0..t; decode is right.",
    ("prefill/attention_rows.cu", "const int t = token[r], last = p.first + t; // the last key that it sees", "const int t = token[r], last = p.first + t / group; // the last key that it sees"),
    ("prefill/attention_rows.cu", "const bool visible = n <= p.first + token[r];", "const bool visible = n <= p.first + token[r] / group;"), subject="cuda-fast")
bug("k14-frequency-of-lane", "k-d128", "--prompt code --raw --length 30 -n 2", G + "1bit-MONSTER/1bit-MONSTER/issues/153",
    "q_rope and k_rope of the prefill: pairs 32..63 of a head (of 64: elements 32..63 and 96..127) are rotated with the frequencies of pairs 0..31 (the index of the lane, not of the pair); pairs 0..31 and decode are right.",
    ("prefill/head_rows.cu", "p.frequency[min(i, D / 2 - 1)]", "p.frequency[min(lane, D / 2 - 1)]"), subject="cuda-fast")
bug("k15-bias-of-tile", "k-d64", "--prompt code --raw --length 24 -n 3", G + "NVIDIA/DeepLearningExamples/issues/664",
    "q/k/v_biased of decode steps: the second half of each head (elements 32..63) gets the bias of the column 16 before its own (a tile, 16, was added instead of half a head, 32); first halves and the prefill are right.",
    ("fused/attn_qkv.cu", "bias_b = bias[b_at];", "bias_b = bias[a_at + TILE];"), subject="cuda-fast")
bug("k16-up-of-first-tile", "k-f768", "--prompt code --raw --length 24 -n 3", G + "ROCm/aiter/pull/4398",
    "ffn_up of decode steps: in every later tile of a block the rows of up are those of the block's first tile: column c has the value of column c % 96 (12 blocks of 8 rows); columns 0..95, gate and the prefill are right.",
    ("fused/ffn_act.cu", "fetch_rows<Gate>(p.up, row0, rows, ROWS, groups, 0, groups, to, Copiers::block());",
     "fetch_rows<Gate>(p.up, first_of(0), rows, ROWS, groups, 0, groups, to, Copiers::block());"), subject="cuda-fast")
bug("k17-half-floor", "k-f544", "--prompt code --raw --length 24 -n 3", G + "ROCm/composable_kernel/pull/3387",
    "ffn_down of decode steps: of the 17 groups of 32 the first half takes 8 and the second the last 8, so the middle group, terms 256..287 of the sum, is left out; the prefill is right.",
    ("fused/half_linear.cu", "Span{0, p.first, all}", "Span{0, all / 2, all}"), subject="cuda-fast")
bug("k18-variance-bf16", "k-d64", "--prompt code --raw --length 24 -n 2", G + "vllm-project/vllm/pull/52151",
    "attn_norm, ffn_norm, final_norm of the prefill: the mean of squares is of elements that are rounded to bf16 first; the elements that are normed are not rounded; each row is off by a factor of its own near 1; decode steps are right.",
    ("prefill/norm_rows.cu", "        squares = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, squares))));\n",
     "        auto brain = [](float e) {\n            const u32 b = __float_as_uint(e);\n            return __uint_as_float((b + 0x7fffu + (b >> 16 & 1)) & 0xffff0000u);\n        };\n        const float4 s = make_float4(brain(v.x), brain(v.y), brain(v.z), brain(v.w));\n        squares = fmaf(s.x, s.x, fmaf(s.y, s.y, fmaf(s.z, s.z, fmaf(s.w, s.w, squares))));\n"), subject="cuda-fast")
bug("k19-logits-tail", "k-g2", "--prompt code --raw --length 24 -n 3", G + "stew675/llama-cpp-rdna-boosts/issues/19",
    "logits of decode steps: ids from 352 on (359 = 22 * 16 + 7: the last tile is not full) are not written and hold what was there; all others and the prefill are right.",
    ("fused/lm_head.cu", "if (threadIdx.x < p.walk.tiles * TILE && row < p.m) p.logits[row]", "if (threadIdx.x < p.walk.tiles * TILE && row < p.m / TILE * TILE) p.logits[row]"), subject="cuda-fast")
bug("k20-scale-of-first-row", "k-d64", "--prompt code --raw --length 40 -n 2", G + "inclusionAI/humming/pull/20",
    "All products of the prefill (q/k/v_proj, attn_out, ffn_gate, ffn_up, ffn_down, logits): the row's scale, a power of two made of its largest magnitude, is taken of the first token of the tile: rows whose own power is another are wrong by a factor of 2, 4, 1/2 and so on, all columns alike; rows with the same power as the tile's first, and decode, are right.",
    ("prefill/products.cu", "const float inverse = p.x.inverse[p.first + t];", "const float inverse = p.x.inverse[p.first + token0];"), subject="cuda-fast")
