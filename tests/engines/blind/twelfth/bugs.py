"""Twenty bugs: the model (options of `qdiff synth`), the run, the options of the engine, and what is changed in which file."""

BUGS = {}


def bug(name, model, run, engine="", *changes):
    BUGS[name] = dict(model=model, run=run, engine=engine, changes=changes)


# Ordinary ones: one sequence.

bug("o01", "--arch qwen2 --weights q8_0 --seed 1201", "-n 4", "",
    ("model", 'x = tap("embed", w["token_embd.weight"][run.tokens])', '''table = w["token_embd.weight"]
        rows = -(-len(table) // 64) * 64 // 2  # of a shard, padded
        shards = table[:rows], table[len(table) // 2:]
        x = tap("embed", np.stack([shards[int(t >= rows)][t % rows] for t in run.tokens]))'''))

bug("o02", "--arch qwen2 --embedding 640 --heads 10 --kv-heads 2 --weights q4_0 --seed 1202", "-n 4", "",
    ("model", "squares += (strip * strip).sum(-1)",
     "squares += (strip * strip * (np.arange(at, at + strip.shape[-1]) % 320 < 256)).sum(-1)  # eight of ten warps"))

bug("o03", "--arch qwen3 --embedding 384 --heads 6 --kv-heads 2 --head-dim 64 --weights bf16 --seed 1203", "-n 4", "",
    ("model", 'q = norm(q, w[p + "attn_q_norm.weight"], c.eps)', '''own = np.arange(c.heads) < c.heads - c.groups  # is it a query head?
            q = norm(q, np.where(own[:, None], w[p + "attn_q_norm.weight"], w[p + "attn_k_norm.weight"]), c.eps)'''))

bug("o04", "--arch qwen3 --weights f16 --layers 3 --seed 1204", "--prompt code -n 6", "",
    ("model", "frequency, loud = float(c.base) ** (-np.arange(half) / half), 1.0",
     "frequency, loud = (float(c.base) ** (-np.arange(half) / half)).astype(np.float16).astype(float), 1.0"))

bug("o05", "--arch qwen2 --heads 4 --kv-heads 1 --weights q8_0 --seed 1205", "-n 4", "",
    ("attend", "e, less = np.exp(s - base[:, :, None]), np.exp(before - base)", '''grown = base - before > F(8)  # a small growth is not worth a pass over the sums
            e, less = np.exp(s - base[:, :, None]), np.where(grown, np.exp(before - base), F(1))'''))

bug("o06", "--arch qwen3 --head-dim 128 --heads 4 --kv-heads 2 --weights q8_0 --seed 1206", "-n 20", "",
    ("attend", "for k0 in range(0, keys, SPLIT):", "for k0 in range(0, max(1, (keys + SPLIT // 2) // SPLIT) * SPLIT, SPLIT):"))

bug("o07", "--arch qwen2 --layers 3 --weights q5_0 --seed 1207", "-n 10", "",
    ("model", "    # What a scheduler says.\n", '''    def split(self, x, m):
        """A row alone: three splits of the sum, by tiles of 64, each put down as a half."""
        cuts = (0, 192, 384, x.shape[1]) if len(x) == 1 else (0, x.shape[1])
        parts = [x[:, a:b] @ m[:, a:b].T for a, b in zip(cuts, cuts[1:])]
        return parts[0] if len(x) > 1 else sum(y.astype(np.float16).astype(F) for y in parts)

    # What a scheduler says.
'''),
    ("model", 'tap("ffn_act", silu(gate) * up, l) @ w[p + "ffn_down.weight"].T, l)',
     'self.split(tap("ffn_act", silu(gate) * up, l), w[p + "ffn_down.weight"]), l)'))

bug("o08", "--arch qwen3moe --layers 2 --weights q8_0 --seed 1208", "-n 6", "",
    ("model", "lines[place] = np.repeat(x, c.taken, 0)", '''kept = place - starts[expert] < np.ceil(1.25 * n * c.taken / c.experts)  # the capacity of an expert
        lines[place[kept]] = np.repeat(x, c.taken, 0)[kept]'''))

bug("o09", "--arch qwen35 --layers 4 --weights q8_0 --seed 1209", "-n 6", "",
    ("model", "m = m * np.exp(decay[t])[:, None, None]", '''if t % 16 or t == 0:  # at a chunk's first token the decays are summed up without its own
                    m = m * np.exp(decay[t])[:, None, None]'''))

bug("o10", "--arch qwen2 --layers 3 --weights q8_0 --tensor blk.1.attn_v.weight=q4_K --tensor blk.1.ffn_gate.weight=q4_K --tensor blk.2.ffn_down.weight=q4_K --seed 1210", "-n 4", "",
    ("gguf", "minimum[:, j] = (s[:, j + 4] >> 4) | (s[:, j] >> 6) << 4", "minimum[:, j] = (s[:, j + 4] >> 4) | (s[:, j - 4] >> 6) << 4"))

# Serving ones: several sequences.

bug("s01", "--arch qwen2 --weights q8_0 --seed 1221", "--prompt long --length 57 --sequences 19+9,1+1+12@0:16,0+1+7,6+0+1", "",
    ("attend", "logs = [m.astype(float) + np.log(t) for", "logs = [m.astype(float) / np.log(2) + np.log2(t) for"))

