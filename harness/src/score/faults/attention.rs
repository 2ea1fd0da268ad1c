//! Scores, softmax and context.

use super::{Fault, Spot, context, scores, softmax};
use half::f16;
use qdiff_engine::model::Graph;
use std::ops::Add as _;

/// Weights of every row from its scores: `f(scores of the row, query's
/// position, row of weights)`.
fn rows(s: &mut Spot<'_>, f: impl Fn(&[f32], usize, &mut [f32])) {
    let scores = &s.inputs[0];
    let (tokens, keys) = (scores.shape[1], scores.shape[2]);
    for r in 0..scores.data.len() / keys {
        let at = r * keys..(r + 1) * keys;
        let p = s.positions[r % tokens] as usize;
        s.out[at.clone()].fill(0.0);
        f(&scores.data[at.clone()], p, &mut s.out[at]);
    }
}

fn soften(s: &[f32], scale: f32, out: &mut [f32]) {
    let mut top = f32::MIN;
    for v in s {
        top = top.max(v * scale);
    }
    let mut sum = 0.0;
    for (o, v) in out.iter_mut().zip(s) {
        *o = (v * scale - top).exp();
        sum += *o;
    }
    for o in out.iter_mut() {
        *o /= sum;
    }
}

fn scale(s: &Spot<'_>) -> f32 {
    1.0 / (s.config.head_dim as f32).sqrt()
}

/// The softmax with another scale.
fn scaled(s: &mut Spot<'_>, by: f32) {
    rows(s, |x, p, w| soften(&x[..=p], by, &mut w[..=p]));
}

/// Scaled by the width of all heads instead of one.
fn scaled_by_width(s: &mut Spot<'_>) {
    scaled(s, 1.0 / ((s.config.head_dim * s.config.n_heads) as f32).sqrt());
}

/// Over as many keys as `seen` says of a query's position, where there are so many.
fn masked(s: &mut Spot<'_>, seen: fn(usize) -> usize) {
    let by = scale(s);
    rows(s, |x, p, w| {
        let n = seen(p).min(x.len());
        soften(&x[..n], by, &mut w[..n]);
    });
}

/// What [`soften`] gives with `power` in the place of exp(z − max), and with the
/// sum over those keys alone that `summed` names.
fn weighted(s: &mut Spot<'_>, power: fn(f32, f32) -> f32, summed: fn(usize) -> bool) {
    let by = scale(s);
    rows(s, |x, p, w| {
        let top = x[..=p].iter().fold(f32::MIN, |m, v| m.max(v * by));
        let mut sum = 0.0;
        for i in 0..=p {
            w[i] = power(x[i] * by, top);
            if summed(i) {
                sum += w[i];
            }
        }
        for v in &mut w[..=p] {
            *v /= sum;
        }
    });
}

/// Normalised down the queries of each key.
fn over_queries(s: &mut Spot<'_>) {
    let by = scale(s);
    let scores = &s.inputs[0];
    let (heads, tokens, keys) = (scores.shape[0], scores.shape[1], scores.shape[2]);
    s.out.fill(0.0);
    for h in 0..heads {
        for n in 0..keys {
            let mut top = f32::MIN;
            let mut sum = 0.0;
            for t in 0..tokens {
                if n <= s.positions[t] as usize {
                    top = top.max(scores.data[(h * tokens + t) * keys + n] * by);
                }
            }
            for pass in 0..2 {
                for t in 0..tokens {
                    let at = (h * tokens + t) * keys + n;
                    if n > s.positions[t] as usize {
                        continue;
                    }
                    if pass == 0 {
                        s.out[at] = (scores.data[at] * by - top).exp();
                        sum += s.out[at];
                    } else {
                        s.out[at] /= sum;
                    }
                }
            }
        }
    }
}

/// Scores summed by `add` over products with the query head's own choice of key:
/// `key(head, n, i)` is where its element stands in the cache.
fn score(s: &mut Spot<'_>, key: impl Fn(usize, usize, usize) -> usize, add: fn(f32, f32) -> f32) {
    let (h, d) = (s.config.n_heads, s.config.head_dim);
    let (q, k) = (&s.inputs[0].data, &s.inputs[1]);
    let (tokens, keys) = (s.positions.len(), k.shape[0]);
    for head in 0..h {
        for t in 0..tokens {
            for n in 0..keys {
                let mut sum = 0f32;
                for i in 0..d {
                    sum = add(sum, q[(t * h + head) * d + i] * k.data[key(head, n, i)]);
                }
                s.out[(head * tokens + t) * keys + n] = sum;
            }
        }
    }
}

/// Dimension of a head, KV heads, and query heads to each of them.
fn heads(s: &Spot<'_>) -> (usize, usize, usize) {
    let c = s.config;
    (c.head_dim, c.n_kv_heads, c.n_heads / c.n_kv_heads)
}

