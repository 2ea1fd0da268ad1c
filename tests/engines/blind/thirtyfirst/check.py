"""check.py MODELS [NAME...]: for each bug, what it changes beside the clean engine, on the same tokens (numpy alone; qdiff judges nothing here).

MODELS has NAME.gguf, as run.py writes them; the tokens are random."""
import contextlib
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE))
from bugs import BUGS, changed

TEXT = (HERE / "engine.py").read_text()


def engine(name):
    scope = {"__name__": "slate"}
    exec(compile(changed(TEXT, name) if name else TEXT, "engine.py", "exec"), scope)
    return scope


def record(name, model, kv, prompt, passes, decoded):
    scope, taken = engine(name), []

    @contextlib.contextmanager
    def tap_of(i, tokens):
        def tap(stage, x, layer=None):
            taken.append(((i, -1 if layer is None else layer, stage), np.array(x)))
            return x
        yield tap
    scope["run"](scope["Model"](model, kv), prompt, passes, decoded, tap_of)
    return taken


def main():
    models, names = Path(sys.argv[1]), sys.argv[2:] or list(BUGS)
    for name in names:
        bug = BUGS[name]
        words = bug["run"].split()
        n = int(words[words.index("-n") + 1])
        passes = [int(w) for w in words[words.index("--passes") + 1].split(",")] if "--passes" in words else [int(words[words.index("--length") + 1]) if "--length" in words else 35]
        rng = np.random.default_rng(1)
        prompt, decoded = rng.integers(0, 350, sum(passes)).tolist(), rng.integers(0, 350, n).tolist()
        kv = bug.get("engine", "--kv f32").split()[1]
        sides = [record(side, models / f"{name}.gguf", kv, prompt, passes, decoded) for side in (None, name)]
        shown = 0
        print(f"== {name}")
        for (key, right), (_, wrong) in zip(*sides):
            assert right.shape == wrong.shape, (name, key)
            off = np.abs(right.astype(np.float64) - wrong)
            if off.max() > 1e-5 * max(np.abs(right).max(), 1e-30) and shown < 6:
                shown += 1
                rows = np.nonzero(off.reshape(len(off), -1).max(1) > 1e-5 * np.abs(right).max())[0]
                print(f"   pass {key[0]} L{key[1]} {key[2]} {right.shape}: off {np.linalg.norm(off) / np.linalg.norm(right):.2g}, {(off > 1e-5 * np.abs(right).max()).mean():.1%} of elements, first axis {rows[:6]}..{rows[-1]} ({len(rows)})")
        if not shown:
            print("   CHANGES NOTHING")


main()
