#!/usr/bin/env python3
"""The laws of key.py that arrays alone can show, by numpy on what `run.py OUT --taps` leaves. check.py OUT [NAME...]

Those of w01, w12 and w20 need the blocks of the weights: there it says only which outputs change."""
import sys
from pathlib import Path
import numpy as np

OUT = Path(sys.argv[1])


def both(name):
    return (np.load(OUT / name / "taps" / of / "capture.npz") for of in ("clean", "bug"))


def tell(what, y, law):
    y, law = np.asarray(y, float).ravel(), np.asarray(law, float).ravel()
    print(f"{what}: off by {np.linalg.norm(y - law) / np.linalg.norm(law):.1e}", flush=True)


def rows(of, name, d=64):
    return of[name].astype(float).reshape(len(of[name]), -1, d)


def turn(x, positions, rounded=lambda v: v):
    h = x.shape[2] // 2
    angle = positions[:, None, None] * (1e6 ** (-np.arange(h) / h)).astype(np.float32)
    c, s = rounded(np.cos(angle)), rounded(np.sin(angle))
    a, b = x[..., :h], x[..., h:]
    return np.concatenate([a * c - b * s, a * s + b * c], 2)


def softmax(s, seen, more=0.0):
    s = np.where(seen, s, -np.inf)
    top = np.maximum(s.max(-1, keepdims=True), 0.0 if more else -np.inf)
    e = np.exp(s - top)
    return e / (e.sum(-1, keepdims=True) + more * np.exp(-top))


def seen(t):
    return np.tril(np.ones((t, t), bool))


def w02():
    _, bug = both("w02")
    tell("w02 f16 cosine and sine", bug["prefill/L00.q_rope"],
         turn(rows(bug, "prefill/L00.q_normed"), np.arange(40.0), lambda v: v.astype(np.float16).astype(float)))


def w03():
    _, bug = both("w03")
    s = bug["prefill/L00.attn_scores"].astype(float) / 8
    tell("w03 soft cap 50", bug["prefill/L00.attn_weights"], softmax(50 * np.tanh(s / 50), seen(30)))


def w04():
    _, bug = both("w04")
    for step in ("prefill", "step1"):
        g, u = (bug[f"{step}/L00.{x}"].astype(float) for x in ("ffn_gate", "ffn_up"))
        tell(f"w04 {step} SiLU of up, times gate", bug[f"{step}/L00.ffn_act"], u / (1 + np.exp(-u)) * g)


def w05():
    clean, bug = both("w05")
    x, y, z = (of.astype(float) for of in (clean["prefill/embed"], clean["prefill/L00.attn_norm"], bug["prefill/L00.attn_norm"]))
    tell("w05 1 + w", z, y + x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6))


def w06():
    clean, bug = both("w06")
    x = rows(bug, "prefill/L00.q_proj")
    weight = (rows(clean, "prefill/L00.q_normed") / (x / np.sqrt((x * x).mean(2, keepdims=True) + 1e-6)))[5, 1]
    x = turn(x, np.arange(26.0))
    tell("w06 norm after rotation", bug["prefill/L00.q_normed"], x / np.sqrt((x * x).mean(2, keepdims=True) + 1e-6) * weight)


def w07():
    _, bug = both("w07")
    tell("w07 a sink", bug["prefill/L00.attn_weights"], softmax(bug["prefill/L00.attn_scores"].astype(float) / 8, seen(22), 1.0))


def w08():
    _, bug = both("w08")
    q, k, v = (rows(bug, f"prefill/L00.delta_{x}") for x in ("q_normed", "k_normed", "v"))
    g, beta = (bug[f"prefill/L00.delta_{x}"].astype(float) for x in ("decay", "beta"))
    law = np.zeros_like(v)
    for h in range(v.shape[1]):
        m = np.zeros((64, 64))
        for t in range(len(v)):
            kk, qq = k[t, h % k.shape[1]], q[t, h % q.shape[1]]
            m = np.exp(g[t, h]) * m + np.outer(beta[t, h] * (v[t, h] - m @ kk), kk)
            law[t, h] = m @ qq / 8
    tell("w08 correction before the decay", bug["prefill/L00.delta_out"], law)