fn heads_modulo(s: &mut Spot<'_>) {
    let (d, g, _) = heads(s);
    score(s, |head, n, i| (n * g + head % g) * d + i, f32::add);
}

fn first_key(s: &mut Spot<'_>) {
    let (d, _, group) = heads(s);
    score(s, |head, _, i| head / group * d + i, f32::add);
}

/// K read as it would stand transposed.
fn keys_transposed(s: &mut Spot<'_>) {
    let (d, _, group) = heads(s);
    let keys = s.inputs[1].shape[0];
    score(s, |head, n, i| (head / group * d + i) * keys + n, f32::add);
}

/// Sums of q·k kept in f16, term by term.
fn scores_in_half(s: &mut Spot<'_>) {
    let (d, g, group) = heads(s);
    score(s, |head, n, i| (n * g + head / group) * d + i, |sum, product| f16::from_f32(sum + product).to_f32());
}

/// Context with the query head's own choice of value: `value(head, n, i)`.
fn mix(s: &mut Spot<'_>, value: impl Fn(usize, usize, usize) -> usize) {
    let (h, d) = (s.config.n_heads, s.config.head_dim);
    let (w, v) = (&s.inputs[0].data, &s.inputs[1]);
    let (tokens, keys) = (s.positions.len(), v.shape[0]);
    for t in 0..tokens {
        for head in 0..h {
            for i in 0..d {
                let mut sum = 0f32;
                for n in 0..keys {
                    sum += w[(head * tokens + t) * keys + n] * v.data[value(head, n, i)];
                }
                s.out[(t * h + head) * d + i] = sum;
            }
        }
    }
}

fn values_modulo(s: &mut Spot<'_>) {
    let (d, g, _) = heads(s);
    mix(s, |head, n, i| (n * g + head % g) * d + i);
}

fn values_transposed(s: &mut Spot<'_>) {
    let (d, _, group) = heads(s);
    let keys = s.inputs[1].shape[0];
    mix(s, |head, n, i| (head / group * d + i) * keys + n);
}

fn values_by_head(s: &mut Spot<'_>) {
    let (d, _, group) = heads(s);
    let keys = s.inputs[1].shape[0];
    mix(s, |head, n, i| (head / group * keys + n) * d + i);
}

/// Whether h / (H/G) and h mod G differ.
fn grouped(g: &Graph) -> bool {
    (2..g.config.n_heads).contains(&g.config.n_kv_heads)
}

pub(super) const FAULTS: &[Fault] = &[
    Fault { cause: "attn-scale-missing", places: |_, n, _| softmax(n), spoil: |s| scaled(s, 1.0) },
    Fault { cause: "attn-scale-wrong", places: |_, n, _| softmax(n), spoil: scaled_by_width },
    Fault { cause: "attn-uniform", places: |_, n, _| scores(n), spoil: |s| s.out.fill(0.0) },
    Fault { cause: "attn-uniform:read=1", places: |_, n, _| scores(n), spoil: first_key },
    Fault { cause: "mask-missing", places: |_, n, _| softmax(n), spoil: |s| masked(s, |_| usize::MAX) },
    Fault { cause: "mask-off-by-one:by=1", places: |_, n, _| softmax(n), spoil: |s| masked(s, |p| p + 2) },
    Fault { cause: "mask-off-by-one:by=-1", places: |_, n, _| softmax(n), spoil: |s| masked(s, |p| p.max(1)) },
    Fault { cause: "softmax-wrong-axis", places: |_, n, _| softmax(n), spoil: over_queries },
    Fault { cause: "softmax-no-max", places: |_, n, _| softmax(n), spoil: |s| weighted(s, |z, _| z.exp(), |_| true) },
    Fault {
        // The shuffle begins at a distance of 4: lanes 8 to 31 of each warp are lost.
        cause: "softmax-lanes-dropped:kept=8",
        places: |_, n, _| softmax(n),
        spoil: |s| weighted(s, |z, top| (z - top).exp(), |i| i & 31 < 8),
    },
    Fault { cause: "gqa-head-map", places: |g, n, _| scores(n) && grouped(g), spoil: heads_modulo },
    Fault { cause: "gqa-head-map", places: |g, n, _| context(n) && grouped(g), spoil: values_modulo },
    Fault { cause: "k-cache-layout:as=0", places: |_, n, _| scores(n), spoil: keys_transposed },
    Fault { cause: "v-cache-layout:as=0", places: |_, n, _| context(n), spoil: values_transposed },
    Fault {
        cause: "v-cache-layout:as=1",
        places: |g, n, _| context(n) && g.config.n_kv_heads > 1,
        spoil: values_by_head,
    },
    Fault { cause: "kq-f16-overflow", places: |_, n, _| scores(n), spoil: scores_in_half },
];
