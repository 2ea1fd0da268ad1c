"""differs.py MODELS: how far each bug moves the logits of its engine from those of the clean one, without qdiff."""
import contextlib
import sys

import numpy as np

from bugs import BUGS, changed
from engine import BASE
from run import RUNS

TEXT = BASE.read_text()


def logits(text, model, lengths, decoded):
    scope, got = {"__name__": "slate"}, []
    exec(compile(text, "engine", "exec"), scope)
    tokens = np.random.default_rng(5).integers(0, 300, sum(lengths)).tolist()

    @contextlib.contextmanager
    def tap_of(*_):
        yield lambda stage, x, layer=None: (got.append(x) if stage == "logits" else None, x)[1]
    scope["run"](scope["Model"](model), tokens, lengths, decoded, tap_of)
    return np.concatenate(got)


for name in BUGS:
    model = f"{sys.argv[1]}/{RUNS[name][0]}.gguf"
    options = RUNS[name][1]
    lengths = [int(n) for n in options.split("--passes ")[1].split()[0].split(",")] if "--passes" in options else [90 if "table" in name else 37]
    decoded = list(range(40, 40 + int(options.split("-n ")[1].split()[0])))
    a, b = logits(TEXT, model, lengths, decoded), logits(changed(TEXT, name), model, lengths, decoded)
    print(f"{name:24} {np.linalg.norm(a - b) / np.linalg.norm(a):.2e}")
