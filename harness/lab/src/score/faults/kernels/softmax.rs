//! The softmax: which keys it sees, its maximum, its sum, its exponential.

use super::super::{Spot, softmax};
use super::rounding::{bf16, f16};
use super::{KernelFault, bug, moved_pairs};
use qdiff_engine::model::{Graph, Model, Node};

/// A row of the softmax.
#[derive(Clone, Copy)]
struct Query {
    h: usize,
    heads: usize,
    t: usize,
    tokens: usize,
    /// Its position, and how many keys there are.
    p: usize,
    keys: usize,
}

impl Query {
    fn decodes(self) -> bool {
        self.tokens == 1 && self.p > 0
    }
}

/// Writes the weights that `f` makes of the scaled scores of all keys, where it makes any; keys beyond have none.
fn rows(s: &mut Spot<'_>, f: impl Fn(Query, &[f64]) -> Option<Vec<f64>>) {
    let (inputs, tokens, heads) = (s.inputs, s.positions.len(), s.config.n_heads);
    let keys = inputs[0].shape[2];
    let scale = 1.0 / (s.config.head_dim as f64).sqrt();
    for (r, row) in inputs[0].data.chunks(keys).enumerate() {
        let t = r % tokens;
        let query = Query { h: r / tokens, heads, t, tokens, p: s.positions[t] as usize, keys };
        let z: Vec<f64> = row.iter().map(|v| f64::from(*v) * scale).collect();
        if let Some(weights) = f(query, &z) {
            let out = &mut s.out[r * keys..(r + 1) * keys];
            out.fill(0.0);
            for (o, w) in out.iter_mut().zip(weights) {
                *o = w as f32;
            }
        }
    }
}

