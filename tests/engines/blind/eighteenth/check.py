"""check.py KEPT MODELS: by numpy alone, the first array that each bug changes, by how much of its norm, and in which passes and rows."""
import sys
import types
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path[:0] = [str(HERE)]
from bugs import BUGS
kept, models = Path(sys.argv[1]), Path(sys.argv[2])
source = (HERE.parent / "twelfth" / "engine.py").read_text().split('if __name__')[0]
space = {"__file__": str(HERE.parent / "twelfth" / "engine.py"), "BUGS": BUGS}
exec(compile(source.replace("from bugs import BUGS", ""), "engine.py", "exec"), space)


class Capture:
    def __init__(self, **_):
        Capture.made, self.at = {}, -1
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def step(self, now):
        self.at += 1
        return self
    def add(self, stage, x, layer=None, **_):
        Capture.made[self.at, layer, stage] = np.array(x, float)


sys.modules["qdiff_capture"] = types.SimpleNamespace(Capture=Capture)


def run(name, changes):
    words = (kept / name / "words").read_text().split("\n")
    sys.argv = ["ferry.py"] + [str(models / f"{name}.gguf") if w.endswith(".gguf") else w for w in words]
    for file in ("pages", "gguf", "store", "attend", "model", "ferry"):
        text = (HERE.parent / ("eighth" if file == "pages" else "eleventh") / "engine" / f"{file}.py").read_text()
        for _, old, new in [c for c in changes if c[0] == file]:
            assert text.count(old) == 1, (file, old, text.count(old))
            text = text.replace(old, new)
        module = sys.modules[file] = types.ModuleType(file)
        exec(compile(text, f"{file}.py", "exec"), module.__dict__)
    return Capture.made


for name in sys.argv[3:] or BUGS:
    a, b = run(name, []), run(name, BUGS[name]["changes"])
    print("==", name, (kept / name / "words").read_text().split("\n")[1:])
    told, first = 0, None
    for key in a:
        x, y = a[key], b[key]
        by = np.sqrt(((x - y) ** 2).sum() / (x ** 2).sum())
        if by > 1e-12 and told < 4:
            axis = {"attn_scores": 1, "attn_weights": 1}.get(key[2], 0)
            d = np.abs(x - y)
            rows = np.nonzero(d.sum(tuple(i for i in range(d.ndim) if i != axis)))[0]
            print("  pass", key[0], "layer", key[1], key[2], f"{by:.2e}", "rows", list(rows)[:12], "of", x.shape[axis])
            told += 1
