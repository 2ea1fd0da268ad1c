#!/usr/bin/env python3
"""facts.py KEPT: the numbers of result.md, from the bugs' own values by numpy alone. KEPT as for check.py."""
import sys
from pathlib import Path

import numpy as np

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "eleventh" / "engine")]
import gguf
from check import ran

KEPT = Path(sys.argv[1])
F = np.float32


def e4m3(y):
    y = np.clip(y, F(-448), F(448))
    step = np.ldexp(F(1), np.maximum(np.frexp(y)[1] - 1, -6) - 3).astype(F)
    return np.rint(y / step) * step


def far(a, b):
    a, b = a.reshape(len(a), -1), b.reshape(len(b), -1)
    return " ".join(f"{x:.1e}" for x in np.linalg.norm(a - b, axis=1) / np.linalg.norm(b, axis=1))


x = ran(KEPT, "y11")
for stage, of, scale in (("k_cache", "k_rope", 0.02), ("v_cache", "v_proj", 0.011)):
    held, put = x[0, f"L00.{stage}"].astype(F), x[0, f"L00.{of}"].astype(F)
    print(f"y11 L00.{stage}: equals scale * fp8({of}) bit for bit: {np.array_equal(held.ravel(), (e4m3(put) * F(scale)).ravel())}")

x = ran(KEPT, "y12")
print("y12 steps whose dump has L00.conv_state:", *[step for step, stage in x if stage == "L00.conv_state"])


def state(m, step, rows):
    """The delta net's state [4 heads, value, key] behind these rows of a step."""
    get = lambda stage, *shape: x[step, f"L00.{stage}"].reshape(-1, *shape)
    for t in rows:
        key = get("delta_k_normed", 2, 64)[t][np.arange(4) % 2]
        m = m * np.exp(get("delta_decay", 4)[t])[:, None, None]
        delta = (get("delta_v", 4, 64)[t] - (m @ key[:, :, None])[:, :, 0]) * get("delta_beta", 4)[t][:, None]
        m = m + delta[:, :, None] * key[:, None]
    return m


held = {step: x[step, "L00.delta_state"].reshape(4, 64, 64) for step in range(6)}
for rollback, step, begun, kept in ((1, 2, 1, state(held[0], 1, range(2))), (2, 3, 2, state(held[1], 2, range(3))), (3, 5, 4, state(held[3], 4, range(3)))):
    rows = range(len(x[step, "L00.delta_beta"]))
    print(f"y12 rollback {rollback}, L00.delta_state of step {step} by heads: from the state at the end of step {begun} off by {far(held[step], state(held[begun], step, rows))}")
    print(f"    from the state of the kept tokens off by {far(held[step], state(kept, step, rows))}")

x = ran(KEPT, "y13")
for layer in ("L00", "L01"):
    for step in range(6):
        there = np.unique(x[step, f"{layer}.router_experts"]).astype(int)
        print(f"y13 {layer} step {step}: chosen in the pass {there}, at their own rank {[int(e) for n, e in enumerate(there) if n == e]}")
for name in ("y13", "y14"):
    wrong, right = ran(KEPT, name), ran(KEPT, name, "-clean")
    for layer in ("L00", "L01"):
        pairs = [(a, b) for key in wrong if key[1] == f"{layer}.router_experts" for a, b in zip(wrong[key], right[key])]
        print(f"{name} {layer}: other experts than the clean engine in {sum(set(a) != set(b) for a, b in pairs)} of {len(pairs)} rows")

x = ran(KEPT, "y14")
for layer in ("L00", "L01"):
    total, made = x[0, f"{layer}.experts_out"] + x[0, f"{layer}.shared_out"], x[0, f"{layer}.ffn_out"]
    off = np.abs((total * made).sum(1) / (total * total).sum(1) - x[0, f"{layer}.shared_weight"].reshape(-1)).max()
    print(f"y14 {layer}: factor of ffn_out less shared_weight: at most {off:.1e}")

wrong, right = ran(KEPT, "y16"), ran(KEPT, "y16", "-clean")
c, w = gguf.load((KEPT / "y16" / "words").read_text().split("\n")[0])
a, b = right[1, "L00.delta_state"].reshape(4, -1), wrong[1, "L00.delta_state"].reshape(4, -1)
factor, decay = (a * b).sum(1) / (a * a).sum(1), np.logaddexp(0, w["blk.0.ssm_dt.bias"]) * w["blk.0.ssm_a"]
print("y16 L00.delta_state of step 1 by heads: factor", np.round(factor, 4), "; its logarithm by softplus(dt_bias) * ssm_a:", np.round(np.log(factor) / decay, 4))
