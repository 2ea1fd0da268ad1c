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


def bug(name, model, run, stage, where, cause, also, changes, subject="", kv="", slots=False):
    BUGS.append(dict(name=name, model=model, run=run, stage=stage, where=where, cause=cause, also=also, changes=changes, subject=subject, kv=kv, slots=slots))


def plan(passes, length):
    return f"--prompt long --length {length} --sequences {passes}"


# ---------------------------------------------------------------- serving, in the engine

bug("s01-padding-writes-slot-0", "qwen2", plan("9+6+4,1+1+1", 22),
    "L00.k_cache and L00.v_cache (and of every layer)",
    "sequence 0, cache row 0, from the second pass on (the decode step of three sequences)",
    "The decode batch of 3 rows is filled up to a bucket of 4; the filling row (token 0 at position 0) has slot 0 instead of none, so that its key "
    "and value overwrite row 0 of sequence 0, to which slot 0 belongs. Only in decode steps whose number of sequences is no power of two.",
    "Row 0 of sequence 0's caches is overwritten by (or holds the row of) a padding or foreign token, or is no row of this run; a write to slot 0 by nobody's row.",
    [("ferry.py", "self.slots[n:size] = 0, 0, -1", "self.slots[n:size] = 0, 0, 0")], slots=True)

bug("s02-no-copy-on-write", "qwen3", plan("13,1+6@0:11", 20),
    "L00.k_cache and L00.v_cache (and of every layer)",
    "sequence 0, cache rows 11, 12 and 13, in the second pass",
    "Sequence 1 shares the first 11 tokens of sequence 0, whose second page (positions 8..15) it shares in part; a page that two sequences share is "
    "not copied before one writes to it (copied only with more than two users), so that sequence 1's positions 11..13 are written over sequence 0's.",
    "Rows 11..13 of sequence 0 hold the rows of tokens 11..13 of sequence 1; tokens of sequence 1 were written to slots (11..13) that belong to sequence 0; no copy on write.",
    [("pages.py", "self.users[table[-1]] > 1:", "self.users[table[-1]] > 2:")])

bug("s03-rollback-frees-part-page", "qwen2", plan("11,6,1~4", 18),
    "L00.k_cache and L00.v_cache (and of every layer); with them the captured tables and the slot of the new token (21 for 13)",
    "sequence 0 after it took 4 tokens back (kept 13), third pass: cache rows 8..12",
    "Taking tokens back keeps floor(kept / 8) pages instead of the ceiling: the page with the kept positions 8..12 is freed, and another page (that of the rejected "
    "position 16) stands in its place, whose rows are stale (row 8 is that of the rejected draft token at position 16) or never written (rows 9..12 are zero).",
    "Rows 8..12 that were kept are lost, zero or stale after the draft was rejected; the table names a slot of another page (16.. instead of 8..) for positions 8..12.",
    [("pages.py", "        pages = -(-kept // PAGE)\n", "        pages = kept // PAGE\n")], slots=True)

bug("s04-tile-bound-in-later-part", "qwen3", "--prompt long --length 13 --passes 6,7 -n 0",
    "L00.attn_scores and L00.attn_context (and of every layer)",
    "second part of the prefill: positions 8 and 9; keys 8 and 9 of them (row 8 lacks key 8, row 9 keys 8 and 9), all heads",
    "The loop over tiles of 8 keys ends with the tile that the first query of a tile of 4 queries sees, not the last one: keys behind it that later queries of the tile see are "
    "skipped (score 0, not in the context). Shows only where a part of a prefill begins at a position that is no multiple of 4.",
    "Scores of visible keys 8.. are 0 (not computed) for positions 8 and 9; these keys are left out of the context; own and near keys masked at a tile's edge.",
    [("attend.py", "last = min(end, first + q1)  #", "last = min(end, first + q0 + 1)  #")])