fn top(z: &[f64]) -> f64 {
    z.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

/// exp(z − max z), not normalised.
fn powers(z: &[f64]) -> Vec<f64> {
    let top = top(z);
    z.iter().map(|v| (v - top).exp()).collect()
}

/// Divided by `sum`.
fn over(mut powers: Vec<f64>, sum: f64) -> Vec<f64> {
    powers.iter_mut().for_each(|v| *v /= sum);
    powers
}

fn softened(z: &[f64]) -> Vec<f64> {
    let powers = powers(z);
    let sum = powers.iter().sum();
    over(powers, sum)
}

/// The softmax over the keys that `seen` gives of a query, where it says so.
fn seeing(s: &mut Spot<'_>, seen: impl Fn(Query) -> Option<usize>) {
    rows(s, |q, z| seen(q).map(|n| softened(&z[..n.clamp(1, q.keys)])));
}

/// The softmax of scores as `f` changes them, given query and key.
fn of_changed(s: &mut Spot<'_>, f: impl Fn(Query, usize, f64) -> f64) {
    rows(s, |q, z| {
        let changed: Vec<f64> = z[..=q.p].iter().enumerate().map(|(n, v)| f(q, n, *v)).collect();
        Some(softened(&changed))
    });
}

/// In tiles of four keys, as the running maximum moves: of each tile the maximum so far.
fn maxima(z: &[f64]) -> Vec<f64> {
    let mut so_far = f64::NEG_INFINITY;
    z.chunks(4)
        .flat_map(|tile| {
            so_far = so_far.max(top(tile));
            vec![so_far; tile.len()]
        })
        .collect()
}

/// The sum keeps what it had when the maximum moves.
fn sum_not_rescaled(q: Query, z: &[f64]) -> Option<Vec<f64>> {
    let z = &z[..=q.p];
    let sum = z.iter().zip(maxima(z)).map(|(v, top)| (v - top).exp()).sum();
    Some(over(powers(z), sum))
}

/// What was written before the maximum moved stays.
fn weights_not_rescaled(q: Query, z: &[f64]) -> Option<Vec<f64>> {
    let z = &z[..=q.p];
    let sum = powers(z).iter().sum();
    Some(over(z.iter().zip(maxima(z)).map(|(v, top)| (v - top).exp()).collect(), sum))
}

/// 2^x: the exponent's integer part exactly, the rest by a parabola through 1, 1.4142 and 2.
fn parabola(x: f64) -> f64 {
    let (whole, rest) = (x.floor(), x - x.floor());
    (1.0 + rest * (0.656_85 + 0.343_15 * rest)) * whole.exp2()
}

fn all(_: &Graph, n: &Node, _: &Model) -> bool {
    softmax(n)
}

pub(super) const FAULTS: &[KernelFault] = &[
    bug("softmax-exponent-clipped", "exponents below -0.75 are taken for -0.75", all, |s| {
        rows(s, |q, z| {
            let top = top(&z[..=q.p]);
            let powers: Vec<f64> = z[..=q.p].iter().map(|v| (v - top).max(-0.75).exp()).collect();
            let sum = powers.iter().sum();
            Some(over(powers, sum))
        })
    }),
    bug("softmax-small-weights-flushed", "the exponential is 0 where the exponent is below -1.25", all, |s| {
        rows(s, |q, z| {
            let top = top(&z[..=q.p]);
            let of = |v: &f64| if v - top < -1.25 { 0.0 } else { (v - top).exp() };
            let powers: Vec<f64> = z[..=q.p].iter().map(of).collect();
            let sum = powers.iter().sum();
            Some(over(powers, sum))
        })
    }),
    bug(
        "online-softmax-sum-not-rescaled",
        "when the maximum moves from one tile of four keys to the next, the sum is not rescaled",
        all,
        |s| rows(s, sum_not_rescaled),
    ),
    bug(
        "online-softmax-weights-not-rescaled",
        "when the maximum moves from one tile of four keys to the next, what came before is not rescaled",
        all,
        |s| rows(s, weights_not_rescaled),
    ),
    bug(
        "softmax-of-whole-cached-pages",
        "of the keys that were in the cache before a part, those in the page of 8 that the part begins in are left out",
        all,
        |s| {
            rows(s, |q, z| {
                let first = q.p - q.t;
                let mut powers = powers(&z[..=q.p]);
                powers[first / 8 * 8..first].fill(0.0);
                let sum = powers.iter().sum();
                Some(over(powers, sum))
            })
        },
    ),
    bug("softmax-sum-lacks-own-key", "at odd positions the sum lacks the query's own key", all, |s| {
        rows(s, |q, z| {
            let powers = powers(&z[..=q.p]);
            let sum = powers[..q.p].iter().sum();
            (q.p % 2 == 1).then(|| over(powers, sum))
        })
    }),
    bug(
        "softmax-sum-counts-last-key-again",
        "keys are padded to a multiple of 8 by repeating the last, and the sum counts the repetitions",
        all,
        |s| {
            rows(s, |q, z| {
                let powers = powers(&z[..=q.p]);
                let more = (q.p + 1).next_multiple_of(8) - q.p - 1;
                let sum = powers.iter().sum::<f64>() + more as f64 * powers[q.p];
                Some(over(powers, sum))
            })
        },
    ),
    bug(
        "softmax-window-in-odd-layers",
        "odd layers see the last 6 keys alone, as of a model with a sliding window",
        |_, n, _| softmax(n) && n.id.layer.is_some_and(|l| l % 2 == 1),
        |s| of_changed(s, |q, n, z| if n + 6 <= q.p { f64::NEG_INFINITY } else { z }),
    ),
    bug(
        "softmax-mask-per-tile",
        "in a step of several tokens the mask ends with the tile of four keys that holds the query",
        all,
        |s| seeing(s, |q| (q.tokens > 1).then(|| q.p / 4 * 4 + 4)),
    ),
    bug("softmax-last-row-sees-one-less", "the last query of a step does not see its own key", all, |s| {
        seeing(s, |q| (q.t + 1 == q.tokens).then_some(q.p))
    }),
    bug("softmax-replays-old-length", "a replayed graph attends over two keys less than there are", all, |s| {
        seeing(s, |q| q.decodes().then(|| q.p.saturating_sub(1)))
    }),
    bug("softmax-to-base-two", "powers of 2 are taken of scores that were not multiplied with log2 e", all, |s| {
        of_changed(s, |_, _, z| z * std::f64::consts::LN_2)
    }),
    bug("softmax-log2e-rounded", "the constant log2 e is 1.44", all, |s| {
        of_changed(s, |_, _, z| z * 1.44 * std::f64::consts::LN_2)
    }),
    bug(
        "softmax-slope-in-last-head",
        "the last head subtracts a slope of 1/16 for every position that a key is back",
        all,
        |s| of_changed(s, |q, n, z| if q.h + 1 == q.heads { z - (q.p - n) as f64 / 16.0 } else { z }),
    ),
    bug(
        "softmax-head-twice",
        "the third head is given the weights of the second",
        |g, n, _| softmax(n) && g.config.n_heads > 2,
        |s| moved_pairs(s, |p| (p.h == 2).then_some((1, p.t, p.n))),
    ),
    bug(
        "softmax-not-divided-in-last-row",
        "the last query of a step is written before the sum is known, and not divided by it",
        all,
        |s| rows(s, |q, z| (q.t + 1 == q.tokens).then(|| powers(&z[..=q.p]))),
    ),
    bug(
        "softmax-sum-of-head-before",
        "odd heads are divided by the sum of the head before, which is in the same shared memory",
        all,
        |s| {
            let (inputs, tokens) = (s.inputs, s.positions.len());
            let scale = 1.0 / (s.config.head_dim as f64).sqrt();
            rows(s, |q, z| {
                let before = (q.h.checked_sub(1)? * tokens + q.t) * q.keys;
                let z_before: Vec<f64> =
                    inputs[0].data[before..=before + q.p].iter().map(|v| f64::from(*v) * scale).collect();
                let sum = powers(&z_before).iter().sum();
                (q.h % 2 == 1).then(|| over(powers(&z[..=q.p]), sum))
            });
        },
    ),
    bug("softmax-power-by-parabola", "the exponential is a parabola between powers of two", all, |s| {
        rows(s, |q, z| {
            let top = top(&z[..=q.p]);
            let powers: Vec<f64> = z[..=q.p].iter().map(|v| parabola((v - top) * std::f64::consts::LOG2_E)).collect();
            let sum = powers.iter().sum();
            Some(over(powers, sum))
        })
    }),
    bug(
        "softmax-exponent-in-f16",
        "the scaled score minus the maximum is rounded to f16 before the exponential",
        all,
        |s| {
            rows(s, |q, z| {
                let top = top(&z[..=q.p]);
                let rounded: Vec<f64> = z[..=q.p].iter().map(|v| f64::from(f16((v - top) as f32))).collect();
                Some(softened(&rounded))
            })
        },
    ),
    bug("softmax-weights-in-bf16", "the weights are stored in bf16", all, |s| {
        s.out.iter_mut().for_each(|v| *v = bf16(*v))
    }),
];
