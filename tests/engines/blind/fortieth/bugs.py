"""The bugs: for each the model (options of `qdiff synth`), the run (options of `qdiff run`), the engine's options, and changes (file, old, new)."""
SPLIT_CALL = "                scores, weights, *parts = attend.split(*args)\n"
PREFILL_CALL = "                scores, weights, sums = attend.prefill(*args, first, min(self.pages.shared[sequence], first), c.heads // c.groups)\n"
BUGS = {
 # In every run that batches.
 "empty-splits": {
  "model": "--arch qwen2 --heads 8 --kv-heads 2 --weights q8_0 --seed 4001",
  "run": "--prompt long --length 63 --sequences 27+6+12,1+1+1,1+1+1,1+1+1,1+1+1,1+1+1,1+1+1",
  "engine": "",
  "changes": [("attend", "    lse = np.full((len(made), most, made[0][1].shape[1]), -np.inf)\n", "    lse = np.zeros((len(made), most, made[0][1].shape[1]))\n")]},
 "expert-rows": {
  "model": "--arch qwen3moe --weights q8_0 --seed 4002",
  "run": "--prompt long --length 41 --sequences 11+7,5+9,1+1,1+1,1+1,1+1+1",
  "engine": "",
  "changes": [("model", "        lines[place] = np.repeat(x, c.taken, 0)\n", "        lines[place] = x[np.arange(len(expert)) % n]\n")]},
 "mixed-newest": {
  "model": "--arch qwen3 --weights f16 --seed 4003",
  "run": "--prompt long --length 57 --sequences 13,1+9,1+1+10,1+7+1,1+1+5,1+1+1,1+1+1",
  "engine": "",
  "changes": [("model", PREFILL_CALL,
               "                beside = len(rows) == 1 and first > self.pages.shared[sequence]  # a decode row beside a prefill\n"
               "                scores, weights, sums = attend.prefill(*args, first - beside, min(self.pages.shared[sequence], first), c.heads // c.groups)\n")]},
 "mixed-plain-key": {
  "model": "--arch qwen2 --heads 4 --kv-heads 2 --weights q8_0 --seed 4004",
  "run": "--prompt long --length 55 --sequences 12,1+10,1+1+9,1+6+1,1+1+5,1+1+1,1+1+1",
  "engine": "",
  "changes": [("model", '        q, k = tap("q_rope"', '        cached = k.copy()\n        q, k = tap("q_rope"'),
              ("model", "        self.k[l].put(run.slots[writes], k[writes], run.decode)\n",
               "        for sequence, rows in run.rows.items():  # the fused kernel turns the rows of a prefill, and all rows of a decode step\n"
               "            if run.decode or len(rows) > 1 or not run.first[sequence]:\n"
               "                cached[rows] = k[rows]\n"
               "        self.k[l].put(run.slots[writes], cached[writes], run.decode)\n")]},
 "write-stride": {
  "model": "--arch qwen3 --weights f16 --seed 4005",
  "run": "--prompt long --length 63 --sequences 21+9+15,1+1+1,1+1+1,1+1+1,1+1+1,1+1+1,1+1+1",
  "engine": "",
  "changes": [("ferry", "        self.width, self.table = engine.width, np.zeros(len(self.order) * engine.width, int)\n",
               "        self.width, self.table = engine.width, np.zeros(len(self.order) * engine.width, int)\n"
               "        held = np.zeros((len(self.order), max(16, self.width)), int)  # the table of a graph, of which a step has the first columns\n"
               "        for at, sequence in enumerate(self.order):\n"
               "            held[at, :len(pages.table[sequence])] = pages.table[sequence]\n"
               "        if self.decode:\n"
               "            for at, sequence in enumerate(self.order):\n"
               "                n = self.lengths[at] - 1\n"
               "                self.slots[self.rows[sequence][0]] = held.reshape(-1)[at * self.width + n // PAGE] * PAGE + n % PAGE\n")]},
 "query-grid": {
  "model": "--arch qwen2 --heads 8 --kv-heads 4 --weights q8_0 --seed 4006",
  "run": "--prompt long --length 60 --sequences 7+13+3,5+11,1+1+9,1+1+1,1+5+1",
  "engine": "",
  "changes": [("model", "                made.append(sums.transpose(1, 0, 2))\n",
               "                tiles = -(-len(run.rows[run.order[0]]) // attend.QUERIES)  # of the grid\n"
               "                sums[:, tiles * attend.QUERIES:] = 0\n"
               "                made.append(sums.transpose(1, 0, 2))\n")]},
 "chunk-cumsum": {
  "model": "--arch qwen35 --weights f16 --seed 4007",
  "run": "--prompt long --length 59 --sequences 7+5,3+9,2+6,5+4,3+7,1+1,1+1,2+2",
  "engine": "",
  "changes": [("model", "            m = memory[marks[0]].copy()\n",
               "            m = memory[marks[0]].copy()\n"
               "            start = run.rows[sequence][0]\n"
               "            if not run.decode:  # decays are added up over chunks of the packed rows\n"
               "                m *= np.exp(decay[start - start % CHUNK:start].sum(0))[:, None, None]\n")]},
 "states-all": {
  "model": "--arch qwen35 --weights q8_0 --seed 4008",
  "run": "--prompt long --length 58 --sequences 9,1+8,4+1+7,1+1+1+6,1+1+1+1,3+2+1+5,1+1+1+1",
  "engine": "",
  "changes": [("model", "            m = memory[marks[0]].copy()\n",
               "            m = memory[marks[0]].copy()\n"
               "            if not all(run.first.values()):  # whether there are states to begin with\n"
               "                m[:] = 0\n")]},
 "expert-bound": {
  "model": "--arch qwen3moe --weights f16 --seed 4009",
  "run": "--prompt long --length 56 --sequences 10+7+6,1+1+1,1+1+1,1+1+1,1+1+1,1+1+1,1+1+1,1+1+1,1+1+1,1+1+1,1+1+1,1+1+1",
  "engine": "",
  "changes": [("model", "        def product(y, name):\n",
               "        # The grid has the blocks that the tokens need.\n"
               "        grid = (-(-np.bincount(chosen[:tap.run.count].reshape(-1), minlength=c.experts) // BLOCK)).sum()\n\n"
               "        def product(y, name):\n"),
              ("model", "y[b * BLOCK:(b + 1) * BLOCK] @ matrices[of_block[b]].T for b in range(len(of_block))])\n",
               "y[b * BLOCK:(b + 1) * BLOCK] @ matrices[of_block[b]].T * (b < grid) for b in range(len(of_block))])\n")]},
 "append-offset": {
  "model": "--arch qwen3 --weights q8_0 --seed 4010",
  "run": "--prompt long --length 63 --sequences 17+9+10,1+1+1,1+1+1,1+1+1,1+1+1,1+1+1,1+1+1,1+1+1,1+1+1,1+1+1 --kv-type q4_1",
  "engine": "--kv q4_1",
  "changes": [("store", "        self.codes[slots], self.scale[slots], self.offset[slots] = codes.astype(np.int8), d, low\n",
               "        self.codes[slots], self.scale[slots] = codes.astype(np.int8), d\n"
               "        if not append:\n"
               "            self.offset[slots] = low\n")]},
 "value-scale": {
  "model": "--arch qwen3 --weights f16 --seed 4011 --layers 2",
  "run": "--prompt long --length 48 --sequences 15+6+9,1+1+1,1+1+1,1+1+1,1+1+1,1+1+1,1+1+1 --reference none",
  "engine": "--kv f8_e4m3",
  "changes": [("model", '            tap.of(sequence, "k_cache", l, keys[:count])\n',
               "            if run.decode:\n"
               "                values = values / self.v[l].scale * self.k[l].scale\n"
               '            tap.of(sequence, "k_cache", l, keys[:count])\n')]},
 "graph-lengths": {
  "model": "--arch qwen2 --heads 8 --kv-heads 2 --weights f16 --seed 4012",
  "run": "--prompt long --length 60 --sequences 19+8+12,1+1+1,1+1+1,1+1+1,1+1+1,1+1+1,1+1+1,1+1+1",
  "engine": "",
  "changes": [("ferry", "        self.buffers, self.width = Buffers(), 1\n", "        self.buffers, self.width, self.graphs = Buffers(), 1, {}\n"),
              ("ferry", "        engine.width = max(", "        self.graph = engine.graphs.setdefault(len(self.tokens), list(self.lengths)) if self.decode else []\n        engine.width = max("),
              ("model", SPLIT_CALL,
               "                told = min(count, run.graph[at]) if at < len(run.graph) else count  # in the graph's parameters\n"
               "                scores, weights, *parts = attend.split(args[0], args[1][:, :told], args[2][:, :told], scale)\n"
               "                scores = args[0] @ args[1].transpose(0, 2, 1)\n"
               "                weights = np.concatenate([weights, np.zeros((c.heads, 1, count - told), F)], -1)\n")]},
 # Under a condition.
 "cascade-pages": {
  "model": "--arch qwen2 --heads 8 --kv-heads 2 --weights q8_0 --seed 4013",
  "run": "--prompt long --length 59 --sequences 21,1+9@0,1+1+8@1,1+4+1,1+1+1,1+1+1,1+1+1,1+1+1",
  "engine": "",
  "changes": [("attend", "    (o, lse), (o2, lse2) = ((s / t[:, :, None], ", "    (o, lse), (o2, lse2) = ((s / np.where(t == 0, F(1), t)[:, :, None], "),
              ("attend", "    rest = part(q, k, v, scale, first, shared, keys, looked, scores, limit)\n",
               "    shared = min(-(-shared // 8) * 8, keys)  # in whole pages\n"
               "    rest = part(q, k, v, scale, first, shared, keys, looked, scores, limit)\n"),
              ("attend", "merge(part(q, k, v, scale, first, 0, shared, looked, scores, limit), rest)",
               "merge(part(q, k, v, scale, keys, 0, shared, looked, scores, limit + keys), rest)"),
              ("attend", "    seen = looked[None] & (np.arange(keys)[None, None] <= limit[:, :, None])\n",
               "    seen = looked[None] & (np.arange(keys)[None, None] <= np.maximum(limit, shared - 1)[:, :, None])\n")]},
 "fork-copies": {
  "model": "--arch qwen3 --weights f16 --seed 4014",
  "run": "--prompt long --length 54 --sequences 13,0+7@0+6@0,1+1+1,1+1+1,1+1+1,1+1+1+7@1+4@1,1+1+1+1+1",
  "engine": "",
  "changes": [("ferry", "        for sequence, rows in self.rows.items():\n            slots[rows] = pages.room(sequence, len(rows), engine.model.copy_page)\n",
               "        copies = {}\n"
               "        for sequence, rows in self.rows.items():\n            slots[rows] = pages.room(sequence, len(rows), copies.__setitem__)\n"),
              ("ferry", "        self.count = len(tokens)\n", "        for source, page in copies.items():\n            engine.model.copy_page(source, page)\n        self.count = len(tokens)\n")]},
 "draft-window": {
  "model": "--arch qwen35 --weights f16 --seed 4015",
  "run": "--prompt long --length 50 --sequences 11+6,4+1,1~2+3,3+1~1,1~1+4,1+1~3,5+2,1~3+1,1+1,1+1",
  "engine": "",
  "changes": [("pages", "        # The first row is the state before the first token.\n",
               "        # The first row is the state before the first token. What the drafts left in the window goes out with the next tokens.\n"
               "        for window in self.window.values():\n"
               "            window[self.rows[sequence][kept]] = window[self.rows[sequence][-1]].copy()\n")]},
 "page-edge-state": {
  "model": "--arch qwen35 --weights q8_0 --seed 4016",
  "run": "--prompt long --length 65 --sequences 6+13,1+1,1+1,1+1,1+1,1+1,1+1,1+1,1+1,1+1,1+1,1+1,1+1,1+1,1+1,1+1,1+1,1+1,1+1,1+1,1+1,1+1,1+1,1+1",
  "engine": "",
  "changes": [("model", "            m = memory[marks[0]].copy()\n",
               "            edge = run.decode and run.first[sequence] and run.first[sequence] % PAGE == 0  # a new page, with a state of its own\n"
               "            m = memory[marks[-1] if edge else marks[0]].copy()\n")]},
 "half-batches": {
  "model": "--arch qwen3 --weights q8_0 --seed 4017",
  "run": "--prompt long --length 71 --sequences 9+5+11,1+7+12,1+1+1,4+3+13,1+1+1",
  "engine": "",
  "changes": [("model", PREFILL_CALL,
               "                half = sum(row < n // 2 for row in rows) if n > 16 else 0  # two halves, so that one computes while the other sends\n"
               "                scores, weights, sums = attend.prefill(*args, first, min(self.pages.shared[sequence], first), c.heads // c.groups, half)\n"),
              ("attend", "def prefill(q, k, v, scale, first, shared, group):\n", "def prefill(q, k, v, scale, first, shared, group, half=0):\n"),
              ("attend", "    limit = first + np.broadcast_to(np.arange(tokens), (heads, tokens))\n",
               "    limit = first + np.broadcast_to(np.arange(tokens), (heads, tokens))\n"
               "    limit = limit + np.where(np.arange(tokens) < half, tokens - half, 0)  # the last query sees all keys of the sequence\n"),
              ("attend", "        last = min(end, first + q1)  #", "        last = min(end, int(limit[:, q0:q1].max()) + 1)  #")]},
 "graph-writes": {
  "model": "--arch qwen2 --heads 8 --kv-heads 2 --weights f16 --seed 4018",
  "run": "--prompt long --length 59 --sequences 9+12+7,1+1+1,1+1+1,1+1+1+6,1+1+1+1,1+1+1+1,1+1+1+1,1+1+1+1",
  "engine": "",
  "changes": [("ferry", "        self.buffers, self.width = Buffers(), 1\n", "        self.buffers, self.width, self.graphs = Buffers(), 1, {}\n"),
              ("ferry", "        engine.width = max(", "        self.writes = engine.graphs.setdefault(len(self.tokens), self.count) if self.decode else self.count\n        engine.width = max("),
              ("model", "        writes = run.slots >= 0  #", "        writes = (run.slots >= 0) & (np.arange(n) < run.writes)  #")]},
 "left-tokens": {
  "model": "--arch qwen3moe --weights q8_0 --seed 4019",
  "run": "--prompt long --length 56 --sequences 8+6+9+7,1+1+1+1,1+1+1+1,1+0+1+1,1+0+1+1,1+0+1+1,0+0+1+1,1+1+1+1,1+0+1+1",
  "engine": "",
  "changes": [("ferry", "        self.buffers, self.width = Buffers(), 1\n", "        self.buffers, self.width, self.drawn = Buffers(), 1, {}\n"),
              ("ferry", "        self.tokens, self.positions, self.slots = np.array(tokens), positions, slots\n",
               "        drawn = dict(zip(sequences, tokens)) if self.decode else {}  # the tokens that the last step drew, by its rows\n"
               "        if self.decode and len(drawn) < len(engine.drawn):\n"
               "            tokens = [drawn.get(s, t) for s, t in engine.drawn.items()][:len(tokens)]\n"
               "        engine.drawn = drawn\n"
               "        self.tokens, self.positions, self.slots = np.array(tokens), positions, slots\n")]},
 "prefix-layout": {
  "model": "--arch qwen2 --heads 8 --kv-heads 2 --weights q8_0 --seed 4020",
  "run": "--prompt long --length 56 --sequences 19,1+11@0,1+1+6@1,1+3+1,1+1+1,1+1+1,1+1+1,1+1+1",
  "engine": "",
  "changes": [("model", "        self.pages.share(source, sequence, count)\n        if self.states:\n            self.states.share",
               "        self.pages.share(source, sequence, count)\n"
               "        # A hit is fetched from the other process, whose pages are [heads, tokens, dim].\n"
               "        for at, page in enumerate(self.pages.table[sequence]):\n"
               "            own = self.pages.take()\n"
               "            self.pages.drop(page)\n"
               "            self.pages.table[sequence][at] = own\n"
               "            for cache in (*self.k.values(), *self.v.values()):\n"
               "                sent = cache.rows[page * PAGE:(page + 1) * PAGE]\n"
               "                cache.rows[own * PAGE:(own + 1) * PAGE] = sent.transpose(1, 0, 2).reshape(sent.shape)\n"
               "        if self.states:\n            self.states.share")]},
}