bug("s05-key-alone-in-its-split", "qwen2", "--prompt long --length 15 -n 3",
    "L00.attn_weights and L00.attn_context (and of every layer)",
    "the second decode step alone (position 16, which sees 17 keys), key 16, all heads",
    "In a decode step keys come in splits of 16; the loop ends one key early (a split must begin before the last key), so that a split that has one key alone is left out: with 16 n + 1 keys the newest key, the token's own, has weight 0 and its value does not count. Other lengths are right.",
    "The last key (the token itself) is left out / masked at position 16 (17 keys); a strict mask at one length; one key too few where keys % 16 == 1.",
    [("attend.py", "    for k0 in range(0, keys, SPLIT):", "    for k0 in range(0, keys - 1, SPLIT):")])

bug("s06-stale-positions", "qwen2", plan("5+7,1+1,0+0+6,1+1+1", 23),
    "L00.q_rope and L00.k_rope (and of every layer); with them the captured positions",
    "sequence 2, fourth pass, its token at position 6 (row 2 of the pass)",
    "Only as many rows of the decode batch's positions buffer are refreshed as the decode step before had rows (2): the third row keeps what the filling wrote or the buffer began with, position 0, "
    "so that sequence 2's token is rotated as at position 0.",
    "The position of row 2 is 0 instead of 6 (stale); q and k of sequence 2 are rotated at position 0 / not rotated.",
    [("ferry.py", "        self.tokens[:n], self.positions[:n], self.slots[:n] = tokens, positions, slots\n",
      "        self.tokens[:n], self.slots[:n] = tokens, slots\n        before = min(n, self.used or n)\n        self.positions[:before] = positions[:before]\n")], slots=True)

bug("s07-one-scale-for-a-head", "qwen2", "--prompt long --length 9 -n 1 --kv-type q8_0",
    "L00.k_cache and L00.v_cache (and of every layer)",
    "all rows, the one of two blocks of 32 of each head whose own largest magnitude is not the head's largest",
    "The scale of a q8_0 block of the cache comes from the largest magnitude of the whole head (64 elements) instead of that of the block's 32 elements.",
    "The block's scale is that of the neighbour block / of the larger block of the head; amax over the head.",
    [("store.py", "largest = np.abs(b).max(-1, keepdims=True)", "largest = np.abs(b).max((-2, -1), keepdims=True)")], kv="q8_0")

bug("s08-state-of-a-rejected-token", "qwen35", plan("8,4,1~3", 13),
    "L00.conv_out, L00.conv_state, L00.delta_state and L00.delta_out (and of every recurrent layer)",
    "sequence 0 after it took 3 tokens back (kept 9), third pass: position 9",
    "Taking a draft back keeps one state too many: the state (convolution window and delta net) that the pass goes on from is that after 10 tokens, the first rejected token's included, instead of after 9.",
    "The state still has one rejected token (off by one at rollback).",
    [("pages.py", "        for row in self.rows[sequence][kept + 1:]:\n            self.drop(row)\n        del self.rows[sequence][kept + 1:]\n",
      "        for row in self.rows[sequence][kept + 2:]:\n            self.drop(row)\n        del self.rows[sequence][kept + 2:]\n")])

bug("s09-state-not-cleared", "qwen35", plan("6,0~all+5", 11),
    "L00.delta_state and L00.delta_out (and of every recurrent layer)",
    "sequence 1, from its first token on (second pass)",
    "A new sequence begins with the delta net's state that the row of the pool holds from its last owner (sequence 0's state after its first token, given back) instead of zeros; the convolution's window is cleared.",
    "The initial state is not zero / is another sequence's state (sequence 0's after a token).",
    [("pages.py", "                self.memory[l][rows[0]][:] = 0\n", "")])

