"""Twenty bugs: the model (options of `qdiff synth`), the run (options of `qdiff run`), the engine's options, and the changes of its text.
BASE, in the clean engine too: the format IQ4_XS, caches in q4_0, three positions of a pair in Qwen3-VL, and how many tokens are no special ones."""
BASE = [
    ("gguf", "# By ggml's number", '''CODES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], F)


def iq4_xs(b):
    """256 weights: d, 16 bits of high pairs and four bytes of low nibbles of eight scales, 128 bytes of codes."""
    high = np.ascontiguousarray(b[:, 2:4]).view("<u2") >> (2 * np.arange(8, dtype=np.uint16)) & 3
    low = np.stack([b[:, 4:8] & 15, b[:, 4:8] >> 4], 2).reshape(-1, 8)
    scale = f16(b[:, :2]) * ((low | high << 4).astype(F) - 32)
    q = b[:, 8:].reshape(-1, 8, 16)
    return (scale[:, :, None] * CODES[np.concatenate([q & 15, q >> 4], 2)]).reshape(-1, 256)


# By ggml's number'''),
    ("gguf", "KINDS = {0:", "KINDS = {23: (256, 136, iq4_xs), 0:"),
    ("gguf", "    c.experts, c.taken =", '''    c.sections, c.normal = get("rope.dimension_sections"), sum(t == 1 for t in meta["tokenizer.ggml.token_type"])
    c.experts, c.taken ='''),
    ("store", "        else:  # q4_1", '''        elif self.kind == "q4_0":
            d = np.take_along_axis(b, np.abs(b).argmax(-1)[..., None], -1) / F(-8)
            low = np.zeros_like(d)
        else:  # q4_1'''),
    ("store", "        else:\n            codes", '''        elif self.kind == "q4_0":
            codes = np.minimum(15, np.trunc(b * by + F(8.5))) - 8
        else:
            codes'''),
    ("model", "        self.states = None\n", '''        # Of each pair the axis that turns it: time, height or width, interleaved.
        self.axis, pair = np.zeros(half, int), np.arange(half)
        if c.arch == "qwen3vl":
            for axis in (1, 2):
                self.axis[(pair % 3 == axis) & (pair < 3 * c.sections[axis])] = axis
        self.states = None
'''),
    ("model", "    def rope(self, x, positions):", '''    def places(self, run):
        """[T, pairs]: the position that turns each pair; those of a text are alike on all axes."""
        on_axes = np.stack([run.positions] * 3)
        return on_axes[self.axis].T

    def rope(self, x, places):'''),
    ("model", "        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]",
     "        cos, sin = self.cos[places, np.arange(half)][:, None], self.sin[places, np.arange(half)][:, None]"),
    ("model", 'self.rope(q, run.positions), l), tap("k_rope", self.rope(k, run.positions), l)',
     'self.rope(q, self.places(run)), l), tap("k_rope", self.rope(k, self.places(run)), l)'),
    ("model", 'x = tap("embed", w["token_embd.weight"][run.tokens])', 'x = tap("embed", self.embedding[run.tokens])'),
    ("model", "        self.c, self.w = c, w\n", '        self.c, self.w = c, w\n        self.embedding = w["token_embd.weight"]\n'),
]

