"""Twenty bugs: the model (options of `qdiff synth`), the run (options of `qdiff run`), the engine's options, and the changes of its text.
BASE, in the clean engine too: two more formats, Q5_K and IQ4_NL."""
BASE = [
    ("gguf", "def q4_k(b):", "def q4_k(b, high=0):"),
    ("gguf", "[:, :, None] * w - (least", "[:, :, None] * (w + high) - (least"),
    ("gguf", "# By ggml's number", '''def q5_k(b):
    """As Q4_K, with 32 bytes before the nibbles: bit j of byte i is the fifth of weight i of sub-block j."""
    bits = b[:, None, 16:48] >> np.arange(8)[:, None] & 1
    return q4_k(np.concatenate([b[:, :16], b[:, 48:]], 1), (bits << 4).astype(F))


BOOK = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], F)


def iq4_nl(b):
    return f16(b[:, :2]) * BOOK[np.concatenate([b[:, 2:] & 15, b[:, 2:] >> 4], 1)]


# By ggml's number'''),
    ("gguf", "         30: (1, 2, bf16)", "         13: (256, 176, q5_k), 20: (32, 18, iq4_nl), 30: (1, 2, bf16)"),
]

BUGS = {
    # One sequence.
    "a01": {"model": "--arch qwen2 --layers 2 --weights q8_0 --tensor token_embd.weight=q5_K --seed 1401",
            "run": "--raw --prompt haiku --length 27 -n 5",
            "changes": [("gguf", "16:48] >> np.arange(8)[:, None]", "16:48] >> np.array([0, 1, 1, 2, 2, 3, 3, 4])[:, None]")]},
    "a02": {"model": "--arch qwen3 --embedding 320 --heads 5 --kv-heads 1 --head-dim 64 --weights f16 --seed 1402",
            "run": "--raw --prompt haiku --length 21 -n 4",
            "changes": [("model", "        squares += (strip * strip).sum(-1)", '''        part = (strip * strip).sum(-1)
        if x.shape[-1] > STRIP:  # goes over shared memory as bf16
            part = ((part.view(np.uint32) + np.uint32(0x8000)) >> np.uint32(16) << np.uint32(16)).view(F)
        squares += part''')]},
    "a03": {"model": "--arch qwen3 --head-dim 128 --heads 4 --kv-heads 2 --context 8192 --set rope.scaling.type=yarn --set rope.scaling.factor=4.0 "
                     "--set rope.scaling.original_context_length=2048 --weights q8_0 --seed 1403",
            "run": "--raw --prompt haiku --length 34 -n 4",
            "changes": [("model", "(2 * np.log(c.base))", "(2 * np.log(10000.0))")]},
    "a04": {"model": "--arch qwen3 --layers 2 --head-dim 64 --heads 6 --kv-heads 2 --weights bf16 --seed 1404",
            "run": "--raw --prompt haiku --length 29 -n 8",
            "changes": [("attend", "less = np.exp(most - now)", "less = np.exp2(most - now)")]},
    "a05": {"model": "--arch qwen2 --layers 2 --heads 8 --kv-heads 2 --weights q8_0 --seed 1405",
            "run": "--raw --prompt haiku --length 30 -n 3",
            "changes": [("attend", "            s[:, hidden] = -np.inf", "            if k1 > first + q1:\n                s[:, hidden] = -np.inf")]},
    "a06": {"model": "--arch qwen3moe --layers 2 --heads 4 --kv-heads 2 --weights f16 --set expert_count=12 --set expert_used_count=4 --seed 1406",
            "run": "--raw --prompt haiku --length 22 -n 3",
            "changes": [("model", "(down * shares[:, :, None])", "(down * np.take_along_axis(shares, np.argsort(chosen, -1), -1)[:, :, None])")]},
    "a07": {"model": "--arch qwen35 --layers 4 --weights q8_0 --seed 1407",
            "run": "--raw --prompt haiku --length 20 -n 4",
            "changes": [("model", "np.logaddexp(F(0), soft)", "np.where(F(20) * soft > 1, soft, np.log1p(np.exp(np.minimum(F(20) * soft, F(1)))) / F(20))")]},
    "a08": {"model": "--arch qwen2 --ffn 544 --tied --weights q4_0 --seed 1408",
            "run": "--raw --prompt haiku --length 25 -n 4",
            "changes": [("model", 'tap("ffn_act", silu(gate) * up, l) @ w[p + "ffn_down.weight"].T',
                         '(lambda a, m, k: a[:, k] @ m[:, k].T)(tap("ffn_act", silu(gate) * up, l), w[p + "ffn_down.weight"], '
                         'np.arange(gate.shape[1]) % (gate.shape[1] // 4) < gate.shape[1] // 4 // 64 * 64)')]},
    "a09": {"model": "--arch qwen3 --layers 3 --weights q8_0 --tensor blk.1.attn_v.weight=iq4_nl --seed 1409",
            "run": "--raw --prompt haiku --length 23 -n 4",
            "changes": [("gguf", "38, 53, 69, 89", "38, 53, 96, 89")]},
    "a10": {"model": "--arch qwen2 --heads 8 --kv-heads 2 --weights f16 --vocab 700 --seed 1410",
            "run": "--raw --prompt haiku --length 19 -n 4",
            "changes": [("model", 'return tap("logits", x @ w.get("output.weight", w["token_embd.weight"]).T)',
                         '''y = x @ w.get("output.weight", w["token_embd.weight"]).T
        n = y.shape[1]
        whole = n // 64 * 64
        y[:, whole:] = y[:, n - 64:n - 64 + n - whole].copy()
        return tap("logits", y)''')]},
    # Serving.
    "b01": {"model": "--arch qwen2 --layers 2 --heads 8 --kv-heads 4 --weights q8_0 --seed 1421",
            "run": "--raw --prompt haiku --length 41 --sequences 18,4+7@0:16,1+1,5+3,1+1",
            "changes": [("attend", "largest = np.maximum(*logs)", "logs[0] = logs[0] * np.log2(np.e)\n        largest = np.maximum(*logs)")]},
    "b02": {"model": "--arch qwen3 --layers 2 --heads 4 --kv-heads 2 --weights q8_0 --seed 1422", "engine": "--kv q8_0",
            "run": "--raw --prompt haiku --length 42 --kv-type q8_0 --sequences 14+9,1+1,7+6,1+1,1+1",
            "changes": [("store", "largest = np.abs(b).max(-1, keepdims=True)", "largest = np.abs(b).max((0, -1), keepdims=True)")]},
    "b03": {"model": "--arch qwen35 --layers 4 --weights f16 --seed 1423",
            "run": "--raw --prompt haiku --length 37 --sequences 12+5,5+1,4~4+1,1+4,1+1~2,1+1",
            "changes": [("pages", "        # The first row is the state before the first token.", '''        for l in self.window:
            self.window[l][self.rows[sequence][kept]][:] = self.window[l][self.rows[sequence][-1]]''')]},
    "b04": {"model": "--arch qwen35 --layers 4 --weights bf16 --seed 1424",
            "run": "--raw --prompt haiku --length 32 --sequences 13,3+6@0:13,1+1,2+4,1+1",
            "changes": [("pages", "self.rows[sequence] = self.rows[source][:count + 1]",
                         "self.rows[sequence] = self.rows[source][:count] + [self.rows[source][count // PAGE * PAGE]]")]},
    "b05": {"model": "--arch qwen2 --layers 3 --heads 4 --kv-heads 1 --weights q8_0 --seed 1425",
            "run": "--raw --prompt haiku --length 47 --sequences 6+14+4,1+1+1,3+9+5,1+1+1",
            "changes": [("model", "                context[run.rows[sequence]] = sums",
                         "                most = len(run.rows[run.order[0]])\n                context[run.rows[sequence][:most]] = sums[:most]")]},
    "b06": {"model": "--arch qwen3 --layers 2 --weights q5_0 --seed 1426",
            "run": "--raw --prompt haiku --length 33 --sequences 9+7+5,1+1+1,1+1+1,1+1+1,1+1+1",
            "changes": [("ferry", "        self.tokens[:n], self.positions[:n], self.slots[:n] = tokens",
                         "        late = self.tokens.copy()\n        self.tokens[:n], self.positions[:n], self.slots[:n] = tokens"),
                        ("ferry", "        self.used = n", "        late = late if self.used == n else self.tokens\n        self.used = n"),
                        ("ferry", "return self.tokens[:size]", "return late[:size]")]},
    "b07": {"model": "--arch qwen3moe --layers 2 --weights q8_0 --seed 1427",
            "run": "--raw --prompt haiku --length 51 --sequences 20+16,1+1,6+5,1+1",
            "changes": [("model", "lines[place] = np.repeat(x, c.taken, 0)",
                         "fits = place - starts[expert] < 8\n        lines[place[fits]] = np.repeat(x, c.taken, 0)[fits]")]},
    "b08": {"model": "--arch qwen2 --layers 2 --heads 4 --kv-heads 2 --weights q8_0 --seed 1428", "engine": "--kv q8_0/q4_1",
            "run": "--raw --prompt haiku --length 30 --kv-type q8_0/q4_1 --sequences 13,4+3@0:11,1+1,3+3,1+1",
            "changes": [("store", "for held in (self.codes, self.scale, self.offset):", "for held in (self.codes, self.scale):")]},
    "b09": {"model": "--arch qwen3 --layers 2 --head-dim 128 --heads 4 --kv-heads 2 --weights f16 --seed 1429",
            "run": "--raw --prompt haiku --length 54 --sequences 12+30,1+1,1+1,1+1,1+1,1+1,1+1",
            "changes": [("attend", "def decode(q, k, v, scale):", "def decode(q, k, v, scale, reach):"),
                        ("attend", "range(0, keys, SPLIT)", "range(0, min(keys, reach), SPLIT)"),
                        ("model", "attend.decode(*args)",
                         "attend.decode(*args, -(-self.pages.length[next(iter(run.rows))] // attend.SPLIT) * attend.SPLIT)")]},
    "b10": {"model": "--arch qwen2 --layers 3 --heads 4 --kv-heads 2 --weights q8_0 --seed 1430", "engine": "--slots",
            "run": "--raw --prompt haiku --length 36 --sequences 13+6,8+1,3~8+1,1+1,1+1",
            "changes": [("pages", "pages = -(-kept // PAGE)", "pages = kept // PAGE")]},
}
