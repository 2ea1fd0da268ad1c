#!/usr/bin/env python3
"""The laws of key.py that arrays alone can show, by numpy on what `run.py OUT --taps` leaves. check.py OUT [NAME...]"""
import sys
from pathlib import Path
import numpy as np

OUT = Path(sys.argv[1])


def both(name):
    return (np.load(OUT / name / "taps" / of / "capture.npz") for of in ("clean", "bug"))


def tell(what, y, law):
    print(f"{what}: off by {np.linalg.norm(y - law) / np.linalg.norm(law):.1e}")


def steps(of, stage):
    return [name for name in of.files if name.split("/")[-1] == stage]


def o01():
    clean, bug = both("o01")
    # The weights of a norm from the clean run, whose squares are whole.
    x, y = (clean[f"prefill/{s}"].astype(float) for s in ("embed", "L00.attn_norm"))
    factor = y * np.sqrt((x**2).mean(1, keepdims=True) + 1e-6)
    w = (factor * x).sum(0) / (x * x).sum(0)
    x, y = (bug[f"prefill/{s}"].astype(float) for s in ("embed", "L00.attn_norm"))
    seen = np.arange(320) % 256 < 128
    tell("o01 squares of half of each 256", y, w * x / np.sqrt((x[:, seen] ** 2).sum(1, keepdims=True) / 320 + 1e-6))


def o04():
    clean, bug = both("o04")
    w, *_ = np.linalg.lstsq(clean["prefill/L00.attn_norm"].astype(float), clean["prefill/L00.q_proj"].astype(float), rcond=None)
    x = bug["prefill/L00.attn_norm"]
    cut = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)
    # The same rows, so that rows' combinations are known though there are fewer than elements.
    a, *_ = np.linalg.lstsq(x.T.astype(float), (cut - x).T.astype(float), rcond=None)
    print(f"o04 q_proj changes by {np.linalg.norm(bug['prefill/L00.q_proj'] - clean['prefill/L00.q_proj']) / np.linalg.norm(clean['prefill/L00.q_proj']):.1e}, "
          f"the activation by cutting {np.linalg.norm(cut - x) / np.linalg.norm(x):.1e}; all activations smaller: {(abs(cut) <= abs(x)).all()}")


def rope(of, name, heads, d):
    return of[name].astype(float).reshape(-1, heads, d)


def rotated(x, positions, frequency, m=(1.0, 1.0), n=None):
    n = n or x.shape[2]
    h = n // 2
    angle = positions[:, None, None] * frequency
    c, s = np.cos(angle) * m[0], np.sin(angle) * m[1]
    y = x.copy()
    a, b = x[..., :h], x[..., h:n]
    y[..., :h], y[..., h:n] = a * c - b * s, a * s + b * c
    return y


def o07():
    _, bug = both("o07")
    p = np.arange(280).astype(np.float32)
    bits = p.view(np.uint32).astype(np.uint64)
    p = ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(float)
    f = 1e6 ** (-np.arange(32) * 2 / 64)
    tell("o07 bf16 positions", rope(bug, "prefill/L00.q_rope", 4, 64), rotated(rope(bug, "prefill/L00.q_normed", 4, 64), p, f))


def o08():
    _, bug = both("o08")
    for base, say in ((1e6, "the model's base"), (1e3, "its root")):
        f = base ** (-np.arange(16) * 2 / 32)
        tell(f"o08 {say}", rope(bug, "prefill/L01.q_rope", 4, 64), rotated(rope(bug, "prefill/L01.q_normed", 4, 64), np.arange(24.0), f, n=32))


def o09():
    clean, bug = both("o09")
    x, good, y = rope(bug, "prefill/L00.q_normed", 4, 64), rope(clean, "prefill/L00.q_rope", 4, 64), rope(bug, "prefill/L00.q_rope", 4, 64)
    m = 1 + 0.1 * np.log(4)
    a, b = x[..., :32], x[..., 32:]
    c = (good[..., :32] * a + good[..., 32:] * b) / (a * a + b * b)
    s = (good[..., 32:] * a - good[..., :32] * b) / (a * a + b * b)
    tell("o09 cosines alone have m", y, np.concatenate([a * c - b * s / m, a * s / m + b * c], 2))


def o10():
    clean, bug = both("o10")
    for stage in ("k_cache", "v_cache"):
        right = clean[f"prefill/L00.{stage}"].reshape(-1, 32)
        tell(f"o10 {stage}", bug[f"prefill/L00.{stage}"].reshape(-1, 32), np.concatenate([right[:, ::2], right[:, 1::2]], 1))


def o11():
    _, bug = both("o11")
    for stage, of in (("k_cache", "k_rope"), ("v_cache", "v_proj")):
        tell(f"o11 {stage}", bug[f"prefill/L00.{stage}"].ravel(), np.rint(bug[f"prefill/L00.{of}"]).ravel())


