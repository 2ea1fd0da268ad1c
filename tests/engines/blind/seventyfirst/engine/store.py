"""Caches of keys or of values: rows by slots, as numbers or in blocks of 32, coded as ggml does."""
import numpy as np

from pages import PAGE

F = np.float32
BLOCK = 32


class Plain:
    def __init__(self, pages, groups, dim, dtype):
        self.rows = np.zeros((pages * PAGE, groups, dim), dtype)

    def put(self, slots, x):
        self.rows[slots] = x

    def get(self, slots):
        return self.rows[slots].astype(F)

    def copy(self, a, b):
        self.rows[b * PAGE:(b + 1) * PAGE] = self.rows[a * PAGE:(a + 1) * PAGE]


class Coded:
    """Codes of a byte each, beside them scales and offsets as halves: [slots, groups, blocks]."""

    def __init__(self, pages, groups, dim, kind):
        self.kind = kind
        self.codes = np.zeros((pages * PAGE, groups, dim // BLOCK, BLOCK), np.int8)
        self.scale = np.zeros((pages * PAGE, groups, dim // BLOCK, 1), np.float16)
        self.offset = np.zeros_like(self.scale)

    def put(self, slots, x):
        b = x.reshape(*x.shape[:-1], -1, BLOCK).astype(F)
        if self.kind == "q8_0":
            largest = np.abs(b).max(-1, keepdims=True)
            d, low = largest / F(127), np.zeros_like(largest)
        else:  # q4_1
            low = b.min(-1, keepdims=True)
            d = (b.max(-1, keepdims=True) - low) / F(15)
        by = np.divide(F(1), d, out=np.zeros_like(d), where=d != 0)
        if self.kind == "q8_0":
            v = b * by
            codes = np.trunc(v + np.copysign(F(0.5), v))
        else:
            codes = np.minimum(15, np.trunc((b - low) * by + F(0.5)))
        self.codes[slots], self.scale[slots], self.offset[slots] = codes.astype(np.int8), d, low

    def get(self, slots):
        x = self.codes[slots].astype(F) * self.scale[slots].astype(F) + self.offset[slots].astype(F)
        return x.reshape(*x.shape[:-2], -1)

    def copy(self, a, b):
        for held in (self.codes, self.scale, self.offset):
            held[b * PAGE:(b + 1) * PAGE] = held[a * PAGE:(a + 1) * PAGE]


class Brain:
    """bf16: the upper half of the bits of an f32, to nearest, halves to even."""

    def __init__(self, pages, groups, dim):
        self.rows = np.zeros((pages * PAGE, groups, dim), np.uint16)

    def put(self, slots, x):
        bits = np.ascontiguousarray(x, F).view(np.uint32)
        bits = bits + (np.uint32(0x7fff) + (bits >> 16 & 1))
        self.rows[slots] = (bits >> 16).astype(np.uint16)

    def get(self, slots):
        return (self.rows[slots].astype(np.uint32) << 16).view(F)

    def copy(self, a, b):
        self.rows[b * PAGE:(b + 1) * PAGE] = self.rows[a * PAGE:(a + 1) * PAGE]


SCALES = {("k", 0): 0.02, ("v", 0): 0.011, ("k", 1): 0.017, ("v", 1): 0.013, ("k", 2): 0.015, ("v", 2): 0.009}  # calibrated


class Eight:
    """8-bit floats, 4 bits of exponent and 3 of mantissa, divided by a scale of the layer."""

    def __init__(self, pages, groups, dim, which, layer):
        self.scale = F(SCALES[which, layer])
        self.rows = np.zeros((pages * PAGE, groups, dim), F)  # numbers of the format

    def put(self, slots, x):
        y = np.clip(x.astype(F) / self.scale, F(-448), F(448))
        exponent = np.maximum(np.frexp(y)[1] - 1, -6)
        step = np.ldexp(F(1), exponent - 3).astype(F)
        self.rows[slots] = np.rint(y / step) * step

    def get(self, slots):
        return self.rows[slots] * self.scale

    def copy(self, a, b):
        self.rows[b * PAGE:(b + 1) * PAGE] = self.rows[a * PAGE:(a + 1) * PAGE]


def make(pages, groups, dim, kind, which, layer):
    if kind in ("f32", "f16"):
        return Plain(pages, groups, dim, {"f32": F, "f16": np.float16}[kind])
    if kind == "bf16":
        return Brain(pages, groups, dim)
    return Eight(pages, groups, dim, which, layer) if kind == "f8_e4m3" else Coded(pages, groups, dim, kind)
