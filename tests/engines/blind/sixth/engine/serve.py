"""Serves requests with one batch for all of them: chunked prefill, decode, cached prefixes, drafts.

serve.py MODEL --work FILE [--kv q8_0]                                      requests of a JSON file, scheduled as they come
serve.py MODEL --tokens FILE --passes N,N,… [--decoded FILE] [--kv q8_0]    one request, in these passes
Writes what it computes to the folder that QDIFF_DUMP names."""
import argparse
import json
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from qdiff_capture import Capture

from model import Batch, Model
from pool import BLOCK, PAD, Pool

GRAPH = 8    # rows of a pass are padded to a multiple of it
BLOCKS = 28  # of the pool
WIDEST = 28  # blocks of a table


class Request:
    def __init__(self, name, prompt, new=0, draft=0, at=0):
        self.name, self.tokens, self.wanted = name, list(prompt), len(prompt) + new
        self.draft, self.at = draft, at  # tokens proposed at a time; the step at which it comes
        self.computed = 0                # tokens whose keys and values are in the cache
        self.table = []                  # its blocks
        self.row = None                  # its row of the persistent tables
        self.begun = False

    @property
    def decoding(self):
        return self.computed == len(self.tokens) - 1 and self.begun


class Tap:
    """Writes rows of a pass to the capture, without the padding."""

    def __init__(self, capture, numbers, count, keys):
        self.capture, self.numbers, self.count = capture, numbers, count
        self.keys = keys  # of each sequence as many as the scheduler counts

    def __call__(self, stage, x, layer=None):
        self.capture.add(stage, x[:self.count], layer=layer)
        return x

    def of(self, s, stage, layer, x):
        x = x[:, :, :self.keys[s]] if stage == "attn_scores" else x[:self.keys[s]]
        self.capture.add(stage, x, layer=layer, sequence=self.numbers[s] if self.numbers else None)


