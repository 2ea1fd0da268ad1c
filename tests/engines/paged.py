"""Runs passes of several sequences on the engine of the sixth blind round, which has a paged cache, here of a slot for each page.

paged.py MODEL --sequences FILE [--bug NAME]
       --bug table       a sequence that begins with a prefix gets the pages of the first sequence's newest tokens for it
       --bug slots       the last token of each pass goes to the slot of the pass's first one
       --bug positions   tokens of later sequences have the positions of the first sequence's
       --bug free        a page of the first sequence is given out again in each pass
       --bug scores      tables are right, and the cache is read a slot further on"""
import argparse
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent / "blind/sixth/engine"))

import pool

pool.BLOCK = 1

import numpy as np
from model import Batch, Model
from qdiff_capture import Capture

parse = argparse.ArgumentParser()
parse.add_argument("model")
parse.add_argument("--sequences", required=True)
parse.add_argument("--bug")
args = parse.parse_args()
model = Model(args.model, 1024)
tables, given, fresh = {}, {}, iter(range(1024))
if args.bug == "scores":
    slots_of = model.slots_of
    model.slots_of = lambda table, length: slots_of(table, length) + 1


class Tap:
    def __init__(self, capture, sequences, lengths):
        self.capture, self.sequences, self.lengths = capture, sequences, lengths

    def __call__(self, stage, x, layer=None):
        self.capture.add(stage, x, layer=layer)
        return x

    def of(self, s, stage, layer, x):
        x = x[:, :, :self.lengths[s]] if stage == "attn_scores" else x
        self.capture.add(stage, x, layer=layer, sequence=self.sequences[s])


def bugged(chosen, told, slots, positions):
    """What the kernels get: the tables, the slots that rows are written to, and their positions."""
    read = {sequence: list(tables[sequence]) for sequence in chosen}
    if args.bug == "table":
        for _, sequence, kept in told.get("prefixes", []):
            given[sequence] = tables[0][-kept:]
        for sequence in set(given) & set(read):
            read[sequence][:len(given[sequence])] = given[sequence]
    if args.bug == "slots":
        slots[-1] = slots[0]
    if args.bug == "positions":
        first = len(tables[0])
        positions = [at if sequence == 0 else max(0, first - 1 - i)
                     for i, (sequence, at) in enumerate(zip(told["sequences"], positions))]
    return read, slots, positions


with Capture(engine="paged") as capture:
    for line in open(args.sequences):
        told = json.loads(line)
        tokens = told["tokens"]
        sequences = told.get("sequences") or [0] * len(tokens)
        for sequence, kept in told.get("taken_back", []):
            capture.take_back(sequence, kept)
            tables[sequence] = tables[sequence][:kept]
        for source, sequence, kept in told.get("prefixes", []):
            capture.share(source, sequence, kept)
            tables[sequence] = list(tables[source][:kept])
        slots, positions = [], []
        for sequence in sequences:
            table = tables.setdefault(sequence, [])
            reused = args.bug == "free" and len(tables[0]) > 4 and sequence > 0 and tables[0][1] not in slots
            slot = tables[0][1] if reused else next(fresh)
            positions.append(len(table))
            slots.append(slot)
            table.append(slot)
        chosen = sorted(set(sequences))
        read, slots, positions = bugged(chosen, {**told, "sequences": sequences}, slots, positions)
        lengths = [len(tables[sequence]) for sequence in chosen]
        starts = [sequences.index(sequence) for sequence in chosen] + [len(tokens)]
        batch = Batch(np.array(tokens), np.array(positions), np.array(slots), starts, lengths,
                      [np.array(read[sequence]) for sequence in chosen], len(tokens))
        with capture.step(tokens, sequences=sequences):
            capture.add("positions", batch.positions)
            capture.add("slots", batch.slots)
            for sequence in chosen:
                capture.add("tables", np.array(read[sequence]), sequence=sequence)
            model.forward(batch, Tap(capture, chosen, lengths))
