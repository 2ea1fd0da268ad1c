"""The bugs: for each the model (options of `qdiff synth`), the run (options of `qdiff run`), the engine's options, and changes (file, old, new)."""
ROPE = 'q, k = tap("q_rope", self.rope(q, run.positions), l), tap("k_rope", self.rope(k, run.positions), l)'
BUGS = {
    # Always.
    "ragged-gather": dict(model="--arch qwen2 --weights q8_0 --seed 621", run="--length 47 --sequences 6+10+4,5+3+7,1+1+1,2+6+1", changes=[
        ("model", 'x = tap("embed", w["token_embd.weight"][run.tokens])', '''told = run.tokens.copy()
        if not run.decode:
            widest = max(len(rows) for rows in run.rows.values())
            for b, rows in enumerate(run.rows.values()):
                told[rows] = run.tokens[np.minimum(b * widest + np.arange(len(rows)), run.count - 1)]
        x = tap("embed", w["token_embd.weight"][told])''')]),
    "packed-positions": dict(model="--arch qwen3 --weights f16 --seed 622", run="--length 37 --sequences 9+7,4+6+5,1+1+1,1+1+1", changes=[
        ("model", ROPE, '''at = run.positions.copy()
        for s, rows in run.rows.items():
            at[rows] = run.first[s] + np.array(rows)
        ''' + ROPE.replace("run.positions", "at"))]),
    "v-hnd": dict(model="--arch qwen3 --heads 4 --kv-heads 2 --weights q4_0 --seed 623", run="--length 42 --sequences 13+6,5+9,1+1,1+1,4+1", changes=[
        ("model", "keys, values = self.k[l].get(slots), self.v[l].get(slots)", '''flat = (slots % PAGE)[:, None] * c.groups + np.arange(c.groups)
            keys = self.k[l].get(slots)
            values = self.v[l].get((slots - slots % PAGE)[:, None] + flat % PAGE)[np.arange(len(slots))[:, None], np.arange(c.groups), flat // PAGE]''')]),
    "bf16-trunc": dict(model="--arch qwen2 --weights q8_0 --seed 624", run="--length 34 --sequences 11,1+6@0:8+4@0,1+1+1,1+1+1,4+2 --kv-type bf16",
        engine="--kv bf16", changes=[("store", "        bits = bits + (np.uint32(0x7fff) + (bits >> 16 & 1))\n", "")]),
    "scale-layout": dict(model="--arch qwen3 --head-dim 64 --heads 4 --kv-heads 2 --weights f16 --seed 625",
        run="--length 36 --sequences 12+9,6+5,1+1,1+1 --kv-type q8_0", engine="--kv q8_0", changes=[
        ("store", "self.scale[slots].astype(F) + self", "np.swapaxes(self.scale[slots].astype(F).reshape(len(slots), -1, self.scale.shape[1], 1), 1, 2) + self")]),
    "mask-row-0": dict(model="--arch qwen2 --weights f16 --seed 626", run="--length 50 --sequences 10+7+5,6+9+3,1+1+1,4+1+2", changes=[
        ("model", "first = run.first[sequence]\n", "first = run.first[run.order[0]]\n"),
        ("model", "min(self.pages.shared[sequence], first))", "min(self.pages.shared[sequence], run.first[sequence]))")]),
    "lse-layout": dict(model="--arch qwen3 --heads 4 --kv-heads 2 --weights q8_0 --seed 627", run="--length 45 --sequences 16,1+9@0+7@0:8,1+5+3,1+1+1", changes=[
        ("attend", "        largest = np.maximum(*logs)\n", "        logs = [l.reshape(l.shape[::-1]).T for l in logs]\n        largest = np.maximum(*logs)\n")]),
    "moe-starts": dict(model="--arch qwen3moe --weights q4_0 --seed 628", run="--length 31 --sequences 9+6,1+1+5,1+1+1,4+1+1", changes=[
        ("model", "starts = np.cumsum(padded) - padded", "starts = np.cumsum(counts) - counts")]),
    "logits-next": dict(model="--arch qwen2 --tied --weights q8_0 --seed 629", run="--length 33 --sequences 9+6,4+1+7,1+1+1,1+1+1", changes=[
        ("model", 'x = tap("final_norm", norm(x, w["output_norm.weight"], c.eps))', '''x = tap("final_norm", norm(x, w["output_norm.weight"], c.eps))
        ends = np.array([rows[-1] for rows in run.rows.values()])
        x[ends] = x[np.minimum(ends + 1, run.count - 1)]''')]),
    "state-transposed": dict(model="--arch qwen35 --layers 4 --weights f16 --seed 630", run="--length 35 --sequences 9+6,5+7,1+1,1+1,3+1", changes=[
        ("model", "memory[mark][:] = m", "memory[mark][:] = m.transpose(0, 2, 1)")]),
    "conv-leak": dict(model="--arch qwen35 --layers 4 --weights q8_0 --seed 631", run="--length 33 --sequences 8+6+3,5+1+4,1+1+1,1+1+1", changes=[
        ("model", "            conv[rows] = sum(line[j:j", '''            packed = np.concatenate([windows[run.marks[next(iter(run.rows))][0]], qkv])
            right, line = line, packed[rows[0]:rows[-1] + 1 + past]
            conv[rows] = sum(line[j:j'''),
        ("model", "windows[mark][:] = line[t", "windows[mark][:] = right[t")]),
    "v-descale": dict(model="--arch qwen3 --weights f16 --seed 632", run="--length 32 --sequences 10+7,5+6,1+1,1+1 --kv-type f8_e4m3 --reference none",
        engine="--kv f8_e4m3", changes=[("model", "made.append(sums.transpose(1, 0, 2))", "made.append(sums.transpose(1, 0, 2) / self.v[l].scale)")]),
    # Under a condition.
    "buffer-grow": dict(model="--arch qwen2 --weights q4_0 --seed 633", run="--length 35 --sequences 9+7+6,1+1,1+1+1,1+1+1,1+0+1,1+1+1", changes=[
        ("ferry", "self.tokens[:n], self.positions[:n], self.slots[:n] = tokens, positions, slots", '''self.positions[:n], self.slots[:n] = positions, slots
        held = min(n, self.used or n)
        self.tokens[:held] = tokens[:held]''')]),
    "rope-chunk-local": dict(model="--arch qwen3 --weights bf16 --seed 634", run="--length 45 --sequences 12,9+7,1+6,1+1,5+3", changes=[
        ("model", ROPE, '''at = run.positions.copy()
        for s, rows in run.rows.items():
            if len(rows) > 1:
                at[rows] -= run.first[s]
        ''' + ROPE.replace("run.positions", "at"))]),
    "no-cow": dict(model="--arch qwen3 --weights q8_0 --seed 635", run="--length 39 --sequences 13+5,1+1+6@0:11,1+1+1,1+1+1,4+1+2", changes=[
        ("pages", "if at % PAGE and self.users[table[-1]] > 1:", "if False:")]),
    "rollback-floor": dict(model="--arch qwen2 --weights f16 --seed 636", run="--length 36 --sequences 6+9,2+4,5+1~2,1+1,3+4", changes=[
        ("pages", "pages = -(-kept // PAGE)", "pages = kept // PAGE")]),
    "paged-tail": dict(model="--arch qwen3 --weights q8_0 --seed 637", run="--length 34 --sequences 13+6,1+1,1+1,1+1,4+3,1+1", changes=[
        ("model", "scores, weights, sums = attend.decode(*args)", '''more = np.concatenate([slots, slots[-1] + 1 + np.arange(-len(slots) % PAGE)])
                wide = attend.expand(self.k[l].get(more), c.heads), attend.expand(self.v[l].get(more), c.heads)
                scores, weights, sums = attend.decode(query, *wide, scale)
                scores, weights = scores[:, :, :len(slots)], weights[:, :, :len(slots)]''')]),
    "gdn-tail-gate": dict(model="--arch qwen35 --layers 4 --weights q8_0 --seed 638", run="--length 36 --sequences 9+8,5+6,1+1,3+1,1+1", changes=[
        ("model", "                memory[mark][:] = m\n", '''                memory[mark][:] = m
            rest = len(run.rows[sequence]) % 8
            if rest and not run.decode:
                m = m * np.exp(-decay[run.rows[sequence][-rest:]].sum(0))[:, None, None]
                memory[marks[-1]][:] = m
''')]),
    "stale-state": dict(model="--arch qwen35 --layers 4 --weights bf16 --seed 639", run="--length 40 --sequences 9+7,5+1,1~3+1+6,1+1+1,4+1+2", changes=[
        ("pages", "                self.memory[l][rows[0]][:] = 0\n", "")]),
    "topk-rows": dict(model="--arch qwen3moe --weights q8_0 --seed 640", run="--length 50 --sequences 11+9,1+1+6,1+1+1,9+10", changes=[
        ("model", "        chosen = np.argsort(-probs, -1, kind=\"stable\")[:, :c.taken]\n",
         "        chosen = np.argsort(-probs, -1, kind=\"stable\")[:, :c.taken]\n        chosen[16:] = 0\n"),
        ("model", "np.take_along_axis(probs, chosen, -1), l)", "np.take_along_axis(probs, chosen, -1) * (np.arange(n) < 16)[:, None].astype(F), l)"),
        ("model", "weights / weights.sum(-1, keepdims=True), l)", "weights / np.maximum(weights.sum(-1, keepdims=True), F(1e-20)), l)")]),
}
