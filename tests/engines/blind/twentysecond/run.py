#!/usr/bin/env python3
"""Plants the bugs of bugs.py in qdiff's CUDA kernels on an emulated card and lets qdiff judge them.

QDIFF=prog run.py OUT [--clean] [--taps] [NAME...]

As run.py of the nineteenth round, of which this is the code, with the bugs of this folder. key.py is the answer key, frozen before qdiff
had judged any bug; result.md has the verdicts."""
import subprocess, sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE))
import bugs

run = subprocess.run


def judged(line, **kw):
    """`qdiff run` as it takes the command: llama.cpp has no cache in f8, and several sequences have a report each, for which one
    file is not enough."""
    if line[1] == "run" and "f8_e4m3" in line:
        line += ["--reference", "none"]
    if line[1] == "run" and "--sequences" in line:
        at = line.index("--report")
        del line[at:at + 2]
    return run(line, **kw)


subprocess.run = judged
NINETEENTH = HERE.parent / "nineteenth/run.py"
sys.modules["bugs"] = bugs
exec(compile(NINETEENTH.read_text(), str(NINETEENTH), "exec"), {"__name__": "__main__", "__file__": str(NINETEENTH)})
