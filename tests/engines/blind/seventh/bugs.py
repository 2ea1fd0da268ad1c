"""The forty bugs: models, commands, changes, and the answer key (shows: where it is first seen; instead: what is computed)."""

MODELS = {
    "q2": "--weights Q8_0 --layers 2 --heads 6 --kv-heads 2 --embedding 192 --head-dim 32 --ffn 320 --seed 71",
    "q3": "--arch qwen3 --weights F16 --layers 2 --heads 6 --kv-heads 2 --embedding 256 --head-dim 64 --ffn 448 --seed 72",
    "q3m": "--arch qwen3moe --weights Q5_1 --layers 2 --heads 8 --kv-heads 2 --head-dim 64 --seed 73",
    "q35": "--arch qwen35 --weights Q8_0 --layers 4 --seed 74",
    "q6k": "--arch qwen3 --weights Q6_K --tensor token_embd.weight=F16 --tensor blk.1.ffn_up.weight=IQ4_NL --layers 2 --seed 75",
    "q41": "--arch qwen2 --weights Q4_1 --tensor token_embd.weight=F16 --layers 2 --heads 4 --kv-heads 2 --embedding 256 --head-dim 64 --seed 76",
    "q51": "--arch qwen3 --weights Q5_1 --tensor token_embd.weight=F16 --layers 2 --heads 4 --kv-heads 2 --embedding 256 --head-dim 64 --seed 77",
}
BUGS = []


def bug(name, model, run, changes, shows, instead, subject=None, kv=None):
    BUGS.append(dict(name=name, model=model, run=run, changes=changes, shows=shows, instead=instead, subject=subject, kv=kv))


# ---- the engine as it serves (S), in engine/

bug("s01-stale-draft", "q2", "check",
    [("cells.py", "        del self.where[sequence][count:]\n", "        del self.where[sequence][count:]\n        if count:\n            return\n")],
    "attn_weights and attn_context, L00 (then L01), of a sequence after a rejected draft, in passes that are not one row for each "
    "sequence; rows at or after the position of a rejected token. Passes of one row a sequence are right.",
    "Cells of rejected tokens are taken out of the sequence's table but still belong to the sequence and keep their positions: the mask "
    "lets later rows see them, beside the keys that took their positions. So the softmax has more terms (keys of the rejected draft), and "
    "their values are added to the context.")

bug("s02-prefix-taken-away", "q2", "check",
    [("cells.py", "self.owners[cell] |= self.bit(sequence)", "self.owners[cell] = self.bit(sequence)")],
    "attn_weights and attn_context, L00 (then L01), of the sequence whose prefix another one shares, from the pass on in which the other "
    "begins, in passes that are not one row for each sequence",
    "Sharing a prefix assigns the set of owners instead of adding to it: the shared cells belong to the new sequence alone. The mask of the "
    "sequence that wrote them leaves them out: its rows do not see the first tokens (those shared) of their own sequence. Passes of "
    "one row a sequence go by the table and are right.")

bug("s03-four-bits-of-owners", "q2", "check",
    [("cells.py", "np.uint64(1) << np.uint64(sequence)", "np.uint64(1) << np.uint64(sequence % 4)")],
    "attn_weights and attn_context, L00 (then L01), of sequences whose numbers differ by a multiple of 4 (0 and 4), as long as both "
    "have cells, in passes that are not one row for each sequence",
    "The set of owners has four bits: sequence s and s + 4 have the same one. Rows of sequence 4 also see the keys of sequence 0 at "
    "positions up to their own, and the other way round.")

bug("s04-q4-sign", "q2", "--prompt haiku --length 38 --sequences 7,5+1+17@0,1~4,3+4 --kv-type q8_0/q4_0",
    [("cells.py", "d = top / np.float32(-8)", "d = np.abs(top) / np.float32(-8)")],
    "v_cache, L00 and L01, all sequences: blocks of 32 whose element of largest magnitude is negative; there this element. k_cache (q8_0) "
    "is right.",
    "The scale of a q4_0 block is the largest magnitude / -8, not the signed value of largest magnitude / -8. Where this "
    "value is negative the scale has the wrong sign: the largest element gets code 15 (7 steps) instead of 0 (8 steps), so it is 7/8 of what "
    "it should be; all others of such a block round on a grid of the other sign (halves the other way).", kv="q8_0/q4_0")