bug("s10-window-of-short-passes", "qwen35", "--prompt long --length 12 --passes 7,2,3 -n 0",
    "L00.conv_state (and of every recurrent layer)",
    "the second pass (2 tokens): the oldest of the 3 rows of the window, which is zero",
    "The convolution's window after a token is made of the rows of the same pass alone, with zeros before them: in passes of fewer than 3 tokens the rows of earlier passes are lost.",
    "The oldest row(s) of the window are zero instead of the rows of the pass before; the window is not moved on but rebuilt from the pass.",
    [("model.py", "                windows[mark][:] = line[t + 1:t + 1 + past]\n",
      "                windows[mark][:] = np.concatenate([np.zeros_like(windows[marks[0]]), qkv[rows]])[t + 1:t + 1 + past]\n")])

bug("s11-logarithm-of-base-2", "qwen3", plan("12,1+7@0:10", 20),
    "L00.attn_context (and of every layer)",
    "sequence 1, second pass, its positions 10..16 (a prefill behind a shared prefix of 10 tokens)",
    "The shared prefix (keys 0..9) and the keys behind it are two parts whose contexts are put together by e^(max + log total); the logarithm is that of base 2, so that each part counts as total^(1/ln 2 - 1) = total^0.443 times too much.",
    "The weights of prefix keys (0..9) against the others (10..) are wrong by one factor per row and head, within each part right; log2 for ln when merging log-sum-exps.",
    [("attend.py", "m.astype(float) + np.log(t) for", "m.astype(float) + np.log2(t) for")])

bug("s12-order-instead-of-its-inverse", "qwen2", plan("4+8+6,1+1+1", 21),
    "L00.attn_context (and of every layer)",
    "second pass (decode step), all three sequences",
    "A decode step goes through the sequences by length (order 1, 2, 0) and puts the contexts back by the order itself instead of its inverse: sequence 0 gets the context of sequence 2, sequence 1 that of sequence 0, sequence 2 that of sequence 1.",
    "The rows of the three sequences are permuted cyclically in attn_context.",
    [("model.py", "context[run.batch_place] = np.concatenate(made)", "context[:len(made)] = np.concatenate(made)[run.batch_place]")], slots=True)

bug("s13-stale-width-of-tables", "qwen2", plan("7+6+5,1+1+1,1+1+1", 24),
    "L00.k_cache and L00.v_cache (and of every layer); with them the captured tables",
    "third pass, sequences 1 and 2 (the second and the third row of the table), all rows that they read (but those where both have the same values); sequence 0 and the first two passes are right",
    "The block tables of all sequences stand in one array, each as wide as the widest; readers use the width of the step before (1) though sequence 0 now has 2 pages: sequence 1 reads sequence 0's second page (slots 24..31: the row of sequence 0's token 8, then rows that were never written, zeros), sequence 2 reads sequence 1's page (slots 8..14).",
    "The table of sequence 1 names slots of sequence 0 (its second page), that of sequence 2 those of sequence 1; a stale stride of the block table; sequence 2's rows are those of sequence 1.",
    [("ferry.py", "        engine.width = max(len(pages.table[s]) for s in self.order)\n        self.width, self.table = engine.width, np.zeros",
      "        self.width, engine.width = engine.width, max(len(pages.table[s]) for s in self.order)\n        self.table = np.zeros")], slots=True)

bug("s14-shared-pages-not-counted", "qwen3", plan("17,1+5@0:16,0~all+1+13", 37),
    "L00.k_cache and L00.v_cache (and of every layer); with them the captured slots",
    "sequence 1, third pass, cache rows 8..12",
    "A sequence that begins with a shared prefix is counted as a user of the partly shared page alone: whole shared pages (positions 0..15) keep one user, are freed when sequence 0 ends, "
    "and one of them is given to sequence 2, whose positions 8..12 are written over sequence 1's positions 8..12.",
    "Rows 8..12 of sequence 1 hold the rows of tokens 8..12 of sequence 2; sequence 2 was given slots that still belong to sequence 1 (the prefix of a sequence that ended).",
    [("pages.py", "        for page in pages:\n            self.users[page] += 1\n", "        for page in pages[count // PAGE:]:\n            self.users[page] += 1\n")], slots=True)