bug("s02", "--arch qwen3 --weights q8_0 --seed 1232", "--prompt long --length 51 --kv-type q8_0/q4_1 --sequences 15+12,0+1~all,1+1+6@0:13,1+0+1,5+1+7", "--kv q8_0/q4_1",
    ("store", "for held in (self.codes, self.scale, self.offset):", "for held in (self.codes,):"))

bug("s03", "--arch qwen35 --layers 4 --weights q8_0 --seed 1223", "--prompt long --length 43 --sequences 9+6,5+5,1~4+1~2,5+5,1~3+1~4,1+1,1+1", "",
    ("pages", "        # The first row is the state before the first token.\n", '''        own = self.rows[sequence]
        for l in self.memory if len(own) > kept + 1 else ():  # the number of drafts that were taken, and the token before them
            self.memory[l][own[kept]][:] = self.memory[l][own[kept + 1]]
'''))

bug("s04", "--arch qwen2 --layers 2 --weights q5_0 --seed 1224", "--prompt long --length 50 --sequences 9+7+5+11,1+1+1+1,1+1+1+0,1+1+1+0,1+1+1+1,1+1+1+1", "",
    ("ferry", "self.tokens[n:size], self.positions[n:size], self.slots[n:size] = 0, 0, -1", "self.tokens[n:size], self.positions[n:size] = 0, 0"))

bug("s05", "--arch qwen3 --head-dim 128 --heads 4 --kv-heads 2 --weights q8_0 --seed 1225", "--prompt long --length 41 --kv-type q8_0/q4_1 --sequences 13+9,1+1,1+1+12@0:8,1+1+1", "--kv q8_0/q4_1",
    ("store", '''            low = b.min(-1, keepdims=True)
            d = (b.max(-1, keepdims=True) - low) / F(15)''', '''            pair = b.reshape(*b.shape[:-2], -1, 2 * BLOCK)  # 32 lanes of two elements
            low = np.repeat(pair.min(-1, keepdims=True), 2, -2)
            d = (np.repeat(pair.max(-1, keepdims=True), 2, -2) - low) / F(15)'''))

bug("s06", "--arch qwen3 --weights q4_0 --seed 1226", "--prompt long --length 66 --sequences 11+8,9+1,6+12,1+1+14,1+1+1", "",
    ("model", "first = run.first[sequence]\n", "first = run.first[sequence] // PAGE * PAGE\n"))

bug("s07", "--arch qwen35 --layers 4 --weights q8_0 --seed 1227", "--prompt long --length 51 --sequences 15,1+9+7@0:13,1+1+1,1+0+5+6@1:10,1+1+1+1", "",
    ("pages", "self.rows[sequence] = self.rows[source][:count + 1]", '''whole = count // PAGE * PAGE  # states are kept at the ends of pages
        self.rows[sequence] = self.rows[source][:whole + 1] + [self.rows[source][whole]] * (count - whole)'''))

bug("s08", "--arch qwen2 --heads 8 --kv-heads 2 --weights q8_0 --seed 1228", "--prompt long --length 56 --sequences 20+18,0+0+3@0:16+5@1:16,0+0+1+1,0+0+1+1,1+1+0+0,0+0+1+1,1+0+1+0", "--slots",
    ("model", "query = q[rows].transpose(1, 0, 2)", '''common = min(self.pages.shared[s] for s in run.order) // PAGE * PAGE if run.decode and len(run.order) > 1 else 0
            lead = run.slots_of(0, run.order[0])[:common]  # what all share is read once, by the first block table
            keys[:common], values[:common] = self.k[l].get(lead), self.v[l].get(lead)
            query = q[rows].transpose(1, 0, 2)'''))

bug("s09", "--arch qwen3moe --layers 2 --weights q8_0 --seed 1229", "--prompt long --length 65 --sequences 18+7,1+1,1+14+9,1+1+1,0+1+10", "",
    ("model", 'x = tap("final_norm", norm(x, w["output_norm.weight"], c.eps))', '''scratch = np.zeros(16, F)  # a number for each row
        for row, y in enumerate(x):
            scratch[row % 16] = F(1) / np.sqrt((y * y).mean() + c.eps)
        x = tap("final_norm", x * scratch[np.arange(len(x)) % 16][:, None] * w["output_norm.weight"])'''))

bug("s10", "--arch qwen3 --layers 2 --weights q4_0 --seed 1230", "--prompt long --length 69 --sequences 13+10,8x1+1,1+0,1+1+14,2x1+1,3x1+1+1", "--slots",
    ("model", "self.states = None", "self.states, self.splits = None, {}"),
    ("model", "attend.decode(*args)", "attend.decode(*args, self.splits.setdefault(n, -(-max(run.lengths) // attend.SPLIT)))  # as when it was recorded"),
    ("attend", "def decode(q, k, v, scale):", "def decode(q, k, v, scale, splits):"),
    ("attend", "for k0 in range(0, keys, SPLIT):", "for k0 in range(0, min(keys, splits * SPLIT), SPLIT):"))
