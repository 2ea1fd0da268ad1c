"""barge: a small serving engine with a persistent batch, pages, buckets and drafts. Writes every stage to the folder that QDIFF_DUMP names.

barge.py MODEL --sequences FILE [--kv TYPE] [--slots]"""
import argparse
import json
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from qdiff_capture import Capture

import gguf
from batch import PAGE
from model import Model

BUCKETS = (1, 2, 4, 8, 16)  # rows of a decode batch


class Buffers:
    """What a decode step is told, in the same memory at each step, filled up to a bucket."""

    def __init__(self):
        self.tokens, self.turns = np.zeros(BUCKETS[-1], int), np.zeros(BUCKETS[-1], int)
        self.slots, self.before = np.full(BUCKETS[-1], -1), None

    def fill(self, tokens, turns, slots):
        n = len(tokens)
        size = next(b for b in BUCKETS if b >= n)
        self.tokens[:n], self.turns[:n], self.slots[:n] = tokens, turns, slots
        self.tokens[n:size], self.turns[n:size], self.slots[n:size] = 0, 0, -1
        return self.tokens[:size], self.turns[:size], self.slots[:size]


class Run:
    """A pass."""

    def __init__(self, engine, tokens, sequences):
        batch, model = engine.model.batch, engine.model
        self.rows, self.first, self.places, self.table = {}, {}, {}, {}
        self.count = len(tokens)
        for row, sequence in enumerate(sequences):
            self.rows.setdefault(sequence, []).append(row)
        self.order = list(self.rows)
        ids, positions, turns, slots = (np.zeros(len(tokens), int) for _ in range(4))
        for sequence, rows in self.rows.items():
            place = batch.row[sequence] if sequence in batch.row else batch.add(sequence)
            self.places[sequence], self.first[sequence] = place, int(batch.length[place])
            positions[rows], ids[rows], turns[rows], slots[rows] = batch.grow(place, [tokens[r] for r in rows], model.copy_page)
        for sequence, place in self.places.items():
            n = np.arange(batch.length[place])
            self.table[sequence] = batch.table[place][n // PAGE] * PAGE + n % PAGE
        self.positions, self.tokens, self.turns, self.slots = positions, ids, turns, slots
        self.slots_of_values = slots
        if all(len(rows) == 1 for rows in self.rows.values()):
            self.tokens, self.turns, self.slots = engine.buffers.fill(ids, turns, slots)
            self.slots_of_values = self.slots


class Tap:
    def __init__(self, capture, run):
        self.capture, self.run = capture, run

    def __call__(self, stage, x, layer=None):
        # What only fills up a batch is not written. States have a row for each sequence.
        self.capture.add(stage, x if stage in ("conv_state", "delta_state") else x[:self.run.count], layer=layer)
        return x

    def of(self, sequence, stage, layer, x):
        self.capture.add(stage, x, layer=layer, sequence=sequence)


class Engine:
    def __init__(self, path, kv, slots):
        self.model, self.slots = Model(*gguf.load(path), kv), slots
        self.buffers = Buffers()

    def step(self, capture, tokens, sequences):
        run = Run(self, tokens, sequences)
        capture.add("positions", run.positions.astype(np.int32))
        if self.slots:
            capture.add("slots", run.slots[:run.count].astype(np.int32))
            for sequence in run.order:
                capture.add("tables", run.table[sequence].astype(np.int32), sequence=sequence)
        self.model.forward(run, Tap(capture, run))
        if self.model.states:
            for sequence, place in run.places.items():
                self.model.states.mark(place, sequence, int(self.model.batch.length[place]))


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("model")
    parse.add_argument("--sequences")
    parse.add_argument("--kv", default="f32")
    parse.add_argument("--slots", action="store_true", help="write slots and block tables too")
    args = parse.parse_args()
    engine = Engine(args.model, args.kv, args.slots)
    declared = {} if args.kv == "f32" else {"arithmetic": {"kv": args.kv}}
    with Capture(engine="barge", **declared) as capture:
        for line in open(args.sequences):
            told = json.loads(line)
            for sequence, kept in told.get("taken_back", []):
                engine.model.batch.take_back(sequence, kept)
                capture.take_back(sequence, kept)
            for source, sequence, count in told.get("prefixes", []):
                engine.model.batch.share(source, sequence, count)
                capture.share(source, sequence, count)
            with capture.step(told["tokens"], told["sequences"]):
                engine.step(capture, told["tokens"], told["sequences"])


main()
