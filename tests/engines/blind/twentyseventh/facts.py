#!/usr/bin/env python3
"""facts.py KEPT SCREENS: what result.md says of the screens, checked on the bugs' own values by numpy alone. KEPT as for check.py."""
import re
import sys
from pathlib import Path

import numpy as np

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "eleventh" / "engine")]
import gguf
from bugs import BUGS
from check import ran

KEPT, SCREENS = Path(sys.argv[1]), Path(sys.argv[2])
held = {}
for name in BUGS:
    right, wrong = held[name] = ran(KEPT, name, "-clean"), ran(KEPT, name)
    text = (SCREENS / f"{name}.txt").read_text()
    m = re.search(r"^element +worst of (\S+): p(\d+)(?: h(\d+))?(?: step(\d+))? \[(\d+)\]: subject (\S+), f64 (\S+),", text, re.M)
    stage, p, h, step, i = m[1], int(m[2]), m[3], m[4], int(m[5])
    sizes = {}
    for at, s in wrong:
        if s == "embed":
            sizes[at] = len(wrong[at, s])
    at = next(a for a in sorted(sizes) if p < sum(sizes[b] for b in sizes if b <= a)) if step is None else int(step)
    begin = 0 if "_cache" in stage else sum(sizes[a] for a in sizes if a < at)
    row = p - begin
    x, y = wrong[at, stage], right[at, stage]
    if "attn_scores" in stage or "attn_weights" in stage:
        pick = lambda z: z[int(h), row, i]
    elif stage.endswith("state"):
        pick = lambda z: z[0, int(h), i]
    elif h is not None:
        pick = lambda z: z[row, int(h), i]
    else:
        pick = lambda z: z.reshape(len(z), -1)[row, i]
    print(f"{name} element of {stage}: told subject {m[6]}, f64 {m[7]}; the bug's value {pick(x):.7g}, the clean engine's {pick(y):.7g}")

right, wrong = held["z09"]
d = np.abs(right[0, "L00.attn_context"] - wrong[0, "L00.attn_context"]) > 1e-5
print("z09 positions of the prompt with a wrong row of L00.attn_context:", *np.flatnonzero(d.reshape(len(d), -1).any(1)))
right, wrong = held["z14"]
for step in range(5, 10):
    k = wrong[step, "L00.k_cache"]
    print(f"z14 step {step}: rows that are wrong and what they hold:", *[f"{p}<-{[o for o in range(len(k)) if np.array_equal(right[step, 'L00.k_cache'][o], k[p])]}"
          for p in range(len(k)) if not np.array_equal(k[p], right[step, "L00.k_cache"][p])])
right, wrong = held["z18"]
for layer in ("L00", "L01"):
    for step in range(5):
        logits, chosen = wrong[step, f"{layer}.router"], wrong[step, f"{layer}.router_experts"].astype(int)
        best = np.argsort(-logits, -1, kind="stable")[:, :4]
        for t in np.flatnonzero((chosen != best).any(1)):
            bad = chosen[t] != best[t]
            print(f"z18 {layer} step {step} row {t}: chosen {chosen[t]}, right {best[t]} with logits {np.round(logits[t][best[t]], 3)}")
    every = [(wrong[s, f"{layer}.router"], wrong[s, f"{layer}.router_experts"].astype(int)) for s in range(5)]
    logits, chosen = np.concatenate([a for a, _ in every]), np.concatenate([b for _, b in every])
    best = np.argsort(-logits, -1, kind="stable")[:, :4]
    wrong_at, negative = chosen != best, np.take_along_axis(logits, best, -1) <= 0
    print(f"z18 {layer}: wrong {wrong_at.sum()} elements; the right expert has a negative logit in {negative.sum()}; of these it is expert 0 in {(negative & (best == 0)).sum()}; "
          f"wrong exactly where negative and not 0: {np.array_equal(wrong_at, negative & (best != 0))}; chosen is 0 exactly there or where 0 is right: {np.array_equal(chosen == 0, negative | (best == 0))}")
    own, low = chosen == best, np.take_along_axis(logits, best, -1)
    print(f"z18 {layer}: the largest logit of a right expert that was not chosen {low[~own].max():.3f}, the smallest of one that was chosen and is not 0 {low[own & (best != 0)].min():.3f}")
most, count, against = 0, 0, 0
for key in [k for k in right if k[1].endswith("router_experts")]:
    probs = wrong[key[0], key[1].replace("experts", "probs")]
    for t, (a, b) in enumerate(zip(right[key].astype(int), wrong[key].astype(int))):
        if set(a) != set(b):
            margins = [probs[t, x] - probs[t, y] for x in b if x not in a for y in a if y not in b]
            count += 1
            against += bool(margins) and max(margins) < 0
            most = min([most, *margins])
print(f"z18 rows with other choices than the clean engine's: {count}; in {against} of them the bug's own values prefer all of the clean engine's, in one by {-most:.2f}")
every = np.abs(np.concatenate([v.ravel() for k, v in held["z12"][1].items() if k[1].endswith("attn_scores")]))
print(f"z12 scores: the smallest {every.min():.2f}, the largest {every.max():.0f}")
c, w = gguf.load(SCREENS / "models" / "z20.gguf")
for which in "qkv":
    b = np.abs(w[f"blk.0.attn_{which}.bias"])
    print(f"z20 blk.0.attn_{which}.bias: the largest {b.max():.3g}, the median {np.median(b):.3g}; L00.{which}_proj of the prompt: the largest {np.abs(held['z20'][0][0, f'L00.{which}_proj']).max():.3g}")
