#!/usr/bin/env python3
"""The laws of key.py that arrays alone can show, by numpy on what `run.py OUT --taps` leaves. check.py OUT [NAME...]"""
import sys
from pathlib import Path
import numpy as np

OUT = Path(sys.argv[1])


def both(name):
    return [np.load(OUT / name / "taps" / of / "capture.npz") for of in ("clean", "bug")]


def tell(what, y, law):
    y, law = np.asarray(y, float), np.asarray(law, float)
    print(f"{what}: off by {np.linalg.norm(y - law) / np.linalg.norm(law):.1e}")


def softmax_rows(s, seen):
    e = np.where(seen, np.exp(s - np.where(seen, s, -np.inf).max(-1, keepdims=True)), 0)
    return e / e.sum(-1, keepdims=True)


def causal(t):
    return np.tril(np.ones((t, t), bool))[None]


def y01():
    clean, bug = both("y01")
    x, w = (clean[f"prefill/{s}"].astype(float) for s in ("embed", "L00.attn_norm"))
    w = (w * np.sqrt((x**2).mean(1, keepdims=True) + 1e-6) * x).sum(0) / (x * x).sum(0)
    tell("y01 mean over 512", bug["prefill/L00.attn_norm"], w * x / np.sqrt((x**2).sum(1, keepdims=True) / 512 + 1e-6))


def y02():
    s, w = (both("y02")[1][f"prefill/L00.{x}"].astype(float) for x in ("attn_scores", "attn_weights"))
    tell("y02 scale of 128", w, softmax_rows(s / 128**0.5, causal(s.shape[1])))


def y03():
    s, w = (both("y03")[1][f"prefill/L00.{x}"].astype(float) for x in ("attn_scores", "attn_weights"))
    tell("y03 cap of 30", w, softmax_rows(30 * np.tanh(s / 8 / 30), causal(s.shape[1])))


def y10():
    clean, bug = both("y10")
    b = (clean["prefill/L00.q_biased"].astype(float) - clean["prefill/L00.q_proj"])[0]
    tell("y10 bias of the first 64", bug["prefill/L00.q_biased"], bug["prefill/L00.q_proj"].astype(float) + np.tile(b[:64], len(b) // 64))


def y11():
    clean, bug = both("y11")
    tell("y11 half of what was written", bug["prefill/L00.k_cache"], clean["prefill/L00.k_cache"].astype(float) / 2)


def y13():
    _, bug = both("y13")
    print("y13 zeros of logits:", np.unique(np.nonzero(bug["prefill/logits"] == 0)[1]).tolist())


def y16():
    _, bug = both("y16")
    w, v, y = (bug[f"step1/L00.{x}"].astype(float) for x in ("attn_weights", "v_cache", "attn_context"))
    w[..., -1] = 0
    law = np.stack([w[h, 0] @ v.reshape(w.shape[2], 2, 64)[:, h // 2] for h in range(4)])
    tell("y16 without the newest value", y.reshape(4, 64), law)


def y18():
    clean, bug = both("y18")
    print("y18 experts chosen, at most:", *(int(of["prefill/L00.router_experts"].max()) for of in (clean, bug)))


def y19():
    _, bug = both("y19")
    for name in [n for n in bug.files if n.endswith("L00.attn_weights")]:
        w = bug[name]
        print(f"y19 {name} {w.shape}: keys seen by the first rows {np.count_nonzero(w[0], axis=1)[:4].tolist()}, sum {w[0, 0].sum():.3f}")


for name in [n for n in ("y01", "y02", "y03", "y10", "y11", "y13", "y16", "y18", "y19") if len(sys.argv) == 2 or n in sys.argv[2:]]:
    globals()[name]()
