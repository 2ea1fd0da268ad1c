#!/usr/bin/env python3
"""check.py MODELS [NAME...]: each bug against the same engine without it, in numpy, without qdiff. MODELS holds NAME.gguf.

Both run on the prompt's ids, which the program that QDIFF names tells (without it: drawn ids), and on drawn ids at the decode steps. Each stage of the bug's engine that differs is listed, with its passes and its first rows. The bug's engine goes on from its own values,
so that the first line of a bug is where it shows first."""
import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from bugs import BUGS, changed


def engine(text):
    scope = {"__name__": "slate", "__file__": str(HERE / "engine.py")}
    exec(compile(text, "engine.py", "exec"), scope)
    return scope


def stages(scope, path, kv, prompt, lengths, decoded):
    held = {}

    @contextlib.contextmanager
    def tap_of(i, _):
        def tap(stage, x, layer=None):
            held[i, layer, stage] = np.array(x)
            return x
        yield tap

    scope["run"](scope["Model"](path, kv), prompt, lengths, decoded, tap_of)
    return held


def ids(run, vocabulary, path):
    words = run.split()
    after = lambda word, other: words[words.index(word) + 1] if word in words else other
    count, n = int(after("--length", 16)), int(after("-n", 0))
    lengths = [int(x) for x in after("--passes", str(count)).split(",")]
    if "--tokens" in words:
        told = [int(x) for x in after("--tokens", "").split(",")]
        return told, [len(told)], told[:n]
    drawn = np.random.default_rng(29).integers(0, vocabulary, count + n).tolist()
    if "QDIFF" in os.environ:
        named = subprocess.run([os.environ["QDIFF"], "prompts", after("--prompt", "long"), "--tokens", "-m", path], check=True, stdout=subprocess.PIPE, text=True)
        drawn[:count] = [int(x) for x in named.stdout.split(",")][:count]
    return drawn[:count], lengths, drawn[count:]


def main():
    models, text = Path(sys.argv[1]), (HERE / "engine.py").read_text()
    for name in sys.argv[2:] or BUGS:
        bug, path = BUGS[name], str(models / f"{name}.gguf")
        kv = (re.findall(r"--kv (\S+)", bug.get("engine", "")) or ["f32"])[0]
        clean = engine(text)
        vocabulary = len(clean["load"](path)[1]["token_embd.weight"])
        told = ids(bug["run"], vocabulary, path)
        right, wrong = stages(clean, path, kv, *told), stages(engine(changed(text, name)), path, kv, *told)
        print(f"== {name}  vocabulary {vocabulary}, passes {told[1]} + {len(told[2])}")
        shown = 0
        for key, x in right.items():
            y = wrong.get(key)
            if y is None:
                print("  ", key, "absent")
                continue
            off = np.abs(x.astype(float) - y) > 1e-5 * np.abs(x).max()
            if off.any() and shown < 6:
                shown += 1
                rows = np.flatnonzero(off.reshape(len(x), -1).any(1))
                print(f"   {key} {x.shape}: {off.sum()} of {x.size}, rel {np.linalg.norm(x - y) / np.linalg.norm(x):.2g}, on axis 0: {rows[:12].tolist()}")
        if not shown:
            print("   NO CHANGE")


if __name__ == "__main__":
    main()
