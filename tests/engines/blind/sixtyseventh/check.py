#!/usr/bin/env python3
"""check.py MODELS PASSES [NAME...]: without qdiff, which stages each bug changes, in the order in which the engine computes them.

MODELS has the models that run.py made, PASSES has NAME-clean.passes (engine.py writes them there in a clean run with S67_KEEP)."""
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


def dump(name, end, models, passes):
    """The arrays of a run: by (pass, name, sequence), in the order in which they were written."""
    with tempfile.TemporaryDirectory() as folder:
        words = BUGS[name].get("engine", "").split()
        subprocess.run(["nice", "-n", "5", sys.executable, HERE / "engine.py", name + end, models / f"{BUGS[name]['model'].split()[1]}.gguf", "--sequences",
                        passes / f"{name}-clean.passes", *words], env=dict(os.environ, QDIFF_DUMP=folder), check=True)
        found, bins = {}, {}
        for line in map(json.loads, open(Path(folder, "capture.jsonl"))):
            if "file" in line:
                data = bins.setdefault(line["file"], Path(folder, line["file"]).read_bytes())
                kind = {"f32": "<f4", "f64": "<f8", "i32": "<i4", "int32": "<i4"}[line["dtype"]]
                array = np.frombuffer(data, kind, int(np.prod(line["shape"])), line["offset"]).reshape(line["shape"])
                found[line["step"], line["name"], line.get("sequence")] = array
        return found


if __name__ == "__main__":
    models, passes = Path(sys.argv[1]), Path(sys.argv[2])
    for name in sys.argv[3:] or BUGS:
        right, wrong = dump(name, "-clean", models, passes), dump(name, "", models, passes)
        told = [json.loads(line)["sequences"] for line in open(passes / f"{name}-clean.passes")]
        print(f"== {name}: {len(right)} arrays, {sum(not np.isfinite(x).all() for x in wrong.values())} of them not finite")
        shown = 0
        for (step, stage, sequence), x in right.items():
            y = wrong[step, stage, sequence]
            if np.array_equal(x, y) or shown >= 12:
                continue
            shown += 1
            axis = 1 if stage.endswith(("attn_scores", "attn_weights")) else 0
            where = np.argwhere((x != y).any(axis=tuple(a for a in range(x.ndim) if a != axis))).ravel().tolist()
            of = "" if sequence is None else f" sequence {sequence}"
            whose = f", rows of {[told[step][i] for i in where]}" if sequence is None and len(x) == len(told[step]) else ""
            print(f"  pass {step} {stage}{of} {list(x.shape)} at {where}{whose}, off by {np.linalg.norm(x - y) / np.linalg.norm(x):.3g}", flush=True)
