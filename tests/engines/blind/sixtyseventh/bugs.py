"""The bugs: the model, the options of qdiff, those of the engine, and the changes of its text."""
import re


def run(plan, more=""):
    """The options of a run of these passes, with as many tokens as they have."""
    plan = plan.replace(" ", "")
    count = sum(int(one.group(1)) for one in re.finditer(r"(?:^|[+,])(\d+)", plan))
    return f"--sequences {plan} --length {count} --prompt long{more} --color never"


QWEN2, QWEN3 = "--arch qwen2 --weights q8_0 --seed 67", "--arch qwen3 --weights q4_0 --seed 68 --head-dim 64"
MOE, HYBRID = "--arch qwen3moe --weights q8_0 --seed 69", "--arch qwen35 --weights q8_0 --seed 70"

BUGS = {
    # Always.
    "prefix-turns": {
        "model": QWEN2, "run": run("9, 1+12@0:6, 1+4, 1+1+1"),
        "changes": [("skiff", "self.counted[sequence] = count\n", "self.counted[sequence] = 0\n")]},
    "chunk-mask": {
        "model": QWEN3, "run": run("7, 6+9, 1+8+5, 1+1+1"),
        "changes": [("paged", "reach = first + np.arange(tokens)", "reach = np.arange(tokens)")]},
    "heads-sorted": {
        "model": QWEN2, "run": run("6+11+8, 1+1+1, 1+1+1+1"),
        "changes": [("model", "logits[run.heads] = made", "logits[:] = made")]},
    "memory-kept": {
        "model": HYBRID, "run": run("9+6, 5+1, 1~4+1, 1+1"),
        "changes": [("pages", """    def keep(self, sequence, kept):
        if kept == 0:""", """    def keep(self, sequence, kept):
        if kept:
            for saved in self.saved[sequence].values():
                saved[kept] = saved[kept][0], saved[-1][1]
        if kept == 0:""")]},
    "shares-unsorted": {
        "model": MOE, "run": run("7, 5+9, 1+1"),
        "changes": [("model", "shares.reshape(-1)[order]", "shares.reshape(-1)")]},
    "scale-of-page": {
        "model": QWEN3, "run": run("9+5, 1+6, 1+1", " --kv-type q8_0"), "engine": "--kv q8_0",
        "changes": [("store", "self.codes[slots].astype(F) * self.scale[slots].astype(F)",
                     "self.codes[slots].astype(F) * self.scale[slots // PAGE * PAGE].astype(F)")]},
    "window-of-first": {
        "model": HYBRID, "run": run("7+5, 3+4+6, 1+1+1"),
        "changes": [("model", "np.concatenate([befores[at], qkv[rows]])", "np.concatenate([befores[0], qkv[rows]])")]},
    "parts-by-peak": {
        "model": QWEN2, "run": run("20+13, 1+5, 1+1, 1+1"),
        "changes": [("paged", "share = [np.exp(p - most) * t for p, t in zip(peaks, totals)]", "share = [np.exp(p - most) for p in peaks]")]},
    "prefix-rounded": {
        "model": QWEN3, "run": run("13, 1+9@0:11, 1+1+6@0:5"),
        "changes": [("paged", "[(0, shared), (shared, keys)]", "[(0, shared), (-(-shared // PAGE) * PAGE, keys)]")]},
    "whole-page": {
        "model": QWEN3, "run": run("9+5, 1+1, 1+1, 1+1"),
        "changes": [("paged", "np.where(np.arange(keys) < length, scores", "np.where(np.arange(keys) < keys, scores")]},
    "page-not-copied": {
        "model": QWEN2, "run": run("7, 5+1+17@0, 1+1+1"),
        "changes": [("pages", "if at % PAGE and self.users[table[-1]] > 1:", "if at % PAGE and self.users[table[-1]] < 1:")]},
    "gate-of-first-row": {
        "model": HYBRID, "run": run("7+5, 4+3, 1+1"),
        "changes": [("model", "context[rows] * gate[rows]", "context[rows] * gate[rows[:1]]")]},
    # Under a condition.
    "one-tile": {
        "model": MOE, "run": run("6, 19+23, 1+1"),
        "changes": [("model", "for at in range(begin, end, TILE):", "for at in range(begin, min(end, begin + TILE), TILE):")]},
    "turns-replayed": {
        "model": QWEN3, "run": run("5+8, 1+1, 1+1, 1+1"),
        "changes": [("skiff", "        self.turns[:n], self.turns[n:size] = turns, 0\n",
                     "        if size != self.last:\n            self.turns[:n], self.turns[n:size] = turns, 0\n")]},
    "slots-in-a-row": {
        "model": QWEN2, "run": run("5+9, 6+4, 9+1, 1+1"), "engine": "--slots",
        "changes": [("pages", "return np.array(table)[n // PAGE] * PAGE + n % PAGE",
                     "return (table[at // PAGE] * PAGE + at % PAGE + n - at) % (PAGE * len(self.users))")]},
    "page-freed": {
        "model": QWEN3, "run": run("13+6, 4+1, 1~3+1, 1+1"), "engine": "--slots",
        "changes": [("pages", "self.table[sequence], -(-kept // PAGE)", "self.table[sequence], kept // PAGE")]},
    "draft-stays": {
        "model": QWEN2, "run": run("9+4, 5+1, 1~4+1, 2+1, 3+1"),
        "changes": [("skiff", "begin = first\n", "begin = min(max(first, self.filled.get(sequence, 0)), first + len(tokens))\n")]},
    "memory-of-another": {
        "model": HYBRID, "run": run("6+9+4, 5~all+4~all+1, 1+1+1"),
        "changes": [("pages", "                self.memory[l][row] = 0\n", "")]},
    "residual-from-start": {
        "model": QWEN2, "run": run("11, 5+14, 1+1, 9+9"),
        "changes": [("model", "out[rows] = x[rows] + y[rows]", "out[rows] = x[:rows.stop - at] + y[rows]")]},
    "padding-writes": {
        "model": QWEN3, "run": run("6+5+7, 1+1+1, 1+1+1, 2+1+1"),
        "changes": [("skiff", "self.slots[:n], self.slots[n:size] = slots, -1", "self.slots[:n], self.slots[n:size] = slots, 0")]},
}
