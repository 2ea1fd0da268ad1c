"""GGUF files; block formats become f32, and matrices stand as [in, out], so that a product is x @ w."""
import struct

import numpy as np

CODES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)


def half(raw):
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def q8_0(b):
    return half(b[:, :2]) * b[:, 2:].view(np.int8)


def q5_1(b):
    d, m, qs = half(b[:, 0:2]), half(b[:, 2:4]), b[:, 8:24]
    high = np.ascontiguousarray(b[:, 4:8]).view("<u4")
    bits = (high >> np.arange(32, dtype=np.uint32)) & 1
    q = np.concatenate([qs & 15, qs >> 4], 1).astype(np.float32) + 16 * bits.astype(np.float32)
    return q * d + m


def iq4_nl(b):
    q = np.concatenate([b[:, 2:] & 15, b[:, 2:] >> 4], 1)
    return half(b[:, :2]) * CODES[q]


def q6_k(b):
    low, high, scales, d = b[:, :128], b[:, 128:192], b[:, 192:208].view(np.int8).astype(np.float32), half(b[:, 208:210])
    out = np.empty((len(b), 2, 4, 32), np.float32)
    for n in range(2):
        l, h = low[:, 64 * n:64 * n + 64], high[:, 32 * n:32 * n + 32]
        for j in range(4):
            nibble = l[:, 32 * (j % 2):32 * (j % 2) + 32] >> (4 * (j // 2)) & 15
            q = (nibble | ((h >> (2 * j)) & 3) << 4).astype(np.float32) - 32
            s = np.repeat(scales[:, 8 * n + 2 * j:8 * n + 2 * j + 2], 16, 1)
            out[:, n, j] = d * s * q
    return out.reshape(len(b), 256)


FORMATS = {0: (1, 4, None), 1: (1, 2, half), 7: (32, 24, q5_1), 8: (32, 34, q8_0), 14: (256, 210, q6_k), 20: (32, 18, iq4_nl)}


def read(path):
    data, at = memoryview(open(path, "rb").read()), 8

    def take(form):
        nonlocal at
        v, = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return v

    def text():
        nonlocal at
        n = take("Q")
        at += n
        return bytes(data[at - n:at]).decode()

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            inner, n = take("I"), take("Q")
            return [value(inner) for _ in range(n)]
        return take("BbHhIif?__Qqd"[kind])

    tensors, fields = take("Q"), take("Q")
    meta = {}
    for _ in range(fields):
        key = text()
        meta[key] = value(take("I"))
    infos = [(text(), [take("Q") for _ in range(take("I"))], take("I"), take("Q")) for _ in range(tensors)]
    align = meta.get("general.alignment", 32)
    start = -(-at // align) * align
    weights = {}
    for name, dims, kind, offset in infos:
        per, size, unpack = FORMATS[kind]
        raw = np.frombuffer(data, np.uint8, int(np.prod(dims)) // per * size, start + offset)
        w = raw.view("<f4") if unpack is None else unpack(raw.reshape(-1, size))
        weights[name] = np.ascontiguousarray(w.reshape(dims[::-1]), np.float32)
    return meta, weights
