//! The last blind round: bugs written down before any solver knew them, from what issue trackers report.
//!
//! Most of them do two things at once, or one thing in a part that no single condition names.

use super::super::{Spot, context, linear, scores, softmax};
use super::rounding::{f16, quantised};
use super::{KernelFault, Pair, bug, dot, patch, product};
use qdiff_engine::model::Role;

/// Dimensions of a fragment of 16 as a matrix load deals them out: pairs from either half in turn.
const FRAGMENT: [usize; 16] = [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15];

/// Scores whose queries have the dimensions of each 16 in the order of a fragment.
fn fragments(s: &mut Spot<'_>) {
    let (heads, groups, d) = (s.config.n_heads, s.config.n_kv_heads, s.config.head_dim);
    let inputs = s.inputs;
    for at in 0..s.out.len() {
        let pair = Pair::at(s, at);
        let (q, k) = ((pair.t * heads + pair.h) * d, (pair.n * groups + pair.h / (heads / groups)) * d);
        let term =
            |i: usize| f64::from(inputs[0].data[q + i / 16 * 16 + FRAGMENT[i % 16]]) * f64::from(inputs[1].data[k + i]);
        s.out[at] = (0..d).map(term).sum::<f64>() as f32;
    }
}

/// Weights whose tiles of 8 keys are rescaled in their first four columns alone when the maximum moves.
fn half_tiles_rescaled(s: &mut Spot<'_>) {
    let (inputs, tokens) = (s.inputs, s.positions.len());
    let keys = inputs[0].shape[2];
    let scale = 1.0 / (s.config.head_dim as f64).sqrt();
    for (r, row) in inputs[0].data.chunks(keys).enumerate() {
        let seen = s.positions[r % tokens] as usize + 1;
        let z: Vec<f64> = row[..seen].iter().map(|v| f64::from(*v) * scale).collect();
        let top = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = z.iter().map(|v| (v - top).exp()).sum();
        let mut so_far = f64::NEG_INFINITY;
        for (tile, part) in z.chunks(8).enumerate() {
            so_far = part.iter().copied().fold(so_far, f64::max);
            for (i, v) in part.iter().enumerate().filter(|(i, _)| i % 8 >= 4) {
                s.out[r * keys + tile * 8 + i] = ((v - so_far).exp() / sum) as f32;
            }
        }
    }
}

/// The context of each element from the terms of the keys that its query sees, by number.
fn mixed(s: &mut Spot<'_>, f: impl Fn(usize, usize, &[f64]) -> f64) {
    let (heads, groups, d) = (s.config.n_heads, s.config.n_kv_heads, s.config.head_dim);
    let (inputs, positions) = (s.inputs, s.positions);
    let keys = inputs[0].shape[2];
    patch(s, |c, _, _| {
        let (h, i) = (c.o / d, c.o % d);
        let row = (h * c.tokens + c.t) * keys;
        let value = |n: usize| f64::from(inputs[1].data[(n * groups + h / (heads / groups)) * d + i]);
        let seen = positions[c.t] as usize + 1;
        let terms: Vec<f64> = (0..seen).map(|n| f64::from(inputs[0].data[row + n]) * value(n)).collect();
        f(c.t, h, &terms) as f32
    });
}

/// 16-bit integers of each 32 inputs as two digits of 8 bits, the lower one signed: what it carries is lost.
fn carry_lost(s: &mut Spot<'_>) {
    let inputs = s.inputs;
    let (n, _) = s.extent(s.weight());
    let digits = |group: &[f32]| -> Vec<f32> {
        let step = group.iter().fold(0f32, |m, v| m.max(v.abs())) / 32767.0;
        let of = |v: &f32| {
            if step == 0.0 {
                return 0.0;
            }
            let whole = (v / step).round() as i32;
            let low = (whole & 0xff) as i8;
            ((whole >> 8) * 256 + i32::from(low)) as f32 * step
        };
        group.iter().map(of).collect()
    };
    let x: Vec<f32> = inputs[0].data.chunks(32).flat_map(digits).collect();
    product(s, |_| true, |c, _, w| dot(&x[c.t * n..(c.t + 1) * n], w));
}

/// A term of rank 2 beside the product, as of another request's adapter.
fn adapter(s: &mut Spot<'_>) {
    let (inputs, (n, _)) = (s.inputs, s.extent(s.weight()));
    let number = |a: usize, b: usize| ((a * 7919 + b * 104_729 + 13) % 1009) as f64 / 504.5 - 1.0;
    let down = |t: usize, r: usize| -> f64 {
        (0..n).map(|i| f64::from(inputs[0].data[t * n + i]) * number(i, r)).sum::<f64>() / (n as f64).sqrt()
    };
    let all: Vec<[f64; 2]> = (0..s.positions.len()).map(|t| [down(t, 0), down(t, 1)]).collect();
    patch(s, |c, _, v| (f64::from(v) + 0.1 * (0..2).map(|r| all[c.t][r] * number(c.o, r + 2)).sum::<f64>()) as f32);
}

