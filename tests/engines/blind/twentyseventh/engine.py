"""engine.py BUG|BUG-clean MODEL, and the options of ferry.py: the engine of the eleventh round, by the loader of the twelfth."""
import runpy
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE))
import bugs

bugs.BUGS.update({f"{name}-clean": {"changes": []} for name in bugs.BUGS})
bugs.BUGS = {name: {"changes": bugs.BASE + bug["changes"]} for name, bug in bugs.BUGS.items()}
for name, bug in bugs.BUGS.items():  # a bug in what BASE adds changes the added text
    done = []
    for file, old, new in bug["changes"]:
        at = next((i for i, (f, _, n) in enumerate(done) if f == file and old in n), None)
        done.append((file, old, new)) if at is None else done.__setitem__(at, (file, done[at][1], done[at][2].replace(old, new)))
    bug["changes"] = done
runpy.run_path(str(HERE.parent / "twelfth" / "engine.py"), run_name="__main__")
