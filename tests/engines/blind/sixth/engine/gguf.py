"""GGUF files, and their block formats as f32."""
import struct

import numpy as np

F32, F16, Q4_0, Q8_0, Q4_K = 0, 1, 2, 8, 12
SHAPES = {F32: (1, 4), F16: (1, 2), Q4_0: (32, 18), Q8_0: (32, 34), Q4_K: (256, 144)}  # weights, bytes of a block


def halves(raw):
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def dequant_q8_0(raw):
    return halves(raw[:, :2]) * raw[:, 2:].view(np.int8).astype(np.float32)


def dequant_q4_0(raw):
    low, high = raw[:, 2:] & 15, raw[:, 2:] >> 4
    return halves(raw[:, :2]) * (np.concatenate([low, high], 1).astype(np.float32) - 8)


def scales_of_k(packed):
    """The eight scales and eight minima that twelve bytes hold, six bits each."""
    q = packed.astype(np.uint8)
    scale, least = np.empty((len(q), 8), np.uint8), np.empty((len(q), 8), np.uint8)
    scale[:, :4], least[:, :4] = q[:, :4] & 63, q[:, 4:8] & 63
    scale[:, 4:] = (q[:, 8:] & 15) | ((q[:, :4] >> 6) << 4)
    least[:, 4:] = (q[:, 8:] >> 4) | ((q[:, 4:8] >> 6) << 4)
    return scale.astype(np.float32), least.astype(np.float32)


def dequant_q4_k(raw):
    d, dmin = halves(raw[:, 0:2]), halves(raw[:, 2:4])
    scale, least = scales_of_k(raw[:, 4:16])
    q = raw[:, 16:].reshape(-1, 4, 1, 32)
    q = np.concatenate([q & 15, q >> 4], 2).reshape(-1, 8, 32).astype(np.float32)
    return ((d * scale)[:, :, None] * q - (dmin * least)[:, :, None]).reshape(len(raw), -1)


DEQUANT = {Q8_0: dequant_q8_0, Q4_0: dequant_q4_0, Q4_K: dequant_q4_k}


def read(path):
    data = memoryview(open(path, "rb").read())
    at = 8

    def take(form):
        nonlocal at
        value, = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return value

    def text():
        nonlocal at
        count = take("Q")
        at += count
        return bytes(data[at - count:at]).decode()

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            inner, count = take("I"), take("Q")
            return [value(inner) for _ in range(count)]
        return take("BbHhIif?__Qqd"[kind])

    tensors, fields = take("Q"), take("Q")
    meta = {}
    for _ in range(fields):
        key = text()
        meta[key] = value(take("I"))
    infos = []
    for _ in range(tensors):
        name = text()
        infos.append((name, [take("Q") for _ in range(take("I"))], take("I"), take("Q")))
    align = meta.get("general.alignment", 32)
    start = -(-at // align) * align
    weights = {}
    for name, dims, kind, offset in infos:
        per, size = SHAPES[kind]
        count = int(np.prod(dims)) // per * size
        raw = np.frombuffer(data, np.uint8, count, start + offset)
        if kind == F32:
            w = raw.view("<f4")
        elif kind == F16:
            w = halves(raw)
        else:
            w = DEQUANT[kind](raw.reshape(-1, size))
        weights[name] = np.ascontiguousarray(w.reshape(dims[::-1]), np.float32)
    return meta, weights
