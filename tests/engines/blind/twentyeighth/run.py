#!/usr/bin/env python3
"""Plants the bugs of bugs.py in qdiff's CUDA kernels on an emulated card and lets qdiff judge them, as nineteenth/run.py does.

QDIFF=prog run.py OUT [--clean] [--taps] [NAME...]

key.py is the answer key, frozen before qdiff had judged any bug; result.md has the verdicts. A run of several sequences has no
`--report`: it writes a report for each of them."""
import subprocess, sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
import bugs  # in the place of the nineteenth's

run = subprocess.run


def without_report(line, *args, **options):
    if isinstance(line, list) and "--sequences" in line and "--report" in line:
        at = line.index("--report")
        del line[at:at + 2]
    return run(line, *args, **options)


subprocess.run = without_report
nineteenth = Path(__file__).resolve().parents[1] / "nineteenth/run.py"
exec(compile(nineteenth.read_text(), str(nineteenth), "exec"), {"__name__": "__main__", "__file__": str(nineteenth)})
