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
    "qwen3-q50": "--arch qwen3 --weights Q8_0 --tensor blk.0.ffn_up.weight=Q5_0",
}

BUGS = []


def bug(name, model, run, stage, where, cause, also, changes, subject="", kv="", slots=False):
    BUGS.append(dict(name=name, model=model, run=run, stage=stage, where=where, cause=cause, also=also, changes=changes, subject=subject, kv=kv, slots=slots))


def plan(passes, length):
    return f"--prompt long --length {length} --sequences {passes}"


# ninth round
bug("n01-slots-in-a-row", "qwen2", plan("5+6,9+2,1+1", 24),
    "L00.k_cache and L00.v_cache (and of every layer); with them the captured slots of pass 1",
    "second pass: sequence 0's tokens 8..13 were written to slots 8..13, which are sequence 1's (its positions 0..5): sequence 1's cache rows 0..5 hold sequence 0's tokens 8..13; sequence 0's rows 8..13 (its table's slots 16..21) were never written (zeros)",
    "The slot mapping of a pass is made from the slot of its first token and counted on, instead of looking each token's page up in the block table: behind a page's end the rows go to the next physical page, which is another sequence's.",
    "Tokens 8..13 of sequence 0 written to slots 8..13 that belong to sequence 1; rows 0..5 of sequence 1 hold sequence 0's tokens 8..13; rows 8..13 of sequence 0 are zero/never written; slot and table disagree.",
    [("pages.py", "return [table[n // PAGE] * PAGE + n % PAGE for n in range(at, at + count)]", "return [table[at // PAGE] * PAGE + at % PAGE + n for n in range(count)]")], slots=True)

bug("n02-part-page-of-the-context", "qwen3", "--prompt long --length 21 --passes 11,10 -n 1",
    "L00.attn_weights and L00.attn_context (and of every layer); scores are right",
    "second part of the prefill (positions 11..20), all heads: keys 8, 9, 10 have weight 0; the first part and the decode step are right",
    "A later part of a prefill sees of the context before it whole pages (of 8) only: keys from floor(first / 8) * 8 to first - 1 are masked.",
    "Keys 8..10 masked / left out of the softmax for positions 11..20; keys of the last partial page before the part are not seen.",
    [("attend.py", "            hidden = np.arange(k0, k1)[None] > first + np.arange(q0, q1)[:, None]\n", "            n = np.arange(k0, k1)[None]\n            hidden = (n > first + np.arange(q0, q1)[:, None]) | (n >= first // 8 * 8) & (n < first)\n"),
     ("attend.py", "    s = np.where(seen[None], scores", "    seen = seen & ~((np.arange(keys) >= first // 8 * 8) & (np.arange(keys) < first))[None]\n    s = np.where(seen[None], scores")])

bug("n03-draft-sees-what-follows", "qwen2", plan("9+7,4+1,1~2+3", 25),
    "L00.attn_weights and L00.attn_context (and of every layer); scores are right",
    "passes of 2 to 4 tokens of a sequence behind earlier ones: sequence 0 positions 9..11 of the second pass (all but the last of its 4; row 12 is right), sequence 1's positions 8, 9 in the third pass (position 10 right); the first pass is right",
    "A pass of at most 4 tokens of a sequence behind cached ones (checking a draft) has no causal mask among its own tokens: each sees all the keys of the pass.",
    "The causal mask is missing for short passes / drafted tokens see later tokens of the same pass (bidirectional within the chunk).",
    [("attend.py", "            s[:, hidden] = -np.inf\n", "            if not (first and tokens <= QUERIES):\n                s[:, hidden] = -np.inf\n"),
     ("attend.py", "    seen = np.arange(keys)[None] <= first + np.arange(tokens)[:, None]\n", "    seen = np.arange(keys)[None] <= first + (np.arange(tokens)[:, None] if not (first and tokens <= QUERIES) else tokens)\n")])

bug("n04-value-written-after-the-read", "qwen2", "--prompt long --length 10 -n 3",
    "L00.v_cache (and of every layer); k_cache is right",
    "decode steps alone: the newest row (the token's own: rows 10, 11, 12 in their own step) is zero; a step later that row is right",
    "In a decode step the value is written to the cache after attention has read it (missing synchronisation): the token's own row is what the slot held before, zeros; the next step finds it right.",
    "The token's own value row is zero / not yet written when read in decode; stale slot of the newest token in v_cache only.",
    [("model.py", "        self.v[l].put(run.slots[writes], v[writes])\n", "        if not run.decode:\n            self.v[l].put(run.slots[writes], v[writes])\n"),
     ("model.py", "        if run.decode:  # of each sequence one row", "        if run.decode:\n            self.v[l].put(run.slots[writes], v[writes])\n        if run.decode:  # of each sequence one row")])

