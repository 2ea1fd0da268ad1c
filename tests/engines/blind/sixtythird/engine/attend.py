"""Attention: tiles of queries and keys for a prefill, splits of keys for a decode step, and a shared prefix apart from what follows."""
import numpy as np

F = np.float32
QUERIES, KEYS = 4, 8  # of a tile
SPLIT = 16            # keys of a split of a decode step
LANES = 32            # elements of a head that are merged at a time


def expand(x, heads):
    """[N, G, D] as [H, N, D]."""
    return np.repeat(x.transpose(1, 0, 2), heads // x.shape[1], 0)


def part(q, k, v, scale, reach, begin, end, looked, scores):
    """Queries [H, T, D], each of which sees keys up to its reach, with keys begin..end-1: context and logarithm of the total.
    What it looked at is marked in [T, N], and its scores go to [H, T, N]."""
    heads, tokens, dim = q.shape
    sums, most, total = np.zeros((heads, tokens, dim), F), np.full((heads, tokens), -np.inf, F), np.zeros((heads, tokens), F)
    for q0 in range(0, tokens, QUERIES):
        q1 = min(q0 + QUERIES, tokens)
        last = min(end, reach[q0:q1].max() + 1)  # behind the last key that a query of the tile sees
        for k0 in range(begin, last, KEYS):
            k1 = min(k0 + KEYS, end)
            s = q[:, q0:q1] @ k[:, k0:k1].transpose(0, 2, 1)
            looked[q0:q1, k0:k1], scores[:, q0:q1, k0:k1] = True, s
            s = s * scale
            hidden = np.arange(k0, k1)[None] > reach[q0:q1, None]
            s[:, hidden] = -np.inf
            before = most[:, q0:q1]
            now = np.maximum(before, s.max(-1))
            base = np.where(np.isinf(now), F(0), now)
            e, less = np.exp(s - base[:, :, None]), np.exp(before - base)
            sums[:, q0:q1] = sums[:, q0:q1] * less[:, :, None] + e @ v[:, k0:k1]
            total[:, q0:q1] = total[:, q0:q1] * less + e.sum(-1)
            most[:, q0:q1] = now
    return sums / total[:, :, None], most.astype(float) + np.log(total)


def merge(prefix, rest, prefix_log, rest_log):
    """Contexts over two sets of keys put together by the logarithms of their totals; also the logarithm of both."""
    out = np.empty_like(prefix)
    for at in range(0, out.shape[-1], LANES):
        lanes = slice(at, at + LANES)
        largest = np.maximum(prefix_log, rest_log)
        a, b = np.exp(prefix_log - largest), np.exp(rest_log - largest)
        out[..., lanes] = (a / (a + b))[..., None] * prefix[..., lanes] + (b / (a + b))[..., None] * rest[..., lanes]
        both = largest + np.log(a + b)
    return out, both


def prefill(q, k, v, scale, first, shared):
    """Several queries of a sequence, its first at `first`; `shared` keys are of a prefix that it shares."""
    heads, tokens, keys = q.shape[0], q.shape[1], k.shape[1]
    reach = first + np.arange(tokens)
    looked, scores = np.zeros((tokens, keys), bool), q @ k.transpose(0, 2, 1)
    context, log = part(q, k, v, scale, reach, shared, keys, looked, scores)
    if shared:  # the prefix is a part of its own
        front, front_log = part(q, k, v, scale, reach, 0, shared, looked, scores)
        context, log = merge(front, context, front_log, log)
    seen = looked & (np.arange(keys)[None] <= reach[:, None])
    s = np.where(seen[None], scores * scale, F(-np.inf))
    e = np.exp(s - s.max(-1, keepdims=True))
    return scores, e / e.sum(-1, keepdims=True), context


def decode(q, k, v, scale, length):
    """One query of a sequence, [H, 1, D]; keys come in whole pages, and the first `length` of them are the sequence's."""
    keys = k.shape[1]
    scores = q @ k.transpose(0, 2, 1)
    scaled = np.where(np.arange(keys) < length, scores * scale, F(-np.inf))
    weights = np.zeros_like(scores)
    most, total, sums = np.full((len(q), 1), -np.inf, F), np.zeros((len(q), 1), F), np.zeros_like(q)
    for k0 in range(0, keys, SPLIT):
        s = scaled[:, :, k0:k0 + SPLIT]
        now = np.maximum(most, s.max(-1))
        less = np.exp(most - now)
        e = np.exp(s - now[:, :, None])
        weights[:, :, :k0] *= less[:, :, None]
        weights[:, :, k0:k0 + SPLIT] = e
        sums = sums * less[:, :, None] + e @ v[:, k0:k0 + SPLIT]
        total = total * less + e.sum(-1)
        most = now
    return scores[:, :, :length], (weights / total[:, :, None])[:, :, :length], sums / total[:, :, None]
