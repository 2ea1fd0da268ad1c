#!/usr/bin/env python3
"""check.py KEPT [NAME...]: by numpy alone, how far each bug moves the first stages that it changes. KEPT has a folder for each bug with what the clean
engine was given: mkdir -p KEPT/NAME, then TWELFTH_KEEP=KEPT/NAME run.py OUT --clean NAME."""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True
from bugs import BUGS
from key import KEY


def ran(kept, name, end=""):
    words = (Path(kept) / name / "words").read_text().split("\n")
    with tempfile.TemporaryDirectory() as dump:
        subprocess.run([sys.executable, str(HERE / "engine.py"), name + end, *words], env=dict(os.environ, QDIFF_DUMP=dump, TWELFTH_KEEP=""), check=True)
        arrays = {}
        for line in open(Path(dump, "capture.jsonl")):
            told = json.loads(line)
            if "name" in told:
                kind = {"f32": np.float32, "i32": np.int32, "f16": np.float16}[told["dtype"]]
                count = int(np.prod(told["shape"]))
                data = np.fromfile(Path(dump, told["file"]), kind, count, offset=told["offset"]).astype(np.float64)
                arrays[told["step"], told["name"]] = data.reshape(told["shape"])
        return arrays


def main():
    kept = Path(sys.argv[1])
    for name in sys.argv[2:] or BUGS:
        right, wrong = ran(kept, name, "-clean"), ran(kept, name)
        gone = [key for key in right if key not in wrong]
        moved = []
        for key in [k for k in right if k in wrong]:  # in the order of the capture
            a, b = right[key], wrong[key]
            seen = np.isfinite(a) & np.isfinite(b)
            d, norm = np.linalg.norm((a - b)[seen]), np.linalg.norm(a[seen])
            if d > 1e-9 * norm:
                moved.append((key, d / norm, (np.abs(a - b) > 1e-6 * np.abs(a).max()).mean()))
        print(f"{name:12} key: {KEY[name][0]}")
        if gone:
            print(f"             not dumped: {gone[0][1]} and {len(gone) - 1} more")
        for (step, stage), by, share in moved[:3]:
            print(f"             step {step} {stage}: {by:.1e} of the norm, {100 * share:.1f} % of the elements")


if __name__ == "__main__":
    main()
