"""Attention: tiles of queries and keys for a prefill, splits of keys for a decode step, and a shared prefix apart from what follows."""
import numpy as np

F = np.float32
QUERIES, KEYS = 4, 8  # of a tile
SPLIT = 8             # keys of a split of a decode step


def expand(x, heads):
    """[N, G, D] as [H, N, D]."""
    return np.repeat(x.transpose(1, 0, 2), heads // x.shape[1], 0)


def part(q, k, v, scale, first, begin, end, looked, scores, limit):
    """Queries [H, T, D] at positions first.., with keys begin..end-1, up to limit [H, T]: the sums, the largest and the total.
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
            s = np.where(np.arange(k0, k1)[None, None] > limit[:, q0:q1, None], F(-np.inf), s)
            before = most[:, q0:q1]
            now = np.maximum(before, s.max(-1))
            base = np.where(np.isinf(now), F(0), now)
            e, less = np.exp(s - base[:, :, None]), np.exp(before - base)
            sums[:, q0:q1] = sums[:, q0:q1] * less[:, :, None] + e @ v[:, k0:k1]
            total[:, q0:q1] = total[:, q0:q1] * less + e.sum(-1)
            most[:, q0:q1] = now
    return sums, most, total


def merge(front, rest):
    """Two parts, each with its sums [H, T, D], largest and total, put together by the logarithms of their totals."""
    (o, lse), (o2, lse2) = ((s / t[:, :, None], m.astype(float) + np.log(t)) for s, m, t in (front, rest))
    both = np.logaddexp(lse, lse2)
    lse = np.repeat(lse[:, :, None], o.shape[-1], -1)
    largest = np.logaddexp(lse, lse2[:, :, None])
    return (np.exp(lse - largest) * o + np.exp(lse2[:, :, None] - largest) * o2).astype(F)


def prefill(q, k, v, scale, first, shared, group):
    """Several queries of a sequence, its first at `first`; `shared` keys are of a prefix that it shares; `group` heads have the same keys."""
    heads, tokens, keys = q.shape[0], q.shape[1], k.shape[1]
    looked, scores = np.zeros((tokens, keys), bool), q @ k.transpose(0, 2, 1)
    limit = first + np.broadcast_to(np.arange(tokens), (heads, tokens))
    rest = part(q, k, v, scale, first, shared, keys, looked, scores, limit)
    if shared:
        context = merge(part(q, k, v, scale, first, 0, shared, looked, scores, limit), rest)
    else:
        context = rest[0] / rest[2][:, :, None]
    seen = looked[None] & (np.arange(keys)[None, None] <= limit[:, :, None])
    s = np.where(seen, scores * scale, F(-np.inf))
    e = np.exp(s - s.max(-1, keepdims=True))
    return scores, e / e.sum(-1, keepdims=True), context


def split(q, k, v, scale):
    """One query of a sequence, [H, 1, D], which sees all keys: of each split the result [S, H, D] and the logarithm of its total [S, H]."""
    scores = q @ k.transpose(0, 2, 1)
    out, lse = [], []
    for k0 in range(0, k.shape[1], SPLIT):
        s = scores[:, :, k0:k0 + SPLIT] * scale
        most = s.max(-1)
        e = np.exp(s - most[:, :, None])
        total = e.sum(-1)
        out.append((e @ v[:, k0:k0 + SPLIT])[:, 0] / total)
        lse.append((most.astype(float) + np.log(total))[:, 0])
    s = scores * scale
    e = np.exp(s - s.max(-1, keepdims=True))
    return scores, e / e.sum(-1, keepdims=True), np.stack(out), np.stack(lse)


def combine(made):
    """The splits of all sequences of a batch, in buffers as long as the most splits: [B, H, D]."""
    most = max(len(out) for out, _ in made)
    out = np.zeros((len(made), most, *made[0][0].shape[1:]), F)
    lse = np.full((len(made), most, made[0][1].shape[1]), -np.inf)
    for at, (o, l) in enumerate(made):
        out[at, :len(o)], lse[at, :len(l)] = o, l
    by = np.exp(lse - lse.max(1, keepdims=True))
    return ((by / by.sum(1, keepdims=True))[:, :, :, None] * out).sum(1).astype(F)
