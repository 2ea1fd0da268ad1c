//! Scores, softmax and context.

use super::{Fault, Spot, context, fault, scores, softmax};
use half::f16;
use qdiff_engine::model::Graph;
use std::ops::Add as _;

/// Weights of every row from its scores: `f(scores of the row, query's position, row of weights)`.
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
    rows(s, |x, p, w| {
        let n = (p + 1).min(x.len());
        soften(&x[..n], by, &mut w[..n]);
    });
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
            let seen = (0..tokens).filter(|&t| n <= s.positions[t] as usize);
            let places: Vec<usize> = seen.map(|t| (h * tokens + t) * keys + n).collect();
            let column: Vec<f32> = places.iter().map(|&at| scores.data[at]).collect();
            let mut weights = vec![0.0; column.len()];
            soften(&column, by, &mut weights);
            for (at, w) in places.into_iter().zip(weights) {
                s.out[at] = w;
            }
        }
    }
}

/// How a cache is read: dimension of a head, KV heads, query heads to each of them, and cached rows.
struct Cache {
    d: usize,
    heads: usize,
    group: usize,
    keys: usize,
}

/// The place of element i of row n in the cache for a query head.
type Place = fn(&Cache, usize, usize, usize) -> usize;

fn right(c: &Cache, head: usize, n: usize, i: usize) -> usize {
    (n * c.heads + head / c.group) * c.d + i
}

fn modulo(c: &Cache, head: usize, n: usize, i: usize) -> usize {
    (n * c.heads + head % c.heads) * c.d + i
}

fn transposed(c: &Cache, head: usize, n: usize, i: usize) -> usize {
    (head / c.group * c.d + i) * c.keys + n
}

fn cache(s: &Spot<'_>) -> Cache {
    let (c, keys) = (s.config, s.inputs[1].shape[0]);
    Cache { d: c.head_dim, heads: c.n_kv_heads, group: c.n_heads / c.n_kv_heads, keys }
}

/// Scores summed by `add` over products with the keys at `place`.
fn score(s: &mut Spot<'_>, place: Place, add: fn(f32, f32) -> f32) {
    let (h, d, c) = (s.config.n_heads, s.config.head_dim, cache(s));
    let (q, k) = (&s.inputs[0].data, &s.inputs[1].data);
    let (tokens, keys) = (s.positions.len(), c.keys);
    for head in 0..h {
        for t in 0..tokens {
            for n in 0..keys {
                let mut sum = 0f32;
                for i in 0..d {
                    sum = add(sum, q[(t * h + head) * d + i] * k[place(&c, head, n, i)]);
                }
                s.out[(head * tokens + t) * keys + n] = sum;
            }
        }
    }
}

/// Context of the values at `place`.
fn mix(s: &mut Spot<'_>, place: Place) {
    let (h, d, c) = (s.config.n_heads, s.config.head_dim, cache(s));
    let (w, v) = (&s.inputs[0].data, &s.inputs[1].data);
    let (tokens, keys) = (s.positions.len(), c.keys);
    for t in 0..tokens {
        for head in 0..h {
            for i in 0..d {
                let mut sum = 0f32;
                for n in 0..keys {
                    sum += w[(head * tokens + t) * keys + n] * v[place(&c, head, n, i)];
                }
                s.out[(t * h + head) * d + i] = sum;
            }
        }
    }
}

/// Whether h / (H/G) and h mod G differ.
fn grouped(g: &Graph) -> bool {
    (2..g.config.n_heads).contains(&g.config.n_kv_heads)
}

pub(super) const FAULTS: &[Fault] = &[
    fault("attn-scale-missing", |_, n, _| softmax(n), |s| scaled(s, 1.0)),
    fault("attn-scale-wrong", |_, n, _| softmax(n), scaled_by_width),
    fault("attn-uniform", |_, n, _| scores(n), |s| s.out.fill(0.0)),
    fault("attn-uniform:read=1", |_, n, _| scores(n), |s| score(s, |c, head, _, i| right(c, head, 0, i), f32::add)),
    fault("mask-missing", |_, n, _| softmax(n), |s| masked(s, |_| usize::MAX)),
    fault("mask-off-by-one:by=1", |_, n, _| softmax(n), |s| masked(s, |p| p + 2)),
    fault("mask-off-by-one:by=-1", |_, n, _| softmax(n), |s| masked(s, |p| p.max(1))),
    fault("softmax-wrong-axis", |_, n, _| softmax(n), over_queries),
    fault("softmax-no-max", |_, n, _| softmax(n), |s| weighted(s, |z, _| z.exp(), |_| true)),
    // The shuffle begins at a distance of 4: lanes 8 to 31 of each warp are lost.
    fault(
        "softmax-lanes-dropped:kept=8",
        |_, n, _| softmax(n),
        |s| weighted(s, |z, top| (z - top).exp(), |i| i & 31 < 8),
    ),
    fault("gqa-head-map", |g, n, _| scores(n) && grouped(g), |s| score(s, modulo, f32::add)),
    fault("gqa-head-map", |g, n, _| context(n) && grouped(g), |s| mix(s, modulo)),
    fault("k-cache-layout:as=0", |_, n, _| scores(n), |s| score(s, transposed, f32::add)),
    fault("v-cache-layout:as=0", |_, n, _| context(n), |s| mix(s, transposed)),
    fault(
        "v-cache-layout:as=1",
        |g, n, _| context(n) && g.config.n_kv_heads > 1,
        |s| mix(s, |c, head, n, i| (head / c.group * c.keys + n) * c.d + i),
    ),
    fault(
        "kq-f16-overflow",
        |_, n, _| scores(n),
        |s| score(s, right, |sum, product| f16::from_f32(sum + product).to_f32()),
    ),
];
