#!/usr/bin/env python3
"""Plants bugs and lets qdiff judge them.   QDIFF=prog run.py OUT [--clean] [NAME...]      run.py --key

Forty bugs by a stranger: 20 in an engine of his own (engine/, numpy: pages, buckets of decode batches, a prefix apart, states of
delta nets by tokens), 20 in qdiff's kernels on an emulated card. `run.py --key` prints the answer key, which was frozen before qdiff had
seen any of them. Needs python3 with numpy, a C++ compiler and the program that QDIFF names. OUT gets a folder for each bug:
screen.txt, report.json (of one run), time.txt. --clean runs the same commands without the bugs. Names may be beginnings, such as s0 or f."""
import difflib
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "seventh")]  # card.py stands there
sys.dont_write_bytecode = True
import card
from bugs import BUGS, MODELS


def originals(b):
    return card.sources() if b["subject"] else {p.name: p.read_text() for p in sorted((HERE / "engine").glob("*.py"))}


def planted(b, changes):
    texts = dict(originals(b))
    for file, old, new in changes:
        assert texts[file].count(old) == 1, f"{b['name']}: {file} has {texts[file].count(old)} times {old!r}"
        texts[file] = texts[file].replace(old, new)
    return texts


def model(out, qdiff, name):
    path = out / "models" / f"{name}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([qdiff, "synth", str(path), "-q", *shlex.split(MODELS[name])], check=True, stdout=subprocess.DEVNULL)
    return path


def engine_words(folder, b, changes, several):
    src = folder / "engine"
    src.mkdir()
    for name, text in planted(b, changes).items():
        (src / name).write_text(text)
    words = "--sequences {sequences}" if several else "--tokens {tokens} --passes {passes} --decoded {decoded}"
    kv = (f" --kv {b['kv']}" if b["kv"] else "") + (" --slots" if b["slots"] else "")
    return f"cmd: {shlex.quote(sys.executable)} {shlex.quote(str(src / 'ferry.py'))} {{model}} {words}{kv}"


def prepared(out, qdiff, b, changes):
    """The command that judges, its folder and its environment."""
    folder = out / b["name"]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    env = dict(os.environ, COLUMNS="160", NO_COLOR="1", PYTHONPATH=str(card.SOURCES / "tap/python"), PYTHONDONTWRITEBYTECODE="1")
    battery = b["run"] == "check"
    line = [qdiff, "check", "--serving"] if battery else [qdiff, "run", *shlex.split(b["run"])]
    line += ["-m", str(model(out, qdiff, b["model"]))]
    several = battery or "--sequences" in line
    if b["subject"]:
        clean = out / "card"
        if not (clean / "libcuda.so").exists():
            card.make(clean)
        at = card.make(folder / "card", changes, like=clean) if changes else clean
        env.update(card.environment(at))
        line += ["--subject", b["subject"]]
        if not battery:
            line += ["--oracle", "cpu"]
    else:
        line += ["--subject", engine_words(folder, b, changes, several)]
    if not several:
        line += ["--report", str(folder / "report.json")]
    return folder, line, env


def key():
    for b in BUGS:
        print(f"== {b['name']}\nmodel  {MODELS[b['model']]}")
        print(f"run    {b['subject'] or 'engine'}: {'check --serving' if b['run'] == 'check' else b['run']}"
              + (f", engine --kv {b['kv']}" if b["kv"] else "") + (", engine --slots" if b["slots"] else ""))
        for field in ("stage", "where", "cause", "also"):
            print(f"{field:6} {b[field]}")
        now = planted(b, b["changes"])
        for file, was in originals(b).items():
            print("".join(difflib.unified_diff(was.splitlines(True), now[file].splitlines(True), file, file, n=1)), end="")
        print()


def main():
    if "--key" in sys.argv:
        return key()
    args = [a for a in sys.argv[1:] if not a.startswith("-")]
    clean = "--clean" in sys.argv
    out, names, qdiff = Path(args[0]).resolve(), args[1:], os.environ.get("QDIFF", "qdiff")
    for b in BUGS:
        if names and not any(b["name"].startswith(n) for n in names):
            continue
        folder, line, env = prepared(out, qdiff, b, () if clean else b["changes"])
        began = time.time()
        told = subprocess.run(line, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder)
        took = time.time() - began
        (folder / "screen.txt").write_text("$ " + shlex.join(line) + "\n" + told.stdout)
        (folder / "time.txt").write_text(f"{took:.1f} s, exit {told.returncode}, load {os.getloadavg()[0]:.1f}\n")
        heads = [l for l in told.stdout.splitlines() if l.startswith(("DIVERGED", "MATCH", "INCOMPLETE", "REFERENCE")) or " runs: " in l]
        print(f"{b['name']:32} exit {told.returncode} {took:6.1f} s  {(heads or [told.stdout[-200:]])[0]}", flush=True)
        shutil.rmtree(folder / "card", ignore_errors=True)


if __name__ == "__main__":
    main()
