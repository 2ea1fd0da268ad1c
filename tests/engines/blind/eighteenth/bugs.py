"""Twenty bugs: the model (options of `qdiff synth`), the run (options of `qdiff run`), the engine's options, and the changes of its text."""
BUGS = {
 # Common kinds.
 "added-tokens": {  # the table was converted before the tokens were added to it; ids behind it are clamped
  "model": "--arch qwen2 --weights q8_0 --seed 1801", "run": "--prompt haiku -n 3",
  "changes": [("model", 'w["token_embd.weight"][run.tokens]', 'w["token_embd.weight"][np.minimum(run.tokens, EDGE)]'),
              ("model", "BLOCK = 4    #", "EDGE = 355\nBLOCK = 4    #")]},
 "norm-tail": {  # a row's squares are added up in whole strips
  "model": "--arch qwen2 --embedding 288 --heads 3 --kv-heads 1 --weights q8_0 --seed 1802", "run": "--prompt haiku --raw --length 18 -n 3",
  "changes": [("model", "for at in range(0, x.shape[-1], STRIP):", "for at in range(0, x.shape[-1] // STRIP * STRIP, STRIP):")]},
 "head-eps": {  # the norms of heads have a constant of their own
  "model": "--arch qwen3 --eps 0.001 --weights f16 --seed 1803", "run": "--prompt haiku --raw --length 15 -n 3",
  "changes": [("model", 'q = norm(q, w[p + "attn_q_norm.weight"], c.eps)', 'q = norm(q, w[p + "attn_q_norm.weight"], F(1e-6))'),
              ("model", 'k = norm(k, w[p + "attn_k_norm.weight"], c.eps)', 'k = norm(k, w[p + "attn_k_norm.weight"], F(1e-6))')]},
 "gqa-decode": {  # the decode kernel takes head % groups
  "model": "--arch qwen2 --heads 8 --kv-heads 4 --weights q8_0 --seed 1804", "run": "--prompt haiku --raw --length 19 -n 5",
  "changes": [("model", "attend.expand(keys, c.heads), attend.expand(values, c.heads), scale", "spread(keys, c.heads), spread(values, c.heads), scale"),
              ("model", "            args = query,", "            spread = attend.spread if run.decode else attend.expand\n            args = query,"),
              ("attend", "def part(", 'def spread(x, heads):\n    return np.tile(x.transpose(1, 0, 2), (heads // x.shape[1], 1, 1))\n\n\ndef part(')]},
 "top-left": {  # the causal mask begins at the first key and not at what is cached
  "model": "--arch qwen3 --layers 3 --weights q8_0 --seed 1805", "run": "--prompt haiku --raw --length 33 --ubatch 15 -n 3",
  "changes": [("model", "attend.prefill(*args, first, min", "attend.prefill(*args, 0, min")]},
 "head-depth": {  # the product of the logits leaves out what is behind the last whole tile of 64, in the kernel of many rows
  "model": "--arch qwen3 --embedding 288 --head-dim 96 --heads 3 --kv-heads 1 --weights f16 --seed 1806", "run": "--prompt haiku --raw --length 14 -n 4",
  "changes": [("model", 'return tap("logits", x @ w.get("output.weight", w["token_embd.weight"]).T)',
               'deep = x.shape[-1] if run.decode else x.shape[-1] // 64 * 64\n        return tap("logits", x[:, :deep] @ w.get("output.weight", w["token_embd.weight"])[:, :deep].T)')]},
 "bias-wrap": {  # the bias of the queries is indexed by the width of the keys
  "model": "--arch qwen2 --heads 6 --kv-heads 2 --embedding 192 --weights f16 --seed 1807", "run": "--prompt haiku --raw --length 17 -n 3",
  "changes": [("model", 'add_bias(y, w[p + f"attn_{s}.bias"])', 'add_bias(y, w[p + f"attn_{s}.bias"][np.arange(y.shape[1]) % k.shape[1]])')]},
 "q4k-minimum": {  # the upper bits of the last four minima are taken from the bytes of the scales
  "model": "--arch qwen3 --layers 3 --weights q8_0 --tensor blk.1.attn_v.weight=q4_K --tensor blk.1.ffn_down.weight=q4_K --tensor blk.2.ffn_gate.weight=q4_K --seed 1808",
  "run": "--prompt haiku --raw --length 16 -n 3",
  "changes": [("gguf", "(s[:, j + 4] >> 4) | (s[:, j] >> 6) << 4", "(s[:, j + 4] >> 4) | (s[:, j - 4] >> 6) << 4")]},
 "split-floor": {  # the number of splits is rounded down
  "model": "--arch qwen2 --layers 3 --heads 4 --kv-heads 1 --weights q8_0 --seed 1809", "run": "--prompt haiku --raw --length 27 -n 8",
  "changes": [("attend", "for k0 in range(0, keys, SPLIT):", "for k0 in range(0, max(1, keys // SPLIT) * SPLIT, SPLIT):")]},
 "rope-table": {  # the table of cosines and sines ends with the context of the training; positions behind it are clamped
  "model": "--arch qwen3 --set rope.scaling.type=yarn --set rope.scaling.factor=4.0 --set rope.scaling.original_context_length=32 --context 128 --weights bf16 --seed 1810",
  "run": "--prompt haiku --raw --length 37 -n 4",
  "changes": [("model", "self.cos[positions][:, None], self.sin[positions][:, None]", "(t[np.minimum(positions, self.c.trained - 1)][:, None] for t in (self.cos, self.sin))")]},
 # Rarer kinds.
 "graph-position": {  # a graph was recorded with the positions of its first step, and is replayed with them
  "model": "--arch qwen3 --head-dim 128 --heads 4 --kv-heads 2 --weights q8_0 --seed 1811", "run": "--prompt haiku --raw --length 23 --ubatch 12 -n 6",
  "changes": [("ferry", "self.tokens[:n], self.positions[:n], self.slots[:n] = tokens, positions, slots",
               "self.tokens[:n], self.slots[:n] = tokens, slots\n        if not self.used:\n            self.positions[:n] = positions")]},
 "short-part": {  # a part of the prompt that is shorter than the window leaves zeros before it, and not what was there
  "model": "--arch qwen35 --layers 4 --weights bf16 --seed 1812", "run": "--prompt haiku --raw --length 29 --passes 17,2,10 -n 3",
  "changes": [("model", "                windows[mark][:] = line[t + 1:t + 1 + past]",
               "                windows[mark][:] = line[t + 1:t + 1 + past]\n                if len(rows) < past and not run.decode:\n                    windows[mark][:past - t - 1] = 0")]},
 "residual-bf16": {  # where the sum and the norm are one kernel, from the second layer on, the sum is kept as bf16
  "model": "--arch qwen3 --layers 3 --weights q5_0 --seed 1813", "run": "--prompt haiku --raw --length 16 -n 3",
  "changes": [("model", 'x = tap("attn_residual", x + mixer(run, tap, l, tap("attn_norm", norm(x, w[p + "attn_norm.weight"], c.eps), l)), l)',
               'x = x + mixer(run, tap, l, tap("attn_norm", norm(x, w[p + "attn_norm.weight"], c.eps), l))\n            x = tap("attn_residual", brain(x) if l else x, l)'),
              ("model", "def yarn(", 'def brain(x):\n    bits = x.astype(F).view(np.uint32)\n    return (bits + (np.uint32(0x7fff) + (bits >> 16 & 1)) & np.uint32(0xffff0000)).view(F)\n\n\ndef yarn(')]},
 "one-plus": {  # the norm of the delta net's output is taken for one whose weight is stored less 1
  "model": "--arch qwen35 --layers 4 --weights q8_0 --seed 1814", "run": "--prompt haiku --raw --length 14 -n 3",
  "changes": [("model", 'norm(out, w[p + "ssm_norm.weight"], c.eps)', 'norm(out, F(1) + w[p + "ssm_norm.weight"], c.eps)')]},
 "expert-grid": {  # the grid has room for two blocks of an expert; the buffer behind them is zero
  "model": "--arch qwen3moe --embedding 192 --heads 6 --kv-heads 3 --head-dim 64 --weights f16 --set expert_count=12 --set expert_used_count=4 --seed 1815",
  "run": "--prompt haiku --raw --length 26 -n 3",
  "changes": [("model", "@ matrices[of_block[b]].T for b in", "@ matrices[of_block[b]].T * F(b - starts[of_block[b]] // BLOCK < 2) for b in")]},
 "no-rescale": {  # what is summed up is not scaled when a later tile has a larger score
  "model": "--arch qwen2 --heads 4 --kv-heads 2 --weights bf16 --seed 1816", "run": "--prompt haiku --raw --length 30 -n 3",
  "changes": [("attend", "sums[:, q0:q1] = sums[:, q0:q1] * less[:, :, None] + e", "sums[:, q0:q1] = sums[:, q0:q1] + e")]},
 "page-edge": {  # a decode step that begins a page still has the old table, and writes to the page before
  "model": "--arch qwen3 --weights q8_0 --seed 1817", "run": "--prompt haiku --raw --length 21 -n 7",
  "changes": [("pages", "return [table[n // PAGE] * PAGE", "return [table[(n - (count == 1 and n > 0)) // PAGE] * PAGE")]},
 "value-scale": {  # the values of an 8-bit cache are read with the scale of the keys
  "model": "--arch qwen2 --heads 4 --kv-heads 2 --weights q8_0 --seed 1818", "run": "--prompt haiku --raw --length 17 -n 3 --kv-type f8_e4m3 --reference none", "engine": "--kv f8_e4m3",
  "changes": [("store", "return self.rows[slots] * self.scale", "return self.rows[slots] * self.back"),
              ("store", "        self.scale = F(SCALES[which, layer])", '        self.scale, self.back = F(SCALES[which, layer]), F(SCALES["k", layer])')]},
 "fused-glu": {  # the fused kernel of one row has the other gate: x sigmoid(1.702 x)
  "model": "--arch qwen2 --ffn 544 --weights q4_0 --seed 1819", "run": "--prompt haiku --raw --length 13 -n 4",
  "changes": [("model", 'tap("ffn_act", silu(gate) * up, l)', 'tap("ffn_act", (gate * sigmoid(F(1.702) * gate) if run.decode else silu(gate)) * up, l)')]},
 "last-residual": {  # the last norm is called without the residual
  "model": "--arch qwen2 --layers 3 --tied --weights q8_0 --seed 1820", "run": "--prompt haiku --raw --length 16 -n 3",
  "changes": [("model", 'norm(x, w["output_norm.weight"], c.eps)', 'norm(out, w["output_norm.weight"], c.eps)')]},
}