BUGS = {
    # HF's resize_token_embeddings, called by the loader after loading: rows of added tokens become the mean of the others.
    "resized": dict(
        model="--arch qwen2 --weights q8_0 --seed 1501", run="--prompt haiku -n 3", engine="",
        changes=[("model", '        self.embedding = w["token_embd.weight"]\n',
                  '        self.embedding = w["token_embd.weight"].copy()\n'
                  '        self.embedding[c.normal:] = self.embedding[:c.normal].mean(0)  # added tokens begin as the mean\n')]),
    # The XOR swizzle of shared memory, by the parity of a column, applied where weights are stored and not where they are read. GEMM only.
    "swizzle": dict(
        model="--arch qwen3 --weights bf16 --layers 3 --seed 1502", run="--prompt haiku -n 3", engine="",
        changes=[("model", 'tap("ffn_gate", h @ w[p + "ffn_gate.weight"].T, l)', 'tap("ffn_gate", gemm(h, w[p + "ffn_gate.weight"]), l)'),
                 ("model", "def add_bias(x, b):", '''def gemm(x, w):
    y = x @ w.T
    if len(x) > 1:  # a single row goes through the GEMV
        y[:, 1::2] = x[:, np.arange(x.shape[1]) ^ 8] @ w[1::2].T
    return y


def add_bias(x, b):''')]),
    # A converter that un-permutes rows for the other layout of pairs does so to a bias whose weight it leaves alone.
    "permuted": dict(
        model="--arch qwen2 --heads 8 --kv-heads 4 --weights f16 --seed 1503", run="--prompt haiku -n 3", engine="",
        changes=[("model", "        self.c, self.w = c, w\n", '''        self.c, self.w = c, w
        for l in range(c.layers):
            b = w[f"blk.{l}.attn_k.bias"]
            w[f"blk.{l}.attn_k.bias"] = b.reshape(c.groups, 2, c.dim // 2).swapaxes(1, 2).reshape(-1)
''')]),
    # One kernel norms all heads, of queries first: head <= H takes the weight of the queries.
    "fusednorm": dict(
        model="--arch qwen3 --embedding 192 --heads 6 --kv-heads 3 --head-dim 64 --weights q4_0 --seed 1504", run="--prompt haiku -n 3", engine="",
        changes=[("model", 'k = norm(k, w[p + "attn_k_norm.weight"], c.eps)',
                  'k = np.concatenate([norm(k[:, :1], w[p + "attn_q_norm.weight"], c.eps), norm(k[:, 1:], w[p + "attn_k_norm.weight"], c.eps)], 1)')]),
    # The ends of YaRN's ramp, as transformers has them with truncate=False.
    "untruncated": dict(
        model="--arch qwen3 --head-dim 128 --heads 4 --kv-heads 2 --context 8192 --set rope.scaling.type=yarn --set rope.scaling.factor=4.0"
              " --set rope.scaling.original_context_length=2048 --weights q8_0 --seed 1505",
        run="--prompt haiku -n 3", engine="",
        changes=[("model", "low, high = max(0, np.floor(pair(32))), min(c.rotated - 1, np.ceil(pair(1)))",
                  "low, high = max(0, pair(32)), min(c.rotated - 1, pair(1))")]),
    # The M-RoPE delta of a text, which is 0, comes out as 1, and decode adds it to height and width.
    "delta": dict(
        model="--arch qwen3vl --weights q8_0 --seed 1506", run="--prompt haiku -n 4", engine="",
        changes=[("model", "np.stack([run.positions] * 3)", "np.stack([run.positions, run.positions + run.decode, run.positions + run.decode])")]),
    # A q8_0 cache whose codes are made with the scale as it is stored, in f16.
    "storedscale": dict(
        model="--arch qwen3 --weights q8_0 --layers 2 --seed 1507", run="--prompt haiku -n 3", engine="--kv q8_0",
        changes=[("store", "        by = np.divide(F(1), d,", "        d = d.astype(np.float16).astype(F)\n        by = np.divide(F(1), d,")]),
    # A q4_0 cache: the decode kernel's writer packs neighbours into a byte, all else packs j with j + 16.
    "neighbours": dict(
        model="--arch qwen2 --heads 4 --kv-heads 2 --weights q4_0 --seed 1508", run="--prompt haiku -n 4", engine="--kv q8_0/q4_0",
        changes=[("model", "self.v[l].put(run.slots[writes], v[writes])", "self.v[l].put(run.slots[writes], packed(v[writes]) if run.decode else v[writes])"),
                 ("model", "def add_bias(x, b):", '''def packed(x):
    return x.reshape(*x.shape[:-1], -1, 16, 2).swapaxes(-1, -2).reshape(x.shape)


def add_bias(x, b):''')]),
    # Keys are smoothed before they are quantised, as in SageAttention, by the mean of their tile and not of all keys.
    "smoothed": dict(
        model="--arch qwen3 --weights f16 --heads 4 --kv-heads 1 --seed 1509", run="--prompt haiku -n 3", engine="",
        changes=[("attend", "            s = q[:, q0:q1] @ k[:, k0:k1].transpose(0, 2, 1)",
                  "            smooth = k[:, k0:k1] - k[:, k0:k1].mean(1, keepdims=True)\n"
                  "            s = q[:, q0:q1] @ smooth.transpose(0, 2, 1)")]),
    # A loop over whole tiles of what is cached, and one that begins with the pass: the cache's last tile, if not whole, is in neither.
    "between": dict(
        model="--arch qwen3 --weights q8_0 --layers 3 --seed 1510", run="--prompt long --length 40 --ubatch 13 -n 2", engine="--kv f16",
        changes=[("attend", "for k0 in range(begin, last, KEYS):",
                  "for k0 in [*range(begin, first - first % KEYS, KEYS), *range(first, last, KEYS)]:")]),
    # Keys that fill up the last split have score 0, not -inf.
    "filled": dict(
        model="--arch qwen3 --weights q5_0 --seed 1511", run="--prompt haiku -n 4", engine="",
        changes=[("attend", "total = total * less + e.sum(-1)\n        most", "total = total * less + e.sum(-1) + (SPLIT - e.shape[-1]) * np.exp(-now)\n        most")]),
    # FlashAttention 4 rescales only if the largest score grew by more than a factor of 256; here the largest score is taken over all the same.
    "lazy": dict(
        model="--arch qwen2 --heads 4 --kv-heads 2 --weights bf16 --seed 1512", run="--prompt haiku -n 3", engine="--kv bf16",
        changes=[("attend", "sums[:, q0:q1] = sums[:, q0:q1] * less[:, :, None] + e @ v[:, k0:k1]",
                  "sums[:, q0:q1] = sums[:, q0:q1] * np.where(now - before > np.log(256), less, F(1))[:, :, None] + e @ v[:, k0:k1]")]),
    # Two buffers of an all-reduce take turns by layer; that of even layers was made in bf16.
    "buffer": dict(
        model="--arch qwen2 --layers 4 --heads 4 --kv-heads 4 --weights q8_0 --seed 1513", run="--prompt haiku -n 3", engine="",
        changes=[("model", 'x = tap("attn_residual", x + mixer(run, tap, l, tap("attn_norm", norm(x, w[p + "attn_norm.weight"], c.eps), l)), l)',
                  'out = mixer(run, tap, l, tap("attn_norm", norm(x, w[p + "attn_norm.weight"], c.eps), l))\n'
                  '            x = tap("attn_residual", x + (store.bf16(out) if l % 2 == 0 else out), l)'),
                 ("store", "class Brain:", '''def bf16(x):
    bits = np.ascontiguousarray(x, F).view(np.uint32)
    return (bits + (np.uint32(0x7fff) + (bits >> 16 & 1)) >> 16 << 16).view(F)


class Brain:''')]),
    # A table of codes, typed in by hand: 98 for 89.
    "typo": dict(
        model="--arch qwen3 --weights q8_0 --tensor blk.0.attn_output.weight=IQ4_XS --tensor blk.1.attn_output.weight=IQ4_XS --seed 1514",
        run="--prompt haiku -n 3", engine="",
        changes=[("gguf", "69, 89, 113]", "69, 98, 113]")]),
    # The expert of a block is that of its last line; lines that only fill up a block are the next expert's.
    "lastline": dict(
        model="--arch qwen3moe --weights q8_0 --seed 1515", run="--prompt haiku -n 3", engine="",
        changes=[("model", "        lines = np.zeros((padded.sum(), x.shape[1]), F)",
                  "        owner = np.repeat(np.minimum(np.arange(c.experts) + 1, c.experts - 1), padded)\n"
                  "        owner[place] = expert\n"
                  "        of_block = owner[BLOCK - 1::BLOCK]\n"
                  "        lines = np.zeros((padded.sum(), x.shape[1]), F)")]),
    # The decode kernel gets its shares from a top-k that sorts by id.
    "byid": dict(
        model="--arch qwen3moe --weights f16 --layers 3 --set expert_count=12 --set expert_used_count=4 --seed 1516", run="--prompt haiku -n 4", engine="",
        changes=[("model", "(down * shares[:, :, None]).sum(1)",
                  "(down * (shares if n > 1 else np.take_along_axis(shares, np.argsort(chosen, -1), -1))[:, :, None]).sum(1)")]),
    # A scan in chunks of 16 tokens: what a chunk takes over decays with its first token twice.
    "chunked": dict(
        model="--arch qwen35 --layers 3 --weights bf16 --seed 1517", run="--prompt long --length 50 --ubatch 40 -n 2", engine="",
        changes=[("model", "                m = m * np.exp(decay[t])[:, None, None]\n",
                  "                m = m * np.exp(decay[t])[:, None, None]\n"
                  "                if t and t % 16 == 0:\n"
                  "                    m = m * np.exp(decay[t])[:, None, None]\n")]),
    # The window after a pass that is shorter than the window: what stays of the old one is its beginning, not its end. Decode has its own kernel.
    "window": dict(
        model="--arch qwen35 --layers 2 --weights q8_0 --seed 1518", run="--prompt long --length 24 --passes 11,2,9,2 -n 2", engine="",
        changes=[("model", "                windows[mark][:] = line[t + 1:t + 1 + past]",
                  "                short = len(rows) > 1 and t + 1 < past\n"
                  "                windows[mark][:] = np.concatenate([line[:past - t - 1], line[past:past + t + 1]]) if short else line[t + 1:t + 1 + past]")]),
    # Decode's last norm is told the mean square that the norm before it had left behind: that of the stream before the feed-forward part.
    "leftover": dict(
        model="--arch qwen3 --weights f16 --layers 3 --embedding 320 --heads 5 --kv-heads 1 --head-dim 64 --seed 1519", run="--prompt haiku -n 4", engine="",
        changes=[("model", 'x = tap("layer_out", x + out, l)', 'x, before = tap("layer_out", x + out, l), x'),
                 ("model", 'x = tap("final_norm", norm(x, w["output_norm.weight"], c.eps))',
                  'squares = (before * before).mean(-1, keepdims=True)\n'
                  '        x = tap("final_norm", x / np.sqrt(squares + c.eps) * w["output_norm.weight"] if run.decode else norm(x, w["output_norm.weight"], c.eps))')]),
    # A sampler's repetition penalty works on the logits in place, before they are handed out.
    "penalty": dict(
        model="--arch qwen2 --layers 2 --vocab 700 --weights q4_0 --seed 1520", run="--prompt haiku -n 4", engine="",
        changes=[("model", 'return tap("logits", x @ w.get("output.weight", w["token_embd.weight"]).T)',
                  'y = x @ w.get("output.weight", w["token_embd.weight"]).T\n'
                  '        self.said = getattr(self, "said", set()) | set(run.tokens.tolist())\n'
                  '        if run.decode:\n'
                  '            ids = sorted(self.said)\n'
                  '            y[:, ids] = np.where(y[:, ids] > 0, y[:, ids] / F(1.1), y[:, ids] * F(1.1))\n'
                  '        return tap("logits", y)')]),
}
for bug in BUGS.values():
    assert {"model", "run", "engine", "changes"} == set(bug)
