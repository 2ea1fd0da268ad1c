"""sizes.py QDIFF_MODELS: the largest relative change of each stage by each bug, without qdiff; for the choice of runs."""
import contextlib
import sys

import numpy as np

from bugs import CHANGES, changed
from engine import BASE
from run import PLAN

text = BASE.read_text()
def values(source, path, kv, lengths, decoded):
    scope = {"__name__": "slate"}
    exec(compile(source, "engine", "exec"), scope)
    got = []
    rng = np.random.default_rng(5)
    tokens = rng.integers(0, 340, sum(lengths)).tolist()
    @contextlib.contextmanager
    def tap_of(i, _):
        def tap(stage, x, layer=None):
            got.append(((i, layer, stage), np.array(x, np.float64)))
            return x
        yield tap
    scope["run"](scope["Model"](path, kv), tokens, lengths, rng.integers(0, 340, decoded).tolist(), tap_of)
    return got

for name in sys.argv[2:] or CHANGES:
    letter, options, decode = PLAN[name]
    path = f"{sys.argv[1]}/{letter}.gguf"
    kv = "q8_0" if "--kv-type" in options else "f32"
    lengths = [int(n) for n in options[options.index("--passes") + 1].split(",")] if "--passes" in options else [37]
    n = int(options[options.index("-n") + 1]) if "-n" in options else 0
    clean, bad = values(text, path, kv, lengths, n), values(changed(text, name), path, kv, lengths, n)
    first = []
    for (at, x), (at2, y) in zip(clean, bad):
        assert at == at2 and x.shape == y.shape, (name, at, at2)
        d = np.linalg.norm(x - y) / np.linalg.norm(x)
        if d > 1e-6 or not np.isfinite(d):
            first.append((at, f"{d:.2g}"))
    print(name, len(first), first[:4], "last", bad[-1][1].std().round(3), flush=True)
