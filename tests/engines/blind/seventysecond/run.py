#!/usr/bin/env python3
"""Plants the bugs of bugs.py in qdiff's CUDA kernels on an emulated card and lets qdiff judge
them, as nineteenth/run.py does (changes are patches of engine/kernels).

QDIFF=prog run.py OUT [--clean] [NAME...]; the arrays that change: taps.py

key.py is the answer key, frozen before qdiff had judged any bug; result.md has the verdicts."""
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
import bugs  # in the place of the nineteenth's

if "--taps" in sys.argv:  # `qdiff record` has no reference
    for b in bugs.BUGS:
        b["run"] = b["run"].replace(" --reference none", "")

nineteenth = Path(__file__).resolve().parents[1] / "nineteenth/run.py"
text = nineteenth.read_text()
# A run of several sequences has a report for each of them, which JSON does not hold: qdiff names these itself.
report = """"--report", str(folder / ("clean.json" if clean else "report.json"))"""
assert text.count(report) == 1
text = text.replace(report, "*([] if '--sequences' in b['run'] else [" + report + "])")
exec(compile(text, str(nineteenth), "exec"), {"__name__": "__main__", "__file__": str(nineteenth)})
