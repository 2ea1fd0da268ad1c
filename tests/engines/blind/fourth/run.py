"""run.py OUT [--clean] [NAME...]: runs qdiff on every bug of bugs.txt, or with --clean on the engine and the card as they are; screens go to OUT/NAME.txt.

Forty bugs, planted by somebody who knew neither the solvers nor the catalogue: 20 in slate.cpp, an engine of his own, and 20 in
kernels on an emulated card. bugs.txt says what is planted, and was written before any bug was run; result.md has his verdicts.
$QDIFF is the program, $SOURCES a checkout of the repository (default: the one that this folder lies in)."""
import os
import re
import shlex
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import card
from plant import plant, read

QDIFF = os.environ.get("QDIFF", "qdiff")
SOURCES = os.environ.get("SOURCES") or os.path.abspath(f"{HERE}/../../../..")


def model(work, name):
    path = f"{work}/{name}.gguf"
    if not os.path.exists(path):
        options = dict(line.split(None, 1) for line in open(f"{HERE}/models.txt"))[name]
        subprocess.run([QDIFF, "synth", "-q", path, *options.split()], check=True, stdout=subprocess.DEVNULL)
    return path


def subject(bug, clean, work):
    """The subject of a bug, and the environment in which it runs."""
    folder = f"{work}/bug"
    if "engine" in bug:
        os.makedirs(folder, exist_ok=True)
        source = HERE
        shutil.copy(f"{source}/slate.cpp", folder)
        if not clean:
            plant(bug, source, folder)
        subprocess.run(["c++", "-std=c++17", "-O2", "-w", "-I", f"{SOURCES}/tap", "-o", f"{folder}/slate", f"{folder}/slate.cpp"], check=True)
        ubatch = " --ubatch {ubatch}" if "--ubatch" in bug["run"] else ""
        return f"cmd: {folder}/slate {{model}} --tokens {{tokens}} --decoded {{decoded}}{ubatch} {bug['engine']}", {}
    whole = f"{work}/card"
    card.make(SOURCES, whole)
    if clean:
        folder = whole
    else:
        card.with_bug(SOURCES, whole, folder, bug["edits"])
    return bug["subject"], card.environment(whole, folder)


def main():
    out, names = sys.argv[1], [name for name in sys.argv[2:] if name != "--clean"]
    clean = "--clean" in sys.argv
    work = os.path.abspath(f"{out}/work")
    os.makedirs(work, exist_ok=True)
    for name, bug in read(f"{HERE}/bugs.txt").items():
        if names and name not in names:
            continue
        who, environment = subject(bug, clean, work)
        which, *options = shlex.split(bug["run"])
        began = time.time()
        command = [QDIFF, "run", "-m", model(work, which), *options, "--subject", who, "--report", f"{out}/{name}.json"]
        done = subprocess.run(command, env={**os.environ, "COLUMNS": "120", **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        open(f"{out}/{name}.txt", "w").write(done.stdout)
        first = re.sub(r"\s+", " ", done.stdout.split("\n\n")[0])
        print(f"{name} | {done.returncode} | {time.time() - began:.0f} s | {first[:300]}", flush=True)


main()