bug("s05-compaction-of-values", "q2", "--prompt haiku --length 43 --sequences 10,0+12,0+1+3@1:8,1~all+1+1,4+1+1,1+3+1,1+0+2",
    [("net.py", "                self.k[l].copy(source, to)\n                self.v[l].copy(source, to)\n",
      "                self.k[l].copy(source, to)\n            self.v[l].copy(source, to)\n")],
    "v_cache, L00, rows of sequences 1 and 2 whose cells were moved (when sequence 0 had ended: the last 10 cells), from the fourth pass on",
    "Closing the holes of the cache moves the keys of all layers but the values of the last layer alone: in L00 a moved token has the value "
    "row that stood in the hole, that of a token of sequence 0 before it ended (cell i from the end takes hole i).")

bug("s06-compaction-of-one-table", "q2", "--prompt haiku --length 43 --sequences 10,0+12,0+1+3@1:8,1~all+1+1,4+1+1,1+3+1,1+0+2",
    [("cells.py", "        for table in self.where.values():\n            table[:] = [moved.get(cell, cell) for cell in table]\n",
      "        for s, table in self.where.items():\n            first = lambda cell: (int(self.owners[cell]) & -int(self.owners[cell])).bit_length() - 1\n"
      "            table[:] = [moved[cell] if cell in moved and first(moved[cell]) == s else cell for cell in table]\n")],
    "k_cache and v_cache, L00 and L01, of sequence 2: positions 5..7, of the prefix that it shares with sequence 1, from the fourth pass on",
    "When a shared cell is moved, the table of its first owner (sequence 1) is updated and that of the other (sequence 2) still names the old "
    "cell, which is free and is written by the next rows: sequence 2 reads at positions 5..7 the keys and values of new tokens of "
    "sequences 0, 1 and 2 of the fourth pass.")

bug("s07-rotated-from-zero-after-prefix", "q2", "check",
    [("cells.py", "        self.where = {}  # of", "        self.fed = {}\n        self.where = {}  # of"),
     ("cells.py", "            positions.append(len(table))\n", "            positions.append(self.fed.setdefault(s, 0))\n            self.fed[s] += 1\n"),
     ("cells.py", "        gone = np.array(", "        self.fed[sequence] = count\n        gone = np.array(")],
    "q_rope and k_rope, L00 (all layers), of sequences that begin with a cached prefix, all their own rows (until they take tokens back)",
    "Rows are rotated at the number of tokens that the sequence itself was fed, without the cached prefix: a row at position p is rotated at p - (tokens "
    "of the prefix). The mask has the right positions.")

bug("s08-decode-padded", "q2", "check",
    [("net.py", "        for t, s in enumerate(run.sequences):\n            cells = self.cells.where[s]\n",
      "        longest = max(len(self.cells.where[s]) for s in run.sequences)\n        for t, s in enumerate(run.sequences):\n"
      "            own = len(self.cells.where[s])\n            cells = self.cells.where[s] + [0] * (longest - own)\n"),
     ("net.py", "scores.reshape(self.h, 1, -1))", "scores.reshape(self.h, 1, -1)[:, :, :own])"),
     ("net.py", "w.reshape(self.h, 1, -1))", "w.reshape(self.h, 1, -1)[:, :, :own])")],
    "attn_weights and attn_context, L00 (all layers), in passes of one row for each of several sequences, of all sequences but the longest",
    "Tables are padded with cell 0 to the length of the longest sequence of the pass, and the padding is not masked: cell 0 (a token of another "
    "sequence, or the sequence's own position 0) is counted (longest - own length) more times in the softmax and in the context.")

bug("s09-window-of-a-short-pass", "q35", "--prompt haiku --passes 22,2,11 -n 4",
    [("net.py", "            self.states[s, l] = [line[-past:].copy(), state.copy()]\n",
      "            tail = qkv[rows][-past:]\n            self.states[s, l] = [np.concatenate([np.zeros((past - len(tail), tail.shape[1]), np.float32), tail]), state.copy()]\n")],
    "conv_state, L00 and L02, after the pass of 2 tokens and after each decode step: its oldest rows (the first of 3 after the pass of 2 tokens, the first two after a "
    "decode step); conv_out of the next pass follows from it. The first pass (22) and the third (11) leave a right state.",
    "The window that the next pass begins with is made of this pass's rows alone: where it has fewer than 3, the older rows are zeros instead of those of "
    "the passes before.")

