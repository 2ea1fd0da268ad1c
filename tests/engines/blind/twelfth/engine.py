"""The engine of the eleventh round (pages: of the eighth) with one bug: engine.py BUG|clean MODEL, and the options of ferry.py.

The texts are read where they stand; a bug's changes are made in memory. With TWELFTH_KEEP, what it was given is copied to that folder."""
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
    text = (HERE.parent / ("eighth" if name == "pages" else "eleventh") / "engine" / f"{name}.py").read_text()
    for _, old, new in [c for c in changes if c[0] == name]:
        assert text.count(old) == 1, (name, old, text.count(old))
        text = text.replace(old, new)
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, f"{name}.py", "exec"), module.__dict__)


if __name__ == "__main__":
    bug = sys.argv.pop(1)
    kept = os.environ.get("TWELFTH_KEEP")
    if kept and not Path(kept, "words").exists():
        for n, word in enumerate(sys.argv[1:]):
            if os.path.isfile(word) and not word.endswith(".gguf"):
                sys.argv[n + 1] = shutil.copy(word, kept)
        Path(kept, "words").write_text("\n".join(sys.argv[1:]))
    changes = [] if bug == "clean" else BUGS[bug]["changes"]
    for file in ("pages", "gguf", "store", "attend", "model", "ferry"):  # the last one runs
        load(file, changes)
