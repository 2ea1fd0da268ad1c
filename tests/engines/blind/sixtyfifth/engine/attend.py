"""Attention: a decode step in splits of the keys, a prefill in its cached context, part by part, and its own tokens."""
import numpy as np

F = np.float32
SPLITS = 4        # of the keys of a decode step
WORK = 16         # keys of a part of the cached context
QUERIES, KEYS = 4, 8  # of a tile of a prefill


def part(q, k, v, scale, scores, seen=None):
    """Queries [H, T, D] and keys [H, N, D]: the context over the keys that are seen, and the logarithm of the total. The products go to `scores`."""
    scores[:] = q @ k.transpose(0, 2, 1)
    s = scores * scale
    if seen is not None:
        s[:, ~seen] = -np.inf
    most = s.max(-1)
    base = np.where(np.isinf(most), F(0), most)
    e = np.exp(s - base[:, :, None])
    total = e.sum(-1)
    log = np.where(total > 0, base.astype(float) + np.log(np.where(total > 0, total, F(1))), -np.inf)  # in f64: its rounding counts in full
    return (e @ v) / np.where(total > 0, total, F(1))[:, :, None], log


def merge(a, b):
    """Contexts over two sets of keys, each with the logarithm of its total, put together."""
    (x, x_log), (y, y_log) = a, b
    most = np.maximum(x_log, y_log)
    base = np.where(np.isinf(most), 0, most)
    p, q = np.exp(x_log - base), np.exp(y_log - base)
    both = np.where(p + q > 0, p + q, 1)
    x, y = (p / both).astype(F)[..., None] * x, (q / both).astype(F)[..., None] * y
    return x + y, np.where(p + q > 0, base + np.log(both), -np.inf)


def told(scores, scale, times):
    """Weights for the tap: `times` is how often a query took a key."""
    s = np.where(times[None] > 0, scores * scale, F(-np.inf))
    e = np.exp(s - s.max(-1, keepdims=True)) * times[None].astype(F)
    return e / e.sum(-1, keepdims=True)


def decode(q, k, v, scale, length, page):
    """One query of a sequence, [H, 1, D]."""
    pages = -(-length // page)
    length = min(length, pages * page)
    times, scores = np.zeros((1, k.shape[1]), int), q @ k.transpose(0, 2, 1)
    splits = min(SPLITS, length)
    each = -(-length // splits)
    made = None
    for at in range(0, splits * each, each):
        end = min(at + each, length)
        if at >= end:
            continue
        times[:, at:end] += 1
        one = part(q, k[:, at:end], v[:, at:end], scale, scores[:, :, at:end])
        made = one if made is None else merge(made, one)
    return scores, told(scores, scale, times), made[0]


def prefill(q, k, v, scale, first, offset):
    """Several queries of a sequence with `first` cached tokens; the query t stands at offset + t."""
    tokens, keys = q.shape[1], k.shape[1]
    times, scores = np.zeros((tokens, keys), int), q @ k.transpose(0, 2, 1)
    context = None
    for at in range(0, first, WORK):
        end = min(at + WORK, first)
        one = part(q, k[:, at:end], v[:, at:end], scale, scores[:, :, at:end])
        times[:, at:end] += 1
        context = one if context is None else merge(context, one)
    out, logs = np.zeros_like(q), np.zeros(q.shape[:2])
    for q0 in range(0, tokens, QUERIES):
        q1 = min(q0 + QUERIES, tokens)
        made = None
        for k0 in range(first, keys, KEYS):
            k1 = min(k0 + KEYS, keys)
            seen = np.arange(k0, k1)[None] <= offset + np.arange(q0, q1)[:, None]
            if not seen.any():
                continue
            times[q0:q1, k0:k1] += seen
            one = part(q[:, q0:q1], k[:, k0:k1], v[:, k0:k1], scale, scores[:, q0:q1, k0:k1], seen)
            made = one if made is None else merge(made, one)
        if made is None:
            made = np.zeros_like(q[:, q0:q1]), np.full((len(q), q1 - q0), -np.inf)
        out[:, q0:q1], logs[:, q0:q1] = made
    if context is not None:
        out, _ = merge(context, (out, logs))
    return scores, told(scores, scale, times), out
