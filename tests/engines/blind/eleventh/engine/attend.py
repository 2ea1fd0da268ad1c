"""Attention: tiles of queries and keys for a prefill, splits of keys for a decode step, and a shared prefix apart from what follows."""
import numpy as np

F = np.float32
QUERIES, KEYS = 4, 8  # of a tile
SPLIT = 16            # keys of a split of a decode step


def expand(x, heads):
    """[N, G, D] as [H, N, D]."""
    return np.repeat(x.transpose(1, 0, 2), heads // x.shape[1], 0)


def part(q, k, v, scale, first, begin, end, looked, scores):
    """Queries [H, T, D] at positions first.., with keys begin..end-1: the sums, the largest and the total.
    What it looked at is marked in [T, N], and its scores go to [H, T, N]."""
    heads, tokens, dim = q.shape
    sums, most, total = np.zeros((heads, tokens, dim), F), np.full((heads, tokens), -np.inf, F), np.zeros((heads, tokens), F)
    for q0 in range(0, tokens, QUERIES):
        q1 = min(q0 + QUERIES, tokens)
        last = min(end, first + q1)  # behind the last key that a query of the tile sees
        for k0 in range(begin, last, KEYS):
            k1 = min(k0 + KEYS, end)
            s = q[:, q0:q1] @ k[:, k0:k1].transpose(0, 2, 1)
            looked[q0:q1, k0:k1], scores[:, q0:q1, k0:k1] = True, s
            s = s * scale
            hidden = np.arange(k0, k1)[None] > first + np.arange(q0, q1)[:, None]
            s[:, hidden] = -np.inf
            before = most[:, q0:q1]
            now = np.maximum(before, s.max(-1))
            base = np.where(np.isinf(now), F(0), now)
            e, less = np.exp(s - base[:, :, None]), np.exp(before - base)
            sums[:, q0:q1] = sums[:, q0:q1] * less[:, :, None] + e @ v[:, k0:k1]
            total[:, q0:q1] = total[:, q0:q1] * less + e.sum(-1)
            most[:, q0:q1] = now
    return sums, most, total


def prefill(q, k, v, scale, first, shared):
    """Several queries of a sequence, its first at `first`; `shared` keys are of a prefix that it shares."""
    heads, tokens, keys = q.shape[0], q.shape[1], k.shape[1]
    looked, scores = np.zeros((tokens, keys), bool), q @ k.transpose(0, 2, 1)
    sums, most, total = part(q, k, v, scale, first, shared, keys, looked, scores)
    if shared:
        # The prefix is a part of its own; both are put together by the logarithm of their totals.
        front = part(q, k, v, scale, first, 0, shared, looked, scores)
        logs = [m.astype(float) + np.log(t) for _, m, t in (front, (sums, most, total))]
        largest = np.maximum(*logs)
        by = [np.exp(l - largest) for l in logs]
        context = sum((b / (by[0] + by[1]) / t)[:, :, None] * s for b, (s, _, t) in zip(by, (front, (sums, most, total)))).astype(F)
    else:
        context = sums / total[:, :, None]
    seen = looked & (np.arange(keys)[None] <= first + np.arange(tokens)[:, None])
    s = np.where(seen[None], scores * scale, F(-np.inf))
    e = np.exp(s - s.max(-1, keepdims=True))
    return scores, e / e.sum(-1, keepdims=True), context


def decode(q, k, v, scale):
    """One query of a sequence, [H, 1, D], which sees all keys."""
    keys = k.shape[1]
    scores = q @ k.transpose(0, 2, 1)
    weights = np.zeros_like(scores)
    most, total, sums = np.full((len(q), 1), -np.inf, F), np.zeros((len(q), 1), F), np.zeros_like(q)
    for k0 in range(0, keys, SPLIT):
        s = scores[:, :, k0:k0 + SPLIT] * scale
        now = np.maximum(most, s.max(-1))
        less = np.exp(most - now)
        e = np.exp(s - now[:, :, None])
        weights[:, :, :k0] *= less[:, :, None]
        weights[:, :, k0:k0 + SPLIT] = e
        sums = sums * less[:, :, None] + e @ v[:, k0:k0 + SPLIT]
        total = total * less + e.sum(-1)
        most = now
    return scores, weights / total[:, :, None], sums / total[:, :, None]
