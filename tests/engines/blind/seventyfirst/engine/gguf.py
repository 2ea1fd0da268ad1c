"""GGUF files. Every matrix becomes f32, rows as the file has them: y = W x."""
import struct
from types import SimpleNamespace

import numpy as np

F = np.float32


def f16(b):
    return np.ascontiguousarray(b).view("<f2").astype(F)


def bf16(b):
    return (np.ascontiguousarray(b).view("<u2").astype(np.uint32) << 16).view(F)


def q4_0(b):
    q = np.concatenate([b[:, 2:] & 15, b[:, 2:] >> 4], 1).astype(F) - 8
    return f16(b[:, :2]) * q


def q5_0(b):
    bits = np.ascontiguousarray(b[:, 2:6]).view("<u4") >> np.arange(32, dtype=np.uint32) & 1
    q = np.concatenate([b[:, 6:] & 15, b[:, 6:] >> 4], 1) | (bits << 4)
    return f16(b[:, :2]) * (q.astype(F) - 16)


def q8_0(b):
    return f16(b[:, :2]) * b[:, 2:].view(np.int8).astype(F)


def q4_k(b):
    """256 weights: d, dmin, twelve bytes of eight scales and eight minima of six bits, 128 bytes of nibbles."""
    d, least, s, q = f16(b[:, 0:2]), f16(b[:, 2:4]), b[:, 4:16], b[:, 16:]
    scale = np.empty((len(b), 8), np.uint8)
    minimum = np.empty((len(b), 8), np.uint8)
    for j in range(4):
        scale[:, j], minimum[:, j] = s[:, j] & 63, s[:, j + 4] & 63
    for j in range(4, 8):
        scale[:, j] = (s[:, j + 4] & 15) | (s[:, j - 4] >> 6) << 4
        minimum[:, j] = (s[:, j + 4] >> 4) | (s[:, j] >> 6) << 4
    q = q.reshape(-1, 4, 32)
    w = np.stack([q & 15, q >> 4], 2).reshape(-1, 8, 32).astype(F)
    return ((d * scale)[:, :, None] * w - (least * minimum)[:, :, None]).reshape(-1, 256)


def q6_k(b):
    """256 weights: 128 bytes of low nibbles, 64 of high pairs of bits, sixteen scales of a byte, d. Two halves of 128 weights."""
    low, high, scale, d = b[:, :128].reshape(-1, 2, 64), b[:, 128:192].reshape(-1, 2, 32), b[:, 192:208].view(np.int8), f16(b[:, 208:210])
    scale = scale.reshape(-1, 2, 8)
    out = np.empty((len(b), 2, 4, 32), F)
    lane = np.arange(32)
    for quarter in range(4):
        nibbles = low[:, :, 32 * (quarter % 2):32 * (quarter % 2) + 32] >> (4 * (quarter // 2)) & 15
        q = (nibbles | (high >> (2 * quarter) & 3) << 4).astype(F) - 32
        out[:, :, quarter] = scale[:, :, lane // 16 + 2 * quarter].astype(F) * q
    return d * out.reshape(-1, 256)


# By ggml's number: weights and bytes of a block, and what they are.
KINDS = {0: (1, 4, None), 1: (1, 2, f16), 2: (32, 18, q4_0), 6: (32, 22, q5_0), 8: (32, 34, q8_0), 12: (256, 144, q4_k), 14: (256, 210, q6_k),
         30: (1, 2, bf16)}


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def one(self, form):
        v, = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return v

    def string(self):
        n = self.one("Q")
        self.at += n
        return bytes(self.data[self.at - n:self.at]).decode("utf-8", "replace")

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            kind, n = self.one("I"), self.one("Q")
            return [self.value(kind) for _ in range(n)]
        return self.one("BbHhIif?__Qqd"[kind])


def load(path):
    """Hyperparameters and weights."""
    r = Reader(memoryview(open(path, "rb").read()))
    r.at = 8
    tensors, keys = r.one("Q"), r.one("Q")
    meta = {}
    for _ in range(keys):
        name = r.string()
        meta[name] = r.value(r.one("I"))
    heads = [(r.string(), [r.one("Q") for _ in range(r.one("I"))], r.one("I"), r.one("Q")) for _ in range(tensors)]
    align = meta.get("general.alignment", 32)
    start = (r.at + align - 1) // align * align
    w = {}
    for name, shape, kind, offset in heads:
        per, size, decode = KINDS[kind]
        raw = np.frombuffer(r.data, np.uint8, int(np.prod(shape)) // per * size, start + offset)
        w[name] = (raw.view("<f4") if decode is None else decode(raw.reshape(-1, size))).astype(F).reshape(shape[::-1])
    arch = meta["general.architecture"]
    get = lambda key, other=None: meta.get(f"{arch}.{key}", other)
    c = SimpleNamespace(arch=arch, layers=get("block_count"), width=get("embedding_length"), heads=get("attention.head_count"),
                        groups=get("attention.head_count_kv"), eps=F(get("attention.layer_norm_rms_epsilon")), base=get("rope.freq_base"),
                        context=get("context_length"))
    c.dim = get("attention.key_length", c.width // c.heads)
    c.rotated = get("rope.dimension_count", c.dim)
    c.experts, c.taken = get("expert_count", 0), get("expert_used_count", 0)
    c.yarn = get("rope.scaling.factor") if get("rope.scaling.type") == "yarn" else None
    c.trained = get("rope.scaling.original_context_length", c.context)
    every = get("full_attention_interval", 0)
    c.recurrent = [bool(every) and (l + 1) % every != 0 for l in range(c.layers)]
    if every:
        c.taps, c.state = get("ssm.conv_kernel"), get("ssm.state_size")
        c.key_heads, c.value_heads = get("ssm.group_count"), get("ssm.time_step_rank")
    return c, w
