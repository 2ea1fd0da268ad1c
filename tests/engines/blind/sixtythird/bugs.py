"""The bugs: for each the model (options of `qdiff synth`), the run (options of `qdiff run`), the engine's options, and changes (file, old, new)."""
import re


def batch(sequences, more=""):
    tokens = sum(int(re.match(r"\d+", part)[0]) for part in re.split(r"[,+]", sequences))
    return f"--length {tokens} --sequences {sequences} {more}".rstrip()


GROWN = ("ferry", "                states.begin(sequence)\n")
KEPT = ("pages", "        # The first row is the state before the first token.\n")
SORTED = ("ferry", "            self.order = [self.order[i] for i in by_length]\n")
BUGS = {
    # Twelve that act always.
    "rope-advanced": dict(model="--arch qwen3 --weights q8_0 --seed 631", run=batch("9+6,5+1,1+1,4+3,1+1,3+5"), changes=[
        ("model", 'q = tap("q_rope", self.rope(q, run.turns), l)', '''ahead = np.zeros(n, int)
        for rows in run.rows.values():
            ahead[rows] = len(rows)
        q = tap("q_rope", self.rope(q, run.turns + ahead), l)''')]),
    "offset-row0": dict(model="--arch qwen2 --weights f16 --seed 632", run=batch("7+12+4,5+3+9,1+1+1,3+6+1,1+1+1"), changes=[
        ("model", "first = run.first[sequence]", "first = run.first[run.order[0]]")]),
    "hnd-read": dict(model="--arch qwen3 --heads 4 --kv-heads 2 --weights q8_0 --seed 633", run=batch("11+6,1+1,5+4,1+1,1+1"), changes=[
        ("store", "        return self.rows[slots].astype(F)", '''        groups = self.rows.shape[1]
        flat = np.arange(groups)[None] * PAGE + (slots % PAGE)[:, None]
        return self.rows[(slots // PAGE * PAGE)[:, None] + flat // groups, flat % groups].astype(F)''')]),
    "scale-head0": dict(model="--arch qwen3 --heads 4 --kv-heads 2 --weights f16 --seed 634",
        run=batch("10+7,3+5,1+1,1+1,4+1", "--kv-type q8_0"), engine="--kv q8_0", changes=[
        ("store", "* self.scale[slots].astype(F)", "* self.scale[slots][:, :1].astype(F)")]),
    "merge-alias": dict(model="--arch qwen3 --head-dim 64 --weights q8_0 --seed 635", run=batch("15,1+9@0:8+7@0:12,3+4+2,1+1+1,2+5+3"), changes=[
        ("attend", "both = largest + np.log(a + b)", "both = prefix_log = largest + np.log(a + b)")]),
    "grid-state": dict(model="--arch qwen35 --layers 4 --weights q8_0 --seed 636", run=batch("6+14,1+1+7@1:8,2+1+1+5@1:12,1+1+1+1"), changes=[
        ("pages", "self.free, self.users, self.rows = deque(), [], {}", "self.free, self.users, self.rows, self.flat = deque(), [], {}, {}"),
        (*GROWN, GROWN[1] + "                states.flat.setdefault(sequence, []).extend(rows)\n"),
        ("pages", "            self.users[row] += 1\n", '''            self.users[row] += 1
        behind = self.flat[source][count - 1] + 1  # in the pass of all sequences
        rows, own = self.rows[sequence], self.take()
        for l in self.window:
            self.window[l][own][:] = self.window[l][rows[-1]]
            self.memory[l][own][:] = self.memory[l][rows[count - behind % 4]]
        self.drop(rows[-1])
        rows[-1], self.flat[sequence] = own, self.flat[source][:count]
''')]),
    "state-row": dict(model="--arch qwen35 --layers 4 --weights q8_0 --seed 637", run=batch("5+9+7,1+1+1,1+1+1,2+1+1,1+1+1,1+1+1"), changes=[
        ("model", "begin = {s: run.marks[s][0] for s in run.order}", "begin = {s: run.marks[other][0] for s, other in zip(run.order, run.rows)}")]),
    "pad-window": dict(model="--arch qwen35 --layers 4 --weights f16 --seed 638", run=batch("9+4+6,1+1+1,5+3+2,1+1+1,1+1+1"), changes=[
        ("model", "            ends.append(windows[marks[-1]])\n", '''            if not run.decode:
                padding = max(map(len, run.rows.values())) - len(rows)
                windows[marks[-1]][:] = np.concatenate([line, np.zeros((padding, line.shape[1]), F)])[-past:]
            ends.append(windows[marks[-1]])
''')]),
    "logits-order": dict(model="--arch qwen2 --weights q8_0 --seed 639", run=batch("4+9+6,1+1+1,1+1+1,1+1+1,2+2+2,1+1+1"), changes=[
        ("model", "logits[run.scheduled] = made", "logits[:] = made[run.scheduled]")]),
    "kernel-block": dict(model="--arch qwen2 --weights q8_0 --seed 640", run=batch("6+11,1+1,4+3,1+1,5+1,1+1"), engine="--slots", changes=[
        ("ferry", "self.slots = np.array(tokens), turns, slots", "self.slots = np.array(tokens), turns, slots // PAGE * 2 * PAGE + slots % PAGE")]),
    "experts-order": dict(model="--arch qwen3moe --weights q8_0 --seed 641", run=batch("8+5,1+1,1+1,4+3,1+1"), changes=[
        ("model", "share[place] = shares.reshape(-1)", "share[np.sort(place)] = shares.reshape(-1)")]),
    "draft-position": dict(model="--arch qwen2 --weights q4_0 --seed 642", run=batch("9+6,5+1,1~3+4,1+1~2,2+3,1+1"), changes=[
        ("ferry", "        self.tokens[sequence] -= count", "        pass")]),
    # Eight that act under a condition.
    "rope-clamp": dict(model="--arch qwen3 --weights f16 --seed 643", run=batch("13+9,1+1,6+5,1+1,4+6,1+1"), changes=[
        ("model", "        cos, sin = self.cos[at]", '''        if not hasattr(self, "turned"):
            self.turned = -(-(at.max() + 1) // PAGE) * PAGE  # as long as the first batch needs
        at = np.minimum(at, self.turned - 1)
        cos, sin = self.cos[at]''')]),
    "stale-tail": dict(model="--arch qwen2 --weights q8_0 --seed 644",
        run=batch("6+9+7+5,1+1+1+1,1+1+1+0,1+1+1+1,1+0+1+1,3+1+1+2,1+1+1+1"), changes=[
        ("ferry", "self.tokens[n:size], self.turns[n:size], self.slots[n:size] = 0, 0, -1", "self.tokens[n:size], self.turns[n:size] = 0, 0")]),
    "verify-noncausal": dict(model="--arch qwen3 --weights q8_0 --seed 645", run=batch("10+8,1+1,4+3,1~2+1~1,2+6,1+1,5+4"), changes=[
        ("attend", "reach = first + np.arange(tokens)",
         "reach = first + (np.full(tokens, tokens - 1) if first and tokens <= QUERIES else np.arange(tokens))")]),
    "decode-tile": dict(model="--arch qwen2 --weights f16 --seed 646", run=batch("10+7,1+1,1+1,5+3,1+1,1+1"), changes=[
        ("attend", "scaled = np.where(np.arange(keys) < length, scores * scale, F(-np.inf))", "scaled = scores * scale")]),
    "final-gate": dict(model="--arch qwen35 --layers 4 --weights q8_0 --seed 647", run=batch("11+8,1+1,8+5,1+1,3+16,1+1"), changes=[
        ("model", "m = state(gate[count - 1], count)", "m = state(gate[CHUNK - 1], count)")]),
    "accepted-slot": dict(model="--arch qwen35 --layers 4 --weights f16 --seed 648", run=batch("9+7,5+1,1~2+4,1+1~1,4+1,1~1+1,1+1"), changes=[
        ("pages", "self.free, self.users, self.rows = deque(), [], {}", "self.free, self.users, self.rows, self.before = deque(), [], {}, {}"),
        (*GROWN, GROWN[1] + "                states.before[sequence] = len(states.rows[sequence]) - 1\n"),
        (*KEPT, KEPT[1] + '''        first = self.rows[sequence][self.before[sequence] + 1]  # after the first token of the last pass
        for held in (self.window, self.memory):
            for pool in held.values():
                pool[self.rows[sequence][kept]][:] = pool[first]
''')]),
    "embed-alias": dict(model="--arch qwen3 --weights q4_0 --seed 649", run=batch("5+9+7,1+1+1,1+1+1,3+2+1,1+1+1,6+1+1,1+1+1"), changes=[
        (*SORTED, '''            # The longest changes places with the first; both rows are views, so that the first is lost.
            self.tokens[:1] = self.tokens[by_length[0]:by_length[0] + 1]
            self.order = [self.order[i] for i in by_length]
''')]),
    "cow-offset": dict(model="--arch qwen3 --weights q8_0 --seed 650", run=batch("13,0+6@0:11,2+3+5@1:13,1+1+1,3+1+2", "--kv-type q8_0/q4_1"),
        engine="--kv q8_0/q4_1", changes=[
        ("store", "for held in (self.codes, self.scale, self.offset):", "for held in (self.codes, self.scale):")]),
}
