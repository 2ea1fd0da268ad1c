"""ferry: a small serving engine, with pages, buckets and drafts, after that of the eleventh round. Writes every stage to the folder that QDIFF_DUMP names.

ferry.py MODEL --sequences FILE [--kv TYPE] [--slots]
ferry.py MODEL --tokens FILE --passes N,N,... [--decoded FILE] [--kv TYPE]"""
import argparse
import json
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from qdiff_capture import Capture

import gguf
from model import Model
from pages import PAGE
from store import SCALES

BUCKETS = (1, 2, 4, 8, 16)  # rows of a decode batch


class Buffers:
    """What a decode step is told, in the same memory at each step, filled up to a bucket."""

    def __init__(self):
        self.tokens, self.positions = np.zeros(BUCKETS[-1], int), np.zeros(BUCKETS[-1], int)
        self.slots, self.states = np.full(BUCKETS[-1], -1), np.full(BUCKETS[-1], -1)

    def fill(self, tokens, positions, slots, states):
        n = len(tokens)
        size = next(b for b in BUCKETS if b >= n)
        self.tokens[:n], self.positions[:n], self.slots[:n] = tokens, positions, slots
        self.states[:n] = states
        self.tokens[n:size], self.positions[n:size], self.slots[n:size] = 0, 0, -1
        self.states[n:size] = -1
        return self.tokens[:size], self.positions[:size], self.slots[:size], self.states[:size]


class Run:
    """A pass."""

    def __init__(self, engine, tokens, sequences):
        pages, states = engine.model.pages, engine.model.states
        self.rows, self.first, self.marks, slots = {}, {}, {}, np.zeros(len(tokens), int)
        for row, sequence in enumerate(sequences):
            self.rows.setdefault(sequence, []).append(row)
        positions = np.zeros(len(tokens), int)
        for sequence, rows in self.rows.items():
            slots[rows] = pages.room(sequence, len(rows), engine.model.copy_page)
            self.first[sequence] = pages.length[sequence] - len(rows)
            positions[rows] = np.arange(self.first[sequence], pages.length[sequence])
            if states:
                states.begin(sequence, len(rows))
                for _ in rows:
                    states.grow(sequence)
                self.marks[sequence] = states.rows[sequence][-len(rows) - 1:]
        self.count = len(tokens)
        self.decode = all(len(rows) == 1 for rows in self.rows.values())
        self.order = list(self.rows)
        self.tokens, self.positions, self.slots = np.array(tokens), positions, slots
        if self.decode:
            ends = [self.marks[s][-1] for s in self.order] if states else -1
            self.tokens, self.positions, self.slots, self.state_rows = engine.buffers.fill(tokens, positions, slots, ends)
            # The longest first, so that no block of threads waits for the last.
            by_length = np.argsort([-pages.length[s] for s in self.order], kind="stable")
            self.order = [self.order[i] for i in by_length]
            self.batch_place = by_length
        # The block tables of all sequences, each as wide as the widest.
        self.lengths = [pages.length[s] for s in self.order]
        engine.width = max(len(pages.table[s]) for s in self.order)
        self.width, self.table = engine.width, np.zeros(len(self.order) * engine.width, int)
        for at, sequence in enumerate(self.order):
            own = pages.table[sequence]
            self.table[at * engine.width:at * engine.width + len(own)] = own

    def slots_of(self, at, sequence):
        """The slots of a sequence's positions, as its blocks stand in the table."""
        n = np.arange(self.lengths[at])
        return self.table[at * self.width + n // PAGE] * PAGE + n % PAGE


class Tap:
    def __init__(self, capture, run, several):
        self.capture, self.run, self.several = capture, run, several

    def __call__(self, stage, x, layer=None):
        # What only fills up a batch is not written. States have a row for each sequence, in the order of the rows.
        if stage in ("conv_state", "delta_state"):
            told = x[[self.run.order.index(s) for s in self.run.rows]]
        else:
            told = x[:self.run.count]
        self.capture.add(stage, told, layer=layer)
        return x

    def of(self, sequence, stage, layer, x):
        self.capture.add(stage, x, layer=layer, sequence=sequence if self.several else None)


class Engine:
    def __init__(self, path, kv, slots):
        self.model, self.slots = Model(*gguf.load(path), kv), slots
        self.buffers, self.width = Buffers(), 1

    def step(self, capture, tokens, sequences=None):
        several = sequences is not None
        run = Run(self, tokens, sequences if several else [0] * len(tokens))
        tap = Tap(capture, run, several)
        if several:
            capture.add("positions", run.positions[:run.count].astype(np.int32))
        if several and self.slots:
            capture.add("slots", run.slots[:run.count].astype(np.int32))
            for at, sequence in enumerate(run.order):
                capture.add("tables", run.slots_of(at, sequence).astype(np.int32), sequence=sequence)
        self.model.forward(run, tap)


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("model")
    for name in ("--tokens", "--passes", "--decoded", "--sequences"):
        parse.add_argument(name)
    parse.add_argument("--kv", default="f32")
    parse.add_argument("--slots", action="store_true", help="write slots and block tables too")
    args = parse.parse_args()
    engine = Engine(args.model, args.kv, args.slots)
    declared = {} if args.kv == "f32" else {"arithmetic": {"kv": args.kv}}
    if args.kv == "f8_e4m3":
        scales = {f"L{l:02}.{which}_cache": float(np.float32(s)) for (which, l), s in SCALES.items() if l < engine.model.c.layers}
        declared["arithmetic"]["kv_scale"] = scales
    with Capture(engine="ferry", **declared) as capture:
        if args.sequences:
            for line in open(args.sequences):
                told = json.loads(line)
                for sequence, kept in told.get("taken_back", []):
                    engine.model.take_back(sequence, kept)
                    capture.take_back(sequence, kept)
                for source, sequence, count in told.get("prefixes", []):
                    engine.model.share(source, sequence, count)
                    capture.share(source, sequence, count)
                with capture.step(told["tokens"], told["sequences"]):
                    engine.step(capture, told["tokens"], told["sequences"])
            return
        ids = lambda path: [int(n) for n in open(path).read().split()]
        prompt = ids(args.tokens)
        lengths = [int(n) for n in args.passes.split(",")] if args.passes else [len(prompt)]
        tokens = prompt + (ids(args.decoded) if args.decoded else [])
        lengths += [1] * (len(tokens) - sum(lengths))
        for n in lengths:
            now, tokens = tokens[:n], tokens[n:]
            with capture.step(now):
                engine.step(capture, now)


main()
