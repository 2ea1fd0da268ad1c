#!/usr/bin/env python3
"""QDIFF=prog taps.py OUT [NAME...]: the arrays that a bug changes, without a verdict, by numpy: for each sequence and pass the first
stage that differs, how far, and its rows. OUT is run.py's."""
import os, re, shlex, shutil, subprocess, sys
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "seventh")]
import card, numpy
from bugs import BUGS, MODELS

STAGES = """embed attn_norm delta_qkv delta_z delta_b delta_beta delta_a delta_softplus delta_decay conv_state conv_out conv_act delta_q delta_k
delta_v delta_q_normed delta_k_normed delta_state delta_out delta_normed delta_gated delta_proj q_gate_proj q_proj k_proj v_proj q_biased
k_biased v_biased q_half gate_half q_normed k_normed q_rope k_rope k_cache v_cache attn_scores attn_weights attn_context gate_sigmoid
attn_gated attn_out attn_residual ffn_norm router_logits router_probs router_experts router_weights router_shares expert_gate expert_up
expert_act expert_down experts_out ffn_gate ffn_up ffn_act ffn_down layer_out final_norm logits""".split()
out, names, qdiff = Path(sys.argv[1]).resolve(), sys.argv[2:], os.environ.get("QDIFF", "qdiff")
(out / "taps").mkdir(parents=True, exist_ok=True)


def record(b, at, to):
    if not (to / "capture.npz").exists():
        shutil.rmtree(to, ignore_errors=True)
        model = out / "models" / f"{b['model']}.gguf"
        if not model.exists():
            model.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run([qdiff, "synth", str(model), "-q", *shlex.split(MODELS[b["model"]])], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([qdiff, "record", "--runner", "cuda", "-m", str(model), *shlex.split(b["run"]), "-o", str(to)], check=True,
                       env=dict(os.environ, **card.environment(at)), stdout=subprocess.DEVNULL)
    return numpy.load(to / "capture.npz")


for b in BUGS:
    if names and not any(b["name"].startswith(n) for n in names):
        continue
    if not (out / "card/libcuda.so").exists():
        card.make(out / "card")
    clean = record(b, out / "card", out / "taps" / ("clean-" + re.sub(r"\W+", "-", b["model"] + b["run"])))
    changed = card.make(out / b["name"] / "tapscard", b["changes"], like=out / "card")
    bug = record(b, changed, out / "taps" / b["name"])
    print(b["name"], flush=True)
    seen = {}
    for name in clean.files:
        step, _, stage = name.partition("/")
        layer, _, of = stage.rpartition(".")
        rank = (layer or ("L-1" if of == "embed" else "L99"), STAGES.index(of) if of in STAGES else -1)
        rank = (int(rank[0][1:]), rank[1])
        was, now = clean[name].astype(float), bug[name].astype(float)
        if not was.size or not stage:
            continue
        differs = (was != now) & ~(numpy.isnan(was) & numpy.isnan(now))
        if differs.any():
            far = numpy.linalg.norm(numpy.where(differs, was - now, 0)) / max(numpy.linalg.norm(was), 1e-30)
            axis = 1 if of in ("attn_scores", "attn_weights") else 0
            rows = sorted(set(numpy.argwhere(differs)[:, axis].tolist()))
            seen.setdefault(step, []).append((rank, stage, was.shape, far, rows, int(differs.sum())))
    for step, all in seen.items():
        all.sort()
        for _, stage, shape, far, rows, count in all[:2]:
            print(f"    {step}/{stage} {shape} far {far:.1e}, {count} elements, rows {rows}", flush=True)
    shutil.rmtree(changed, ignore_errors=True)