bug("s10-cells-in-a-row", "q2", "check",
    [("cells.py", "        assert len(found) == count, \"the cache is full\"\n",
      "        assert len(found) == count, \"the cache is full\"\n        found = (found[0] + np.arange(count)) % CELLS\n")],
    "k_cache and v_cache, L00 and L01, of a sequence whose cells lie behind a hole: rows overwritten by a pass of other (or its own) rows "
    "after tokens were taken back; also attention in that pass (attn_weights, attn_context)",
    "The rows of a pass are written to as many cells in a row from the first free one on, whether the following cells are free or not: after "
    "a draft was rejected or a sequence ended, rows of sequences that are alive are overwritten (key and value), and these cells count as the new sequence's.")

# ---- the engine, in engine/

ONE = "--prompt haiku --passes 22,13 -n 3"
bug("e01-bias-in-pairs", "q2", ONE,
    [("net.py", "            if p + \"attn_q.bias\" in w:\n",
      "            if p + \"attn_q.bias\" in w:\n                for n in \"qk\":\n                    w[p + f\"attn_{n}.bias\"] = "
      "w[p + f\"attn_{n}.bias\"].reshape(-1, 2, self.d // 2).swapaxes(1, 2).reshape(-1)\n")],
    "q_biased and k_biased, L00 (all layers), all rows; v_biased is right",
    "The biases of q and k are permuted head by head as Llama's converters permute rows (from halves to pairs): element 2i of a head gets the bias of "
    "element i, element 2i + 1 that of i + d/2. The weights are not permuted.")
bug("e02-partial-frequencies", "q35", ONE,
    [("net.py", "(self.base ** (-np.arange(half) / half))", "(self.base ** (-2 * np.arange(half) / self.d))")],
    "q_rope and k_rope, L01 and L03 (layers with attention), positions 1 on, rotated elements (0..31 of 64) but plane 0",
    "The frequency of plane i is base^(-2i/64), with the width of the head, instead of base^(-2i/32), with the width of what is rotated.")
bug("e03-key-norm-of-queries", "q3", ONE,
    [("net.py", "self.norm(k, w[p + \"attn_k_norm.weight\"])", "self.norm(k, w[p + \"attn_q_norm.weight\"])")],
    "k_normed, L00 (all layers), all rows; q_normed is right",
    "The norm of the keys' heads multiplies with the weight of the queries' norm (attn_q_norm) instead of attn_k_norm.")
bug("e04-shares-by-expert", "q3m", ONE,
    [("net.py", "np.einsum(\"tk,tke->te\", share, down)", "np.einsum(\"tk,tke->te\", np.take_along_axis(share, np.argsort(ids, 1), 1), down)")],
    "experts_out, L00 (all layers), rows whose chosen experts are not in ascending order of their numbers",
    "The shares are sorted by the number of the expert, the outputs are in order of probability: output j is multiplied with the share of the expert that is "
    "number j of the chosen ones in ascending order.")
bug("e05-delta-before-decay", "q35", ONE,
    [("net.py", "                state *= np.exp(decay[t])[:, None, None]\n                error = (v[t] - np.einsum(\"hji,hi->hj\", state, kt)) * beta[t][:, None]\n",
      "                error = (v[t] - np.einsum(\"hji,hi->hj\", state, kt)) * beta[t][:, None]\n                state *= np.exp(decay[t])[:, None, None]\n")],
    "delta_state and delta_out, L00 and L02, positions 1 on",
    "The error (v - state k) is made with the state before its decay instead of after it; the decay is applied before the write as it should.")
bug("e06-key-heads-repeated", "q35", ONE,
    [("net.py", "of = np.arange(hv) % hk", "of = np.arange(hv) // (hv // hk)")],
    "delta_state and delta_out, L00 and L02, heads 1 and 2 of 4, all positions",
    "Value head h takes query and key of head h / 2 (repeated) instead of h mod 2 (tiled).")
