"""The bugs. Fields of the key: stage (which is wrong first), where, cause, also (what counts as right too). `changes` are (file, old, new)."""

MODELS = {
    "qwen2": "--arch qwen2 --weights Q8_0",
    "qwen2-one": "--arch qwen2 --weights Q8_0 --layers 1",
    "qwen2-q4k": "--arch qwen2 --weights Q8_0 --tensor blk.1.ffn_down.weight=Q4_K",
    "qwen2-320": "--arch qwen2 --weights Q8_0 --embedding 320 --heads 5 --kv-heads 1 --ffn 320",
    "qwen3": "--arch qwen3 --weights F32 --heads 6 --kv-heads 2 --head-dim 32",
    "qwen3-one": "--arch qwen3 --weights F32 --layers 1 --heads 2 --kv-heads 1 --head-dim 32 --embedding 64 --ffn 64",
    "moe": "--arch qwen3moe --weights Q8_0",
    "qwen35": "--arch qwen35 --weights F16",
}

BUGS = []


def bug(name, model, run, stage, where, cause, also, *changes, kv="", slots=False):
    BUGS.append(dict(name=name, model=model, run=run, subject="", kv=kv, slots=slots, stage=stage, where=where, cause=cause, also=also, changes=changes))


bug("t01", "qwen2", "check", "k_cache, layer 0", "positions of a copied page, in a sequence that shares a prefix ending within a page",
    "Copying a shared page of the q8_0 cache before writing omits the blocks' scales.", "scales stale after copy on write",
    ("store.py", "for held in (self.codes, self.scale, self.offset):", "for held in (self.codes, self.offset):"), kv="q8_0")
bug("t02", "qwen2", "check", "v_cache, layer 0", "positions of a copied page, in a sequence that shares a prefix ending within a page",
    "Copying a shared page before writing copies keys only, not values.", "values of the page not copied on write",
    ("model.py", "for cache in (self.k, self.v):", "for cache in (self.k,):"))
bug("t03", "qwen35", "check", "conv_state or conv_out, layer 0", "the first steps after tokens are taken back",
    "Taking tokens back goes to the recurrent state one token too early.", "state is of kept - 1 tokens",
    ("pages.py", "for row in self.rows[sequence][kept + 1:]:", "for row in self.rows[sequence][kept:]:"),
    ("pages.py", "del self.rows[sequence][kept + 1:]", "del self.rows[sequence][kept:]"))
bug("t04", "qwen2", "check", "attn_context, layer 0", "decode batches whose order by length is not its own inverse",
    "Contexts of a decode batch sorted by length go back by the inverse permutation, so to the wrong sequences' rows.", "rows of sequences exchanged",
    ("model.py", "context[run.batch_place] = ", "context[np.argsort(run.batch_place)] = "))
bug("t05", "qwen2", "", "q_rope, layer 0", "all positions but 0, all pairs but the first",
    "RoPE's exponents are i / (half - 1) instead of i / half.", "wrong frequencies",
    ("model.py", "(-np.arange(half) / half)", "(-np.arange(half) / (half - 1))"))
bug("t06", "qwen35", "", "delta_state, layer 0", "value heads whose key head changes",
    "Value heads take key heads in runs (h // ratio) instead of in turn (h % key heads).", "wrong key head for a value head",
    ("model.py", "np.arange(c.value_heads) % c.key_heads", "np.arange(c.value_heads) // (c.value_heads // c.key_heads)"))
bug("t07", "moe", "", "router_shares, layer 0", "all rows", "The chosen experts' weights are not divided by their sum.", "shares not normalised",
    ("model.py", "weights / weights.sum(-1, keepdims=True), l)\n        # Lines", "weights, l)\n        # Lines"))
bug("t08", "qwen2-q4k", "", "ffn_down, layer 1", "all rows", "Q4_K minima of sub-blocks 4 to 7 take their upper two bits from the scales' bytes.", "minima of Q4_K decoded wrongly",
    ("gguf.py", "(s[:, j + 4] >> 4) | (s[:, j] >> 6) << 4", "(s[:, j + 4] >> 4) | (s[:, j - 4] >> 6) << 4"))
