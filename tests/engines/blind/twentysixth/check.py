#!/usr/bin/env python3
"""The laws of f11, f15 and f16, by numpy on the arrays that `run.py OUT --taps` leaves. check.py OUT"""
import sys
from pathlib import Path
import numpy

OUT = Path(sys.argv[1])


def arrays(name):
    return numpy.load(OUT / name / "taps/bug/capture.npz")


def f11(of):
    for layer in ("L00", "L01"):
        scores, weights = (of[f"prefill/{layer}.{s}"].astype(float) for s in ("attn_scores", "attn_weights"))
        heads, tokens, keys = scores.shape
        h, t, n = numpy.indices(scores.shape)
        block = (3 * t + h % 3) // 64
        seen = n < (64 * block // 3 // 32 + 1) * 32
        zeros = (scores == 0) & (n <= t)
        e = numpy.where((n <= t) & seen, numpy.exp(scores * 128**-0.5), 0)
        far = abs(e / e.sum(2, keepdims=True) - weights).max()
        print(f"f11 {layer}: {zeros.sum()} visible scores are 0, the rule gives {((n <= t) & ~seen).sum()}, alike: {(zeros == ((n <= t) & ~seen)).all()}; "
              f"softmax over the seen keys is off by {far:.1e}")


def f15(of):
    for layer in ("L00", "L01"):
        z, y = of[f"prefill/{layer}.router"].astype(float), of[f"prefill/{layer}.router_probs"].astype(float)
        more = (1 / y.sum(1) - 1) * numpy.exp(z).sum(1)
        print(f"f15 {layer}: (1 / sum - 1) sum e^z from {more.min():.4f} to {more.max():.4f}")


def f16(of):
    def state(step):
        return of[f"{step}/L00.delta_state"].reshape(-1, 4, 64, 64)[-1].astype(float)
    for before, step in (("prefill", "step1"), ("step1", "step2")):
        part = {s: of[f"{step}/L00.delta_{s}"].astype(float).reshape(-1, w) for s, w in
                (("q_normed", 64), ("k_normed", 64), ("v", 64), ("out", 64), ("decay", 1), ("beta", 1))}
        for turned in (False, True):
            off = [0, 0]
            for h in range(4):
                q, k = part["q_normed"][h % 2], part["k_normed"][h % 2]
                m = numpy.exp(part["decay"][h]) * (state(before)[h].T if turned else state(before)[h])
                m = m + numpy.outer(part["beta"][h] * (part["v"][h] - m @ k), k)
                off[0] = max(off[0], abs((m.T if turned else m) - state(step)[h]).max())
                off[1] = max(off[1], abs(m @ q / 8 - part["out"][h]).max())
            print(f"f16 {step}, {'transposed' if turned else 'as it is'}: the state is off by {off[0]:.1e}, the output by {off[1]:.1e}")


for law in (f11, f15, f16):
    law(arrays(law.__name__))