# ---------------------------------------------------------------- others, in the engine

bug("o01-minimum-with-bits-of-the-scale", "qwen2-q4k", "--prompt haiku -n 0",
    "L01.ffn_down", "all positions; the one tensor in Q4_K, groups 4..7 (columns 128..255 of each 256)",
    "The upper two bits of the minima of groups 4..7 of a Q4_K block come from the bytes of the scales of groups 0..3 (byte j-4) instead of the bytes of the minima (byte j).",
    "Q4_K decoded with wrong minima (high bits) in groups 4..7 of blk.1.ffn_down.weight.",
    [("gguf.py", "minimum[:, j] = (s[:, j + 4] >> 4) | (s[:, j] >> 6) << 4", "minimum[:, j] = (s[:, j + 4] >> 4) | (s[:, j - 4] >> 6) << 4")])

bug("o02-starts-without-padding", "moe", "--prompt haiku -n 0",
    "L00.expert_gate and L00.expert_up, then L00.expert_down (and of every layer)",
    "some lines (a token's chosen experts): those whose place lies in a block of 4 of another expert",
    "The lines of an expert begin at the sum of the counts before, not of the counts filled up to blocks of 4, though block b's expert is found by the filled-up counts: lines at the wrong place are multiplied with another expert's (a lower-numbered one's) matrix.",
    "Some lines use the weights of another expert (the wrong expert in the grouped product).",
    [("model.py", "starts = np.cumsum(padded) - padded", "starts = np.cumsum(counts) - counts")])

bug("o03-difference-before-the-decay", "qwen35", "--prompt haiku -n 0",
    "L00.delta_state and L00.delta_out (and of every recurrent layer)", "all positions but the first of the sequence",
    "The delta rule's difference v - M k is taken from the state before it decays; the state decays afterwards (M <- e^g M + delta k).",
    "M k is not multiplied by e^g in delta; decay applied after the read.",
    [("model.py", "                m = m * np.exp(decay[t])[:, None, None]\n                delta = (v[t] - (m @ key[:, :, None])[:, :, 0]) * beta[t][:, None]\n                m = m + delta",
      "                delta = (v[t] - (m @ key[:, :, None])[:, :, 0]) * beta[t][:, None]\n                m = m * np.exp(decay[t])[:, None, None] + delta")])

bug("o04-norm-without-its-last-strip", "qwen2-320", "--prompt haiku -n 0",
    "L00.attn_norm, and every attn_norm, ffn_norm and final_norm", "all positions",
    "Squares are added up by whole strips of 128 elements: of 320 the last 64 (256..319) are not counted, while the mean still divides by 320.",
    "The norm's factor is too large, from the squares of the first 256 of 320 elements over 320.",
    [("model.py", "for at in range(0, x.shape[-1], STRIP):", "for at in range(0, x.shape[-1] - STRIP + 1, STRIP):")])

bug("o05-positions-in-bf16", "qwen3-one", "--prompt long --length 264 -n 0",
    "L00.q_rope and L00.k_rope", "odd positions from 257 on (257, 259, 261, 263)",
    "Positions are rounded to bf16 (8 bits, to the nearest, ties to even) before they are multiplied with the frequencies: 257 counts as 256, 259 as 260, 261 as 260, 263 as 264.",
    "Positions beyond 256 are rounded to even numbers / to bf16.",
    [("model.py", "        at = np.arange(c.context, dtype=np.float64)[:, None]\n",
      "        bits = np.arange(c.context, dtype=F).view(np.uint32)\n"
      "        at = (bits + 0x7fff + (bits >> 16 & 1) & 0xffff0000).view(F).astype(np.float64)[:, None]\n")])

