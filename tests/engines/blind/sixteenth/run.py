#!/usr/bin/env python3
"""Plants bugs in qdiff's CUDA kernels on an emulated card and lets qdiff judge them.

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


def taps(out, qdiff, b):
    import numpy
    clean, bug = record(out, qdiff, b, out / b["name"] / "taps")
    said = 0
    for name in clean.files:
        if name not in bug.files:
            print(f"    {name} is not there")
            continue
        was, now = clean[name].astype(float), bug[name].astype(float)
        if was.shape != now.shape or not was.size:
            continue
        far = numpy.linalg.norm(was - now) / max(numpy.linalg.norm(was), 1e-30)
        if far > 1e-6 and said < 6:
            said += 1
            print(f"    {name} {was.shape} {far:.1e}, elements {numpy.count_nonzero(was != now)} of {was.size}")


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