def w09():
    clean, bug = both("w09")
    for part in "qkv":
        bias = rows(clean, f"prefill/L00.{part}_biased") - rows(clean, f"prefill/L00.{part}_proj")
        tell(f"w09 {part}", bug[f"prefill/L00.{part}_biased"], rows(bug, f"prefill/L00.{part}_proj") + bias[:, :1])


def w10():
    _, bug = both("w10")
    for stage, of in (("k_cache", "k_rope"), ("v_cache", "v_proj")):
        x = bug[f"prefill/L00.{of}"].reshape(-1, 32).astype(np.float32)
        most = abs(x).max(1, keepdims=True)
        tell(f"w10 {stage} cut codes", bug[f"prefill/L00.{stage}"], np.trunc(x * (127 / most)) * (most / 127).astype(np.float16).astype(float))


def w11():
    _, bug = both("w11")
    for step in ("prefill", "step1"):
        print(f"w11 {step}: all are bfloat16: {not (bug[f'{step}/logits'].view(np.uint32) & 0xffff).any()}")


def w13():
    _, bug = both("w13")
    t, n = np.indices((44, 44))
    tell("w13 a window of 32", bug["prefill/L00.attn_weights"],
         softmax(bug["prefill/L00.attn_scores"].astype(float) / 8, (n <= t) & (n > t - 32)))


def w14():
    clean, bug = both("w14")
    good, y, chosen = clean["prefill/L00.expert_gate"], bug["prefill/L00.expert_gate"], clean["prefill/L00.router_experts"].ravel()
    good, y = good.reshape(len(chosen), -1), y.reshape(len(chosen), -1)
    law = good.copy()
    for expert in range(8):
        lines = np.nonzero(chosen == expert)[0]
        law[lines] = good[lines[np.arange(len(lines)) % 8]]
    tell("w14 the first 8 again", y, law)


def w15():
    _, bug = both("w15")
    for step in ("step1", "step2"):
        w, x = bug[f"{step}/L00.router_weights"].astype(float), bug[f"{step}/L00.expert_down"].astype(float)
        tell(f"w15 {step} probabilities as they are", bug[f"{step}/L00.experts_out"], np.einsum("tk,tki->ti", w, x))


def w16():
    _, bug = both("w16")
    for step, keys in (("step1", 71), ("step2", 72)):
        s = bug[f"{step}/L00.attn_scores"].astype(float) / 8
        tell(f"w16 {step} the first 64 keys alone", bug[f"{step}/L00.attn_weights"], softmax(s, np.arange(keys) < 64))


def w17():
    clean, bug = both("w17")
    print("w17 changed ids:", np.nonzero((clean["step1/logits"] != bug["step1/logits"]).any(0))[0].tolist())


def w18():
    clean, bug = both("w18")
    for name in clean.files:
        if name.endswith("L00.attn_context") and (clean[name] != bug[name]).any():
            print(f"w18 {name}: {(clean[name] != bug[name]).sum()} of {clean[name].size} elements change")


def w19():
    clean, bug = both("w19")
    g = bug["prefill/L00.delta_decay"].astype(float)[32:].sum(0)
    tell("w19 state / e^g", bug["prefill/L00.delta_state"], clean["prefill/L00.delta_state"].astype(float) * np.exp(-g)[None, :, None])


def changed(name, stage):
    clean, bug = both(name)
    columns = np.nonzero((clean[stage] != bug[stage]).any(0))[0]
    print(f"{name} {stage}: outputs {columns.tolist()[:20]} and so on, {len(columns)} of {clean[stage].shape[1]}")


def w01():
    changed("w01", "prefill/L00.ffn_down")


def w12():
    changed("w12", "prefill/L00.q_proj")


def w20():
    changed("w20", "step1/L00.q_proj")


for law in (w01, w02, w03, w04, w05, w06, w07, w08, w09, w10, w11, w12, w13, w14, w15, w16, w17, w18, w19, w20):
    if not sys.argv[2:] or law.__name__ in sys.argv[2:]:
        law()