bug("e07-q6-scale-of-32", "q6k", ONE,
    [("weights.py", "s = np.repeat(scales[:, 8 * n + 2 * j:8 * n + 2 * j + 2], 16, 1)", "s = np.repeat(scales[:, 8 * n + 2 * j:8 * n + 2 * j + 1], 32, 1)")],
    "q_proj, k_proj, v_proj, L00 (and every other product with a Q6_K matrix); embed is F16 and right",
    "The second 16 of each 32 weights of a Q6_K block are multiplied with the scale of the first 16.")
bug("e08-code-book", "q6k", ONE,
    [("weights.py", "-104, -83, -65, -49", "-104, -83, -56, -49")],
    "ffn_up, L01 alone (the IQ4_NL matrix)",
    "Entry 3 of the IQ4_NL table is -56 instead of -65.")
bug("e09-silu-in-halves", "q3", ONE,
    [("net.py", "                act = tap(\"ffn_act\", gate * sigmoid(gate) * up, l)\n",
      "                g = gate.astype(np.float16)\n                act = tap(\"ffn_act\", (g / (1 + np.exp(-g))).astype(np.float32) * up, l)\n")],
    "ffn_act, L00 (all layers), all rows",
    "SiLU is computed in f16: gate rounded to f16, exponential, sum and quotient each rounded to f16; the product with up is f32.")
bug("e10-estimated-root", "q2", ONE,
    [("net.py", "        scale = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps)\n",
      "        scale = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps)\n        scale = ((scale.view(np.uint32) + 0x8000) & 0xffff0000).view(np.float32)\n")],
    "attn_norm, L00 (and ffn_norm, final_norm, all layers), all rows but those whose root needs no more bits",
    "The reciprocal root of a row is an estimate of 8 bits, without the step of Newton that makes it exact: the whole row is multiplied with 1/root "
    "rounded to 8 significant bits (as bfloat16), before the product with the weight.")

# ---- qdiff's kernels, engine `cuda`

CUDA = "--prompt haiku -n 4"
bug("c01-two-of-four-sums", "q2", CUDA,
    [("attn_context.cu", "(sum[0] + sum[1]) + (sum[2] + sum[3])", "(sum[0] + sum[1]) + (sum[2] + sum[2])")],
    "attn_context, L00 (all layers), rows that see at least 4 keys (position 3 on), all heads",
    "The last two of four partial sums are those of keys n mod 4 == 2, twice; those of n mod 4 == 3 are left out (n in whole fours; "
    "the rest after the last four is in the first sum and right).", "cuda")
bug("c02-odd-lanes", "q3", CUDA,
    [("attn_scores.cu", "for (int step = 16; step > 0; step /= 2) sum", "for (int step = 16; step > 1; step /= 2) sum")],
    "attn_scores, L00 (all layers), all rows and heads",
    "The sum over a warp's lanes ends before the step of 1: lane 0 has the sum of the even lanes alone, so that a score has only the products of elements with even numbers.", "cuda")
bug("c03-beta-of-the-first", "q35", CUDA,
    [("delta_net.cu", "* p.beta[at];", "* p.beta[h];")],
    "delta_state and delta_out, L00 and L02, positions 1 on of the prompt; a decode step is right for its own inputs",
    "All tokens of a pass use beta of the pass's first token (same head) instead of their own.", "cuda")
bug("c04-convolution-reversed", "q35", CUDA,
    [("convolution.cu", "p.w[c * (p.past + 1) + j]", "p.w[c * (p.past + 1) + p.past - j]")],
    "conv_out, L00 and L02, all rows",
    "The kernel of the convolution is read backwards: the newest input meets the weight of the oldest.", "cuda")
bug("c05-halves-cut-off", "q2", CUDA + " --kv-type f16",
    [("kv_cache.cu", "Kv::put(p.rows[i])", "Kv::put(__uint_as_float(__float_as_uint(p.rows[i]) & 0xffffe000u))")],
    "k_cache and v_cache, L00 (all layers), all rows, about half of the elements",
    "Elements are cut off to 11 bits (rounded towards zero) when they are stored in the f16 cache, instead of rounded to the nearest.", "cuda")
