#!/usr/bin/env python3
"""Eight bugs by another stranger in the engine of the eighth set. Arguments as of ../eighth/run.py, which runs them."""
import runpy
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE))
import bugs  # noqa: F401 (the other script finds this one already imported)

runpy.run_path(str(HERE.parent / "eighth" / "run.py"), run_name="__main__")
