"""check.py MODELS: for each bug, the first stage whose values differ from those of the engine without it; numpy only, no qdiff."""
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from bugs import BUGS

HERE = Path(__file__).resolve().parent


def passes(plan, length, vocabulary=250, seed=1):
    """The lines of a plan, with random tokens."""
    ids = iter(np.random.default_rng(seed).integers(0, vocabulary, length).tolist())
    steps = []
    for word in plan.split(","):
        times, _, rest = word.partition("x")
        steps += [rest] * int(times) if rest else [word]
    had, lines = {}, []
    for step in steps:
        line = {"tokens": [], "sequences": [], "prefixes": [], "taken_back": []}
        before = dict(had)
        for s, part in enumerate(step.split("+")):
            part, _, back = part.partition("~")
            part, _, source = part.partition("@")
            if back:
                kept = 0 if back == "all" else had[s] - int(back)
                line["taken_back"].append([s, kept])
                had[s] = kept
            if source:
                source, _, count = source.partition(":")
                had[s] = int(count or before[int(source)])
                line["prefixes"].append([int(source), s, had[s]])
            line["tokens"] += [next(ids) for _ in range(int(part))]
            line["sequences"] += [s] * int(part)
            had[s] = had.get(s, 0) + int(part)
        lines.append({k: v for k, v in line.items() if v})
    assert next(ids, None) is None, plan
    return lines


def dump(name, bug, models, folder):
    words = shlex.split(bug["run"])
    plan, length = words[words.index("--sequences") + 1], int(words[words.index("--length") + 1])
    file = Path(folder, "passes")
    file.write_text("".join(json.dumps(line) + "\n" for line in passes(plan, length)))
    out = Path(folder, name)
    subprocess.run([sys.executable, HERE / "engine.py", name, Path(models, bug["model"].split()[1] + ".gguf"), "--sequences", file, *bug["engine"].split()],
                   check=True, env=dict(os.environ, QDIFF_DUMP=str(out)))
    arrays, owners = [], {}
    lines = [json.loads(x) for f in sorted(out.glob("*.jsonl")) for x in open(f)]
    for x in lines:
        if "name" in x:
            kind = {"f32": "<f4", "i32": "<i4", "f16": "<f2"}[x["dtype"]]
            n = int(np.prod(x["shape"]))
            arrays.append((x["step"], x["name"], x.get("sequence"), np.fromfile(out / x["file"], kind, n, offset=x["offset"]).reshape(x["shape"])))
        elif "sequences" in x:
            owners[x["step"]] = x["sequences"]
    return arrays, owners


def main():
    for name in sys.argv[2:] or BUGS:
        with tempfile.TemporaryDirectory() as folder:
            clean, owners = dump(f"{name}-clean", BUGS[name], sys.argv[1], folder)
            wrong, _ = dump(name, BUGS[name], sys.argv[1], folder)
        assert [x[:3] for x in clean] == [x[:3] for x in wrong]
        print("==", name)
        shown, first = {}, set()
        for (step, stage, sequence, a), (*_, b) in zip(clean, wrong):
            a, b = a.astype(float), b.astype(float)
            if step in shown and shown[step] >= 2:
                continue
            gap = np.abs(a - b).reshape(a.shape[0] if stage not in ("L00.attn_scores", "L00.attn_weights") else 1, -1)
            far = np.linalg.norm(a - b) / (np.linalg.norm(a) or 1)
            if not far > 1e-4 and not np.isnan(far):
                continue
            shown[step] = shown.get(step, 0) + 1
            rows = np.flatnonzero(~(gap.max(1) <= 1e-4 * np.abs(a).max()))
            print(f"  pass {step} {stage} {'' if sequence is None else f'sequence {sequence}'} {far:.2g} rows {rows.tolist()}", "" if sequence is not None else f"of {owners.get(step)}")


main()
