"""The engine of this round with one bug: engine.py BUG|BUG-clean MODEL, and the options of barge.py.

The texts in engine/ are read where they stand; a bug's changes are made in memory. With S65_KEEP, the passes of each run are copied there."""
import os
import shutil
import sys
import types
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from bugs import BUGS


def load(name, changes):
    text = (HERE / "engine" / f"{name}.py").read_text()
    for _, old, new in [c for c in changes if c[0] == name]:
        assert text.count(old) == 1, (name, old, text.count(old))
        text = text.replace(old, new)
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, f"{name}.py", "exec"), module.__dict__)


if __name__ == "__main__":
    bug = sys.argv.pop(1)
    kept = os.environ.get("S65_KEEP")
    if kept:  # later runs, for confirmation, have other tokens and passes: NAME.2.passes and so on
        names = [f"{bug}.passes"] + [f"{bug}.{n}.passes" for n in range(2, 99)]
        shutil.copy(sys.argv[sys.argv.index("--sequences") + 1], Path(kept, next(n for n in names if not Path(kept, n).exists())))
    changes = [] if bug.endswith("-clean") else BUGS[bug]["changes"]
    for file in ("batch", "gguf", "store", "attend", "model", "barge"):  # the last one runs
        load(file, changes)
