"""Runs passes of several sequences on the engine of the sixth blind round, which has a paged cache, here of a slot for each page.

paged.py MODEL --sequences FILE [--bug NAME]
       --bug table       a sequence that begins with a prefix gets the pages of the first sequence's newest tokens for it
       --bug slots       the last token of each pass goes to the slot of the pass's first one
       --bug positions   tokens of later sequences have the positions of the first sequence's
       --bug free        a page of the first sequence is given out again in each pass
       --bug scores      tables are right, and the cache is read a slot further on
       --lora S=FILE     sequence S has this adapter; repeatable
       --terms           products with A and B of adapters are dumped too, padded with zeros to a multiple of 32
       --bug lora-place  rows take the adapter of the sequence whose number is their sequence's place in the pass
       --bug lora-first  all rows of a pass take the adapter of its first row
       --bug lora-decode rows that are alone in a pass take no adapter
       --bug lora-rank   all adapters have the rank of the first one, and no more of A and B is read
       --bug lora-scale  terms are not multiplied by alpha / rank"""
import argparse
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent / "blind/sixth/engine"))

import pool

pool.BLOCK = 1

import gguf
import numpy as np
from model import Batch, Model
from qdiff_capture import Capture

parse = argparse.ArgumentParser()
parse.add_argument("model")
parse.add_argument("--sequences", required=True)
parse.add_argument("--bug")
parse.add_argument("--lora", action="append", default=[])
parse.add_argument("--terms", action="store_true")
args = parse.parse_args()
model = Model(args.model, 1024)
tables, given, fresh = {}, {}, iter(range(1024))
if args.bug == "scores":
    slots_of = model.slots_of
    model.slots_of = lambda table, length: slots_of(table, length) + 1


class Adapters:
    """Low-rank terms, which are added where products are tapped."""
    MATRICES = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "attn_out": "attn_output",
                "ffn_gate": "ffn_gate", "ffn_up": "ffn_up", "ffn_down": "ffn_down"}
    INPUTS = {"attn_norm", "attn_context", "ffn_norm", "ffn_act"}

    def __init__(self, named):
        self.of, self.x = {}, None
        for word in named:
            sequence, path = word.split("=", 1)
            meta, weights = gguf.read(path)
            self.of[int(sequence)] = meta["adapter.lora.alpha"], weights
        ranks = [w.shape[0] for _, weights in self.of.values() for name, w in weights.items() if name.endswith("lora_a")]
        self.widest, self.first = -(-max(ranks, default=0) // 32) * 32, ranks[0] if ranks else 0

    def taken(self, sequences):
        """The sequence whose adapter each row takes."""
        if args.bug == "lora-place":
            return [sorted(set(sequences)).index(sequence) for sequence in sequences]
        if args.bug == "lora-first":
            return [sequences[0]] * len(sequences)
        if args.bug == "lora-decode":
            return [None if sequences.count(sequence) == 1 else sequence for sequence in sequences]
        return sequences

    def add(self, capture, sequences, stage, y, layer):
        if stage in self.INPUTS:
            self.x = y
        if stage not in self.MATRICES or not self.of:
            return
        name, stem = f"blk.{layer}.{self.MATRICES[stage]}.weight", stage.replace("_proj", "")
        a, b, term = np.zeros((len(y), self.widest), "f4"), np.zeros_like(y), np.zeros_like(y)
        for row, sequence in enumerate(self.taken(sequences)):
            alpha, weights = self.of.get(sequence, (0, {}))
            if name + ".lora_a" in weights:
                low, high = weights[name + ".lora_a"], weights[name + ".lora_b"]
                rank = self.first if args.bug == "lora-rank" else len(low)
                scale = np.float32(1 if args.bug == "lora-scale" else alpha / len(low))
                a[row, :len(low)] = low @ self.x[row]
                b[row] = high[:, :rank] @ a[row, :min(rank, len(low))]
                term[row] = scale * b[row]
        if args.terms and any(name + ".lora_a" in weights for _, weights in self.of.values()):
            for part, x in ("base", y.copy()), ("lora_a", a), ("lora_b", b), ("lora", term):
                capture.add(f"{stem}_{part}", x, layer=layer)
        y += term


adapters = Adapters(args.lora)


class Tap:
    def __init__(self, capture, sequences, lengths, rows):
        self.capture, self.sequences, self.lengths, self.rows = capture, sequences, lengths, rows

    def __call__(self, stage, x, layer=None):
        adapters.add(self.capture, self.rows, stage, x, layer)
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
            model.forward(batch, Tap(capture, chosen, lengths, sequences))
