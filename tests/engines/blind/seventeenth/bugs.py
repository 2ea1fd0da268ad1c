"""Twenty bugs: the model (options of `qdiff synth`), the run (options of `qdiff run`), the engine's options, and the changes of its text.
BASE, in the clean engine too: one format more, MXFP4."""
BASE = [
    ("gguf", "# By ggml's number", '''def mxfp4(b):
    """32 weights: a byte of exponent, and sixteen bytes of nibbles; the table is doubled, the exponent one less."""
    table = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], F)
    low, high = b[:, 1:] & 15, b[:, 1:] >> 4
    return np.ldexp(F(1), b[:, :1].astype(int) - 128).astype(F) * table[np.concatenate([low, high], 1)]


# By ggml's number'''),
    ("gguf", "         30: (1, 2, bf16)}", "         30: (1, 2, bf16), 39: (32, 17, mxfp4)}"),
]
DOWN = 'out = tap("ffn_down", tap("ffn_act", silu(gate) * up, l) @ w[p + "ffn_down.weight"].T, l)'

BUGS = {
    # Common kinds.
    "final-eps": dict(  # the last norm is made without the file's epsilon, and takes the default of its class
        model="--arch qwen2 --weights q8_0 --eps 0.001 --seed 1701", run="--length 19 -n 4",
        changes=[("model", 'norm(x, w["output_norm.weight"], c.eps)', 'norm(x, w["output_norm.weight"], F(1e-5))')]),
    "gemv-tail": dict(  # the product of one row takes 128 columns at a time, and leaves out what is left over
        model="--arch qwen2 --ffn 544 --weights q8_0 --seed 1702", run="--length 17 -n 5",
        changes=[("model", DOWN, '''act = tap("ffn_act", silu(gate) * up, l)
                whole = act.shape[1] - (act.shape[1] % 128 if run.decode else 0)
                out = tap("ffn_down", act[:, :whole] @ w[p + "ffn_down.weight"][:, :whole].T, l)''')]),
    "graph-positions": dict(  # a graph of a decode step keeps the positions of the step that it was recorded of
        model="--arch qwen3 --weights f16 --seed 1703", run="--length 15 -n 6",
        changes=[("ferry", "self.tokens[:n], self.positions[:n], self.slots[:n] = tokens, positions, slots",
                  "self.positions[:n] = self.positions[:n] if self.used else positions\n        self.tokens[:n], self.slots[:n] = tokens, slots")]),
    "mask-top-left": dict(  # the causal mask begins at the first key, and not where the queries stand
        model="--arch qwen2 --heads 4 --kv-heads 4 --layers 3 --weights bf16 --seed 1704", run="--length 27 --passes 12,9,6 -n 3",
        changes=[("model", "attend.prefill(*args, first, min(", "attend.prefill(*args, 0, min(")]),
    "gqa-values": dict(  # the decode kernel takes the value head by remainder
        model="--arch qwen2 --heads 8 --kv-heads 2 --weights q8_0 --seed 1705", run="--length 14 -n 5",
        changes=[("model", "attend.decode(*args)", "attend.decode(*args[:2], np.tile(values.transpose(1, 0, 2), (c.heads // c.groups, 1, 1)), scale)")]),
    "scale-of-width": dict(  # the scale is of width / heads, which is not the width of a head
        model="--arch qwen3 --head-dim 128 --heads 4 --kv-heads 2 --weights q4_0 --seed 1706", run="--length 18 --ubatch 11 -n 3",
        changes=[("model", "scale = F(1 / np.sqrt(c.dim))", "scale = F(1 / np.sqrt(c.width // c.heads))")]),
    "bias-tail": dict(  # the kernel of the bias takes four rows at a time; those left over get none
        model="--arch qwen2 --layers 3 --heads 6 --kv-heads 3 --embedding 192 --head-dim 32 --weights q8_0 --seed 1707", run="--length 23 --passes 14,9 -n 4",
        changes=[("model", "    for at in range(whole, len(x)):\n        y[at] += b\n", "")]),
    "q5_0-shift": dict(  # fifth bits of the second half: shifted by 12, as where a mask follows, and not by 16
        model="--arch qwen3 --layers 3 --weights q8_0 --tensor blk.1.attn_v.weight=q5_0 --tensor blk.1.ffn_down.weight=q5_0 --tensor blk.2.attn_v.weight=q5_0 --tensor blk.2.ffn_down.weight=q5_0 --seed 1708", run="--length 16 -n 3",
        changes=[("gguf", 'view("<u4") >> np.arange(32, dtype=np.uint32) & 1', 'view("<u4") >> np.r_[:16, 12:28].astype(np.uint32) & 1')]),
    "p-bf16": dict(  # a prefill rounds the exponentials of a tile to bf16 before they meet the values
        model="--arch qwen3 --weights q8_0 --seed 1709", run="--length 26 -n 3",
        changes=[("attend", "sums[:, q0:q1] * less[:, :, None] + e @ v[:, k0:k1]",
                  'sums[:, q0:q1] * less[:, :, None] + ((e.view("u4") + 0x7fff + (e.view("u4") >> 16 & 1)).astype("u4") & 0xffff0000).astype("u4").view(F) @ v[:, k0:k1]')]),
    "head-tied": dict(  # the loader always ties: it takes the embedding as the output matrix
        model="--arch qwen2 --vocab 500 --weights bf16 --seed 1710", run="--length 13 -n 3",
        changes=[("model", 'w.get("output.weight", w["token_embd.weight"])', 'w["token_embd.weight"]')]),
    # Rarer kinds.
    "vocab-shard": dict(  # two shards, padded to 64 rows: the loader cuts the second at its padded start, the look-up at the unpadded one
        model="--arch qwen3 --vocab 500 --weights q8_0 --seed 1711", run="--tokens 5,301,249,250,17,499,340,88,412,251,480,100,33,270,495,7 -n 3",
        changes=[("model", 'x = tap("embed", w["token_embd.weight"][run.tokens])', '''shard = -(-len(w["token_embd.weight"]) // 2)
        padded = -(-shard // 64) * 64
        rows = np.where(run.tokens < shard, run.tokens, run.tokens - shard + padded)
        x = tap("embed", np.concatenate([w["token_embd.weight"], np.zeros((64, c.width), F)])[rows])''')]),
    "late-table": dict(  # the first token of a page is written before the table has the page: into the page before
        model="--arch qwen3 --weights q8_0 --seed 1712", run="--length 13 -n 14 --kv-type f16", engine="--kv f16",
        changes=[("ferry", "self.tokens, self.positions, self.slots = engine.buffers.fill(tokens, positions, slots)",
                  '''slots = np.array([pages.table[s][max(p - 1, 0) // PAGE] * PAGE + p % PAGE for s, p in zip(sequences, positions)])
            self.tokens, self.positions, self.slots = engine.buffers.fill(tokens, positions, slots)''')]),
    "topk-power": dict(  # the kernel of the choice takes the largest power of two of experts
        model="--arch qwen3moe --set expert_count=12 --set expert_used_count=3 --weights q8_0 --seed 1713", run="--length 18 -n 4",
        changes=[("model", "chosen = np.argsort(-probs, -1", "chosen = np.argsort(-probs[:, :1 << c.experts.bit_length() - 1], -1")]),
    "mxfp4-pairs": dict(  # nibbles in the order of the published checkpoint: two neighbours in a byte
        model="--arch qwen3moe --weights q8_0 " + " ".join(f"--tensor blk.{l}.ffn_{m}_exps.weight=mxfp4" for l in (0, 1) for m in ("gate", "up", "down")) + " --seed 1714",
        run="--length 15 -n 3",
        changes=[("gguf", "table[np.concatenate([low, high], 1)]", "table[np.stack([low, high], 2).reshape(-1, 32)]")]),
    "delta-order": dict(  # what the memory holds at the key is read before the memory decays
        model="--arch qwen35 --layers 4 --weights q8_0 --seed 1715", run="--length 17 --passes 9,8 -n 3",
        changes=[("model", '''                m = m * np.exp(decay[t])[:, None, None]
                delta = (v[t] - (m @ key[:, :, None])[:, :, 0]) * beta[t][:, None]
''', '''                delta = (v[t] - (m @ key[:, :, None])[:, :, 0]) * beta[t][:, None]
                m = m * np.exp(decay[t])[:, None, None]
''')]),
    "norm-of-all-heads": dict(  # the norm of queries and keys takes the mean square of all heads at once
        model="--arch qwen3 --heads 6 --kv-heads 2 --embedding 192 --head-dim 64 --weights f16 --seed 1716", run="--length 16 -n 3",
        changes=[("model", 'q = norm(q, w[p + "attn_q_norm.weight"], c.eps)', 'q = norm(q.reshape(n, -1), np.tile(w[p + "attn_q_norm.weight"], c.heads), c.eps).reshape(q.shape)'),
                 ("model", 'k = norm(k, w[p + "attn_k_norm.weight"], c.eps)', 'k = norm(k.reshape(n, -1), np.tile(w[p + "attn_k_norm.weight"], c.groups), c.eps).reshape(k.shape)')]),
    "glu-pairs": dict(  # the fused product of gate and up is read as if their columns alternated
        model="--arch qwen2 --ffn 384 --weights q8_0 --seed 1717", run="--length 15 -n 3",
        changes=[("model", DOWN, '''both = np.concatenate([gate, up], 1)
                out = tap("ffn_down", tap("ffn_act", silu(both[:, 0::2]) * both[:, 1::2], l) @ w[p + "ffn_down.weight"].T, l)''')]),
    "yarn-unrounded": dict(  # the ends of YaRN's ramp are not rounded to whole pairs
        model="--arch qwen3 --head-dim 128 --heads 4 --kv-heads 2 --context 8192 --rope-base 10000 --set rope.scaling.type=yarn --set rope.scaling.factor=4.0 --set rope.scaling.original_context_length=2048 --weights q8_0 --seed 1718",
        run="--length 30 --passes 18,12 -n 3",
        changes=[("model", "max(0, np.floor(pair(32))), min(c.rotated - 1, np.ceil(pair(1)))", "max(0, pair(32)), min(c.rotated - 1, pair(1))")]),
    "split-total": dict(  # splits of the keys: the total so far is not rescaled when a later split has a larger maximum
        model="--arch qwen2 --layers 2 --heads 4 --kv-heads 1 --weights q8_0 --seed 1719", run="--length 38 -n 5",
        changes=[("attend", "total = total * less + e.sum(-1)", "total = total + e.sum(-1)")]),
    "residual-twice": dict(  # the fused reduce of small messages adds the residual on each of two ranks
        model="--arch qwen3 --layers 3 --weights q8_0 --seed 1720", run="--length 14 --ubatch 8 -n 4",
        changes=[("model", 'x = tap("layer_out", x + out, l)', 'x = tap("layer_out", x + out + (x if run.decode else F(0)), l)')]),
}
