"""A Qwen2 in numpy, on GGUF files of F32 weights: an engine that is not qdiff's, started as `cmd:` or `serve:`.

Usage: engine.py MODEL --tokens FILE [-n N] [--decoded FILE] [--ubatch N | --passes N,N,…]     one run; tokens are ids, one a line
       engine.py MODEL --sequences FILE                                     passes of several sequences, a line of JSON for each
       engine.py MODEL --serve                                              a line of JSON for each step
       --bug base      the rotary base is 10000, not that of the file
       --bug cache     a decoded token overwrites the last row of the cache
       --bug draft     tokens of a rejected draft stay in the cache
       --bug argmin    the next token is that of the smallest logit
       --bug random    L01 ends in other values each time
"""

import argparse
import json
import os
import struct
import sys

import numpy as np


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
    alignment = metadata.get("general.alignment", 32)
    start = -(-at // alignment) * alignment
    weights = {}
    for name, extents, kind, offset in infos:
        assert kind == 0, f"{name} is not F32"
        count = int(np.prod(extents))
        weights[name] = np.frombuffer(data, "<f4", count, start + offset).reshape(extents[::-1])
    return metadata, weights


class Dump:
    """Lines and elements in the folder that QDIFF_DUMP names."""

    def __init__(self):
        folder = os.environ.get("QDIFF_DUMP") or sys.exit("QDIFF_DUMP names no folder: start this engine with qdiff")
        self.bin, self.lines = (open(os.path.join(folder, name), "wb") for name in ("a.bin", "capture.jsonl"))
        self.step = 0
        self.line({"schema_version": 3, "engine": "numpy"})

    def line(self, line):
        self.bin.flush()
        self.lines.write(json.dumps(line).encode() + b"\n")
        self.lines.flush()

    def add(self, name, array):
        array = np.ascontiguousarray(array, dtype="<f4")
        offset = self.bin.tell()
        self.bin.write(array.tobytes())
        self.line({"step": self.step, "name": name, "dtype": "f32", "shape": array.shape, "file": "a.bin", "offset": offset})

    def end(self, first, tokens):
        self.line({"end": self.step, "first": first, "tokens": tokens})
        self.step += 1


class Engine:
    def __init__(self, path, bug):
        self.dump = Dump()
        metadata, self.w = gguf(path)
        key = lambda name: metadata["qwen2." + name]
        self.layers, self.heads, self.kv_heads = key("block_count"), key("attention.head_count"), key("attention.head_count_kv")
        self.eps = np.float32(key("attention.layer_norm_rms_epsilon"))
        self.base = 10000.0 if bug == "base" else key("rope.freq_base")
        self.bug = bug
        self.cache = {}  # by sequence, the keys and the values of each layer
        self.position = 0

    def norm(self, x, name):
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.eps) * self.w[name]

    def rope(self, x, positions):
        half = x.shape[-1] // 2
        angle = positions[:, None, None] * self.base ** (-np.arange(half) / half)
        cos, sin = np.cos(angle).astype("f4"), np.sin(angle).astype("f4")
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)

    def layer(self, x, l, sequences, positions):
        p, t, g = f"blk.{l}.", len(x), self.kv_heads
        h = self.norm(x, p + "attn_norm.weight")
        q, k, v = (h @ self.w[p + f"attn_{n}.weight"].T + self.w[p + f"attn_{n}.bias"] for n in "qkv")
        q, k = self.rope(q.reshape(t, self.heads, -1), positions), self.rope(k.reshape(t, g, -1), positions)
        v = v.reshape(t, g, -1)
        context = np.zeros((t, x.shape[1]), "f4")
        for sequence in np.unique(sequences):
            rows = sequences == sequence
            context[rows] = self.attention(l, sequence, q[rows], k[rows], v[rows], positions[rows])
        x = x + context @ self.w[p + "attn_output.weight"].T
        h = self.norm(x, p + "ffn_norm.weight")
        gate, up = (h @ self.w[p + f"ffn_{n}.weight"].T for n in ("gate", "up"))
        return x + (gate / (1 + np.exp(-gate)) * up) @ self.w[p + "ffn_down.weight"].T

    def attention(self, l, sequence, q, k, v, positions):
        cache = self.cache.setdefault(sequence, [None] * self.layers)
        if cache[l]:
            keep = slice(None, -1 if self.bug == "cache" and len(q) == 1 else None)
            k, v = (np.concatenate([old[keep], new]) for old, new in zip(cache[l], (k, v)))
        cache[l] = (k, v)
        k, v = (np.repeat(a, self.heads // self.kv_heads, 1) for a in (k, v))
        scores = np.einsum("thd,khd->htk", q, k) / np.float32(np.sqrt(q.shape[-1]))
        places = np.arange(len(k)) + (positions[-1] + 1 - len(k))
        scores[:, places[None, :] > positions[:, None]] = -np.inf
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        return np.einsum("htk,khd->thd", scores / scores.sum(-1, keepdims=True), v).reshape(len(q), -1)

    def forward(self, tokens, sequences=None, positions=None, prefixes=(), taken_back=()):
        """Runs a pass. Rows are of the sequences and at the positions that are given, or the next ones of sequence 0."""
        if sequences:
            self.dump.line({"step": self.dump.step, "sequences": sequences, "prefixes": prefixes, "taken_back": taken_back})
        first = self.position
        sequences = np.array(sequences or [0] * len(tokens))
        positions = np.array(positions or range(first, first + len(tokens)))
        begin = [(sequence, sequence, kept) for sequence, kept in taken_back if self.bug != "draft"] + list(prefixes)
        for source, sequence, kept in begin:
            self.cache[sequence] = [(k[:kept], v[:kept]) for k, v in self.cache[source]]
        x = self.w["token_embd.weight"][tokens]
        self.dump.add("embed", x)
        for l in range(self.layers):
            x = self.layer(x, l, sequences, positions)
            if self.bug == "random" and l == 1:
                x = x + np.random.default_rng().normal(size=x.shape).astype("f4")
            self.dump.add(f"L{l:02}.layer_out", x)
        logits = self.norm(x, "output_norm.weight") @ self.w.get("output.weight", self.w["token_embd.weight"]).T
        self.dump.add("logits", logits)
        self.dump.end(first, tokens)
        self.position += len(tokens)
        return int((np.argmin if self.bug == "argmin" else np.argmax)(logits[-1]))


parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--tokens")
parser.add_argument("-n", type=int, default=0)
parser.add_argument("--decoded")
parser.add_argument("--ubatch", type=int, default=1 << 30)
parser.add_argument("--passes", type=lambda text: [int(n) for n in text.split(",")])
parser.add_argument("--sequences")
parser.add_argument("--serve", action="store_true")
parser.add_argument("--bug")
args = parser.parse_args()
engine = Engine(args.model, args.bug)
of_pass = lambda told: {name: told[name] for name in ("tokens", "sequences", "positions", "prefixes", "taken_back") if name in told}
if args.serve:
    for line in sys.stdin:
        step = json.loads(line)
        print("loading, and other things that an engine prints")
        engine.forward(**of_pass(step))
        print(json.dumps({"step": step["step"], "rows": len(step["tokens"])}), flush=True)
elif args.sequences:
    for line in open(args.sequences):
        engine.forward(**of_pass(json.loads(line)))
else:
    ids = lambda path: [int(line) for line in open(path)]
    prompt = ids(args.tokens)
    begin = 0
    for count in args.passes or [args.ubatch] * -(-len(prompt) // args.ubatch):
        chosen = engine.forward(prompt[begin:begin + count])
        begin += count
    fed = ids(args.decoded) if args.decoded else [None] * args.n
    for token in fed:
        chosen = engine.forward([chosen if token is None else token])
