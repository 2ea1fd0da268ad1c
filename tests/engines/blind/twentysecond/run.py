#!/usr/bin/env python3
"""Plants the bugs of bugs.py in qdiff's CUDA kernels on an emulated card and lets qdiff judge them.

QDIFF=prog run.py OUT [--clean] [--taps] [NAME...]

As run.py of the nineteenth round, of which this is the code, with the bugs of this folder. key.py is the answer key, frozen before qdiff
had judged any bug; result.md has the verdicts."""
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE))
import bugs

NINETEENTH = HERE.parent / "nineteenth/run.py"
sys.modules["bugs"] = bugs
exec(compile(NINETEENTH.read_text(), str(NINETEENTH), "exec"), {"__name__": "__main__", "__file__": str(NINETEENTH)})
