#!/usr/bin/env python3
"""Plants bugs and lets qdiff judge them.   QDIFF=prog run.py OUT [--clean] [NAME...]      run.py --key

Forty bugs by a stranger: 20 in an engine of his own that serves (engine/, Python with numpy: ragged batches, paged cache, cached
prefixes, chunked prefill, drafts), 20 in qdiff's kernels on an emulated card, each after a bug that was reported in public. `run.py --key`
prints the answer key, which was frozen before qdiff had seen any of them (sha256 f6ba69d49f6d8154…); result.md has the verdicts. Needs python3 with numpy, a C++ compiler and
the program that QDIFF names. OUT gets a folder for each bug: screen.txt, report.json (or qdiff-report/, a report for each sequence), time.txt.
--clean runs the same commands without the bugs. Names may be beginnings, such as e0 or k17. SOURCES is a checkout of the repository
(default: the one that this folder lies in)."""
import difflib, os, shlex, shutil, subprocess, sys, time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True
import card
from bugs import BUGS, MODELS


def engine(folder, changes):
    src = folder / "engine"
    shutil.rmtree(src, ignore_errors=True)
    shutil.copytree(HERE / "engine", src, ignore=shutil.ignore_patterns("__pycache__"))
    for file, old, new in changes:
        text = (src / file).read_text()
        assert text.count(old) == 1, f"{file} has {text.count(old)} times {old!r}"
        (src / file).write_text(text.replace(old, new))
    return src / "serve.py"


def model(out, qdiff, name):
    path = out / "models" / f"{name}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([qdiff, "synth", str(path), "-q", *shlex.split(MODELS[name])], check=True, stdout=subprocess.DEVNULL)
    return path


def prepared(out, qdiff, b, changes):
    """The command that judges and its environment; runs the engine, or compiles the kernels, before."""
    folder = out / b["name"]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    path = model(out, qdiff, b["model"])
    env = dict(os.environ, COLUMNS="160", NO_COLOR="1", PYTHONPATH=str(card.SOURCES / "tap/python"), PYTHONDONTWRITEBYTECODE="1")
    line = [qdiff, "run", "-m", str(path)]
    several = False
    if b["subject"]:
        clean = out / "card"
        if not (clean / "libcuda.so").exists():
            card.make(clean)
        options = shlex.split(b["run"])
        several = "--sequences" in options
        at = card.make(folder / "card", changes, like=clean) if changes else clean
        env.update(card.environment(at))
        subprocess.run([qdiff, "record", "--runner", b["subject"], "-m", str(path), *options, "--out", str(folder / "warm")],
                       env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)
        shutil.rmtree(folder / "warm", ignore_errors=True)
        line += [*options, "--subject", b["subject"], "--oracle", "cpu"]
    else:
        prog, kind, rest = engine(folder, changes), *b["run"].split(":", 1)
        kv = ["--kv", b["kv"]] if b["kv"] else []
        if kind == "work":
            several = True
            (folder / "capture").mkdir()
            subprocess.run([sys.executable, str(prog), str(path), "--work", str(HERE / "work" / f"{rest}.json"), *kv], check=True,
                           env=dict(env, QDIFF_DUMP=str(folder / "capture")))
            line += ["--subject", f"capture:{folder / 'capture'}"]
        else:
            command = f"cmd: {shlex.quote(sys.executable)} {shlex.quote(str(prog))} {{model}} --tokens {{tokens}} --passes {{passes}} --decoded {{decoded}}"
            line += [*shlex.split(rest), "--subject", command + "".join(" " + word for word in kv)]
    if not several:
        line += ["--report", str(folder / "report.json")]
    return folder, line, env


def key():
    """The answer key as text."""
    kernels = card.sources()
    for b in BUGS:
        print(f"== {b['name']} ({b['kind']})\nmodel   {MODELS[b['model']]}")
        print(f"run     {b['subject'] or 'engine'}: {b['run']}{'; cache ' + b['kv'] if b['kv'] else ''}\nsource  {b['source']}\nshows   {b['shows']}\ninstead {b['instead']}")
        texts = {}
        for file, old, new in b["changes"]:
            was = kernels[file] if b["subject"] else (HERE / "engine" / file).read_text()
            texts.setdefault(file, [was, was])
            assert texts[file][0].count(old) == 1, (b["name"], file, old)
            texts[file][1] = texts[file][1].replace(old, new)
        for file, (was, now) in texts.items():
            print("".join(difflib.unified_diff(was.splitlines(True), now.splitlines(True), file, file, n=1)), end="")
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
        began = time.time()
        folder, line, env = prepared(out, qdiff, b, () if clean else b["changes"])
        warmed = time.time()
        told = subprocess.run(line, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder)
        took = time.time() - warmed
        (folder / "screen.txt").write_text("$ " + shlex.join(line) + "\n" + told.stdout)
        (folder / "time.txt").write_text(f"{took:.1f} s, exit {told.returncode}; prepared in {warmed - began:.1f} s; load {os.getloadavg()[0]:.1f}\n")
        lines = [l for l in told.stdout.splitlines() if l.startswith(("DIVERGED", "MATCH", "INCOMPLETE", "REFERENCE")) or " runs: " in l]
        print(f"{b['name']:40} exit {told.returncode} {took:6.1f} s  {(lines or [told.stdout[-200:]])[0]}", flush=True)
        shutil.rmtree(folder / "card", ignore_errors=True)


main()
