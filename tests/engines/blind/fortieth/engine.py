"""engine.py BUG|clean MODEL ...: the engine of the thirty-eighth round with one bug, whose changes are made in memory. gguf is the eleventh round's."""
import os
import sys
import types
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from bugs import BUGS


def load(name, changes):
    folder = HERE.parent / ("eleventh" if name == "gguf" else "thirtyeighth")
    text = (folder / "engine" / f"{name}.py").read_text()
    for _, old, new in [c for c in changes if c[0] == name]:
        assert text.count(old) == 1, (name, old, text.count(old))
        text = text.replace(old, new)
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, f"{name}.py", "exec"), module.__dict__)


if __name__ == "__main__":
    bug = sys.argv.pop(1)
    changes = [] if bug == "clean" else BUGS[bug]["changes"]
    for file in ("pages", "gguf", "store", "attend", "model", "ferry"):  # the last one runs
        load(file, changes)
