#!/usr/bin/env python3
"""Laws of key.py that arrays alone can show, by numpy on what `run.py OUT --taps` leaves. check.py OUT [NAME...]"""
import sys
from pathlib import Path
import numpy as np

OUT = Path(sys.argv[1])


def both(name):
    return (np.load(OUT / name / "taps" / of / "capture.npz") for of in ("clean", "bug"))


def tell(what, y, law):
    print(f"{what}: off by {np.linalg.norm(y - law) / np.linalg.norm(law):.1e}")


def x01():
    clean, bug = both("x01")
    x, right, y = (of[f"prefill/{s}"].astype(float) for of, s in ((clean, "embed"), (clean, "L00.attn_norm"), (bug, "L00.attn_norm")))
    tell("x01 the norm without w is added", y, right + x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-6))


def x04():
    _, bug = both("x04")
    s, w = (bug[f"prefill/L00.{x}"].astype(float) for x in ("attn_scores", "attn_weights"))
    e = np.exp(s / 64) * np.tril(np.ones(s.shape[1:]))
    tell("x04 scores by 1/d", w, e / e.sum(-1, keepdims=True))


def x05():
    clean, bug = both("x05")
    tell("x05 magnitude once more", bug["prefill/L00.q_rope"], clean["prefill/L00.q_rope"] * (1 + 0.1 * np.log(4)))


def x08():
    clean, bug = both("x08")
    w = clean["prefill/L00.router_weights"].astype(float)
    tell("x08 normalised", bug["prefill/L00.router_weights"], w / w.sum(1, keepdims=True))


def x11():
    clean, bug = both("x11")
    x, y = (of["prefill/L00.v_cache"].reshape(-1, 32).astype(float) for of in (clean, bug))
    print(f"x11 none is larger than before: {(abs(y) <= abs(x) + 1e-6).all()}")


def x12():
    clean, bug = both("x12")
    rows = np.unique(np.nonzero(clean["prefill/embed"] != bug["prefill/embed"])[0])
    print(f"x12 rows {rows.tolist()} of ids 17,2049,40,3001,2600,2051,99,1025,3100,2777")


def x13():
    clean, bug = both("x13")
    x, y = clean["step1/L00.q_biased"].reshape(4, 64).astype(float), bug["step1/L00.q_rope"].reshape(4, 64)
    f = 34 * 1e6 ** (-np.arange(32) / 32)
    tell("x13 position 34 for 35", y, np.concatenate([x[:, :32] * np.cos(f) - x[:, 32:] * np.sin(f), x[:, :32] * np.sin(f) + x[:, 32:] * np.cos(f)], 1))


def x14():
    _, bug = both("x14")
    print(f"x14 states are bfloat16: {not (bug['step1/L00.delta_state'].astype(np.float32).view(np.uint32) & 0xFFFF).any()}")


def x15():
    _, bug = both("x15")
    for step, n in (("step1", 36), ("step2", 37), ("step3", 38)):
        w, v = bug[f"{step}/L00.attn_weights"].astype(float)[:, 0], bug[f"{step}/L00.v_cache"].astype(float)
        n4 = n // 4 * 4
        tell(f"x15 {step}", bug[f"{step}/L00.attn_context"].reshape(4, 64), np.einsum("hn,nhd->hd", w[:, :n4], v[:n4][:, [0, 0, 1, 1]]))


def x16():
    clean, bug = both("x16")
    x, y = clean["prefill/L00.q_proj"], bug["prefill/L00.q_proj"]
    rows = np.unique(np.nonzero(x != y)[0])
    print(f"x16 rows {rows.tolist()} by {[float(np.median(y[r] / x[r])) for r in rows]}")


def x17():
    clean, bug = both("x17")
    chosen = bug["prefill/L00.router_experts"].astype(int)
    wrong = (clean["prefill/L00.expert_gate"] != bug["prefill/L00.expert_gate"]).any(2).ravel()
    seen, law = {}, []
    for e in chosen.ravel():
        law.append(seen.get(e, 0) >= 8)
        seen[e] = seen.get(e, 0) + 1
    print(f"x17 wrong lines are those after an expert's first 8: {np.mean(np.array(law) == wrong):.3f} of all, {seen}")


def x19():
    _, bug = both("x19")
    print(f"x19 older rows are zeros: {not bug['step1/L00.conv_state'].reshape(3, -1)[:2].any()}")


def x20():
    clean, bug = both("x20")
    k = bug["prefill/L00.k_biased"] - bug["prefill/L00.k_proj"]
    k = k.reshape(len(k), 2, 64)
    print(f"x20 both heads have one bias: {abs(k[:, 0] - k[:, 1]).max():.1e}")


for law in (x01, x04, x05, x08, x11, x12, x13, x14, x15, x16, x17, x19, x20):
    if not sys.argv[2:] or law.__name__ in sys.argv[2:]:
        law()
