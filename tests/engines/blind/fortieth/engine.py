"""engine.py BUG|clean MODEL ...: the engine of the thirty-eighth round with one bug of this one."""
import runpy
import sys
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import bugs  # noqa: F401, in the place of the thirty-eighth's

runpy.run_path(str(HERE.parent / "thirtyeighth/engine.py"), run_name="__main__")
