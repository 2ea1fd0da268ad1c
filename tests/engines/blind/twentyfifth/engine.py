"""engine.py BUG|BUG-clean MODEL, and the options of ferry.py: the engine of the eleventh round, by the loader of the twelfth."""
import runpy
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE))
import bugs

bugs.BUGS.update({f"{name}-clean": {"changes": []} for name in bugs.BUGS})
for bug in bugs.BUGS.values():
    bug["changes"] = bugs.BASE + bug["changes"]
runpy.run_path(str(HERE.parent / "twelfth" / "engine.py"), run_name="__main__")