bug("o06-bias-twice-at-the-edge", "qwen2", "--prompt haiku -n 0",
    "L00.q_biased, L00.k_biased and L00.v_biased (and of every layer)", "one position of a pass of T >= 4 rows: 4 floor(T / 4) - 1",
    "Rows get their bias 4 at a time and the rest one by one; the rest begins a row too early, so that the last row of the last whole four gets the bias twice.",
    "The bias is added twice at position 4 floor(T/4) - 1.",
    [("model.py", "    for at in range(whole, len(x)):", "    for at in range(max(whole - 1, 0), len(x)):")])

# ---------------------------------------------------------------- qdiff's kernels, one op each (--subject cuda)

MODELS.update({
    "c-qwen2": "--arch qwen2 --weights Q8_0 --layers 1 --ffn 256",
    "c-80": "--arch qwen2 --weights Q8_0 --layers 1 --embedding 320 --heads 4 --head-dim 80 --ffn 320",
    "c-qwen3": "--arch qwen3 --weights F16 --layers 1 --ffn 256",
    "c-q6k": "--arch qwen3 --weights Q8_0 --layers 1 --ffn 256 --tensor blk.0.ffn_up.weight=Q6_K",
    "c-moe": "--arch qwen3moe --weights Q8_0 --layers 1",
    "c-qwen35": "--arch qwen35 --weights Q8_0 --layers 2 --ffn 256",
    "f-q6k": "--arch qwen2 --weights Q6_K --layers 1 --ffn 256",
    "f-q50": "--arch qwen3 --weights Q5_0 --layers 1 --ffn 256",
    "f-128": "--arch qwen3 --weights Q8_0 --layers 1 --ffn 256 --head-dim 128 --heads 2 --kv-heads 1",
})


def cuda(*args):
    bug(*args, subject="cuda")


def fast(*args):
    bug(*args, subject="cuda-fast")


cuda("k01-sum-of-four-warps", "c-qwen2", "--prompt haiku -n 0",
     "L00.attn_norm (and ffn_norm, final_norm)", "all positions",
     "The reduction over a block of threads adds up its first 4 warps alone, as if a block had 128 threads; rms_norm has 256, so that only the squares of elements 0..127 of the 256 count (of elements whose index modulo 256 is below 128), over the mean's 256.",
     "The norm's sum of squares leaves out elements 128..255; the factor is too large.",
     [("reduce.cuh", "    for (int i = 1; i < (int)(blockDim.x / 32); i++) r = combine(r, partial[i]);", "    for (int i = 1; i < min((int)(blockDim.x / 32), 4); i++) r = combine(r, partial[i]);")])

cuda("k02-tail-of-a-head", "c-80", "--prompt haiku -n 0",
     "L00.attn_scores", "all positions and heads",
     "The product of query and key ends with the last whole run of 32 elements: of 80 elements of a head the last 16 (64..79) do not count. Only where the head's width is no multiple of 32.",
     "Elements 64..79 of each head are left out of attn_scores.",
     [("attn_scores.cu", "for (int i = lane; i < p.d; i += 32) sum = fmaf", "for (int i = lane; i < p.d / 32 * 32; i += 32) sum = fmaf")])

cuda("k03-mask-by-row-number", "c-qwen2", plan("5+1+9,1+1+1", 18),
     "L00.attn_weights",
     "first pass: sequence 1 (its one row, 6 keys count instead of 1) and sequence 2 (position i: 7 + i keys instead of 1 + i), sequence 0 is right; second pass: all three sequences (16, 17 and 18 keys count instead of 6, 2 and 10)",
     "The softmax' mask is at the number of the row in the run (first + t: all rows of all sequences before it count) instead of at the row's position in its sequence: each row also counts keys behind it, whose scores are 0, so that the sum has e^(0 - max) for each of them and the visible weights are too small by one factor per row and head.",
     "Weights at keys after the token are not 0 where the sequence has such keys (sequence 2, first pass). attn_weights counts more keys than position + 1: 5 keys too many for sequence 1, 6 for sequence 2 in the first pass, 10, 15 and 8 in the second, each with score 0; row number taken for position; the weights do not sum to 1 over the visible keys; the softmax runs over keys beyond the sequence's length.",
     [("attn_weights.cu", "const int seen = min(p.keys, p.batch.position(p.first, t) + 1);", "const int seen = min(p.keys, p.first + t + 1);")])

