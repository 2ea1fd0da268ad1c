"""Runs passes of one sequence or of many, and writes every stage to the folder that QDIFF_DUMP names.

quay.py MODEL --tokens FILE --passes N,N,... [--decoded FILE] [--kv TYPE]
quay.py MODEL --sequences FILE [--kv TYPE]"""
import argparse
import json
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from qdiff_capture import Capture

from net import Net


class Run:
    """What a pass is told of its rows."""

    def __init__(self, net, tokens, sequences):
        self.tokens, self.sequences = np.array(tokens), list(sequences)
        self.rows = {}  # of each sequence, its rows
        for t, s in enumerate(self.sequences):
            self.rows.setdefault(s, []).append(t)
        self.decode = all(len(rows) == 1 for rows in self.rows.values())
        self.cells, self.positions = net.cells.add(self.sequences)


class Tap:
    def __init__(self, capture, several):
        self.capture, self.several = capture, several

    def __call__(self, stage, x, layer=None):
        self.capture.add(stage, x, layer=layer)
        return x

    def of(self, sequence, stage, layer, x):
        self.capture.add(stage, x, layer=layer, sequence=sequence if self.several else None)


def serve(net, capture, lines):
    for line in lines:
        told = json.loads(line)
        for sequence, kept in told.get("taken_back", []):
            net.cells.keep(sequence, kept)
            capture.take_back(sequence, kept)
        net.compact()
        for source, sequence, count in told.get("prefixes", []):
            net.cells.share(source, sequence, count)
            capture.share(source, sequence, count)
        with capture.step(told["tokens"], told["sequences"]):
            run = Run(net, told["tokens"], told["sequences"])
            net.forward(run, Tap(capture, True))


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("model")
    parse.add_argument("--tokens")
    parse.add_argument("--passes", type=lambda text: [int(n) for n in text.split(",")])
    parse.add_argument("--decoded")
    parse.add_argument("--sequences")
    parse.add_argument("--kv", default="f32")
    args = parse.parse_args()
    net = Net(args.model, args.kv)
    with Capture(engine="quay", **({} if args.kv == "f32" else {"arithmetic": {"kv": args.kv}})) as capture:
        if args.sequences:
            return serve(net, capture, open(args.sequences))
        ids = lambda path: [int(line) for line in open(path)]
        tokens = ids(args.tokens) + (ids(args.decoded) if args.decoded else [])
        at = 0
        for count in args.passes + [1] * (len(tokens) - sum(args.passes)):
            with capture.step(tokens[at:at + count]):
                run = Run(net, tokens[at:at + count], [0] * count)
                net.forward(run, Tap(capture, False))
            at += count


main()