bug("n05-logits-behind-the-end", "qwen2", plan("5+4+6,1+1+1", 18),
    "logits", "first pass (a prefill of several sequences): the last row of sequences 0 and 1 (positions 4 and 3); that of sequence 2, the last one in the pass, is right; the decode step is right",
    "The last row of each sequence is looked up by the end (exclusive) of its rows instead of end - 1, so that the logits of sequence 0's last token are made of the first row of sequence 1, those of sequence 1's last of the first row of sequence 2.",
    "The logits of the last position are those of another sequence's first token (the next row of the pass); gather off by one.",
    [("model.py", '        return tap("logits", x @', '        if not run.decode:\n            x = x.copy()\n            take = x.copy()\n            for rows in run.rows.values():\n                x[rows[-1]] = take[min(rows[-1] + 1, len(x) - 1)]\n        return tap("logits", x @')])

bug("n06-rejected-row-stays", "qwen3", plan("10+5,4+1,1~3+1,2+1", 25),
    "L00.k_cache and L00.v_cache (and of every layer)",
    "sequence 0 after it took 3 tokens back (kept 11): rows 11 (third pass) and 12, 13 (fourth pass, with 11 again)",
    "A row of the cache below the farthest position that the sequence ever wrote is taken as cached and not written again: after a draft was rejected the rows of the rejected tokens at 11..13 stay in place of the new tokens'.",
    "Rows 11.. hold keys/values of the rejected (taken back) tokens at the same positions; stale rows after rollback; the new token is not written.",
    [("model.py", "        writes = run.slots >= 0  # rows that only fill up a batch have no slot\n",
      "        writes = run.slots >= 0\n        for sequence, rows in run.rows.items():\n            most = self.__dict__.setdefault('far', {}).get((l, sequence), 0)\n            for i, row in enumerate(rows):\n                if run.first[sequence] + i < most:\n                    writes[row] = False\n            self.far[l, sequence] = max(most, run.first[sequence] + len(rows))\n")])

bug("n07-prefix-of-another", "qwen2", plan("9+10,1+1+5@0:8", 26),
    "L00.k_cache and L00.v_cache (and of every layer); with them the captured table of sequence 2",
    "sequence 2, second pass: cache rows 0..7 are those of sequence 1's tokens 0..7",
    "The prefix cache finds the wrong entry (as with a hash collision): sequence 2 begins with the pages of sequence 1, the sequence that began last, instead of those of sequence 0, which it names.",
    "Rows 0..7 of sequence 2 are the rows of sequence 1; table of sequence 2 has slots of sequence 1 (16..23 or so, those of its page) for positions 0..7 instead of sequence 0's.",
    [("pages.py", "        pages = self.table[source][:-(-count // PAGE)]\n", "        pages = self.table[max(self.table)][:-(-count // PAGE)]\n")], slots=True)

bug("n08-copied-page-without-offsets", "qwen2", plan("13,1+6@0:11", 20) + " --kv-type q4_1",
    "L00.k_cache and L00.v_cache (and of every layer)",
    "sequence 0 (which writes first and so gets the copy), second pass, rows 8..12 (the earlier tokens of the copied page); rows 0..7 and 13 and sequence 1 are right",
    "When a partly shared page is copied before it is written to, codes and scales are copied, but not the offsets (minima) of the q4_1 blocks: the copied rows have offset 0.",
    "Offsets/minima missing (0 or stale) in rows 8..12 of sequence 0: rows are too high by the block's minimum, one constant per block.",
    [("store.py", "        for held in (self.codes, self.scale, self.offset):", "        for held in (self.codes, self.scale):")], kv="q4_1")

bug("n09-prefix-with-the-latest-state", "qwen35", plan("9,1+5@0:6", 15),
    "L00.conv_out, L00.delta_state and L00.delta_out (and of every recurrent layer); conv_state is right (5 tokens fill the window of 3)",
    "sequence 1, second pass: conv_out of its first 3 tokens (positions 6, 7, 8); delta_out and delta_state of all its tokens",
    "A sequence that begins with a cached prefix of 6 tokens goes on from the source's latest state (after 9 tokens) instead of that after 6; convolution window and delta net both.",
    "The initial state is that of sequence 0 after 9 tokens (3 tokens too many / tokens 6..8 of sequence 0 counted).",
    [("pages.py", "        self.rows[sequence] = self.rows[source][:count + 1]\n", "        self.rows[sequence] = self.rows[source][:count] + self.rows[source][-1:]\n")])

