#!/usr/bin/env python3
"""facts.py SCREENS [NAME...]: what the screens say, against values in numpy alone. SCREENS holds models/ and qdiff-report/ of `run.py SCREENS`.

Each bug's engine runs on the tokens of its report. The wrong stages are computed again from the engine's own operands, in f64: once right, and once by the rule of the key."""
import contextlib
import json
import re
import sys
from pathlib import Path

import numpy as np

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from bugs import BUGS
from check import engine, stages
from bugs import changed

D = np.float64
TEXT = (HERE / "engine.py").read_text()


def report(out, name):
    for file in sorted(out.glob("qdiff-report/*/slate-*.json")):
        told = json.loads(file.read_text())
        if told["model"]["path"].endswith(f"{name}.gguf") and told["outcome"] == "diverged":
            return told["run"]


def tell(what, got, right, rule=None, near=3e-5):
    """How many elements are wrong, and how far the rule is from the values."""
    got, right = np.asarray(got, D), np.asarray(right, D)
    size = np.abs(right).max() or 1
    wrong = np.abs(got - right) > near * size
    line = f"   {what}: {wrong.sum()} of {got.size} wrong"
    if rule is not None:
        line += f"; the rule is off by {np.abs(got - rule).max() / size:.1e} of the largest value; off by more than rounding: {(np.abs(got - rule) > near * size).sum()}"
    print(line)
    return wrong


def main():
    out = Path(sys.argv[1])
    for name in sys.argv[2:] or BUGS:
        bug, path = BUGS[name], str(out / "models" / f"{name}.gguf")
        kv = (re.findall(r"--kv (\S+)", bug.get("engine", "")) or ["f32"])[0]
        run = report(out, name)
        prompt, decoded = run["tokens"], run["decoded"]
        passes = re.findall(r"--passes (\S+)", bug["run"])
        lengths = [int(n) for n in passes[0].split(",")] if passes else [len(prompt)]
        clean, ill = engine(TEXT), engine(changed(TEXT, name))
        c, w = clean["load"](path)
        got = stages(ill, path, kv, prompt, lengths, decoded)
        count = 1 + max(i for i, _, _ in got)
        every = prompt + decoded
        firsts = np.cumsum([0] + lengths + [1] * len(decoded))
        cat = lambda stage, l=None: np.concatenate([got[i, l, stage] for i in range(count)])
        print(f"== {name}: {len(prompt)} + {len(decoded)} tokens in {count} passes")
        globals()[name](SimpleNamespaceOf(c=c, w=w, got=got, count=count, every=every, firsts=firsts, cat=cat, clean=clean, ill=ill, path=path, kv=kv, prompt=prompt))


class SimpleNamespaceOf:
    def __init__(self, **held):
        self.__dict__.update(held)


def n01(r):
    _, wrong = r.ill["load"](r.path)
    tell("embed", r.cat("embed"), r.w["token_embd.weight"][r.every], wrong["token_embd.weight"][r.every])
    a, b = r.w["token_embd.weight"].reshape(-1, 16).astype(D), wrong["token_embd.weight"].reshape(-1, 16).astype(D)
    with np.errstate(all="ignore"):
        ratio = np.nanmedian(np.where(a != 0, b / a, np.nan), 1)
    spread = np.nanmax(np.abs(np.where(a != 0, b / a, np.nan) - ratio[:, None]))
    print(f"   groups of 16: one ratio of wrong to right weight in each (spread {spread:.1e}); {np.sum(np.abs(ratio - 1) < 1e-6)} of {len(ratio)} have ratio 1; ratios {np.round(ratio[:8], 3)}")


def product(x, w):
    return np.asarray(x, D) @ np.asarray(w, D).T


def n02(r):
    for l in range(r.c.layers):
        x, chosen, act = r.cat("ffn_norm", l), r.cat("router_experts", l), r.cat("expert_act", l)
        for m, stage in (("gate", "expert_gate"), ("up", "expert_up"), ("down", "expert_down")):
            y = np.stack([[product(act[t, j] if m == "down" else x[t], r.w[f"blk.{l}.ffn_{m}_exps.weight"][e]) for j, e in enumerate(row)] for t, row in enumerate(chosen)])
            tell(f"L{l} {stage}", r.cat(stage, l), y, 2 * y)


