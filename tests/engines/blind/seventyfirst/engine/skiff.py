"""skiff: a small serving engine with a buffer of tokens for each sequence, buckets for decode steps, and paged caches. It writes every
stage to the folder that QDIFF_DUMP names.

skiff.py MODEL --sequences FILE [--kv TYPE] [--slots]"""
import argparse
import json

import numpy as np
from qdiff_capture import Capture

import gguf
from model import Model
from pages import PAGE

BUCKETS = (1, 2, 4, 8)  # rows of a decode step


class Texts:
    """The tokens of each sequence by position, as the host keeps them; the passes read from here."""

    def __init__(self, context):
        self.context, self.ids, self.filled = context, {}, {}

    def write(self, sequence, first, tokens):
        ids = self.ids.setdefault(sequence, np.zeros(self.context, int))
        begin = first
        ids[begin:first + len(tokens)] = tokens[begin - first:]
        self.filled[sequence] = max(self.filled.get(sequence, 0), first + len(tokens))
        return ids[first:first + len(tokens)]

    def end(self, sequence):
        self.filled[sequence] = 0


class Buffers:
    """What a decode step is told, in the same memory at each step, filled up to a bucket."""

    def __init__(self):
        self.tokens, self.turns, self.slots = (np.zeros(BUCKETS[-1], int) for _ in range(3))
        self.last = None  # the bucket of the last decode step

    def fill(self, tokens, turns, slots):
        n = len(tokens)
        size = next(b for b in BUCKETS if b >= n)
        self.tokens[:n], self.tokens[n:size] = tokens, 0
        self.turns[:n], self.turns[n:size] = turns, 0
        self.slots[:n], self.slots[n:size] = slots, -1
        self.last = size
        return self.tokens[:size], self.turns[:size], self.slots[:size]


class Run:
    """A pass."""

    def __init__(self, engine, tokens, sequences):
        pages, states = engine.model.pages, engine.model.states
        self.count, self.rows, self.first, self.state = len(tokens), {}, {}, {}
        for row, sequence in enumerate(sequences):
            self.rows.setdefault(sequence, []).append(row)
        ids, turns, slots = (np.zeros(self.count, int) for _ in range(3))
        for sequence, rows in self.rows.items():
            at = self.first[sequence] = pages.length.get(sequence, 0)
            slots[rows] = pages.room(sequence, len(rows), engine.model.copy_page)
            ids[rows] = engine.texts.write(sequence, at, np.array(tokens)[rows])
            counted = engine.counted.get(sequence, 0)
            turns[rows] = counted + np.arange(len(rows))
            engine.counted[sequence] = counted + len(rows)
            if states:
                self.state[sequence] = states.begin(sequence)
        self.order = list(self.rows)
        self.lengths = [pages.length[s] for s in self.order]
        self.decode = all(len(rows) == 1 for rows in self.rows.values())
        self.heads = np.arange(self.count)  # the rows as the head goes over them
        if self.decode:
            ids, turns, slots = engine.buffers.fill(ids, turns, slots)
            # The longest sequences first, so that no thread waits for the last.
            longest = np.argsort([-n for n in self.lengths], kind="stable")
            self.heads = np.concatenate([longest, np.arange(self.count, len(ids))])
        self.tokens, self.turns, self.slots = ids, turns, slots
        # The block tables of all sequences, each as wide as the widest.
        self.table = np.zeros((len(self.order), max(len(pages.table[s]) for s in self.order)), int)
        for at, sequence in enumerate(self.order):
            self.table[at, :len(pages.table[sequence])] = pages.table[sequence]

    def slots_of(self, at):
        """The slots of the whole pages of a sequence."""
        n = np.arange(-(-self.lengths[at] // PAGE) * PAGE)
        return self.table[at, n // PAGE] * PAGE + n % PAGE


class Tap:
    def __init__(self, capture, run):
        self.capture, self.run = capture, run

    def __call__(self, stage, x, layer=None):
        # What only fills up a bucket is not written. States have a row for each sequence.
        self.capture.add(stage, x if stage in ("conv_state", "delta_state") else x[:self.run.count], layer=layer)
        return x

    def of(self, sequence, stage, layer, x):
        self.capture.add(stage, x, layer=layer, sequence=sequence)


class Engine:
    def __init__(self, path, kv, slots):
        self.model, self.slots = Model(*gguf.load(path), kv), slots
        self.texts, self.buffers, self.counted = Texts(self.model.c.context), Buffers(), {}

    def take_back(self, sequence, kept):
        self.counted[sequence] -= self.model.pages.length[sequence] - kept
        self.model.take_back(sequence, kept)
        if kept == 0:
            self.texts.end(sequence)

    def share(self, source, sequence, count):
        self.counted[sequence] = count
        self.model.share(source, sequence, count)

    def step(self, capture, tokens, sequences):
        run = Run(self, tokens, sequences)
        if self.slots:
            capture.add("positions", run.turns[:run.count].astype(np.int32))
            capture.add("slots", run.slots[:run.count].astype(np.int32))
            for at, sequence in enumerate(run.order):
                capture.add("tables", run.slots_of(at)[:run.lengths[at]].astype(np.int32), sequence=sequence)
        self.model.forward(run, Tap(capture, run))


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("model")
    parse.add_argument("--sequences")
    parse.add_argument("--kv", default="f32")
    parse.add_argument("--slots", action="store_true", help="write positions, slots and block tables too")
    args = parse.parse_args()
    engine = Engine(args.model, args.kv, args.slots)
    declared = {} if args.kv == "f32" else {"arithmetic": {"kv": args.kv}}
    with Capture(engine="skiff", **declared) as capture:
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