class Server:
    def __init__(self, path, capture, kv, alone=False, budget=24, most=4):
        self.pool, self.model = Pool(BLOCKS), Model(path, BLOCKS * BLOCK, kv)
        self.capture, self.budget, self.most = capture, budget, most
        self.alone = alone  # one request, as a command of qdiff runs: its rows need no number
        self.tables = np.zeros((most, WIDEST), np.int64)  # persistent, as a captured graph reads them
        self.ends = np.zeros(most, np.int64)  # of each row the tokens in the cache, likewise
        self.rows = list(range(most))
        self.waiting, self.running = [], []
        self.names = {}    # of each request its number in the capture
        self.texts = []    # of each number its tokens that are computed

    # The capture's numbers.
    def number(self, request, source=None, tokens=0):
        self.names[request.name] = len(self.texts)
        self.texts.append(list(request.tokens[:tokens]))
        if source is not None:
            self.capture.share(source, self.names[request.name], tokens)

    def whose(self, request, blocks):
        """The number in the capture whose text begins as this request's, or with these blocks."""
        tokens = request.tokens[:len(blocks) * BLOCK]
        for number, text in enumerate(self.texts):
            if text[:len(tokens)] == tokens:
                return number
        return next(n for n, text in enumerate(self.texts) if text[:BLOCK] == tokens[:BLOCK] and len(text) >= len(tokens))

    def admit(self, step):
        while self.waiting and self.waiting[0].at <= step and len(self.running) < self.most:
            request = self.waiting[0]
            found = self.pool.lookup(request.tokens)
            need = -(-len(request.tokens) // BLOCK) - len(found)
            fresh = len(self.pool.free) - sum(self.pool.blocks[n].refs == 0 for n in found)
            if need > fresh:
                return
            for number in found:
                self.pool.hold(number)
            request.table = list(found)
            request.computed = len(found) * BLOCK
            request.row = self.rows.pop(0)
            self.ends[request.row] = request.computed
            self.grow(request, len(request.tokens))
            if found:
                self.number(request, self.whose(request, found), request.computed)
            else:
                self.number(request)
            self.running.append(self.waiting.pop(0))

    def grow(self, request, length):
        """Gives a request the blocks for so many tokens."""
        while len(request.table) * BLOCK < length:
            request.table.append(self.pool.take())
        self.tables[request.row, :len(request.table)] = request.table

    def shrink(self, request):
        """Takes back the blocks behind what is computed, as after a rejected draft."""
        keep = -(-request.computed // BLOCK)
        while len(request.table) > keep:
            self.pool.drop(request.table.pop())

    def finish(self, request):
        for number in request.table:
            self.pool.drop(number)
        self.rows.append(request.row)
        self.running.remove(request)

    def propose(self, request):
        """What followed the last token when it was seen before, else its successors."""
        tokens, drafts = request.tokens, []
        for at in range(len(tokens) - 2, -1, -1):
            if tokens[at] == tokens[-1]:
                drafts = tokens[at + 1:at + 1 + request.draft]
                break
        while len(drafts) < request.draft:
            drafts = drafts + [(tokens[-1] + 7 * len(drafts) + 1) % 300]
        return drafts

    def schedule(self):
        """Requests of this step with the tokens that each feeds: those that decode first, then parts of prompts."""
        left, chosen = self.budget, []
        for request in self.running:
            if request.decoding:
                fed = [request.tokens[-1]] + (self.propose(request) if request.draft else [])
                chosen.append((request, fed))
                left -= len(fed)
        for request in self.running:
            if not request.decoding and left > 0:
                fed = request.tokens[request.computed:request.computed + left]
                chosen.append((request, fed))
                left -= len(fed)
        return chosen

    def prepare(self, chosen):
        tokens, positions, slots, starts, lengths = [], [], [], [0], []
        for request, fed in chosen:
            begin = self.ends[request.row]
            length = begin + len(fed)
            self.grow(request, length)
            at = np.arange(begin, length)
            tokens += fed
            positions += list(at)
            slots += list(np.array(request.table)[at // BLOCK] * BLOCK + at % BLOCK)
            starts.append(len(tokens))
            lengths.append(length)
        count = len(tokens)
        pad = -count % GRAPH
        tokens, positions, slots = tokens + [0] * pad, positions + [0] * pad, slots + [PAD] * pad
        tables = [self.tables[request.row] for request, _ in chosen]
        return Batch(np.array(tokens), np.array(positions), np.array(slots), starts, lengths, tables, count)

    def run(self, chosen):
        """A forward pass; the chosen token after each row."""
        numbers = [] if self.alone else [self.names[request.name] for request, _ in chosen]
        fed = [token for _, tokens in chosen for token in tokens]
        batch = self.prepare(chosen)
        whose = [number for number, (_, tokens) in zip(numbers, chosen) for _ in tokens]
        with self.capture.step(fed, sequences=None if self.alone else whose):
            if not self.alone:
                self.capture.add("positions", batch.positions[:batch.count])
                self.capture.add("slots", batch.slots[:batch.count])
            keys = [request.computed + len(tokens) for request, tokens in chosen]
            for s, number in enumerate(numbers):
                self.capture.add("tables", self.model.slots_of(batch.tables[s], keys[s]), sequence=number)
            logits = self.model.forward(batch, Tap(self.capture, numbers, batch.count, keys))
        return batch, logits.argmax(-1)

    def step(self, step):
        self.admit(step)
        chosen = self.schedule()
        if not chosen:
            return bool(self.waiting)
        batch, best = self.run(chosen)
        for s, (request, fed) in enumerate(chosen):
            number, first = self.names[request.name], batch.starts[s]
            self.texts[number] += fed
            request.begun = True
            if request.computed + len(fed) < len(request.tokens):  # a part of a prompt, not its last
                request.computed += len(fed)
                self.ends[request.row] += len(fed)
            else:
                # The first row to which a token was fed that the model chose; drafts after it count as long as they are right.
                base = len(request.tokens) - 1 - request.computed
                accepted = 0
                while base + 1 + accepted < len(fed) and fed[base + 1 + accepted] == best[first + base + accepted]:
                    accepted += 1
                request.tokens += fed[base + 1:base + 1 + accepted] + [int(best[first + base + accepted])]
                request.computed += base + 1 + accepted
                self.ends[request.row] += base + 1 + accepted
                if base + 1 + accepted < len(fed):
                    self.shrink(request)
                    if len(request.tokens) < request.wanted:
                        self.number(request, number, request.computed)
            self.pool.publish(request.tokens, request.table, request.computed)
            if len(request.tokens) >= request.wanted and request.computed >= len(request.tokens) - 1:
                self.finish(request)
        return bool(self.running or self.waiting)


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("model")
    parse.add_argument("--work")
    parse.add_argument("--tokens")
    parse.add_argument("--passes", type=lambda text: [int(n) for n in text.split(",")])
    parse.add_argument("--decoded")
    parse.add_argument("--kv", default="f32")
    args = parse.parse_args()
    arithmetic = {} if args.kv == "f32" else {"arithmetic": {"kv": args.kv}}
    with Capture(engine="pagoda", **arithmetic) as capture:
        if args.work:
            server = Server(args.model, capture, args.kv)
            server.waiting = [Request(f"r{i}", **r) for i, r in enumerate(json.load(open(args.work)))]
            step = 0
            while server.step(step):
                step += 1
            return
        ids = lambda path: [int(line) for line in open(path)]
        prompt, decoded = ids(args.tokens), ids(args.decoded) if args.decoded else []
        server = Server(args.model, capture, args.kv, alone=True)
        request = Request("r0", prompt + decoded)
        request.row = server.rows.pop(0)
        for count in args.passes + [1] * len(decoded):
            server.run([(request, request.tokens[request.computed:request.computed + count])])
            request.computed += count
            server.ends[request.row] += count


main()