cuda("k04-table-of-the-first-row", "c-qwen2", plan("6+5,1+1", 13),
     "L00.attn_context", "sequence 1, both passes",
     "Values are read at the slots of row 0's block table, which is that of the pass' first sequence: sequence 1's context is made of sequence 0's values with its own weights.",
     "attn_context of sequence 1 uses the values of sequence 0 at the same positions.",
     [("attn_context.cu", "p.batch.slot(t, n)", "p.batch.slot(0, n)")])

cuda("k05-halves-cut-off", "c-qwen2", "--prompt haiku -n 1 --kv-type f16",
     "L00.k_cache and L00.v_cache", "all rows; the elements that lie nearer to the half away from zero (about half of all), by one place",
     "Rows are cut off to 10 bits of mantissa (rounded towards zero) before they are written to the f16 cache, instead of rounded to the nearest half.",
     "Truncation / rounding towards zero when the cache is written.",
     [("kv_cache.cu", "Kv::put(p.rows[i]);", "Kv::put(__uint_as_float(__float_as_uint(p.rows[i]) & 0xffffe000u));")])

cuda("k06-beta-of-the-first-token", "c-qwen35", "--prompt haiku -n 0",
     "L00.delta_state and L00.delta_out", "all positions of the prefill but the first",
     "The delta rule's β is read without the token's offset: every token of a step takes the β (of its head) of the step's first token; the decay is the token's own.",
     "β is that of another token (token 0 of the pass); beta indexed by head alone.",
     [("delta_net.cu", "sum_of_warp(dot)) * p.beta[at];", "sum_of_warp(dot)) * p.beta[h];")])

cuda("k07-window-backwards", "c-qwen35", "--prompt haiku -n 2",
     "L00.conv_out", "decode steps (any pass but the first), the first three tokens of a pass",
     "The rows before a pass, which the convolution's window keeps oldest first, are read newest first (row 2 - r instead of r), so that taps 0 and 2 exchange their inputs in a decode step; conv_state itself is right.",
     "The window is reversed in conv_out; kernel taps of the past rows in reverse order.",
     [("convolution.cu", "row < past ? p.before[(size_t)row * p.n + c]", "row < past ? p.before[(size_t)(past - 1 - row) * p.n + c]")])

cuda("k08-row-of-the-router", "c-moe", "--prompt haiku -n 0",
     "L00.router_weights", "positions from 1 on (of 3 experts chosen of 7: element i of [T, 3] reads row i / 7 instead of i / 3)",
     "The row of the probabilities that are gathered is the flat index divided by the number of experts (7) instead of the number of chosen ones (3): token t's weights come from token (3 t + j) / 7.",
     "router_weights are the probabilities of other (earlier) tokens at the chosen experts' places.",
     [("gather.cu", "p.x[(size_t)(i / p.k) * p.n + at]", "p.x[(size_t)(i / p.n) * p.n + at]")])

cuda("k09-high-bits-of-the-first-half", "c-q6k", "--prompt haiku -n 0",
     "L00.ffn_up", "all positions; the one tensor in Q6_K",
     "Of the second half of a Q6_K block (weights 128..255) the upper two bits of weights 16..31 of each 32 come from the bytes of the first half: byte 16 + i of the block's high bits instead of 48 + i.",
     "Q6_K high bits (qh) of the second half taken from the first half for 16 of each 32 columns.",
     [("blocks.cuh", "r.high[1] = at128(w.plane[1], 4 * block + 2 * half + 1);", "r.high[1] = at128(w.plane[1], 4 * block + 1);")])

