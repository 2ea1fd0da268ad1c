#!/usr/bin/env python3
"""QDIFF=PROGRAM run.py OUT [--clean] [NAME...]: writes qdiff's screen of each bug to OUT/NAME.txt, or of the same run without it to OUT/NAME-clean.txt.
run.py --key: what was planted. PYTHONPATH needs tap/python of this repository."""
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE))
from bugs import BUGS
from key import KEY


def main():
    if "--key" in sys.argv:
        for name, parts in KEY.items():
            print(f"== {name}", f"run    {BUGS[name]['model']}; {BUGS[name]['run']}", *(f"{what:7}{text}" for what, text in zip(("rule", "stage", "where", "kind"), parts)), sep="\n")
        return
    words = [word for word in sys.argv[1:] if word != "--clean"]
    out, qdiff, end = Path(words[0]).resolve(), os.environ["QDIFF"], "-clean" if "--clean" in sys.argv else ""
    (out / "models").mkdir(parents=True, exist_ok=True)
    for name in words[1:] or BUGS:
        bug = BUGS[name]
        model = out / "models" / f"{bug['model'].split()[1]}.gguf"
        if not model.exists():
            subprocess.run([qdiff, "synth", model, "-q", *shlex.split(bug["model"])], check=True, stdout=subprocess.DEVNULL)
        engine = f"cmd: {sys.executable} {HERE}/engine.py {name}{end} {{model}} --sequences {{sequences}} {bug.get('engine', '')}".rstrip()
        line = [qdiff, "run", "-m", str(model), *shlex.split(bug["run"]), "--subject", engine]
        began = time.time()
        ran = subprocess.run(["nice", "-n", "5", *line], env=dict(os.environ, COLUMNS="160", NO_COLOR="1"), stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, cwd=out)
        (out / f"{name}{end}.txt").write_text(f"$ {shlex.join(line)}\n{ran.stdout}\n[exit {ran.returncode}]\n")
        heads = [text for text in ran.stdout.splitlines() if text.startswith(("DIVERGED", "MATCH", "INCOMPLETE", "REFERENCE")) or " runs: " in text]
        print(f"{name}{end} {ran.returncode} {time.time() - began:.0f} s  {(heads or [ran.stdout[-300:]])[0]}", flush=True)


main()
