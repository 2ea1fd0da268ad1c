"""facts.py MODELS [ID...]: numbers behind the grades, on the tokens of each run (of qdiff's JSON reports), without qdiff's judgements."""
import contextlib
import json
import shlex
import sys
from pathlib import Path

import numpy as np

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from bugs import BUGS, changed

TEXT = (HERE.parent / "thirtyfirst/engine.py").read_text()


def captured(text, path, kv, tokens, lengths, decoded):
    scope = {"__name__": "slate", "__file__": "engine.py"}
    exec(compile(text, "engine.py", "exec"), scope)
    seen = {}

    @contextlib.contextmanager
    def tap_of(i, _):
        def tap(stage, x, layer=None):
            seen[i, layer, stage] = np.array(x)
            return x
        yield tap
    model = scope["Model"](path, kv)
    scope["run"](model, tokens, lengths, decoded, tap_of)
    return seen, model


def of(name, models):
    """The run of a bug: (values with the bug, values without it, the clean model, tokens, lengths, decoded)."""
    screen = (Path(models).parent / f"{name}.txt").read_text()
    report = json.loads((Path(models).parent / [w for w in screen.split() if w.endswith(".json")][0]).read_text())
    run = report["run"]
    words = shlex.split(BUGS[name]["run"])
    get = lambda key, other: words[words.index(key) + 1] if key in words else other
    tokens, decoded, lengths = run["tokens"], run["decoded"], []
    for part in get("--passes", str(len(tokens))).split(","):
        many, one = part.split("x") if "x" in part else (1, part)
        lengths += [int(one)] * int(many)
    path = str(Path(models) / f"{BUGS[name]['model']}.gguf")
    (wrong, _), (right, model) = (captured(t, path, get("--kv-type", "f32"), tokens, lengths, decoded) for t in (changed(TEXT, name), TEXT))
    return wrong, right, model, tokens, lengths, decoded, report



def proofs(models):
    """The numbers of result.md for z09, z11, z13 and z17."""
    wrong, right, *_ = of("z09", models)
    for l in (0, 1):
        weights, scores, true = wrong[1, l, "attn_weights"], wrong[1, l, "attn_scores"], right[1, l, "attn_scores"]
        print("z09", l, "step 1: least largest weight", weights.max(-1).min(), "scaled scores", scores.std() / 8, "right scores without the scale", true.std())
    wrong, right, *_ = of("z11", models)
    for i in range(4):
        y, t = wrong[i, None, "logits"], right[i, None, "logits"]
        print("z11", i, np.array_equal(y[:, :179], t[:, :179]), not y[:, 179:192].any(), np.array_equal(y[:, 192:], t[:, 179:346]))
    wrong, *_ = of("z13", models)
    for l in (0, 1):
        for i in range(5):
            weight, share = wrong[i, l, "router_weights"][:, 0], wrong[i, l, "router_shares"][:, 0]
            print("z13", l, i, "weight / share", (weight / share).min(), (weight / share).max(), "sum over the pass", weight.sum(),
                  "without its last row", weight[:-1].sum())
    _, _, _, tokens, *_ = of("z17", models)
    for cuts in ([20, 32], [32, 20], [39, 13]):
        seen, _ = captured(changed(TEXT, "z17"), str(Path(models) / "f.gguf"), "f32", tokens, cuts, [])
        at = int(np.flatnonzero((seen[1, 0, "k_cache"] == seen[1, 0, "k_rope"][0]).all((1, 2)))[0])
        print("z17", cuts, "row", cuts[0], "is written", cuts[0] - at, "slots before its own")


if __name__ == "__main__":
    for name in BUGS if len(sys.argv) == 2 else sys.argv[2:]:
        wrong, right, model, tokens, lengths, decoded, report = of(name, sys.argv[1])
        bad = [k for k in right if k in wrong and not np.array_equal(wrong[k], right[k])]
        rows = lambda s: np.concatenate([s[k] for k in sorted((k for k in s if k[2] == "logits"), key=lambda k: k[0])])
        a, b = rows(wrong).astype(float), rows(right).astype(float)
        off = np.linalg.norm(a - b, axis=1) / np.linalg.norm(b, axis=1)
        lp = lambda x: x - x.max(1, keepdims=True) - np.log(np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True))
        kl = (np.exp(lp(b)) * (lp(b) - lp(a))).sum(1)
        d = np.flatnonzero(a.argmax(1) != b.argmax(1))
        print(name, "first", bad[:3], "logits off", f"{off.max():.3f} p{off.argmax()}", "KL", f"{kl.max():.2g} p{kl.argmax()}",
              "likeliest differs", len(d), "first", d[:1])
    if len(sys.argv) == 2:
        proofs(sys.argv[1])
