"""ferry: a small serving engine, with pages, buckets and drafts. Writes every stage to the folder that QDIFF_DUMP names.

ferry.py MODEL --sequences FILE [--kv TYPE] [--slots]"""
import argparse
import json
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from qdiff_capture import Capture

import gguf
from model import Model
from pages import PAGE

BUCKETS = (1, 2, 4, 8, 16)  # rows of a decode batch


class Buffers:
    """What a decode step is told, in the same memory at each step, filled up to a bucket."""

    def __init__(self):
        self.tokens, self.turns = np.zeros(BUCKETS[-1], int), np.zeros(BUCKETS[-1], int)
        self.slots = np.full(BUCKETS[-1], -1)

    def fill(self, tokens, turns, slots):
        n = len(tokens)
        size = next(b for b in BUCKETS if b >= n)
        self.tokens[:n], self.turns[:n], self.slots[:n] = tokens, turns, slots
        self.tokens[n:size], self.turns[n:size], self.slots[n:size] = 0, 0, -1
        return self.tokens[:size], self.turns[:size], self.slots[:size]


class Counters:
    """What the device counts by itself: the tokens of each sequence. Queries and keys are rotated by it."""

    def __init__(self):
        self.tokens = {}

    def more(self, sequence, count):
        at = self.tokens.get(sequence, 0)
        self.tokens[sequence] = at + count
        return np.arange(at, at + count)

    def less(self, sequence, count):
        self.tokens[sequence] -= count


class Run:
    """A pass."""

    def __init__(self, engine, tokens, sequences):
        pages, states = engine.model.pages, engine.model.states
        self.rows, self.first, self.marks, slots = {}, {}, {}, np.zeros(len(tokens), int)
        for row, sequence in enumerate(sequences):
            self.rows.setdefault(sequence, []).append(row)
        self.positions, turns = np.zeros(len(tokens), int), np.zeros(len(tokens), int)
        for sequence, rows in self.rows.items():
            slots[rows] = pages.room(sequence, len(rows), engine.model.copy_page)
            self.first[sequence] = pages.length[sequence] - len(rows)
            self.positions[rows] = np.arange(self.first[sequence], pages.length[sequence])
            turns[rows] = engine.counters.more(sequence, len(rows))
            if states:
                states.begin(sequence)
                for _ in rows:
                    states.grow(sequence)
                self.marks[sequence] = states.rows[sequence][-len(rows) - 1:]
        self.count = len(tokens)
        self.decode = all(len(rows) == 1 for rows in self.rows.values())
        self.order = list(self.rows)
        self.tokens, self.turns, self.slots = np.array(tokens), turns, slots
        self.scheduled = np.arange(self.count)  # rows in the order in which the head goes over them
        if self.decode:
            self.tokens, self.turns, self.slots = engine.buffers.fill(tokens, turns, slots)
            # The longest first, so that no block of threads waits for the last.
            by_length = np.argsort([-pages.length[s] for s in self.order], kind="stable")
            self.order = [self.order[i] for i in by_length]
            self.batch_place = by_length
            self.scheduled = np.concatenate([by_length, np.arange(self.count, len(self.tokens))])
        # The block tables of all sequences, each as wide as the widest.
        self.lengths = [pages.length[s] for s in self.order]
        self.width = max(len(pages.table[s]) for s in self.order)
        self.table = np.zeros(len(self.order) * self.width, int)
        for at, sequence in enumerate(self.order):
            own = pages.table[sequence]
            self.table[at * self.width:at * self.width + len(own)] = own

    def slots_of(self, at):
        """The slots of the whole pages of a sequence, as its blocks stand in the table."""
        n = np.arange(-(-self.lengths[at] // PAGE) * PAGE)
        return self.table[at * self.width + n // PAGE] * PAGE + n % PAGE


class Tap:
    def __init__(self, capture, run):
        self.capture, self.run = capture, run

    def __call__(self, stage, x, layer=None):
        # What only fills up a batch is not written. States have a row for each sequence, in the order of the rows.
        if stage in ("conv_state", "delta_state"):
            told = x[[self.run.order.index(s) for s in self.run.rows]]
        else:
            told = x[:self.run.count]
        self.capture.add(stage, told, layer=layer)
        return x

    def of(self, sequence, stage, layer, x):
        self.capture.add(stage, x, layer=layer, sequence=sequence)


class Engine:
    def __init__(self, path, kv, slots):
        self.model, self.slots = Model(*gguf.load(path), kv), slots
        self.buffers, self.counters = Buffers(), Counters()

    def take_back(self, sequence, kept):
        self.counters.less(sequence, self.model.pages.length[sequence] - kept)
        self.model.take_back(sequence, kept)

    def share(self, source, sequence, count):
        self.counters.more(sequence, count)
        self.model.share(source, sequence, count)

    def step(self, capture, tokens, sequences):
        run = Run(self, tokens, sequences)
        capture.add("positions", run.positions.astype(np.int32))
        if self.slots:
            capture.add("slots", run.slots[:run.count].astype(np.int32))
            for at, sequence in enumerate(run.order):
                capture.add("tables", run.slots_of(at)[:run.lengths[at]].astype(np.int32), sequence=sequence)
        self.model.forward(run, Tap(capture, run))


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("model")
    parse.add_argument("--sequences")
    parse.add_argument("--kv", default="f32")
    parse.add_argument("--slots", action="store_true", help="write slots and block tables too")
    args = parse.parse_args()
    engine = Engine(args.model, args.kv, args.slots)
    declared = {} if args.kv == "f32" else {"arithmetic": {"kv": args.kv}}
    with Capture(engine="ferry", **declared) as capture:
        for line in open(args.sequences):
            told = json.loads(line)
            for sequence, kept in told.get("taken_back", []):
                engine.take_back(sequence, kept)
                capture.take_back(sequence, kept)
            for source, sequence, count in told.get("prefixes", []):
                engine.share(source, sequence, count)
                capture.share(source, sequence, count)
            with capture.step(told["tokens"], told["sequences"]):
                engine.step(capture, told["tokens"], told["sequences"])


main()
