//! Scores and context: tiles of keys, heads, lanes, shares.

use super::super::{Spot, context, scores};
use super::rounding::{bf16, f16};
use super::{KernelFault, Pair, bug, dot, moved, moved_pairs, patch};
use qdiff_engine::model::Graph;

/// Makes `f` of every score that `here` names: of its query and its key.
fn rescored(s: &mut Spot<'_>, here: impl Fn(Pair) -> bool, f: impl Fn(Pair, &[f32], &[f32]) -> f64) {
    let (heads, groups, d) = (s.config.n_heads, s.config.n_kv_heads, s.config.head_dim);
    let inputs = s.inputs;
    for at in 0..s.out.len() {
        let pair = Pair::at(s, at);
        if here(pair) {
            let q = (pair.t * heads + pair.h) * d;
            let k = (pair.n * groups + pair.h / (heads / groups)) * d;
            s.out[at] = f(pair, &inputs[0].data[q..q + d], &inputs[1].data[k..k + d]) as f32;
        }
    }
}

/// Products summed over the dimensions that `kept` names, as often as it says.
fn counted(s: &mut Spot<'_>, here: impl Fn(Pair) -> bool, times: impl Fn(usize, usize) -> f64) {
    rescored(s, here, |_, q, k| (0..q.len()).map(|i| times(i, q.len()) * f64::from(q[i]) * f64::from(k[i])).sum());
}

/// What a query head reads of the weights and of the values.
struct Read<'a> {
    /// Its row of weights, of the keys that it sees.
    w: &'a [f32],
    v: &'a [f32],
    h: usize,
    heads: usize,
    groups: usize,
    d: usize,
    i: usize,
    tokens: usize,
    t: usize,
}

impl Read<'_> {
    /// Value `i` of key `n` in head `group`.
    fn value(&self, group: usize, n: usize) -> f64 {
        f64::from(self.v[(n * self.groups + group) * self.d + self.i])
    }

    fn group(&self) -> usize {
        self.h / (self.heads / self.groups)
    }

    /// Weight times value of key `n`.
    fn term(&self, n: usize) -> f64 {
        f64::from(self.w[n]) * self.value(self.group(), n)
    }

    /// Sum over the keys that `kept` names.
    fn sum(&self, kept: impl Fn(usize) -> bool) -> f64 {
        (0..self.w.len()).filter(|n| kept(*n)).map(|n| self.term(n)).sum()
    }

    fn decodes(&self) -> bool {
        self.tokens == 1 && self.w.len() > 1
    }
}

/// Makes `f` of every element of the context where it says something.
fn mixed(s: &mut Spot<'_>, f: impl Fn(&Read<'_>) -> Option<f64>) {
    let (heads, groups, d) = (s.config.n_heads, s.config.n_kv_heads, s.config.head_dim);
    let (inputs, positions) = (s.inputs, s.positions);
    let keys = inputs[0].shape[2];
    patch(s, |c, _, right| {
        let (h, i) = (c.o / d, c.o % d);
        let row = (h * c.tokens + c.t) * keys;
        let w = &inputs[0].data[row..row + keys.min(positions[c.t] as usize + 1)];
        let read = Read { w, v: &inputs[1].data, h, heads, groups, d, i, tokens: c.tokens, t: c.t };
        f(&read).map_or(right, |v| v as f32)
    });
}

/// Keys in splits of four, each normalised for itself; what they give is averaged as if all weighed alike.
fn splits_averaged(r: &Read<'_>) -> Option<f64> {
    let splits = r.w.len().div_ceil(4);
    let of = |split: usize| {
        let keys = 4 * split..r.w.len().min(4 * split + 4);
        let weight: f64 = keys.clone().map(|n| f64::from(r.w[n])).sum();
        let sum: f64 = keys.map(|n| r.term(n)).sum();
        if weight > 0.0 { sum / weight } else { 0.0 }
    };
    r.decodes().then(|| (0..splits).map(of).sum::<f64>() / splits as f64)
}

/// Whether there are key heads to confuse.
fn grouped(g: &Graph) -> bool {
    (2..g.config.n_heads).contains(&g.config.n_kv_heads)
}