bug("n10-state-kept-in-bf16", "qwen35", "--prompt long --length 14 --passes 6,8 -n 1",
    "L00.delta_state and L00.delta_out (and of every recurrent layer)",
    "every pass but the first (positions from 6 on)",
    "Between passes the delta net's state is kept in bf16 (rounded to nearest); within a pass it is f32. The convolution window is f32.",
    "The carried state is rounded to bf16 / 8 bits at pass boundaries.",
    [("model.py", "                memory[mark][:] = m\n", "                bits = np.ascontiguousarray(m, dtype=F).view(np.uint32)\n                memory[mark][:] = ((bits + 0x7fff + (bits >> 16 & 1)) & np.uint32(0xffff0000)).view(F)\n")])

bug("n11-norm-of-the-queries-for-keys", "qwen3", "--prompt haiku -n 0",
    "L00.k_normed (and of every layer)", "all positions, all heads",
    "Keys are normed with the weight of the queries' norm (attn_q_norm.weight) instead of attn_k_norm.weight.",
    "k_normed uses q_norm's weight; another tensor's weight; wrong weight vector (one factor per column of a head).",
    [("model.py", 'norm(k, w[p + "attn_k_norm.weight"], c.eps)', 'norm(k, w[p + "attn_q_norm.weight"], c.eps)')])

bug("n12-exponents-over-the-head", "qwen35", "--prompt haiku -n 0",
    "L01.q_rope and L01.k_rope (the attention layer)", "positions from 1 on; rotated elements but pair 0",
    "Partial rotation: pair i's frequency is base^(-2i / head dimension) instead of base^(-2i / rotated dimensions).",
    "The exponent is divided by the whole head's width; frequencies are those of a rotation of the full head; equivalent to another base base^(rotated/dim).",
    [("model.py", "float(c.base) ** (-np.arange(half) / half)", "float(c.base) ** (-2 * np.arange(half) / c.dim)")])

bug("n13-group-of-a-power-of-two", "qwen3", "--prompt haiku -n 1",
    "L00.attn_scores and L00.attn_context (and of every layer)", "all positions; head 3 alone (of 6 heads, 2 KV heads)",
    "The number of query heads of a KV head (3) is rounded up to a power of two (4): head h reads KV head h / 4, so that head 3 reads KV head 0 instead of 1.",
    "Head 3 uses KV head 0; h >> 2; wrong group size 4 instead of 3.",
    [("attend.py", "    return np.repeat(x.transpose(1, 0, 2), heads // x.shape[1], 0)", "    group = 1 << (heads // x.shape[1] - 1).bit_length()\n    return x.transpose(1, 0, 2)[np.arange(heads) // group]")])

bug("n14-capacity-of-an-expert", "moe", "--prompt long --length 24 -n 0",
    "L00.expert_gate and L00.expert_up (and of every layer)", "lines of an expert beyond its eighth in the order of tokens (later tokens); they are all zeros",
    "An expert takes at most 8 lines of a pass (capacity); what more chose it is dropped: their expert_gate, expert_up and so expert_down are zero.",
    "Zero rows for the ninth and later token of an expert; expert overflow / capacity drop.",
    [("model.py", "        lines[place] = np.repeat(x, c.taken, 0)\n", "        lines[place] = np.repeat(x, c.taken, 0)\n        lines[place[place - starts[expert] >= 8]] = 0\n")])

bug("n15-values-not-activated", "qwen35", "--prompt haiku -n 0",
    "L00.conv_act (and of every recurrent layer)", "all positions; the channels of the values (behind queries and keys, 2 * key_heads * state and further)",
    "SiLU after the convolution is applied to the channels of queries and keys alone; values go through as they are.",
    "conv_act equals conv_out in the value channels; the activation is missing from column 2*keys on (a range of columns).",
    [("model.py", 'act = tap("conv_act", silu(tap("conv_out", conv, l)), l)', 'conv = tap("conv_out", conv, l)\n        act = tap("conv_act", np.concatenate([silu(conv[:, :2 * keys]), conv[:, 2 * keys:]], -1), l)')])

bug("n16-fifth-bits-big-endian", "qwen3-q50", "--prompt haiku -n 0",
    "L00.ffn_up", "all positions; blk.0.ffn_up.weight, the one tensor in Q5_0",
    "The four bytes of a Q5_0 block's fifth bits are read as a big-endian word: weight j's bit comes from byte 3 - j / 8.",
    "Fifth (high) bits of Q5_0 in the wrong order: byte-swapped; weights 0..7 have the bits of 24..31, 8..15 those of 16..23, and the reverse.",
    [("gguf.py", '.view("<u4") >> np.arange(32', '.view(">u4").astype(np.uint32) >> np.arange(32')])
