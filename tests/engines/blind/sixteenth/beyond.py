#!/usr/bin/env python3
"""Whether c10 and f03 follow the tiles that the screens state in longer prompts.   QDIFF=prog beyond.py OUT

For some positions: the distance of the weights, of their norm, from the screen's law (parts n // 32), and from that of the kernel's text."""
import os, shlex, subprocess, sys
from pathlib import Path
import numpy as np

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path[:0] = [str(HERE), str(HERE.parent / "seventh")]
import card
from bugs import BUGS, MODELS, TOKENS


def main():
    out, qdiff = Path(sys.argv[1]).resolve(), os.environ.get("QDIFF", "qdiff")
    out.mkdir(parents=True, exist_ok=True)
    for name, length, period, head in (("f03-parts", 160, 128, 64), ("c10-warps", 270, 256, 64)):
        b = next(b for b in BUGS if b["name"] == name)
        model, to = out / f"{name}.gguf", out / f"{name}-{length}"
        subprocess.run([qdiff, "synth", str(model), "-q", *shlex.split(MODELS[b["model"]])], check=True, stdout=subprocess.DEVNULL)
        env = dict(os.environ, **card.environment(card.make(out / f"{name}-card", b["changes"])))
        line = [qdiff, "record", "-q", "--runner", b["subject"], "-m", str(model), *shlex.split(TOKENS), "--length", str(length), "-n", "0",
                "--layers", "0", "--stages", "attn_weights", "--stages", "attn_scores", "-o", str(to)]
        subprocess.run(line, env=env, check=True)
        arrays = np.load(to / "capture.npz")
        scores, weights = (arrays[f"prefill/L00.attn_{what}"].astype(float) for what in ("scores", "weights"))
        for t in (period - 1, period, length - 1):
            n, s, w = np.arange(t + 1), scores[0, t, :t + 1] / np.sqrt(head), weights[0, t, :t + 1]
            far = []
            for part in (n // 32, n % period // 32):
                e, total = np.exp(s - s.max()), np.zeros(t + 1)
                for i in set(part):
                    mine = part == i
                    if name == "f03-parts":
                        total += np.exp(s[mine] - s[mine].max()).sum()
                    else:
                        total[mine] = e[mine].sum()
                far.append(np.linalg.norm(e / total - w) / np.linalg.norm(w))
            print(f"{name} position {t}: screen {far[0]:.1e}, kernel {far[1]:.1e}")


main()
