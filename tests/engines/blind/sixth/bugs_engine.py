"""Bugs of the engine (engine/): name, model, how it runs, and the changes."""

MODELS = {
    "f32": "--weights F32",
    "q3": "--arch qwen3 --weights F32 --heads 6 --kv-heads 2 --embedding 192 --head-dim 64 --ffn 320 --seed 61",
    "q3eps": "--arch qwen3 --weights F32 --eps 1e-5 --seed 62",
    "deep": "--weights Q8_0 --layers 3 --heads 6 --kv-heads 3 --embedding 192 --ffn 352 --seed 63",
    "q4k": "--arch qwen3 --weights Q4_K --tensor token_embd.weight=F32 --heads 8 --kv-heads 4 --head-dim 32 --seed 64",
    "q40": "--weights Q4_0 --heads 4 --kv-heads 2 --embedding 192 --ffn 288 --seed 65",
    "moe": "--arch qwen3moe --weights F32 --seed 66",
    "tied": "--arch qwen3 --weights Q8_0 --tied --heads 4 --kv-heads 1 --seed 67",
}

E = []


def bug(name, model, run, *changes, kv=""):
    E.append({"name": name, "model": model, "run": run, "changes": changes, "kv": kv})


bug("e01-mask-of-first-sequence", "q3", "work:mixed",
    ("model.py", "last = batch.lengths[s] - (end - first) + np.arange(end - first)",
     "last = batch.lengths[0] - batch.starts[1] + np.arange(end - first)"))
bug("e02-padding-writes", "f32", "work:tight",
    ("pool.py", "        live = slots >= 0\n", "        live = slots < self.count\n"),
    ("pool.py", "        self.kind, self.heads, self.width = kind, heads, width\n",
     "        self.kind, self.heads, self.width, self.count = kind, heads, width, slots\n"))
bug("e03-stale-table-after-prefix-hit", "q3", "work:mixed",
    ("serve.py", "            request.table.append(self.pool.take())\n        self.tables[request.row, :len(request.table)] = request.table\n",
     "            request.table.append(self.pool.take())\n            self.tables[request.row, len(request.table) - 1] = request.table[-1]\n"))
bug("e04-shared-block-freed", "f32", "work:shared",
    ("pool.py", "        if block.refs == 0:\n            self.free.remove(number)\n        block.refs += 1\n",
     "        if block.refs == 0:\n            self.free.remove(number)\n            block.refs = 1\n"))
bug("e05-rollback-frees-partial-block", "deep", "work:draft",
    ("serve.py", "        keep = -(-request.computed // BLOCK)\n", "        keep = request.computed // BLOCK\n"))
bug("e06-bonus-token-counted-on-rollback", "q3", "work:draft",
    ("serve.py", "                self.ends[request.row] += base + 1 + accepted\n",
     "                self.ends[request.row] += min(base + 2 + accepted, len(fed))\n"))
bug("e07-positions-by-batch-index", "f32", "work:leave",
    ("serve.py", "            positions += list(at)\n",
     "            positions += list(self.ends[len(lengths)] + np.arange(len(fed)))\n"))
bug("e08-partition-mask-local", "deep", "cmd:-n 3 --length 75 --passes 41,1,33",
    ("model.py", "np.where(np.arange(begin, stop)[None, None] <= last", "np.where(np.arange(stop - begin)[None, None] <= last"))
bug("e09-prefix-blocks-sorted", "f32", "work:wrap",
    ("serve.py", "            request.table = list(found)\n", "            request.table = sorted(found)\n"))
bug("e10-block-key-without-prefix", "q3", "work:collide",
    ("pool.py", "            parent = hash((parent, tuple(tokens[begin:begin + BLOCK])))\n            keys.append(parent)\n",
     "            keys.append(hash(tuple(tokens[begin:begin + BLOCK])))\n"))
bug("e11-scales-written-in-a-row", "f32", "work:mixed",
    ("pool.py", "        self.scales[slots] = scale.astype(np.float16)\n",
     "        self.scales[slots[0]:slots[0] + len(slots)] = scale.astype(np.float16)[:len(self.scales) - slots[0]]\n"), kv="q8_0")
bug("e12-verify-without-causal-mask", "tied", "work:draft",
    ("model.py", "            slots = self.slots_of(batch.tables[s], length)\n            raw",
     "            if end - first <= 4:  # decode\n                last = np.full(end - first, length - 1)\n            slots = self.slots_of(batch.tables[s], length)\n            raw"))
bug("e13-chunk-slots-from-its-first-block", "f32", "work:mixed",
    ("serve.py", "slots += list(np.array(request.table)[at // BLOCK] * BLOCK + at % BLOCK)",
     "slots += list(np.array(request.table)[begin // BLOCK + (at - begin) // BLOCK] * BLOCK + at % BLOCK)"))
bug("e14-head-norm-eps", "q3eps", "cmd:-n 3",
    ("model.py", "    def norm(self, x, weight):\n        scale = 1 / np.sqrt(np.mean(x * x, -1, keepdims=True) + self.eps)\n",
     "    def norm(self, x, weight, eps=None):\n        scale = 1 / np.sqrt(np.mean(x * x, -1, keepdims=True) + (self.eps if eps is None else eps))\n"),
    ("model.py", "q, k = self.norm(q, w[p + \"attn_q_norm.weight\"]), self.norm(k, w[p + \"attn_k_norm.weight\"])",
     "q, k = (self.norm(x, w[p + f\"attn_{name}_norm.weight\"], np.float32(1e-6)) for x, name in ((q, \"q\"), (k, \"k\")))"))
bug("e15-rope-frequencies-in-half", "q3", "cmd:-n 3 --length 60",
    ("model.py", "base ** (-np.arange(0, self.d, 2) / self.d)", "(base ** (-np.arange(0, self.d, 2) / self.d)).astype(np.float16).astype(np.float64)"))
bug("e16-values-tiled", "deep", "cmd:-n 3",
    ("model.py", "v = np.repeat(self.v[l].read(slots[begin:stop]), group, 1)", "v = np.tile(self.v[l].read(slots[begin:stop]), (1, group, 1))"))
bug("e17-minima-of-q4-k", "q4k", "cmd:-n 3",
    ("gguf.py", "least[:, 4:] = (q[:, 8:] >> 4) | ((q[:, 4:8] >> 6) << 4)", "least[:, 4:] = (q[:, 8:] >> 4) | ((q[:, :4] >> 6) << 4)"))
bug("e18-expert-capacity", "moe", "cmd:-n 3",
    ("model.py", "            mine = x[end - counts[i]:end]\n",
     "            mine = x[end - counts[i]:end].copy()\n            mine[-(-5 * n * k // (4 * len(ends))):] = 0  # beyond the expert's capacity\n"))
bug("e19-last-vocabulary-tile-shifted", "f32", "cmd:-n 3",
    ("model.py", "            logits[:, begin:end] = h @ self.head[begin:end].T\n",
     "            at = min(begin, vocabulary - VOCABULARY)\n            logits[:, begin:end] = (h @ self.head[at:at + VOCABULARY].T)[:, :end - begin]\n"))
bug("e20-activation-in-half-in-decode", "q40", "cmd:-n 3 --length 45 --passes 30,6,9",
    ("model.py", "            out = tap(\"ffn_down\", act @ w",
     "            if n <= 8:  # the kernel of few rows reads halves\n                act = act.astype(np.float16).astype(np.float32)\n            out = tap(\"ffn_down\", act @ w"))
