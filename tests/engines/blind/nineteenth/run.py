#!/usr/bin/env python3
"""Plants the bugs of bugs.py in qdiff's CUDA kernels on an emulated card and lets qdiff judge them.

QDIFF=prog run.py OUT [--clean] [--taps] [NAME...]

key.py is the answer key, frozen before qdiff had judged any bug; result.md has the verdicts. --clean runs the same commands without
the bugs. --taps compares the arrays of both cards by numpy and judges nothing: a line for each bug, with the first array that changes."""
import os, shlex, shutil, subprocess, sys, time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SEVENTH = HERE.parent / "seventh"
sys.dont_write_bytecode = True
sys.path[:0] = [str(HERE), str(SEVENTH)]
import card
from bugs import BUGS, MODELS


def model(out, qdiff, name):
    path = out / "models" / f"{name}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([qdiff, "synth", str(path), "-q", *shlex.split(MODELS[name])], check=True, stdout=subprocess.DEVNULL)
    return path


def clean_card(out):
    if not (out / "card" / "libcuda.so").exists():
        card.make(out / "card")
    return out / "card"


def environment(at):
    return dict(os.environ, COLUMNS="160", NO_COLOR="1", **card.environment(at))


def record(out, qdiff, b, folder):
    """The arrays of the clean and of the changed card."""
    import numpy
    both = []
    changed = card.make(folder / "card", b["changes"], like=clean_card(out))
    for name, at in (("clean", clean_card(out)), ("bug", changed)):
        to = folder / name
        shutil.rmtree(to, ignore_errors=True)
        subprocess.run([qdiff, "record", "--runner", b["subject"], "-m", str(model(out, qdiff, b["model"])), *shlex.split(b["run"]), "-o", str(to)],
                       check=True, env=environment(at), stdout=subprocess.DEVNULL)
        both.append(numpy.load(to / "capture.npz"))
    return both


ORDER = """embed attn_norm delta_qkv delta_z delta_alpha delta_beta_proj q_proj q_half gate_half q_biased q_normed k_proj k_biased k_normed v_proj v_biased
q_rope k_rope k_cache v_cache attn_scores attn_weights attn_context gate_sigmoid attn_gated delta_ delta_out delta_normed delta_gated delta_proj attn_out attn_residual ffn_norm
router router_probs router_experts router_weights router_shares expert_gate expert_up expert_act expert_down experts_out ffn_gate ffn_up ffn_act
ffn_down layer_out final_norm logits""".split()


def place(name):
    step, stage = name.split("/")
    layer, of = stage.split(".") if "." in stage else ("L99" if stage in ("final_norm", "logits") else "L-1", stage)
    number = -1 if not any(c.isdigit() for c in step) else int("".join(c for c in step if c.isdigit()))
    return ("decode" in step, number, int(layer[1:]), ORDER.index(of) if of in ORDER else ORDER.index("delta_"))


def taps(out, qdiff, b):
    """The arrays that change, the earliest first: of the first pass that has some, and of the first decode step."""
    import numpy
    clean, bug = record(out, qdiff, b, out / b["name"] / "taps")
    said = {}
    for name in sorted((n for n in clean.files if "/" in n), key=place):
        was, now = clean[name].astype(float), bug[name].astype(float)
        if was.shape != now.shape or not was.size:
            continue
        far = numpy.linalg.norm(was - now) / max(numpy.linalg.norm(was), 1e-30)
        step = name.split("/")[0]
        said.setdefault(step, 0)
        if far > 1e-6 and said[step] < 5 and len(said) < 4:
            said[step] += 1
            print(f"    {name} {was.shape} {far:.1e}, elements {numpy.count_nonzero(was != now)} of {was.size}", flush=True)


def main():
    args = [a for a in sys.argv[1:] if not a.startswith("-")]
    out, names, qdiff = Path(args[0]).resolve(), args[1:], os.environ.get("QDIFF", "qdiff")
    for b in BUGS:
        if names and not any(b["name"].startswith(n) for n in names):
            continue
        folder = out / b["name"]
        folder.mkdir(parents=True, exist_ok=True)
        if "--taps" in sys.argv:
            print(b["name"], flush=True)
            taps(out, qdiff, b)
            continue
        clean = "--clean" in sys.argv
        at = clean_card(out) if clean else card.make(folder / "card", b["changes"], like=clean_card(out))
        line = [qdiff, "run", *shlex.split(b["run"]), "-m", str(model(out, qdiff, b["model"])), "--subject", b["subject"], "--oracle", "cpu",
                "--report", str(folder / ("clean.json" if clean else "report.json"))]
        began = time.time()
        told = subprocess.run(line, env=environment(at), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder)
        (folder / ("clean.txt" if clean else "screen.txt")).write_text("$ " + shlex.join(line) + "\n" + told.stdout)
        verdict = [l for l in told.stdout.splitlines() if l.startswith(("DIVERGED", "MATCH", "INCOMPLETE", "REFERENCE"))]
        print(f"{b['name']:20} exit {told.returncode} {time.time() - began:6.1f} s  {(verdict or [told.stdout[-300:]])[0]}", flush=True)
        if not clean:
            shutil.rmtree(folder / "card", ignore_errors=True)


main()
