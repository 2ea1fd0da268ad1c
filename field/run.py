"""What the drivers in Python share: the words that qdiff gives them, the passes of the run, and what they dump to."""

import argparse
import contextlib
import json
import os
import pathlib
import sys

import numpy as np
from qdiff_capture import Capture

# The file for the scores of a text, if scores and no stages are requested.
SCORED = os.environ.get("FIELD_SCORE")

def arguments(**options):
    """The words of the command: MODEL TOKENS [PASSES [DECODED]], and options with their choices, of which the first is the default.
    `passes` is then a list of the token ids of each forward pass."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=pathlib.Path, help="GGUF, or folder of safetensors")
    parser.add_argument("tokens", type=pathlib.Path, help="file with the token ids of the prompt")
    parser.add_argument("lengths", nargs="?", help="lengths of the passes over the prompt, such as 20,1,1,9")
    parser.add_argument("decoded", type=pathlib.Path, nargs="?", help="file with the token ids to feed after the prompt")
    parser.add_argument("--fix", action="store_true", help="mend the defect that the table names")
    for name, choices in options.items():
        parser.add_argument(f"--{name}", choices=choices, default=choices[0])
    words = parser.parse_args()
    tokens, words.passes = ids(words.tokens), []
    for length in map(int, (words.lengths or str(len(tokens))).split(",")):
        words.passes.append(tokens[:length])
        tokens = tokens[length:]
    Score.tokens = ids(words.tokens)
    words.passes += [[token] for token in (ids(words.decoded) if words.decoded else [])]
    return words


def ids(path):
    return [int(word) for word in path.read_text().split()]


def converted(model, what, make):
    """The folder that `make` wrote of a model, made once and kept beside it."""
    folder = model.parent / f"{model.stem}.{what}-{model.stat().st_mtime_ns}"
    if not (folder / "done").exists():
        folder.mkdir(exist_ok=True)
        make(folder)
        (folder / "done").touch()
    return folder


def capture(**told):
    """What a driver dumps to: a capture for qdiff, or the scores of the text."""
    return Score(SCORED) if SCORED else Capture(**told)


class Score:
    """Takes the place of a Capture. Of every token it keeps how unlikely it was (nats) and which token was the likeliest, and of every
    16th token the logits; no stage is kept."""

    tokens, writes, every = [], True, 16

    def __init__(self, file):
        self.file, self.position = file, 0
        self.nll, self.choice, self.logits = [], [], []

    def begin(self, tokens):
        self.length = len(tokens)

    def add(self, stage, x, layer=None):
        if stage != "logits":
            return
        for at, row in enumerate(np.array(x, np.float32).reshape(self.length, -1), self.position):
            self.choice.append(int(row.argmax()))
            if at % self.every == 0:
                self.logits.append(row.astype(np.float32))
            if at + 1 < len(self.tokens):
                self.nll.append(float(-logs(row)[self.tokens[at + 1]]))

    def end(self):
        self.position += self.length

    @contextlib.contextmanager
    def step(self, tokens):
        self.begin(tokens)
        yield self
        self.end()

    def __enter__(self):
        return self

    def __exit__(self, error, *_):
        if error is None:
            np.savez(self.file, nll=self.nll, choice=self.choice, logits=self.logits)


def logs(row):
    """The logarithms of the probabilities, in f64."""
    row = row.astype(np.float64) - row.max()
    return row - np.log(np.exp(row).sum())


def compared(released, mended, length, window=256):
    """What a defect does to the last 256 tokens before a length: mean NLL of both, tokens whose likeliest successor changes, and the
    divergence KL(mended, released) of every 16th of them."""
    a, b = np.load(released), np.load(mended)
    part = slice(max(0, length - window), length)
    wanted = range(-(-part.start // Score.every), -(-length // Score.every))
    kl = [float((np.exp(q) * (q - p)).sum()) for p, q in ((logs(a["logits"][i]), logs(b["logits"][i])) for i in wanted)]
    return {"length": length, "nll_released": round(float(a["nll"][part].mean()), 4), "nll_mended": round(float(b["nll"][part].mean()), 4),
            "changed": int((a["choice"][part] != b["choice"][part]).sum()), "of": len(a["choice"][part]),
            "kl_mean": f"{np.mean(kl):.1e}", "kl_worst": f"{np.max(kl):.1e}"}


if __name__ == "__main__":
    # RELEASED.npz MENDED.npz LENGTH...
    for length in sys.argv[3:]:
        print(json.dumps(compared(*sys.argv[1:3], int(length))))
