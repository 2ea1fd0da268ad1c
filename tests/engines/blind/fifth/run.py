#!/usr/bin/env python3
"""Plants bugs and lets qdiff judge them.   QDIFF=prog run.py OUT [--clean] [NAME...]

Forty bugs by somebody who knew neither the solvers nor the catalogue: 20 in an engine of his own (engine/), 20 in qdiff's kernels on an
emulated card, each after a bug that was reported in public. bugs.txt was written before any bug was run; result.md has his verdicts.
Needs python3, a C++ compiler (c++) and the program that QDIFF names. OUT gets a folder for each bug: screen.txt, report.json, time.txt.
--clean runs the same commands without the bugs. Names may be beginnings, such as e0 or k17. SOURCES is a checkout of the repository, of
which the tap header and the kernels are taken (default: the one that this folder lies in)."""
import os, shlex, shutil, subprocess, sys, time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import card
from bugs import BUGS, MODELS


def engine(folder, changes):
    src = folder / "engine"
    shutil.rmtree(src, ignore_errors=True)
    shutil.copytree(HERE / "engine", src)
    for file, old, new in changes:
        text = (src / file).read_text()
        assert text.count(old) == 1, f"{file} has {text.count(old)} times {old!r}"
        (src / file).write_text(text.replace(old, new))
    subprocess.run(["c++", "-std=c++17", "-O2", "-w", "-I", str(card.SOURCES / "tap"), "-o", str(folder / "paged"), str(src / "engine.cpp"), "-pthread"], check=True)
    return folder / "paged"


def model(out, qdiff, name):
    path = out / "models" / f"{name}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([qdiff, "synth", str(path), "-q", *shlex.split(MODELS[name])], check=True, stdout=subprocess.DEVNULL)
    return path


def command(out, qdiff, b, changes, warm=True):
    """The command that judges, its environment; builds what it needs."""
    folder = out / b["name"]
    folder.mkdir(parents=True, exist_ok=True)
    path = model(out, qdiff, b["model"])
    env = dict(os.environ, COLUMNS="160", NO_COLOR="1")
    line = [qdiff, "run", "-m", str(path), *shlex.split(b["run"])]
    if b["subject"]:
        clean = out / "card"
        if not (clean / "libcuda.so").exists():
            card.make(clean)
        at = card.make(folder / "card", changes, like=clean) if changes else clean
        env.update(card.environment(at))
        line += ["--subject", b["subject"], "--oracle", "cpu"]
    else:
        prog = engine(folder, changes)
        kv = f" --kv {b['kv']}" if b["kv"] else ""
        line += ["--subject", f"cmd: {shlex.quote(str(prog))} {{model}} --tokens {{tokens}} --passes {{passes}} --decoded {{decoded}}{kv}"]
    line += ["--report", str(folder / "report.json")]
    return folder, line, env


def main():
    args = [a for a in sys.argv[1:] if not a.startswith("-")]
    clean = "--clean" in sys.argv
    out, names, qdiff = Path(args[0]).resolve(), args[1:], os.environ.get("QDIFF", "qdiff")
    for b in BUGS:
        if names and not any(b["name"].startswith(n) for n in names):
            continue
        folder, line, env = command(out, qdiff, b, () if clean else b["changes"])
        began = time.time()
        if b["subject"] and not clean:
            # Compiles the kernels before the run that is judged: an engine is not judged by its compiler's speed. First those of the
            # clean card, which the card with the bug then has but for those that are changed.
            record = [qdiff, "record", "--runner", b["subject"], "-m", line[3], *shlex.split(b["run"]), "--out"]
            for what, at in (("warm-clean", card.environment(out / "card")), ("warm", env)):
                if what == "warm":
                    card.make(folder / "card", b["changes"], like=out / "card")
                shutil.rmtree(folder / what, ignore_errors=True)
                subprocess.run([*record, str(folder / what)], env=dict(env, **at), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)
                shutil.rmtree(folder / what, ignore_errors=True)
        warmed = time.time()
        told = subprocess.run(line, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder)
        took = time.time() - warmed
        (folder / "screen.txt").write_text("$ " + shlex.join(line) + "\n" + told.stdout)
        (folder / "time.txt").write_text(f"{took:.1f} s, exit {told.returncode}; compiled in {warmed - began:.1f} s; load {os.getloadavg()[0]:.1f}\n")
        told_lines = [l for l in told.stdout.splitlines() if l.startswith(("DIVERGED", "MATCH", "INCOMPLETE", "REFERENCE"))]
        print(f"{b['name']:28} exit {told.returncode} {took:6.1f} s  {(told_lines or [told.stdout[-200:]])[0]}", flush=True)


main()