def n03(r):
    for l in range(r.c.layers):
        for s in "qk":
            x = r.cat(f"{s}_proj", l).astype(D)
            h, weight = x.reshape(len(x), -1, r.c.dim), r.w[f"blk.{l}.attn_{s}_norm.weight"]
            unit = lambda ms: (h / np.sqrt(ms + r.c.eps) * weight).reshape(x.shape)
            tell(f"L{l} {s}_normed", r.cat(f"{s}_normed", l), unit((h * h).mean(-1, keepdims=True)), unit((h * h).mean((1, 2), keepdims=True)))


def n04(r):
    for l in range(r.c.layers):
        for s, other in ("kv", "vk"):
            x = r.cat(f"{s}_proj", l).astype(D)
            tell(f"L{l} {s}_biased", r.cat(f"{s}_biased", l), x + r.w[f"blk.{l}.attn_{s}.bias"], x + r.w[f"blk.{l}.attn_{other}.bias"])


def rotate(x, positions, frequency, rotated):
    x, half = np.asarray(x, D), rotated // 2
    angle = np.asarray(positions, D)[:, None, None] * frequency
    a, b = x[..., :half], x[..., half:rotated]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle), x[..., rotated:]], -1)


def n05(r):
    i, c = np.arange(r.c.rotated // 2), r.c
    for l in [l for l in range(c.layers) if not c.recurrent[l]]:
        for s in "qk":
            x, at = r.cat(f"{s}_normed", l).reshape(len(r.every), -1, c.dim), np.arange(len(r.every))
            by = lambda base, width: rotate(x, at, base ** (-2 * i / width), c.rotated)
            tell(f"L{l} {s}_rope", r.cat(f"{s}_rope", l), by(c.base, c.rotated), by(c.base, c.dim))
            tell(f"L{l} {s}_rope, base 1000", r.cat(f"{s}_rope", l), by(c.base, c.rotated), by(1000.0, c.rotated))


def n06(r):
    for l in range(r.c.layers):
        for s, stage in (("k", "k_rope"), ("v", "v_proj")):
            held = np.concatenate([r.got[i, l, f"{s}_cache"] for i in range(r.count)])
            x = np.concatenate([r.cat(stage, l).reshape(len(r.every), r.c.groups, r.c.dim)[:r.firsts[i + 1]] for i in range(r.count)])
            b = x.reshape(*x.shape[:-1], -1, 32)
            d = np.abs(b).max(-1, keepdims=True) / np.float32(127)
            v = b * (np.float32(1) / d)
            scale = d.astype(np.float16).astype(np.float32)
            codes = lambda q: (q.astype(np.float32) * scale).reshape(x.shape)
            wrong = tell(f"L{l} {s}_cache", held, codes(np.trunc(v + np.copysign(np.float32(0.5), v))), codes(np.trunc(v)), near=1e-7)
            off = (held - codes(np.trunc(v + np.copysign(np.float32(0.5), v)))) / np.broadcast_to(scale, b.shape).reshape(x.shape) * np.sign(x)
            print(f"      codes off by {sorted(set(np.round(off[wrong]).astype(int).tolist()))}, outwards positive")


def softmax(r, l, i, sink):
    s = r.got[i, l, "attn_scores"].astype(D) / np.sqrt(r.c.dim)
    first, n = r.firsts[i], s.shape[1]
    s[:, np.arange(s.shape[2])[None] > first + np.arange(n)[:, None]] = -np.inf
    most = s.max(-1, keepdims=True)
    e = np.exp(s - most)
    return e / (e.sum(-1, keepdims=True) + (np.exp(-most) if sink else 0))


def n07(r):
    for l in range(r.c.layers):
        flat = lambda f: np.concatenate([f(i).reshape(-1) for i in range(r.count)])
        tell(f"L{l} attn_weights (f64 of all keys)", flat(lambda i: r.got[i, l, "attn_weights"]), flat(lambda i: softmax(r, l, i, False)), flat(lambda i: softmax(r, l, i, True)), near=1e-6)


def n08(r):
    c = r.c
    for l in [l for l in range(c.layers) if not c.recurrent[l]]:
        x = r.cat("q_gate_proj", l)
        h = x.reshape(len(x), c.heads, 2, c.dim)
        for j, stage in enumerate(("q_half", "gate_half")):
            tell(f"L{l} {stage}", r.cat(stage, l), h[:, :, j].reshape(len(x), -1), np.split(x, 2, -1)[j], near=1e-9)


def n09(r):
    for l in range(r.c.layers):
        x = r.cat("ffn_norm", l)
        gate, up = product(x, r.w[f"blk.{l}.ffn_gate.weight"]), product(x, r.w[f"blk.{l}.ffn_up.weight"])
        both = np.concatenate([gate, up], -1)
        tell(f"L{l} ffn_gate", r.cat("ffn_gate", l), gate, both[:, ::2])
        tell(f"L{l} ffn_up", r.cat("ffn_up", l), up, both[:, 1::2])


def n10(r):
    for l in range(r.c.layers):
        a, b, g = (r.cat(s, l).astype(D) for s in ("experts_out", "shared_down", "shared_weight"))
        tell(f"L{l} ffn_out", r.cat("ffn_out", l), a + b * g, (a + b) * g, near=1e-6)


def delta(r, l, early, pads=False):
    """States after each pass, and outputs, from the captured operands."""
    c, m = r.c, np.zeros((r.c.value_heads, r.c.state, r.c.state))
    states, outs, of = [], [], np.arange(r.c.value_heads) % r.c.key_heads
    for i in range(r.count):
        q, k, v, beta, decay = (r.got[i, l, s].astype(D) for s in ("delta_q_normed", "delta_k_normed", "delta_v", "delta_beta", "delta_decay"))
        if i:  # each step from the state that the engine itself had
            m = r.got[i - 1, l, "delta_state"].astype(D).reshape(m.shape)
        for t in range(len(q)):
            key, query = k[t].reshape(c.key_heads, -1)[of], q[t].reshape(c.key_heads, -1)[of]
            old, m = m, m * np.exp(decay[t])[:, None, None]
            told = (v[t].reshape(c.value_heads, -1) - ((old if early else m) @ key[:, :, None])[:, :, 0]) * beta[t][:, None]
            m = m + told[:, :, None] * key[:, None]
            outs.append((m @ query[:, :, None])[:, :, 0].reshape(-1) / np.sqrt(c.state))
        if pads and len(q) > 1:
            dry = np.logaddexp(0, r.w[f"blk.{l}.ssm_dt.bias"].astype(D)) * r.w[f"blk.{l}.ssm_a"].reshape(-1)
            m = m * np.exp(dry * (-len(q) % 16))[:, None, None]
        states.append(m.reshape(1, c.value_heads, -1))
    return np.concatenate(states), np.stack(outs)


def n11(r):
    (state, out), (ruled, told) = delta(r, 0, False), delta(r, 0, True)
    tell("L0 delta_state", r.cat("delta_state", 0), state, ruled, near=1e-6)
    tell("L0 delta_out", r.cat("delta_out", 0), out, told, near=1e-6)


def n12(r):
    y = product(r.cat("final_norm"), r.w.get("output.weight", r.w["token_embd.weight"]))
    ids = np.arange(y.shape[1])
    rule = np.where(ids < 180, y, np.where(ids < 192, 0, y[:, np.maximum(ids - 12, 0)]))
    wrong = tell("logits", r.cat("logits"), y, rule)
    print(f"      wrong columns {np.flatnonzero(wrong.any(0))[[0, -1]]}, all rows: {wrong[:, 180:].all()}; columns 180..191 exactly zero: {(r.cat('logits')[:, 180:192] == 0).all()}")


def n13(r):
    table, ids = r.w["token_embd.weight"], np.array(r.every)
    wrong = tell("embed", r.cat("embed"), table[ids], table[ids % 65536], near=1e-9)
    print(f"      wrong rows {np.flatnonzero(wrong.any(1)).tolist()}, ids from 65536 on {np.flatnonzero(ids > 65535).tolist()}")


def n14(r):
    for l in range(r.c.layers):
        x, before = r.cat("attn_residual", l).astype(D), (r.cat("layer_out", l - 1) if l else r.cat("embed")).astype(D)
        weight, n = r.w[f"blk.{l}.ffn_norm.weight"], len(r.prompt)
        by = lambda y: x / np.sqrt((y * y).mean(-1, keepdims=True) + r.c.eps) * weight
        tell(f"L{l} ffn_norm", r.cat("ffn_norm", l), by(x), np.concatenate([by(x)[:n], by(before)[n:]]))


def n15(r):
    frequency = r.c.base ** (-np.arange(0, r.c.dim, 2) / r.c.dim)
    at = np.arange(len(r.every))
    said = np.concatenate([(i * n if n > 1 else first) + np.arange(n) for i, (first, n) in enumerate(zip(r.firsts, np.diff(r.firsts)))])
    print("      positions said:", said.tolist())
    for l in range(r.c.layers):
        for s in "qk":
            x = r.cat(f"{s}_normed", l).reshape(len(at), -1, r.c.dim)
            tell(f"L{l} {s}_rope", r.cat(f"{s}_rope", l), rotate(x, at, frequency, r.c.dim), rotate(x, said, frequency, r.c.dim))


def n16(r):
    for l in range(r.c.layers):
        for s, stage in (("k", "k_rope"), ("v", "v_biased")):
            x = r.cat(stage, l).reshape(len(r.every), r.c.groups, r.c.dim)
            off = wrong = zero = 0
            for i in range(r.count):
                held, n = r.got[i, l, f"{s}_cache"], r.firsts[i + 1]
                rule = x[:n].copy()
                rule[[p for p in range(len(r.prompt), n - 1) if p % 16 == 0]] = 0
                wrong += (held != x[:n]).sum()
                zero += ((held != x[:n]) & (held == 0)).sum()
                off += (held != rule).sum()
            print(f"   L{l} {s}_cache: {wrong} wrong, {zero} of them zero; the rule misses {off}")


def n17(r):
    c = r.c
    for l in range(c.layers):
        of, right = np.minimum(np.arange(c.heads) >> 2, c.groups - 1), np.arange(c.heads) // (c.heads // c.groups)
        for i in (0, r.count - 1):
            q, k, v, weights = (r.got[i, l, s].astype(D) for s in ("q_rope", "k_cache", "v_cache", "attn_weights"))
            score = lambda m: np.einsum("thd,nhd->htn", q, k[:, m])
            context = lambda m: np.einsum("htn,nhd->thd", weights, v[:, m]).reshape(len(q), -1)
            wrong = tell(f"L{l} pass {i} attn_scores", r.got[i, l, "attn_scores"], score(right), score(of), near=1e-6)
            print(f"      heads {np.flatnonzero(wrong.any((1, 2))).tolist()}")
            wrong = tell(f"L{l} pass {i} attn_context", r.got[i, l, "attn_context"], context(right), context(of), near=1e-6)
            print(f"      columns {np.flatnonzero(wrong.any(0))[[0, -1]].tolist()}")


def n18(r):
    for l in range(r.c.layers):
        x, weight = r.cat("ffn_act", l), r.w[f"blk.{l}.ffn_down.weight"]
        right, rule = product(x, weight), product(x, weight)
        rule[16:21] = product(x[16:21, :320], weight[:, :320])
        wrong = tell(f"L{l} ffn_down", r.cat("ffn_down", l), right, rule)
        print(f"      rows {np.flatnonzero(wrong.any(1)).tolist()}")


def n19(r):
    for l in range(r.c.layers):
        for m in ("gate", "up"):
            off = wrong = total = 0
            for i in range(r.count):
                x, chosen = r.got[i, l, "ffn_norm"], r.got[i, l, "router_experts"]
                room, used = max(4, int(np.ceil(1.25 * len(x) * r.c.taken / r.c.experts))), np.zeros(r.c.experts, int)
                for t, row in enumerate(chosen):
                    for j, e in enumerate(row):
                        y, held = product(x[t], r.w[f"blk.{l}.ffn_{m}_exps.weight"][e]), r.got[i, l, f"expert_{m}"][t, j]
                        near = 1e-5 * np.abs(y).max()
                        wrong += (np.abs(held - y) > near).sum()
                        off += (np.abs(held - (0 if used[e] >= room else y)) > near).sum()
                        total += y.size
                        used[e] += 1
            print(f"   L{l} expert_{m}: {wrong} of {total} wrong; the rule misses {off}")


def n20(r):
    state, out = delta(r, 0, False)
    ruled, _ = delta(r, 0, False, True)
    got = r.cat("delta_state", 0)
    for i in range(r.count):
        tell(f"L0 pass {i} delta_state", got[i], state[i], ruled[i], near=1e-6)
    tell("L0 delta_out", r.cat("delta_out", 0), out, near=1e-6)


if __name__ == "__main__":
    main()