bug("c06-fifth-bit-twelve", "q51", CUDA,
    [("blocks.cuh", "if (HIGH) q |= ((r.high >> i) & 1) << 4;", "if (HIGH) q |= ((r.high >> (i < 16 ? i : i - 16 + 12)) & 1) << 4;")],
    "q_proj, k_proj, v_proj, L00 (and every product with a Q5_1 matrix); embed is F16 and right",
    "The fifth bit of weight i of the second 16 of each 32 is bit i - 4 of the 32 high bits instead of bit i (an offset of 12 instead of 16).", "cuda")
bug("c07-lines-by-slot", "q3m", CUDA,
    [("expert_linear.cu", "p.x + (size_t)(line / p.lines_of_row) * p.n", "p.x + (size_t)(line % (gridDim.x / blocks / p.lines_of_row)) * p.n")],
    "expert_gate and expert_up, L00 (all layers), in the prompt; decode steps and expert_down are right",
    "Line l (token l / 3, choice l mod 3) takes the row of x of token l mod T (T tokens of the pass) instead of l / 3, as if lines were in the order choice by choice.", "cuda")
bug("c08-four-warps", "q3", CUDA,
    [("reduce.cuh", "    float r = partial[0];\n    for (int i = 1; i < (int)(blockDim.x / 32); i++)", "    float r = partial[0];\n    for (int i = 1; i < min((int)(blockDim.x / 32), 4); i++)")],
    "attn_norm, L00 (and ffn_norm, final_norm), all rows",
    "The sum over a block counts the first four warps alone: the squares of elements of threads 128 on (elements 128..255 of 256, with blocks of 256 threads) are not in the mean, "
    "so that the row is too large by 1/sqrt(their part).", "cuda")
bug("c09-table-of-the-tile", "q2", "check",
    [("attn_scores.cu", "p.batch.slot(t, n)", "p.batch.slot(t / 8 * 8, n)")],
    "attn_scores, L00 (all layers), of passes with several sequences: rows whose tile of 8 rows begins with a row of another sequence",
    "The block table of the first row of a tile of 8 rows of the pass is used for all rows of the tile: a row of another sequence takes keys from the slots of that first row's "
    "sequence (at the same positions n; beyond that sequence's table, of whatever follows in the tables).", "cuda")
bug("c10-mask-by-sixteen", "q3", CUDA,
    [("attn_weights.cu", "min(p.keys, p.batch.position(p.first, t) + 1)", "min(p.keys, (p.batch.position(p.first, t) / 16 + 1) * 16)")],
    "attn_weights, L00 (all layers), rows of the prompt at positions p with p mod 16 != 15 (and p not the last); decode steps are right",
    "The mask ends at the end of the tile of 16 keys that holds the row's position: future keys of that tile, whose scores are 0, are in the softmax, and have weights. (attn_context "
    "does not read these weights, but those that it reads are too small.)", "cuda")

# ---- qdiff's kernels, engine `cuda-fast`: decode steps

LONG = "--prompt haiku --length 70 -n 4"
bug("f01-shuffle-without-width", "q3", LONG,
    [("fused/attn_out.cu", "add(early[k], __shfl_sync(0xffffffffu, factor[k / LANES], k % LANES, LANES));", "add(early[k], __shfl_sync(0xffffffffu, factor[k / LANES], k % LANES));")],
    "attn_context, L00 (all layers), decode steps alone (positions 70..73, two shares of 64 keys), heads 1, 3 and 5 of 6",
    "A shuffle among the 16 lanes of a head lacks its width: heads of the upper half of a warp (1, 3, 5) take the factors of shares of the head before (0, 2, 4), while "
    "the total is their own.", "cuda-fast")
bug("f02-mean-of-pairs", "q3", CUDA,
    [("fused/attn_qkv.cu", "1.0f / sqrtf(sum / (float)D + p.eps)", "1.0f / sqrtf(sum / (float)(D / 2) + p.eps)")],
    "q_normed and k_normed, L00 (all layers), decode steps alone",
    "The sum of a head's 64 squares is divided by 32, the number of threads (each has a pair), so that the head is too small by sqrt(2) (but for epsilon).", "cuda-fast")