def o12():
    clean, bug = both("o12")
    for name in [n for n in bug.files if n.endswith("L00.attn_context")]:
        rows = np.unique(np.nonzero(abs(bug[name] - clean[name]) > 1e-5)[0])
        print(f"o12 {name} {bug[name].shape}: rows {rows.tolist()}")


def o13():
    clean, bug = both("o13")
    for name in steps(bug, "L00.attn_weights"):
        w = bug[name]
        heads, tokens, keys = w.shape
        first = keys - tokens
        h, t, n = np.nonzero(w)
        future = n > first + t
        rows = np.unique(t[future]) + first
        print(f"o13 {name} {w.shape}: weights after the token in positions {rows.tolist()}, keys up to {n[future].max() if future.any() else None}")


def o14():
    clean, bug = both("o14")
    for step in ("step1", "step2"):
        s, w = (bug[f"{step}/L00.{x}"].astype(float)[:, 0] for x in ("attn_scores", "attn_weights"))
        s = s / 8
        m = [s[:, :64].max(1), s[:, 64:].max(1)]
        top = np.maximum(*m)
        e = np.concatenate([np.exp(s[:, :64] - m[0][:, None]) * 2 ** (m[0] - top)[:, None], np.exp(s[:, 64:] - m[1][:, None]) * 2 ** (m[1] - top)[:, None]], 1)
        tell(f"o14 {step}", w, e / e.sum(1, keepdims=True))


def o15():
    clean, bug = both("o15")
    q, k = (bug[f"prefill/L00.{x}"].astype(float) for x in ("q_rope", "k_cache"))
    s = np.einsum("thd,nhd->htn", q, k[:, [0, 0, 0, 0, 1, 1]])
    seen = np.tril(np.ones((21, 21)))
    tell("o15 scores", bug["prefill/L00.attn_scores"] * seen, s * seen)


def o16():
    clean, bug = both("o16")
    for step in ("prefill", "step1"):
        print(f"o16 {step}: changes {np.linalg.norm(bug[f'{step}/L00.ffn_down'] - clean[f'{step}/L00.ffn_down']):.1e}")


def o17():
    clean, bug = both("o17")
    z = bug["prefill/L00.router_probs"][:, :32]
    best = np.argsort(-z, 1, kind="stable")[:, :6]
    print(f"o17 choice is that of experts 0 to 31: {(best == bug['prefill/L00.router_experts']).all()}; wrong rows "
          f"{(best != clean['prefill/L00.router_experts']).any(1).sum()} of {len(best)}")


def o18():
    _, bug = both("o18")
    before = bug["prefill/L00.conv_state"].reshape(3, -1)
    for step in ("step1", "step2", "step3"):
        now, x = bug[f"{step}/L00.conv_state"].reshape(3, -1), bug[f"{step}/L00.delta_qkv"].reshape(-1)
        print(f"o18 {step}: the two oldest stay {(now[:2] == before[:2]).all()}, the newest is the input {(now[2] == x).all()}")
        before = now


def o19():
    clean, bug = both("o19")
    q, k, v, g, beta = (bug[f"prefill/L00.delta_{x}"].astype(float) for x in ("q_normed", "k_normed", "v", "decay", "beta"))
    t_all = len(g)
    q, k, v = q.reshape(t_all, -1, 64), k.reshape(t_all, -1, 64), v.reshape(t_all, -1, 64)
    for say, of in (("as it is", lambda h, t: g[t, h]), ("as [heads, tokens]", lambda h, t: g.ravel()[h * t_all + t])):
        off = 0
        y = bug["prefill/L00.delta_out"].reshape(t_all, -1, 64)
        for h in range(4):
            m = np.zeros((64, 64))
            for t in range(t_all):
                kk, qq = k[t, h % k.shape[1]], q[t, h % q.shape[1]]
                m = np.exp(of(h, t)) * m
                m = m + np.outer(beta[t, h] * (v[t, h] - m @ kk), kk)
                off = max(off, abs(m @ qq / 8 - y[t, h]).max())
        print(f"o19 the decays read {say}: the outputs are off by {off:.1e}")


def o20():
    _, bug = both("o20")
    x, y = bug["prefill/L01.q_gate_proj"], bug["prefill/L01.gate_half"].reshape(-1, 4, 64)
    t, h, i = np.indices(y.shape)
    print(f"o20 gate_half is read at half the stride: {(x.ravel()[t * 256 + 64 + h * 128 + i] == y).all()}")


for law in (o01, o04, o07, o08, o09, o10, o11, o12, o13, o14, o15, o16, o17, o18, o19, o20):
    if not sys.argv[2:] or law.__name__ in sys.argv[2:]:
        law()
