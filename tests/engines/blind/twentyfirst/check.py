"""check.py KEPT [NAME...]: by numpy alone, the first arrays that each bug changes: by how much, and in which rows. KEPT/NAME has what the clean
engine was given (TWELFTH_KEEP). PYTHONPATH needs tap/python."""
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


def ran(name, words):
    with tempfile.TemporaryDirectory() as dump:
        subprocess.run([sys.executable, str(HERE / "engine.py"), name, *words], env=dict(os.environ, QDIFF_DUMP=dump, TWELFTH_KEEP=""), check=True)
        arrays = {}
        for line in open(Path(dump, "capture.jsonl")):
            told = json.loads(line)
            if "name" in told:
                kind = {"f32": np.float32, "i32": np.int32, "f16": np.float16}[told["dtype"]]
                data = np.fromfile(Path(dump, told["file"]), kind, int(np.prod(told["shape"])), offset=told["offset"]).astype(np.float64)
                arrays[told["step"], told["name"]] = data.reshape(told["shape"])
        return arrays


for name in sys.argv[2:] or BUGS:
    words = (Path(sys.argv[1]) / name / "words").read_text().split("\n")
    right, wrong = ran(f"{name}-clean", words), ran(name, words)
    assert right.keys() == wrong.keys()
    print("==", name)
    told = []
    for step, stage in right:  # in the order of the capture
        a, b = right[step, stage], wrong[step, stage]
        d = np.linalg.norm(a - b)
        if not d > 1e-9 * np.linalg.norm(a) or len(told) > 7:
            continue
        told.append(stage)
        axis = 1 if stage.endswith(("attn_scores", "attn_weights")) else 0
        rows = np.nonzero((np.abs(a - b) > 1e-5 * np.abs(a).max()).sum(tuple(i for i in range(a.ndim) if i != axis)))[0]
        share = (np.abs(a - b) > 1e-5 * np.abs(a).max()).mean()
        print(f"  step {step} {stage} {a.shape}: {d / np.linalg.norm(a):.1e} of the norm, {100 * share:.1f} % of elements, rows {list(map(int, rows))[:14]}")
    last = list(right)[-1]
    print(f"  last {last}: {np.linalg.norm(right[last] - wrong[last]) / np.linalg.norm(right[last]):.1e}")
