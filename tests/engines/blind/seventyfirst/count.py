"""count.py MODELS KEPT: elements of the first stage that differ from those of the engine without the bug, by sequence, in every run that qdiff made."""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from bugs import BUGS

HERE = Path(__file__).resolve().parent
STAGE = {"mask-of-a-later-chunk": "attn_weights", "positions-behind-a-prefix": "q_rope", "positions-after-a-draft": "q_rope", "last-partition-of-one-key": "attn_weights",
         "partitions-without-totals": "attn_context", "prefix-merged-unscaled": "attn_context", "copy-without-values": "v_cache", "no-copy-for-two": "k_cache",
         "table-one-step-late": "k_cache", "recorded-positions": "q_rope", "padding-writes-slot-0": "k_cache", "logits-left-sorted": "logits",
         "scale-of-the-page": "k_cache", "copy-without-scales": "k_cache", "second-tile-reads-the-first": "expert_gate", "shares-not-sorted": "experts_out"}


def dump(name, bug, models, file, folder):
    out = Path(folder, name)
    env = {k: v for k, v in os.environ.items() if k != "S71_KEEP"}
    subprocess.run([sys.executable, HERE / "engine.py", name, Path(models, bug["model"].split()[1] + ".gguf"), "--sequences", file, *bug["engine"].split()],
                   check=True, env=dict(env, QDIFF_DUMP=str(out)))
    arrays, owners = {}, []
    for x in (json.loads(x) for f in sorted(out.glob("*.jsonl")) for x in open(f)):
        if "name" in x:
            n = int(np.prod(x["shape"]))
            arrays[x["step"], x["name"], x.get("sequence")] = np.fromfile(out / x["file"], "<i4" if x["dtype"] == "i32" else "<f4", n, offset=x["offset"]).reshape(x["shape"])
        elif "sequences" in x:
            owners += [x["sequences"]]
    return arrays, owners


def main():
    for name in STAGE:
        stage = STAGE[name] if STAGE[name] == "logits" else "L00." + STAGE[name]
        for file in sorted(Path(sys.argv[2]).glob(f"{name}*.passes")):
            with tempfile.TemporaryDirectory() as folder:
                clean, owners = dump(f"{name}-clean", BUGS[name], sys.argv[1], file, folder)
                wrong, _ = dump(name, BUGS[name], sys.argv[1], file, folder)
            counts, places, had = {}, {}, {}
            for step, owner in enumerate(owners):
                owner = np.array(owner)
                for s in sorted(set(owner.tolist())):
                    per = (step, stage, s) in clean
                    a, b = (d[step, stage, s if per else None].astype(float) for d in (clean, wrong))
                    if not per:
                        a, b = a[owner == s], b[owner == s]
                    far = np.abs(a - b) > 3e-6 * max(np.abs(a).max(), 1e-9)
                    counts[s] = counts.get(s, 0) + int(far.sum())
                    if far.any():
                        rows = np.flatnonzero(far.any((0, 2)) if "weights" in stage else far.reshape(len(a), -1).any(1)).tolist()
                        places.setdefault(s, []).append(f"pass {step}: {len(rows)} of {a.shape[1] if 'weights' in stage else len(a)} rows {rows[0]}..{rows[-1]} ({int(far.sum())})")
            print(f"== {file.name} {stage} {counts}")
            for s, text in places.items():
                print(f"   sequence {s}: " + "; ".join(text))


if __name__ == "__main__":
    main()
