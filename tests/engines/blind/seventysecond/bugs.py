"""The bugs of the seventy-second round: patches of qdiff's CUDA kernels, as the sixty-eighth's. Cut short: 8 of 20, see result.md."""

MODELS = {
    "q3": "--arch qwen3 --weights F32",
    "moe": "--arch qwen3moe --weights F32",
    "q35": "--arch qwen35 --weights F32",
}
PLANS = {
    "all": ("9,6+11,1+1+8@0,4+1+1,1~3+1+1,3x1+1+1", 54),
    "plain": ("10+7,3+1+13,4x1+1+1", 46),
    "states": ("9+5,6+3+11,1+1+1,4+1+2,1~3+1+1,2x1+1+1", 53),
}


def bug(name, model, plan, *changes, more=""):
    sequences, length = PLANS[plan]
    run = f"--prompt long --length {length} --sequences {sequences} --color never{more}"
    return {"name": name, "model": model, "plan": plan, "run": run, "subject": "cuda", "changes": list(changes)}


ALONE = """
    auto alone = [&](int t) {
        if (!p.batch.starts) return p.tokens == 1;
        return (t == 0 || p.batch.starts[t - 1] != p.batch.starts[t]) && (t + 1 == p.tokens || p.batch.starts[t + 1] != p.batch.starts[t]);
    };
"""
KV_HEAD = "    if (i >= p.tokens * p.width) return;\n"
KV_STORE = "Kv::store(p.rows + i, "
BUGS = [
    # ---- always
    bug("a1-row-position", "q3", "plain", ("rope.cu", "(float)p.batch.position(p.first, t)", "(float)(p.batch.position(p.first, 0) + t)")),
    bug("a2-first-table", "q3", "all", ("attn_scores.cu", "p.batch.slot(t, n)", "p.batch.slot(0, n)")),
    bug("a3-first-decay", "q35", "states", ("delta_net.cu", "const float decay = expf(p.g[at]);", "const float decay = t == 0 ? 1.0f : expf(p.g[at]);")),
    bug("a4-window-off", "q35", "plain", ("window.cu", "const int from = r + p.tokens;", "const int from = r + p.tokens - 1;")),
    # ---- under a condition
    bug("c1-mask-wide", "q3", "all", ("attn_weights.cu", "p.batch.position(p.first, t) + 1)", "p.batch.position(p.first, t) + 1 + (p.tokens > 8 ? 1 : 0))")),
    bug("c2-conv-decode", "q35", "states", ("convolution.cu", "row < past ? p.before[(size_t)row * p.n + c]", "row < past ? p.before[(size_t)(p.count == p.n ? past - 1 - row : row) * p.n + c]")),
    bug("c3-experts-of-first", "moe", "all", ("expert_linear.cu", "place_of(p.chosen[line], p.experts)", "place_of(p.chosen[p.lines_of_row > 1 && gridDim.x / blocks > 8 * p.lines_of_row ? line % p.lines_of_row : line], p.experts)")),
    bug("c4-q8-row-before", "q3", "all", ("kv_cache.cu", KV_HEAD, KV_HEAD + ALONE + "    const int t = i / p.width, of = t > 0 && alone(t) ? i - p.width : i;\n"), ("kv_cache.cu", KV_STORE, "Kv::store(p.rows + of, "), more=" --kv-type q8_0"),
]
