#!/usr/bin/env python3
"""check.py OUT KEEP [NAME...]: runs each bug and the engine without it on the passes in KEEP, and compares their dumps, with numpy alone.

The first stage is that of the first pass with a difference of more than rounding, in the graph's order; for each later pass and
sequence, the first stage that differs, and the rows (of caches and states: the rows too) where it does. KEEP comes from S69_KEEP with
`run.py --clean`; OUT has the models."""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE))
from bugs import BUGS

KINDS = {"f32": np.float32, "i32": np.int32}
ORDER = """embed attn_norm q_gate_proj delta_qkv delta_z delta_b delta_a delta_beta delta_softplus delta_decay conv_state conv_out conv_act delta_q
delta_k delta_v delta_q_normed delta_k_normed delta_state delta_out delta_normed delta_gated delta_proj q_proj q_half gate_half q_normed q_biased
k_proj k_normed k_biased v_proj v_biased q_rope k_rope k_cache v_cache attn_scores attn_weights attn_context gate_sigmoid attn_gated attn_out
attn_residual ffn_norm router router_probs router_experts router_weights router_shares expert_gate expert_up expert_act expert_down experts_out
ffn_gate ffn_up ffn_act ffn_down layer_out final_norm logits""".split()


def dump(name, passes, out, folder):
    subprocess.run([sys.executable, HERE / "engine.py", name, out / "models" / f"{BUGS[name.removesuffix('-clean')]['model'].split()[1]}.gguf",
                    "--sequences", passes, *BUGS[name.removesuffix("-clean")]["engine"].split()],
                   env={k: v for k, v in os.environ.items() if k != "S69_KEEP"} | {"QDIFF_DUMP": str(folder)}, check=True)
    data, arrays, lines = (folder / "capture.bin").read_bytes(), {}, [json.loads(x) for x in (folder / "capture.jsonl").read_text().splitlines()]
    for x in lines:
        if "name" in x:
            at = np.frombuffer(data, KINDS[x["dtype"]], int(np.prod(x["shape"])), x["offset"]).reshape(x["shape"])
            arrays[x["step"], x["name"], x.get("sequence")] = at
    return arrays


def place(name):
    layer, _, stage = name.rpartition(".")
    first = {"embed": -1, "final_norm": 98, "logits": 99}
    return (int(layer[1:]) if layer else first[stage], ORDER.index(stage))


def ranges(n):
    n, out = sorted(set(map(int, n))), []
    for x in n:
        if out and out[-1][1] == x - 1:
            out[-1][1] = x
        else:
            out.append([x, x])
    return ",".join(str(a) if a == b else f"{a}..{b}" for a, b in out)


def main():
    out, keep = Path(sys.argv[1]), Path(sys.argv[2])
    for name in sys.argv[3:] or BUGS:
        passes = keep / f"{name}-clean.passes"
        with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
            good, bad = dump(name + "-clean", passes, out, Path(a)), dump(name, passes, out, Path(b))
        told = [json.loads(line) for line in passes.read_text().splitlines()]
        firsts, found = [], []
        for step, p in enumerate(told):
            order = list(dict.fromkeys(p["sequences"]))
            first = {}
            for (at, stage, of), x in sorted(good.items(), key=lambda i: place(i[0][1])):
                if at != step:
                    continue
                y = bad[at, stage, of]
                assert x.shape == y.shape, (name, at, stage, of)
                axis = 1 if stage.endswith(("attn_scores", "attn_weights")) else 0
                u, v = (np.moveaxis(z, axis, 0).reshape(z.shape[axis], -1).astype(float) for z in (x, y))
                size = np.sqrt((u * u).sum(1)) + 1e-30
                error = np.sqrt(((u - v) ** 2).sum(1)) / size
                if stage.endswith("attn_scores"):
                    rows_of = [r for r, s in enumerate(p["sequences"]) if s == of]
                    seen = np.arange(x.shape[2]) <= np.array([p["positions"][r] for r in rows_of])[:, None]
                    error = np.sqrt((((x - y) * seen).astype(float) ** 2).sum((0, 2)) / (x.astype(float) ** 2 * seen).sum((0, 2)))
                for row in np.nonzero(error > 1e-3)[0]:
                    if of is not None:
                        who, where = of, row if "cache" in stage else p["positions"][[r for r, s in enumerate(p["sequences"]) if s == of][row]]
                    elif stage.endswith(("conv_state", "delta_state")):
                        who, where = order[row], p["positions"][[r for r, s in enumerate(p["sequences"]) if s == order[row]][-1]]
                    else:
                        who, where = p["sequences"][row], p["positions"][row]
                    kept = first.setdefault(who, (stage, [], []))
                    if kept[0] == stage:
                        kept[1].append(where)
                        kept[2].append(error[row])
            for who, (stage, where, errors) in sorted(first.items()):
                found.append(f"  pass {step} sequence {who}: {stage} at {ranges(where)}, relative error {min(errors):.2g}..{max(errors):.2g}")
                firsts.append((step, place(stage), stage))
        print(f"{name}: {min(firsts)[2] if firsts else 'NOTHING'}; first of all passes: {min(firsts, key=lambda f: f[1:])[2] if firsts else '-'}", *found, sep="\n", flush=True)


main()
