#!/usr/bin/env python3
"""The runner of the thirteenth round, for this folder: QDIFF=PROGRAM run.py OUT [--clean] [NAME...]; run.py --key. PYTHONPATH needs tap/python."""
from pathlib import Path

text = (Path(__file__).resolve().parent.parent / "thirteenth" / "run.py").read_text()
exec(compile(text, "run.py", "exec"), {"__name__": "__main__", "__file__": str(Path(__file__).resolve())})
