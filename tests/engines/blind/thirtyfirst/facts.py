"""facts.py OUT [NAME...]: the sentences of the screens in OUT beside numpy's values: the engine with the bug and without, on the tokens that qdiff gave."""
import contextlib
import json
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE))
from bugs import BUGS, changed

TEXT = (HERE / "engine.py").read_text()


def engine(name):
    scope = {"__name__": "slate"}
    exec(compile(changed(TEXT, name) if name else TEXT, "engine.py", "exec"), scope)
    return scope


def record(scope, model, kv, prompt, passes, decoded):
    taken = {}

    @contextlib.contextmanager
    def tap_of(i, tokens):
        def tap(stage, x, layer=None):
            taken[i, -1 if layer is None else layer, stage] = np.array(x)
            return x
        yield tap
    m = scope["Model"](str(model), kv)
    scope["run"](m, prompt, passes, decoded, tap_of)
    return taken, m


def runs(out):
    """By bug, the report of its run."""
    found = {}
    for path in sorted(Path(out).glob("qdiff-report/*/slate-*.json")):
        d = json.loads(path.read_text())
        if d["outcome"] == "diverged":
            found[Path(d["model"]["path"]).stem] = d
    return found


def both(out, name, d):
    words = BUGS[name]["run"].split()
    prompt, decoded = d["run"]["tokens"], d["run"]["decoded"]
    passes = [int(w) for w in words[words.index("--passes") + 1].split(",")] if "--passes" in words else [len(prompt)]
    kv = BUGS[name].get("engine", "--kv f32").split()[1]
    model = Path(out) / "models" / f"{name}.gguf"
    return [record(engine(side), model, kv, prompt, passes, decoded) for side in (name, None)] + [passes, prompt, decoded]


def main():
    out = sys.argv[1]
    reports = runs(out)
    for name in sys.argv[2:] or list(BUGS):
        d = reports[name]
        (bad, _), (good, _), passes, prompt, decoded = both(out, name, d)
        count = max(k[0] for k in bad) + 1
        print(f"== {name}: {len(prompt)} + {len(decoded)} tokens, passes {passes}")
        logits = [np.concatenate([side[i, -1, "logits"] for i in range(count)]).astype(np.float64) for side in (bad, good)]
        ratio = np.linalg.norm(logits[0] - logits[1], axis=1) / np.linalg.norm(logits[1], axis=1)
        soft = [x - x.max(1, keepdims=True) for x in logits]
        soft = [x - np.log(np.exp(x).sum(1, keepdims=True)) for x in soft]
        kl = (np.exp(soft[1]) * (soft[1] - soft[0])).sum(1)
        differ = np.nonzero(logits[0].argmax(1) != logits[1].argmax(1))[0]
        print(f"   logits off {ratio.max():.2f} (p{ratio.argmax()}), KL {kl.max():.2f} (p{kl.argmax()}), choices differ at {len(differ)} positions, first p{differ[0] if len(differ) else None}; "
              f"first logits row that differs p{np.nonzero(ratio > 1e-4)[0][0]}")
        ends = np.cumsum(passes + [1] * len(decoded)) - 1
        a, b = logits[0].argmax(1)[ends], logits[1].argmax(1)[ends]
        print(f"   choices at ends of passes: subject {a.tolist()}, clean {b.tolist()}")
        first = d["verdict"]["elements"][0]
        print("   element", first["stage"], first["at"], first["index"])
        at = int(np.searchsorted(ends, first["at"]["position"]))  # the pass of this position
        key = (at, int(first["stage"][1:3]) if first["stage"][0] == "L" and first["stage"][1].isdigit() else -1, first["stage"].split(".")[-1])
        begin = 0 if key[0] == 0 else ends[key[0] - 1] + 1
        for label, side in (("subject", bad), ("clean", good)):
            x = side[key]
            if key[2] in ("attn_scores", "attn_weights"):
                v = x[first["at"]["head"], first["at"]["position"] - begin]
            else:
                row = first["at"]["position"] - (0 if "cache" in key[2] else begin)
                v = x[row]
                v = v[first["at"]["head"]] if v.ndim > 1 and first["at"]["head"] is not None else v.reshape(-1)
            print(f"   {label}: {v[first['index']]:.8g}")
        wrong = total = 0
        for i in range(count):
            k = (i, key[1], key[2])
            off = np.abs(bad[k].astype(np.float64) - good[k])
            wrong += int((off > 3e-6 * np.abs(good[k]).max()).sum())
            total += off.size
        print(f"   {key[2]} of layer {key[1]}: {wrong} of {total} elements differ from the clean engine's")
        for f in d["verdict"]["findings"][:1]:
            print("   shape:", f.get("shape"))


if __name__ == "__main__":
    main()