cuda("k10-token-of-half-a-head", "c-qwen3", "--prompt haiku -n 1",
     "L00.q_rope and L00.k_rope", "positions from 1 on in the prefill (decode is right)",
     "The token of a thread is its number divided by heads times the whole head width, though there is a thread for each pair: token t is rotated at position floor(t / 2) (counted from the start of the pass).",
     "Row t is rotated at position t/2 (halved positions, floor).",
     [("rope.cu", "    const int t = head / p.heads;\n", "    const int t = at / (p.heads * p.d);\n")])

# ---------------------------------------------------------------- qdiff's fused kernels (--subject cuda-fast)

fast("f01-bias-of-the-first-half", "c-qwen2", "--prompt haiku -n 1",
     "L00.q_biased, L00.k_biased and L00.v_biased", "the decode step alone; the second half of each head (elements 32..63 of 64)",
     "In the decode kernel the element half a head further on gets the bias of its partner in the first half: element i + 32 of a head gets bias i instead of i + 32.",
     "The second half of each head has the bias of the first half.",
     [("fused/attn_qkv.cu", "b = tap(p.biased_tap[part], b_at, b + bias_b);", "b = tap(p.biased_tap[part], b_at, b + bias_a);")])

fast("f02-total-not-rescaled", "c-qwen2", "--prompt long --length 80 -n 1",
     "L00.attn_weights and L00.attn_context", "the decode step (81 keys in shares of 64 keys); all heads",
     "Where the shares of 64 keys of a decode step are put together, their totals are added up as they are, without the factor e^(share's largest - largest of all): the total is too large, and all weights and the context of a head are too small by one factor.",
     "All weights of a head (and its context) are scaled by one factor per head < 1; they do not sum to 1; missing rescale in the combine of split-K decode.",
     [("fused/attn_out.cu", "            total = fmaf(measure[k].y, factor[k], total);\n", "            total += measure[k].y;\n")])

fast("f03-last-share-of-a-sum", "c-qwen2", "--prompt haiku -n 1",
     "L00.q_proj, L00.k_proj and L00.v_proj; also L00.attn_out, L00.ffn_gate and L00.ffn_up (ffn_down and logits are right)", "the decode step alone, all outputs",
     "Where a team of warps makes a tile's product, each warp a share of the columns, the parts are added up without the last warp's: q_proj, k_proj and v_proj lack columns 192..255, attn_out columns 224..255, ffn_gate and ffn_up columns 128..255 of 256.",
     "The last columns of the input (192.. of q/k/v, 224.. of attn_out, 128.. of gate and up) do not count in the sum; the last partial sum is dropped.",
     [("fused/rows.cuh", "        for (int k = 1; k < TEAM; k++) sum += parts[(tile * TEAM + k) * TILE + row];", "        for (int k = 1; k < TEAM - 1; k++) sum += parts[(tile * TEAM + k) * TILE + row];")])

fast("f04-decay-of-the-key-head", "c-qwen35", "--prompt haiku -n 1",
     "L00.delta_state and L00.delta_out", "the decode step alone; heads 2 and 3 of 4",
     "The decay is read at the number of the key head (h mod 2) instead of the head's own: heads 2 and 3 take the decays of heads 0 and 1; beta, value and state are their own.",
     "Heads 2 and 3 use the decay of heads 0 and 1 (delta_decay indexed by the key head).",
     [("fused/delta_step.cu", "expf(__ldcg(p.decay + h))", "expf(__ldcg(p.decay + key))")])

fast("f05-gates-behind-all-queries", "c-qwen35", "--prompt haiku -n 1",
     "L01.gate_half", "the decode step alone; heads 0, 1 and 2 of 4",
     "The gate of head h is read as if all queries stood before all gates ([2, H, D]), though each head's query and gate stand together ([H, 2, D]): part H + h instead of 2 h + 1. Queries are right. Head 3 of 4 is right by chance (7 = 7).",
     "Heads 0, 1 and 2's gates are the parts 4 (query of head 2), 5 (gate of head 2), 6 (query of head 3); flat split of the gate.",
     [("fused/gated_heads.cu", "__ldcg(p.both + (size_t)(2 * head + 1) * D + i)", "__ldcg(p.both + (size_t)(p.heads + head) * D + i)")])

