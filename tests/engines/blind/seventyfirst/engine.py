"""The engine of this round with one bug: engine.py BUG|BUG-clean MODEL, and the options of skiff.py.

The texts in engine/ are read where they stand; a bug's changes are made in memory. With S71_KEEP, the passes it was given are copied there."""
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
    kept = os.environ.get("S71_KEEP")
    if kept:  # NAME.passes is the first run; later ones, NAME.1.passes and so on, have other tokens
        at = [f"{bug}.passes", *(f"{bug}.{i}.passes" for i in range(1, 99))]
        shutil.copy(sys.argv[sys.argv.index("--sequences") + 1], next(p for p in (Path(kept, name) for name in at) if not p.exists()))
    changes = [] if bug.endswith("-clean") else BUGS[bug]["changes"]
    for file in ("pages", "gguf", "store", "paged", "model", "skiff"):  # the last one runs
        load(file, changes)
