"""engine.py BUG|BUG-clean MODEL ...: the engine of the eleventh round, loaded by the twelfth's loader, with this round's bugs."""
import runpy
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE))
import bugs

bugs.BUGS.update({f"{name}-clean": {"changes": []} for name in bugs.BUGS})
runpy.run_path(str(HERE.parent / "twelfth" / "engine.py"), run_name="__main__")