fast("f06-rescale-of-the-other-row", "f-128", "--prompt long --length 150 -n 0",
     "L00.attn_context", "the prefill; positions from 33 on (more than 32 keys, a round of tiles), where the running maximum of the row or of the row 8 further on or before (4 tokens away) rises in a later round; of a row either the even or the odd columns of a head",
     "The factor with which a row's sums are rescaled when its maximum rises is picked by the column (e % 2) of the accumulator instead of its row (e / 2): even columns of rows g and g + 8 of a 16-row fragment take row g's factor, odd columns row g + 8's. Totals and weights are right.",
     "Odd columns of tokens t with t % 8 < 4 take the factor of token t + 4 (same head), even columns of tokens with t % 8 >= 4 that of token t - 4; the rescale takes the wrong row's factor; every other column of a row is wrong.",
     [("prefill/attention_rows.cu", "sum[j][e] *= rescale[e / 2];", "sum[j][e] *= rescale[e % 2];")])

fast("f07-rope-from-the-part-s-start", "c-qwen2", "--prompt long --length 24 --ubatch 10 -n 0",
     "L00.q_rope and L00.k_rope", "second and third part of the prefill (positions 10..23)",
     "In the prefill kernel the rotary angle is that of the row's number in the part instead of its position: position p of a part that begins at f is rotated at p - f. The rows of the caches stand at the right places.",
     "Positions begin again from 0 in each part for RoPE alone.",
     [("prefill/head_rows.cu", "sincosf((float)position * p.frequency", "sincosf((float)t * p.frequency")])

fast("f08-fifth-bits-of-the-lower-sixteen", "f-q50", "--prompt haiku -n 0",
     "L00.q_proj, L00.k_proj and L00.v_proj, then every product with Q5_0 weights of the prefill (attn_out, ffn_gate, ffn_up, ffn_down, logits)", "the prefill, all positions",
     "The fifth bits of weights 16..31 of a Q5_0 block are those of weights 0..15 in the prefill kernel (bits 0..15 of the word instead of 16..31).",
     "Q5_0 high bits of the second sixteen taken from the first sixteen.",
     [("prefill/pieces.cuh", "fifth_bits(h, 16 * step + lane % 4 * 4)", "fifth_bits(h, lane % 4 * 4)")])

fast("f09-lines-of-the-first-batch", "c-moe", "--prompt long --length 40 -n 0",
     "L00.expert_gate and L00.expert_up (and expert_down)", "the prefill; experts that more than 8 lines chose: their ninth line and further",
     "An expert's lines are taken 8 at a time; the rows that come into shared memory for a later 8 are those of the first 8 lines (list[i] instead of list[from + i]), while results go to the right lines.",
     "The ninth and later lines of an expert hold the results of its first lines (line k that of k - 8, k - 16).",
     [("prefill/expert_rows.cu", "(const float4 *)(p.x + (size_t)(list[from + i] / p.lines_of_row) * p.n)", "(const float4 *)(p.x + (size_t)(list[i] / p.lines_of_row) * p.n)")])

fast("f10-up-of-the-first-expert", "c-moe", "--prompt haiku -n 1",
     "L00.expert_up", "the decode step; chosen experts other than expert 0",
     "In the decode kernel the rows of `up` are found without the expert's offset: every chosen expert's up product is with the matrix of expert 0.",
     "expert_up of all chosen experts uses expert 0's weights.",
     [("fused/expert_act.cu", "u = dot<Up>(p.up, at, groups, line);", "u = dot<Up>(p.up, row, groups, line);")])
