"""The bugs: for each the model (options of `qdiff synth`), the run (options of `qdiff run`), the engine's options, and changes (file, old, new)."""
BUGS = {
 # In every run that batches.
 "split-fold": {
  "model": "--arch qwen2 --heads 8 --kv-heads 2 --weights q8_0 --seed 3801",
  "run": "--prompt long --length 61 --sequences 20+9+13,1+1+1,1+1+1,1+1+1,1+1+1,1+1+1,1+1+1+1",
  "engine": "",
  "changes": [("attend", "    by = np.exp(lse - lse.max(1, keepdims=True))\n", "    lse = lse[:1]  # one stride for all\n    by = np.exp(lse - lse.max(1, keepdims=True))\n")]},
 "head-order": {
  "model": "--arch qwen3 --weights f16 --seed 3802",
  "run": "--prompt long --length 46 --sequences 6+11+9,1+1+1,1+1+1,4+1+1,1+1+1+1,1+1+1+1",
  "engine": "",
  "changes": [("model", "        logits = np.empty_like(made)\n        logits[order] = made\n", "        logits = made\n")]},
 "one-position": {
  "model": "--arch qwen2 --layers 3 --heads 4 --kv-heads 1 --weights q4_0 --seed 3803",
  "run": "--prompt long --length 45 --sequences 7+12+5,1+1+1,1+1+1,1+1+1,3+1+1,1+1+1,1+1+2",
  "engine": "",
  "changes": [("ferry", "        if self.decode:\n            ends", "        if self.decode:\n            positions[:] = positions.max()  # of the cache\n            ends")]},
 "conv-flat": {
  "model": "--arch qwen35 --layers 4 --weights bf16 --seed 3804",
  "run": "--prompt long --length 48 --sequences 9+5+8,1+6+1,1+1+1,4+3+1,2+2+3",
  "engine": "",
  "changes": [("model", "            conv[rows] = sum(line[j:j + len(rows)] * kernel[:, j] for j in range(c.taps))\n",
   "            if run.decode:\n                flat = line\n            else:  # the pass is one line\n                flat = np.concatenate([windows[run.marks[run.order[0]][0]], qkv])[rows[0]:]\n            conv[rows] = sum(flat[j:j + len(rows)] * kernel[:, j] for j in range(c.taps))\n")]},
 "mixed-lost": {
  "model": "--arch qwen35 --layers 2 --embedding 320 --heads 5 --kv-heads 1 --head-dim 64 --weights q8_0 --seed 3805",
  "run": "--prompt long --length 51 --sequences 8+5,1+7,1+1+6,5+1+1,1+1+1,4+1+4,1+1+1",
  "engine": "",
  "changes": [("model", "                memory[mark][:] = m\n        for t in range", "                # only the part's own states are put back\n                memory[mark][:] = memory[marks[0]] if not run.decode and len(marks) == 2 and run.first[sequence] else m\n        for t in range")]},
 "scale-strides": {
  "model": "--arch qwen3 --embedding 256 --heads 4 --kv-heads 2 --head-dim 64 --weights q8_0 --seed 3806",
  "run": "--kv-type q8_0 --prompt long --length 40 --sequences 9+6,1+1,1+1,1+1+8,1+1+1,3+1+1,1+1+1",
  "engine": "--kv q8_0",
  "changes": [("store", "        self.codes[slots], self.scale[slots], self.offset[slots] =", "        if append:  # blocks outside, groups inside\n            d = d.transpose(0, 2, 1, 3).reshape(d.shape)\n        self.codes[slots], self.scale[slots], self.offset[slots] =")]},
 "state-order": {
  "model": "--arch qwen35 --layers 3 --weights q5_0 --seed 3807",
  "run": "--prompt long --length 42 --sequences 5+11+8,1+1+1,1+1+1,2+1+3,1+1+1,1+1+1",
  "engine": "",
  "changes": [("model", "        for sequence in run.order:\n            marks = run.marks[sequence]\n            m = memory[marks[0]].copy()\n", "        for sequence, to in zip(run.order, run.rows):\n            marks = run.marks[sequence]\n            m = memory[marks[0]].copy()\n"),
              ("model", "                memory[mark][:] = m\n        for t in range", "                memory[run.marks[to][-1] if run.decode else mark][:] = m\n        for t in range")]},
 "prefix-unit": {
  "model": "--arch qwen2 --embedding 256 --heads 8 --kv-heads 4 --weights q8_0 --seed 3808",
  "run": "--prompt long --length 58 --sequences 16+15,0+3~all+5@0,1+1+1,1+1+1+9@0,1+1+1+1",
  "engine": "",
  "changes": [("pages", "pages = self.table[source][:-(-count // PAGE)]", "pages = self.table[source][:-(-count // (2 * PAGE))]  # blocks of the hash")]},
 "page-tail": {
  "model": "--arch qwen2 --weights q4_0 --seed 3809",
  "run": "--prompt long --length 48 --sequences 11+6+14,1+1+1,1+1+1,3+1+1,1+1+1,1+1+1",
  "engine": "",
  "changes": [("ferry", "        n = np.arange(self.lengths[at])\n", "        n = np.arange(-(-self.lengths[at] // PAGE) * PAGE if self.decode else self.lengths[at])\n")]},
 "tail-gate": {
  "model": "--arch qwen35 --layers 4 --weights q8_0 --seed 3810",
  "run": "--prompt long --length 54 --sequences 13+5,1+1,8+1+11,1+1+1,1+6+1,1+1+1",
  "engine": "",
  "changes": [("model", "                memory[mark][:] = m\n        for t in range", "                memory[mark][:] = m\n            tail = len(run.rows[sequence]) % TILE\n            if len(marks) > 2 and tail:  # the tile's last gate is read from rows that only fill it up\n                memory[marks[-1]][:] = m * np.exp(-decay[run.rows[sequence][-tail:]].sum(0))[:, None, None]\n        for t in range"),
              ("model", "CHUNK = 8 ", "TILE = 8     # tokens of a tile of the delta net\nCHUNK = 8 ")]},
 "expert-chunk": {
  "model": "--arch qwen3moe --layers 3 --weights q4_0 --seed 3811",
  "run": "--prompt long --length 50 --sequences 7+6+5,1+5+1,1+1+1,3+7+1,1+1+1,1+1+6",
  "engine": "",
  "changes": [("model", "shares[begin:end, :, None]).sum(1)", "shares[:end - begin, :, None]).sum(1)")]},
 "norm-grid": {
  "model": "--arch qwen3 --head-dim 64 --heads 4 --kv-heads 2 --weights f16 --seed 3812",
  "run": "--prompt long --length 53 --sequences 7+9+4,1+1+1,8+1+6,1+1+1,1+10+1",
  "engine": "",
  "changes": [("model", "        for row in range(len(x)):\n            out[row] = norm(", "        for row in range(min(len(x), 12)):  # a block for each row\n            out[row] = norm(")]},
 # Under a condition.
 "first-token": {
  "model": "--arch qwen35 --layers 4 --weights q8_0 --seed 3813",
  "run": "--prompt long --length 42 --sequences 9+5,2+1,3~all+1+1,1+1+4,1+1+1,5+1+1,1+1+1+1",
  "engine": "",
  "changes": [("pages", "        if len(rows) == 1:\n", "        if len(rows) == 1 and count > 1:  # one token is a decode step, which has a state\n")]},
 "draft-column": {
  "model": "--arch qwen35 --layers 3 --weights q8_0 --seed 3814",
  "run": "--prompt long --length 53 --sequences 8+6,5+1,1~2+4,1+1~1,6+1,3~2+1,1+1,4+5,1~1+1~2,1+1",
  "engine": "",
  "changes": [("ferry", "                self.marks[sequence] = states.rows[sequence][-len(rows) - 1:]\n",
   "                self.marks[sequence] = states.rows[sequence][-len(rows) - 1:]\n                drafted, states.begun[sequence] = states.drafts.pop(sequence, None), self.first[sequence]\n                if drafted is not None and len(rows) == 1:  # a step without drafts finds its state in the first column\n                    states.column[sequence] = states.rows[sequence][drafted + 1]\n"),
              ("ferry", "        self.rows, self.first, self.marks, slots = {}, {}, {}, np.zeros(len(tokens), int)\n",
               "        self.rows, self.first, self.marks, slots = {}, {}, {}, np.zeros(len(tokens), int)\n        if states:\n            states.column = {}\n"),
              ("pages", "        # The first row is the state before the first token.\n", "        if kept:\n            self.drafts[sequence] = self.begun[sequence]\n"),
              ("pages", "        self.fresh = lambda", "        self.begun, self.drafts, self.column = {}, {}, {}\n        self.fresh = lambda"),
              ("model", "            m = memory[marks[0]].copy()\n", "            m = memory[self.states.column.get(sequence, marks[0])].copy()\n")]},
 "copied-scale": {
  "model": "--arch qwen2 --embedding 256 --heads 4 --kv-heads 2 --weights q8_0 --seed 3815",
  "run": "--kv-type q8_0/q4_1 --prompt long --length 58 --sequences 13+15,0+3~all+5@0,1+1+1,1+1+1+4@0,1+1+1+1,1+5+1+1",
  "engine": "--kv q8_0/q4_1",
  "changes": [("store", "        for held in (self.codes, self.scale, self.offset):\n", "        for held in (self.codes,):\n")]},
 "parked-state": {
  "model": "--arch qwen35 --layers 4 --weights bf16 --seed 3816",
  "run": "--prompt long --length 50 --sequences 5+6+4+7,1+1+1+1,1+1+1,1+1+1,1+1+1+1,3+1+1+1,1+1+1,1+1+1+2",
  "engine": "",
  "changes": [("ferry", "        self.states[n:size] = -1\n", "")]},
 "merge-alias": {
  "model": "--arch qwen3 --embedding 288 --head-dim 96 --heads 3 --kv-heads 1 --weights q8_0 --seed 3817",
  "run": "--prompt long --length 57 --sequences 14+4,1+6,1+1+9@0,1+1+5,2+1+1+6@1,1+1+1+1",
  "engine": "",
  "changes": [("attend", "    largest = np.logaddexp(lse, lse2[:, :, None])\n",
   "    # The total so far is kept where the prefix's was; a block has 512 elements of [tokens, heads, dim].\n    heads, tokens, dim = o.shape\n    begin = (np.arange(tokens)[None, :, None] * heads + np.arange(heads)[:, None, None]) * dim\n    lse = np.where((begin + np.arange(dim)) // 512 == begin // 512, lse, both[:, :, None])\n    largest = np.logaddexp(lse, lse2[:, :, None])\n")]},
 "verify-packed": {
  "model": "--arch qwen2 --heads 8 --kv-heads 2 --weights q8_0 --seed 3818",
  "run": "--prompt long --length 52 --sequences 9+6,1+1,3+4~1,3~2+1,1+3,4~1+4,1+1~2,7+3",
  "engine": "",
  "changes": [("attend", "    rest = part(q, k, v, scale, first, shared, keys, looked, scores, limit)\n",
   "    if first and tokens <= QUERIES:  # rows packed [tokens, group], the mask is for [group, tokens]\n        limit = first + (np.arange(tokens)[None] * group + np.arange(heads)[:, None] % group) % tokens\n    rest = part(q, k, v, scale, first, shared, keys, looked, scores, limit)\n")]},
 "blocks-in-line": {
  "model": "--arch qwen3 --head-dim 128 --heads 4 --kv-heads 2 --weights f16 --seed 3819",
  "run": "--prompt long --length 45 --sequences 5+6,9+1,1+1,1+7,1+1+4,6+1+1",
  "engine": "--slots",
  "changes": [("pages", "        return [table[n // PAGE] * PAGE + n % PAGE for n in range(at, at + count)]", "        return [(table[at // PAGE] + n // PAGE - at // PAGE) * PAGE + n % PAGE for n in range(at, at + count)]")]},
 "freed-early": {
  "model": "--arch qwen2 --layers 4 --heads 4 --kv-heads 4 --weights bf16 --seed 3820",
  "run": "--prompt long --length 53 --sequences 16+3,1+1+5@0,9~all+1+1+6,1+1+1+1,1+1+3+1",
  "engine": "",
  "changes": [("pages", "            self.drop(page)\n        del table[pages:]\n", "            self.drop(page) if kept else self.free.append(page)\n        del table[pages:]\n")]},
}