/// The last quarter of the sum of an odd tile of 32 outputs is that of the tile before.
fn share_of_tile_before(s: &mut Spot<'_>) {
    let (w, inputs) = (s.values(s.weight()), s.inputs);
    let x = &inputs[0].data;
    product(
        s,
        |c| c.o / 32 % 2 == 1,
        |c, row, own| {
            let (n, from) = (row.len(), row.len() / 4 * 3);
            let other = &w[(c.o - 32) * n..(c.o - 31) * n];
            let x = &x[c.t * n..(c.t + 1) * n];
            dot(&x[..from], &own[..from]) + dot(&x[from..], &other[from..])
        },
    );
}

pub(super) const FAULTS: &[KernelFault] = &[
    bug(
        "score-query-fragments-out-of-order",
        "queries have the dimensions of each 16 in the order of a matrix fragment, keys in their own",
        |g, n, _| scores(n) && g.config.head_dim % 16 == 0,
        fragments,
    ),
    bug(
        "even-and-odd-inputs-in-f16",
        "even and odd inputs are summed apart, and each sum is rounded to f16 before the two are added",
        |_, n, _| linear(n, &[Role::Gate, Role::Value]),
        |s| {
            let half = |x: &[f32], w: &[f32], odd: usize| {
                let sum: f64 = (odd..x.len()).step_by(2).map(|i| f64::from(x[i]) * f64::from(w[i])).sum();
                f64::from(f16(sum as f32))
            };
            product(s, |_| true, |_, x, w| half(x, w, 0) + half(x, w, 1));
        },
    ),
    bug(
        "online-softmax-half-tile-not-rescaled",
        "when the maximum moves, the last four of each tile of 8 keys are not rescaled",
        |_, n, _| softmax(n),
        half_tiles_rescaled,
    ),
    bug(
        "context-keys-left-out-for-some-rows",
        "queries in the upper half of each group of four rows leave out the keys beyond the last whole tile of 4",
        |_, n, _| context(n),
        |s| {
            mixed(s, |t, _, terms| {
                let whole = if t % 4 >= 2 { terms.len() / 4 * 4 } else { terms.len() };
                terms[..whole].iter().sum()
            })
        },
    ),
    bug(
        "context-odd-heads-skip-every-fourth-key",
        "in odd heads, the last of every four keys takes no part",
        |_, n, _| context(n),
        |s| {
            mixed(s, |_, h, terms| {
                let taken = |(k, _): &(usize, &f64)| h % 2 == 0 || k % 4 != 3;
                terms.iter().enumerate().filter(taken).map(|(_, p)| p).sum()
            })
        },
    ),
    bug(
        "adapter-of-another-request",
        "a term of rank 2 is added, as of an adapter that another request asked for",
        |_, n, _| linear(n, &[Role::Query]),
        adapter,
    ),
    bug(
        "stale-row-and-halved-tail",
        "odd rows are those of the row before, and the last 32 outputs are halved everywhere",
        |_, n, _| linear(n, &[Role::Up, Role::Key]),
        |s| {
            let right = s.out.clone();
            patch(s, |c, at, _| {
                let from = if c.t % 2 == 1 { at - c.width } else { at };
                right[from] * if c.o + 32 >= c.width { 0.5 } else { 1.0 }
            });
        },
    ),
    bug(
        "low-digit-loses-its-carry",
        "inputs are 16-bit integers, 32 under one scale, in two digits of 8 bits: what the lower one carries is lost",
        |_, n, _| linear(n, &[Role::Gate, Role::AttnOutput]),
        carry_lost,
    ),
    bug(
        "share-of-tile-before",
        "the last quarter of the sum of odd tiles of 32 outputs is the one of the tile before",
        |_, n, _| linear(n, &[Role::AttnOutput, Role::FfnOutput]),
        share_of_tile_before,
    ),
    bug(
        "weights-int4-per-row",
        "the weights are kept in 4 bits under one scale for each row",
        |_, n, _| linear(n, &[Role::FfnOutput, Role::Query]),
        |s| product(s, |_| true, |_, x, w| dot(x, &quantised(w, 7.0))),
    ),
    bug(
        "last-rows-lack-tail-and-repeat-head",
        "in rows beyond the last whole group of four, the last 32 inputs are missing and the first 32 count twice",
        |_, n, _| linear(n, &[Role::Value, Role::FfnOutput]),
        |s| {
            let rest = |c: super::Cell| c.t >= c.tokens / 4 * 4;
            super::counted(s, rest, |i, n| if i < 32 { 2.0 } else { f64::from(u8::from(i + 32 < n)) });
        },
    ),
    bug(
        "score-upper-half-of-next-key",
        "the second half of each head is multiplied with the key after, in the first three of every four keys",
        |_, n, _| scores(n),
        |s| {
            let (heads, groups, d) = (s.config.n_heads, s.config.n_kv_heads, s.config.head_dim);
            let (inputs, positions) = (s.inputs, s.positions);
            let tokens = positions.len();
            for at in 0..s.out.len() {
                let pair = Pair::at(s, at);
                let key = |n: usize| &inputs[1].data[(n * groups + pair.h / (heads / groups)) * d..][..d];
                let q = &inputs[0].data[(pair.t * heads + pair.h) * d..][..d];
                if pair.n % 4 < 3 && pair.n < positions[tokens - 1] as usize {
                    let (own, next) = (key(pair.n), key(pair.n + 1));
                    s.out[at] = (dot(&q[..d / 2], &own[..d / 2]) + dot(&q[d / 2..], &next[d / 2..])) as f32;
                }
            }
        },
    ),
];