bug("f03-window-stands", "q35", "--prompt haiku -n 6",
    [("fused/mixer_in.cu", "tap(p.window_tap, (j - 1) * all + row, x[j]);", "tap(p.window_tap, (j - 1) * all + row, x[j - 1]);")],
    "conv_state, L00 and L02, from the first decode step on: its first two rows of three; conv_out of the second decode step and later follows",
    "In a decode step the rows of the window do not move on: row j - 1 is written with itself (x[j - 1]) instead of the row after it. So the two older rows stay what they were after "
    "the prompt, the newest is the token's own, and the row of the token before is lost.", "cuda-fast")
bug("f04-whole-warp-for-a-head", "q35", CUDA,
    [("fused/mixer_out.cu", "for (int step = LANES / 2; step > 0; step /= 2)", "for (int step = 16; step > 0; step /= 2)")],
    "delta_normed, L00 and L02, decode steps alone, all heads",
    "The sum of squares is over the whole warp, which holds two heads of 64: heads 0 and 1 (and 2 and 3) are normed with the sum of squares of both, divided by 64.", "cuda-fast")
bug("f05-weights-in-halves", "q3", CUDA,
    [("fused/attention.cu", "                    prob[h][lane + 32 * i] = w;\n", "                    prob[h][lane + 32 * i] = KvF16::get(KvF16::put(w));\n")],
    "attn_context, L00 (all layers), decode steps alone",
    "The weights (relative to the largest score) are rounded to f16 before they are multiplied with the values; their sum is of the weights before the rounding. attn_weights are right.", "cuda-fast")

# ---- qdiff's kernels, engine `cuda-fast`: prompts

bug("p01-rescale-of-the-other-row", "q3", "--prompt haiku --length 300 -n 0",
    [("prefill/attention_rows.cu", "sum[j][e] *= rescale[e / 2];", "sum[j][e] *= rescale[e % 2];")],
    "attn_context, L00 (all layers), the prompt, rows that see more keys than one round of tiles has (about position 64 or 128 on)",
    "When a running maximum grows, the four elements of a lane are rescaled by column (e mod 2) instead of by row (e / 2): element 1 of row g is multiplied with the factor of row g + 8 "
    "and element 0 of row g + 8 with that of row g (rows of a tile of 16). So in rows g (first eight of 16) the odd columns, in rows g + 8 the even columns are wrong. attn_weights are right.", "cuda-fast")
bug("p02-pass-rotated-from-zero", "q3", "--prompt haiku --length 70 --passes 40,30 -n 2",
    [("prefill/head_rows.cu", "sincosf((float)position * p.frequency", "sincosf((float)t * p.frequency")],
    "q_rope and k_rope, L00 (all layers), the second pass (positions 40..69)",
    "Rows of a pass are rotated at their number in the pass instead of their position: in the second pass p - 40. Decode steps are right.", "cuda-fast")
bug("p03-minimum-of-the-second-group", "q41", CUDA,
    [("prefill/pieces.cuh", "u32 minima(const Raw &raw, int) { return __byte_perm(raw.of[0], raw.of[1], 0x7632); }", "u32 minima(const Raw &raw, int) { return __byte_perm(raw.of[0], raw.of[1], 0x5432); }")],
    "q_proj, k_proj, v_proj, L00 (and every product with a Q4_1 matrix), the prompt alone; embed is F16 and right",
    "The selector of a byte permutation takes the lower half of the second group's word: the minimum of every second group of 32 (odd groups) is its scale d instead of m.", "cuda-fast")
bug("p04-high-bits-of-groups", "q6k", CUDA,
    [("prefill/pieces.cuh", ">> (2 * (piece % 2 + 2 * i))) & 0x03030303u", ">> (2 * (2 * (piece % 2) + i))) & 0x03030303u")],
    "q_proj, k_proj, v_proj, L00 (and every product with a Q6_K matrix), the prompt alone",
    "Groups 1 and 2 of each 4 groups of 32 of a Q6_K block take each other's upper two bits.", "cuda-fast")
bug("p05-lines-of-the-first-batch", "q3m", CUDA,
    [("prefill/expert_rows.cu", "(list[from + i] / p.lines_of_row)", "(list[i] / p.lines_of_row)")],
    "expert_gate and expert_up (and expert_down for its own inputs), L00 (all layers), the prompt alone: of each expert the lines (token and choice) from the ninth on",
    "An expert's lines are made 8 at a time; the second and later batches read the rows of x of the first batch: line 8 + i of an expert is computed from the token of its line i.", "cuda-fast")
