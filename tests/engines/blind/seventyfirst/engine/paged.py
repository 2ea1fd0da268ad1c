"""Attention over pages: query tiles that stream over segments of pages, and partitions of a decode step, each put together at the end."""
import numpy as np

from pages import PAGE

F = np.float32
QUERIES = 4     # of a tile
PARTITION = 16  # keys of a partition of a decode step


class Sums:
    """What a walk over keys keeps of each query: the largest score, the total, and the sum of values."""

    def __init__(self, heads, tokens, dim):
        self.most = np.full((heads, tokens), -np.inf, F)
        self.total, self.sums = np.zeros((heads, tokens), F), np.zeros((heads, tokens, dim), F)

    def more(self, s, v):
        now = np.maximum(self.most, s.max(-1))
        base = np.where(np.isinf(now), F(0), now)
        e, less = np.exp(s - base[:, :, None]), np.exp(self.most - base)
        self.sums = self.sums * less[:, :, None] + e @ v
        self.total = self.total * less + e.sum(-1)
        self.most = now


def together(walks):
    """Walks over several sets of keys as one: the largest score, the total, and the context."""
    most = np.max([w.most for w in walks], 0)
    each = [np.exp(w.most - most) for w in walks]
    total = sum(e * w.total for e, w in zip(each, walks))
    return most, total, sum(e[:, :, None] * w.sums for e, w in zip(each, walks)) / total[:, :, None]


def prefill(q, k, v, scale, first, shared):
    """Queries [H, T, D] of a sequence, its first at position `first`, and its keys [H, N, D]; `shared` of them are of a prefix."""
    heads, tokens, dim = q.shape
    keys = k.shape[1]
    reach = first + np.arange(tokens)  # the last key that each query sees
    segments = [(0, shared), (shared, keys)] if shared else [(0, keys)]
    scores, weights, context = np.zeros((heads, tokens, keys), F), np.zeros((heads, tokens, keys), F), np.zeros_like(q)
    for t in range(0, tokens, QUERIES):
        tile = slice(t, min(t + QUERIES, tokens))
        scores[:, tile] = q[:, tile] @ k.transpose(0, 2, 1)
        seen = np.full((heads, tile.stop - t, keys), -np.inf, F)
        walks = []
        for begin, end in segments:
            walk = Sums(heads, tile.stop - t, dim)
            for k0 in range(begin, min(end, reach[tile].max() + 1), PAGE):
                page = np.arange(k0, min(k0 + PAGE, end))
                s = np.where(page <= reach[tile][:, None], scores[:, tile][:, :, page] * scale, F(-np.inf))
                seen[:, :, page] = s
                walk.more(s, v[:, page])
            walks.append(walk)
        most, total, context[:, tile] = together(walks)
        weights[:, tile] = np.exp(seen - most[:, :, None]) / total[:, :, None]
    return scores, weights, context


def decode(q, k, v, scale, length):
    """One query of a sequence, [H, 1, D]; its keys come in whole pages, and the first `length` of them are written."""
    heads, _, dim = q.shape
    keys = k.shape[1]
    scores = q @ k.transpose(0, 2, 1)
    s = np.where(np.arange(keys) < length, scores * scale, F(-np.inf))
    parts = range(0, length, PARTITION)
    # Each partition by itself: the largest score, the total, the context.
    peaks, totals, made = [], [], []
    for at in parts:
        part = s[:, :, at:at + PARTITION]
        peak = part.max(-1)
        e = np.exp(part - peak[:, :, None])
        peaks.append(peak)
        totals.append(e.sum(-1))
        made.append(e @ v[:, at:at + PARTITION] / totals[-1][:, :, None])
    most = np.max(peaks, 0)
    share = [np.exp(p - most) * t for p, t in zip(peaks, totals)]
    weights = np.exp(s - most[:, :, None]) / sum(np.exp(p - most) * t for p, t in zip(peaks, totals))[:, :, None]
    context = sum((x / sum(share))[:, :, None] * c for x, c in zip(share, made))
    return scores[:, :, :length], weights[:, :, :length], context
