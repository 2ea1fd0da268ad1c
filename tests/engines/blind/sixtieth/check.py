"""check.py MODELS [ID...]: without qdiff, on tokens of the lengths of each command: which stages a bug changes first, and in which passes."""
import contextlib
import shlex
import sys
from pathlib import Path

import numpy as np

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from bugs import BUGS, changed

TEXT = (HERE.parent / "thirtyfirst/engine.py").read_text()
HAIKU = [357, 322, 198, 54, 81, 271, 68, 256, 220, 71, 64, 72, 74, 84, 256, 65, 313, 83, 220, 38, 47, 52, 220, 66, 312, 79, 84, 83, 303, 13, 358, 198, 357, 291, 198]


def captured(text, path, kv, tokens, lengths, decoded):
    scope = {"__name__": "slate", "__file__": "engine.py"}
    exec(compile(text, "engine.py", "exec"), scope)
    seen = {}

    @contextlib.contextmanager
    def tap_of(i, _):
        def tap(stage, x, layer=None):
            seen[i, layer, stage] = np.array(x)
            return x
        yield tap
    scope["run"](scope["Model"](path, kv), tokens, lengths, decoded, tap_of)
    return seen


def main():
    for name in sys.argv[2:] or BUGS:
        words = shlex.split(BUGS[name]["run"])
        get = lambda key, other: words[words.index(key) + 1] if key in words else other
        length, steps, kv = int(get("--length", len(HAIKU))), int(get("-n", 8)), get("--kv-type", "f32")
        lengths = []
        for part in get("--passes", str(length)).split(","):
            many, one = part.split("x") if "x" in part else (1, part)
            lengths += [int(one)] * int(many)
        r = np.random.default_rng(7)
        tokens = HAIKU if get("--prompt", "") == "haiku" else list(r.integers(0, 256, length))
        decoded = list(r.integers(0, 256, steps))
        path = str(Path(sys.argv[1]) / f"{BUGS[name]['model']}.gguf")
        right, wrong = (captured(text, path, kv, tokens, lengths, decoded) for text in (TEXT, changed(TEXT, name)))
        assert all(np.isfinite(x).all() for x in wrong.values()), name
        far = {key: float(np.abs(wrong[key] - right[key]).max() / np.abs(right[key]).max()) for key in right if key in wrong and wrong[key].dtype != np.int32
               and wrong[key].shape == right[key].shape}
        bad = [key for key in right if far.get(key, 0) > 1e-5]
        print(name, "passes", sorted({key[0] for key in bad}), "of", len(lengths) + steps, "first", [(k, f"{far[k]:.1e}") for k in bad[:3]],
              "not dumped", sorted({k[2] for k in right if k not in wrong}), flush=True)


main()