pub(super) const FAULTS: &[KernelFault] = &[
    bug(
        "score-half-head-for-every-eighth-key",
        "for the last key of every eight only the first half of the head is multiplied",
        |_, n, _| scores(n),
        |s| counted(s, |p| p.n % 8 == 7, |i, d| if i < d / 2 { 1.0 } else { 0.0 }),
    ),
    bug(
        "score-key-tile-read-too-soon",
        "without a barrier, the second tile of 8 keys is computed from what the first left in shared memory",
        |_, n, _| scores(n),
        |s| moved_pairs(s, |p| (8..16).contains(&p.n).then(|| (p.h, p.t, p.n - 8))),
    ),
    bug(
        "score-own-key-not-yet-there",
        "when a single token is decoded, its own key is not written yet, and its score is 0",
        |_, n, _| scores(n),
        |s| rescored(s, |p| p.decodes() && p.n == p.p, |_, _, _| 0.0),
    ),
    bug(
        "score-mask-of-half-the-row",
        "in a prefill the mask of a row is that of half its number in the part: scores of later keys are not made, and 0",
        |_, n, _| scores(n),
        |s| rescored(s, |p| !p.decodes() && p.n <= p.p && p.n > p.p - p.t + p.t / 2, |_, _, _| 0.0),
    ),
    bug(
        "score-last-lanes-lost-in-odd-heads",
        "in odd heads the last 16 dimensions are not summed",
        |_, n, _| scores(n),
        |s| counted(s, |p| p.h % 2 == 1, |i, d| if i + 16 < d { 1.0 } else { 0.0 }),
    ),
    bug(
        "score-scaled-already-when-decoding",
        "when a single token is decoded, queries are scaled before the product, and the softmax scales once more",
        |_, n, _| scores(n),
        |s| rescored(s, Pair::decodes, |_, q, k| dot(q, k) / (q.len() as f64).sqrt()),
    ),
    bug(
        "score-group-shares-query",
        "all query heads of a group are given the query of the group's first",
        |g, n, _| scores(n) && g.config.n_kv_heads < g.config.n_heads,
        |s| {
            let groups = s.config.n_kv_heads;
            moved_pairs(s, |p| {
                let size = p.heads / groups;
                (p.h % size > 0).then(|| (p.h / size * size, p.t, p.n))
            });
        },
    ),
    bug(
        "score-far-keys-clamped",
        "keys more than 6 positions back are taken for the one 6 back",
        |_, n, _| scores(n),
        |s| moved_pairs(s, |p| (p.n + 6 < p.p).then(|| (p.h, p.t, p.p - 6))),
    ),
    bug(
        "score-minus-in-upper-half",
        "the second half of each head enters with the wrong sign",
        |_, n, _| scores(n),
        |s| counted(s, |_| true, |i, d| if i < d / 2 { 1.0 } else { -1.0 }),
    ),
    bug(
        "score-query-of-row-before",
        "of every four queries the last is loaded from the row before",
        |_, n, _| scores(n),
        |s| moved_pairs(s, |p| (p.t % 4 == 3).then(|| (p.h, p.t - 1, p.n))),
    ),
    bug(
        "score-keys-in-bf16",
        "keys pass through bf16 on their way into the product",
        |_, n, _| scores(n),
        |s| rescored(s, |_| true, |_, q, k| (0..q.len()).map(|i| f64::from(q[i]) * f64::from(bf16(k[i]))).sum()),
    ),
    bug(
        "score-stored-in-f16",
        "scores pass through an f16 buffer",
        |_, n, _| scores(n),
        |s| rescored(s, |_| true, |_, q, k| f64::from(f16(dot(q, k) as f32))),
    ),
    bug(
        "context-key-tail-lost-when-decoding",
        "when a single token is decoded, keys are taken four at a time and the rest left out",
        |_, n, _| context(n),
        |s| mixed(s, |r| r.decodes().then(|| r.sum(|n| n < r.w.len() / 4 * 4))),
    ),
    bug(
        "context-sums-of-head-before",
        "odd heads go on from the sums of the head before",
        |_, n, _| context(n),
        |s| {
            let (right, d) = (s.out.clone(), s.config.head_dim);
            patch(s, |c, at, v| if c.o / d % 2 == 1 { v + right[at - d] } else { v });
        },
    ),
    bug(
        "context-value-of-next-key",
        "the fifth of every eight keys is weighted with the value of the key after it",
        |_, n, _| context(n),
        |s| {
            mixed(s, |r| {
                let last = r.w.len() - 1;
                let of = |n: usize| {
                    let from = if n % 8 == 4 { last.min(n + 1) } else { n };
                    f64::from(r.w[n]) * r.value(r.group(), from)
                };
                Some((0..=last).map(of).sum())
            })
        },
    ),
    bug(
        "context-group-by-modulo-when-decoding",
        "when a single token is decoded, query head h reads value head h mod G",
        |g, n, _| context(n) && grouped(g),
        |s| {
            mixed(s, |r| {
                let sum = |group: usize| (0..r.w.len()).map(|n| f64::from(r.w[n]) * r.value(group, n)).sum();
                r.decodes().then(|| sum(r.h % r.groups))
            })
        },
    ),
    bug(
        "context-upper-half-from-group-0",
        "the second half of each head is read from value head 0",
        |g, n, _| context(n) && g.config.n_kv_heads > 1,
        |s| {
            mixed(s, |r| {
                let sum = || (0..r.w.len()).map(|n| f64::from(r.w[n]) * r.value(0, n)).sum();
                (r.i >= r.d / 2).then(sum)
            })
        },
    ),
    bug(
        "context-splits-averaged",
        "when a single token is decoded, splits of four keys are combined without their weights, by their mean",
        |_, n, _| context(n),
        |s| mixed(s, splits_averaged),
    ),
    bug(
        "context-first-split-lost",
        "the first four keys are left out for every query from the sixth of a step on",
        |_, n, _| context(n),
        |s| mixed(s, |r| (r.t >= 5).then(|| r.sum(|n| n >= 4))),
    ),
    bug(
        "context-heads-exchanged-in-pairs",
        "neighbouring heads change places when the context is written",
        |_, n, _| context(n),
        |s| {
            let (d, heads) = (s.config.head_dim, s.config.n_heads);
            moved(s, |c| {
                let other = (c.o / d) ^ 1;
                (other < heads).then(|| (c.t, other * d + c.o % d))
            });
        },
    ),
    bug(
        "context-weights-in-bf16",
        "weights are rounded to bf16 for the product with the values",
        |_, n, _| context(n),
        |s| mixed(s, |r| Some((0..r.w.len()).map(|n| f64::from(bf16(r.w[n])) * r.value(r.group(), n)).sum())),
    ),
];
