"""A Qwen2 in numpy that is cut over ranks, each rank a process of its own, on GGUF files of F32 weights: an engine that is not
qdiff's. Each rank dumps its own part of every stage with the package of tap/python.

Usage: ranks.py MODEL --tokens FILE --decoded FILE [--ranks N] [--bug NAME]
       --bug row       in layer 1, the rows of rank 1's query weight begin one row too late
       --bug twice     in layer 1, rank 1 adds up the sums of all ranks once more after down
       --bug missing   in layer 0, rank 0 goes on with its own part of the attention's output
       --bug stale     in layer 1, rank 0 adds rank 1's part of the layer before
       --bug heads     in layer 1, rank 1 takes the key head of rank 0
       --bug order     rank 0 puts the shards of the logits together in the reverse order
       --bug context   in layer 1, rank 1 makes its part of the attention's output from the context of the step before
"""

import argparse
import multiprocessing
import os
import struct

import numpy as np
from qdiff_capture import Capture

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--tokens")
parser.add_argument("--decoded")
parser.add_argument("--ranks", type=int, default=2)
parser.add_argument("--bug")


def gguf(path):
    """The metadata and the tensors of a file."""
    data = memoryview(open(path, "rb").read())
    at = 8

    def take(form):
        nonlocal at
        value = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return value[0]

    def text():
        nonlocal at
        length = take("Q")
        at += length
        return bytes(data[at - length:at]).decode()

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            inner, count = take("I"), take("Q")
            return [value(inner) for _ in range(count)]
        return take("BbHhIif?__Qqd"[kind])

    tensors, fields = take("Q"), take("Q")
    metadata = {text(): value(take("I")) for _ in range(fields)}
    infos = [(text(), [take("Q") for _ in range(take("I"))], take("I"), take("Q")) for _ in range(tensors)]
    start = -(-at // 32) * 32
    weights = {}
    for name, extents, kind, offset in infos:
        assert kind == 0, f"{name} is not F32"
        weights[name] = np.frombuffer(data, "<f4", int(np.prod(extents)), start + offset).reshape(extents[::-1])
    return metadata, weights


def bounds(count, ranks):
    return [count * rank // ranks for rank in range(ranks + 1)]


class Rank:
    def __init__(self, args, rank, hub):
        metadata, self.w = gguf(args.model)
        key = lambda name: metadata["qwen2." + name]
        self.rank, self.hub, self.bug = rank, hub, args.bug
        self.layers, heads, kv = key("block_count"), key("attention.head_count"), key("attention.head_count_kv")
        self.group, self.eps = heads // kv, np.float32(key("attention.layer_norm_rms_epsilon"))
        self.base, self.d = key("rope.freq_base"), self.w["blk.0.attn_q.weight"].shape[0] // heads
        vocab, ffn = len(self.w["token_embd.weight"]), len(self.w["blk.0.ffn_gate.weight"])
        shares = lambda all: "+".join(str(b - a) for a, b in zip(all, all[1:]))
        cuts = [[self.group * at for at in bounds(kv, args.ranks)], bounds(ffn, args.ranks), bounds(vocab, args.ranks)]
        self.heads, self.ffn, self.vocab = (slice(cut[rank], cut[rank + 1]) for cut in cuts)
        self.kv = slice(self.heads.start // self.group, self.heads.stop // self.group)
        ranks = f"{args.ranks}:heads={shares(cuts[0])},ffn={shares(cuts[1])},vocab={shares(cuts[2])}"
        self.dump = Capture(engine=f"numpy, {args.ranks} ranks", rank=rank, ranks=ranks)
        self.cache, self.position, self.last = [None] * self.layers, 0, {}

    def exchange(self, own):
        """What each rank gives."""
        self.hub.send(own)
        return self.hub.recv()

    def norm(self, x, name):
        return (x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.eps)).astype("f4") * self.w[name]

    def rope(self, x, positions):
        half = self.d // 2
        angle = positions[:, None, None] * self.base ** (-np.arange(half) / half)
        cos, sin = np.cos(angle).astype("f4"), np.sin(angle).astype("f4")
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)

    def is_wrong(self, bug, layer, rank):
        return (self.bug, layer, self.rank) == (bug, {"missing": 0}.get(bug, 1), rank)

    def reduce(self, stage, part, layer):
        """The sum of all ranks' parts."""
        self.add(stage + "_partial", part, layer)
        parts = self.exchange(part)
        total = sum(parts[1:], parts[0])
        if stage == "ffn_down":
            before, self.last["parts"] = self.last.get("parts"), parts
            if self.is_wrong("stale", layer, 0):
                total = parts[0] + before[1]
            if self.is_wrong("twice", layer, 1):
                total = total + total
        if stage == "attn_out" and self.is_wrong("missing", layer, 0):
            total = part
        self.add(stage, total, layer)
        return total

    def add(self, stage, array, layer=None):
        self.dump.add(stage, np.ascontiguousarray(array, "f4"), layer=layer)
        return array

    def layer(self, x, l, positions):
        p, t, d = f"blk.{l}.", len(x), self.d
        add = lambda stage, array: self.add(stage, array, l)
        h = add("attn_norm", self.norm(x, p + "attn_norm.weight"))
        made = {}
        for n, own in (("q", self.heads), ("k", self.kv), ("v", self.kv)):
            rows = slice(own.start * d, own.stop * d)
            of_weight = rows
            if n == "q" and self.is_wrong("row", l, 1):
                of_weight = slice(rows.start - 1, rows.stop - 1)
            if n == "k" and self.is_wrong("heads", l, 1):
                of_weight = slice(0, rows.stop - rows.start)
            product = add(n + "_proj", h @ self.w[p + f"attn_{n}.weight"][of_weight].T)
            made[n] = add(n + "_biased", product + self.w[p + f"attn_{n}.bias"][rows])
        q, k = (add(n + "_rope", self.rope(made[n].reshape(t, -1, d), positions)) for n in "qk")
        v = made["v"].reshape(t, -1, d)
        if self.cache[l]:
            k, v = (np.concatenate([old, new]) for old, new in zip(self.cache[l], (k, v)))
        self.cache[l] = (k, v)
        add("k_cache", k), add("v_cache", v)
        k, v = (np.repeat(a, self.group, 1) for a in (k, v))
        scores = add("attn_scores", np.einsum("thd,khd->htk", q, k))
        scaled = scores / np.float32(np.sqrt(d))
        scaled[:, np.arange(len(k))[None, :] > positions[:, None]] = -np.inf
        powers = np.exp(scaled - scaled.max(-1, keepdims=True))
        weights = add("attn_weights", powers / powers.sum(-1, keepdims=True))
        context = add("attn_context", np.einsum("htk,khd->thd", weights, v).reshape(t, -1))
        if self.is_wrong("context", l, 1):
            old, self.last["context"] = self.last.get("context", np.zeros_like(context)), context
            context = np.broadcast_to(old[-1:], context.shape)
        columns = slice(self.heads.start * d, self.heads.stop * d)
        x = add("attn_residual", x + self.reduce("attn_out", context @ self.w[p + "attn_output.weight"][:, columns].T, l))
        h = add("ffn_norm", self.norm(x, p + "ffn_norm.weight"))
        gate, up = (add("ffn_" + n, h @ self.w[p + f"ffn_{n}.weight"][self.ffn].T) for n in ("gate", "up"))
        act = add("ffn_act", gate / (1 + np.exp(-gate)) * up)
        return add("layer_out", x + self.reduce("ffn_down", act @ self.w[p + "ffn_down.weight"][:, self.ffn].T, l))

    def forward(self, tokens):
        positions = np.arange(self.position, self.position + len(tokens))
        with self.dump.step(tokens):
            x = self.add("embed", self.w["token_embd.weight"][tokens])
            for l in range(self.layers):
                x = self.layer(x, l, positions)
            x = self.add("final_norm", self.norm(x, "output_norm.weight"))
            head = self.w.get("output.weight", self.w["token_embd.weight"])
            shards = self.exchange(self.add("logits_shard", x @ head[self.vocab].T))
            order = -1 if self.bug == "order" and self.rank == 0 else 1
            self.add("logits", np.concatenate(shards[::order], -1))
        self.position += len(tokens)


def run(args, rank, hub):
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    ids = lambda path: [int(line) for line in open(path)]
    engine = Rank(args, rank, hub)
    for tokens in [ids(args.tokens)] + [[token] for token in ids(args.decoded)]:
        engine.forward(tokens)
    engine.dump.close()
    hub.send(None)


if __name__ == "__main__":
    args = parser.parse_args()
    pipes = [multiprocessing.Pipe() for _ in range(args.ranks)]
    ranks = [multiprocessing.Process(target=run, args=(args, rank, own)) for rank, (_, own) in enumerate(pipes)]
    for rank in ranks:
        rank.start()
    while (parts := [hub.recv() for hub, _ in pipes])[0] is not None:
        for hub, _ in pipes:
            hub.send(parts)
    for rank in ranks:
        rank.join()
        assert rank.exitcode == 0, "a rank ended with an error"
