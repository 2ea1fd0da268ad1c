//! Positions: the rotation and the cache.

use super::{Fault, Spot, fault, input_alone, rope};
use qdiff_engine::model::{Graph, Model, Node, Role};
use qdiff_engine::ops::Op;

/// Rotates every run of `d` elements of each token's row in place: plane i of a token at position p,
/// which is the elements that `plane(i)` names, by `angle(p, i)`.
fn turn(
    (x, d): (&mut [f32], usize), positions: &[u32], planes: impl Iterator<Item = (usize, usize)> + Clone,
    angle: impl Fn(f32, usize) -> f32,
) {
    let width = x.len() / positions.len();
    for (t, &p) in positions.iter().enumerate() {
        for at in (t * width..(t + 1) * width).step_by(d) {
            for (i, (first, second)) in planes.clone().enumerate() {
                let (sin, cos) = angle(p as f32, i).sin_cos();
                let (a, b) = (x[at + first], x[at + second]);
                x[at + first] = a * cos - b * sin;
                x[at + second] = b * cos + a * sin;
            }
        }
    }
}

/// Rotates every head of the input.
fn turned(s: &mut Spot<'_>, planes: impl Iterator<Item = (usize, usize)> + Clone, angle: impl Fn(f32, usize) -> f32) {
    s.out.clone_from(&s.inputs[0].data);
    turn((s.out, s.config.head_dim), s.positions, planes, angle);
}

/// The planes of so many elements whose halves are paired.
fn halves(n: usize) -> impl Iterator<Item = (usize, usize)> + Clone {
    (0..n / 2).map(move |i| (i, i + n / 2))
}

fn pace(base: f64, d: usize, i: usize) -> f32 {
    (1.0 / base.powf((2 * i) as f64 / d as f64)) as f32
}

/// The rotation with another base.
fn base_of(s: &mut Spot<'_>, base: f64) {
    let d = s.config.head_dim;
    turned(s, halves(d), |p, i| p * pace(base, d, i));
}

/// The rotation at the position that `at` makes of a token's.
fn at(s: &mut Spot<'_>, at: fn(f32) -> f32) {
    let (d, base) = (s.config.head_dim, s.config.rope_base);
    turned(s, halves(d), |p, i| at(p) * pace(base, d, i));
}

fn adjacent(s: &mut Spot<'_>) {
    let (d, base) = (s.config.head_dim, s.config.rope_base);
    turned(s, (0..d / 2).map(|i| (2 * i, 2 * i + 1)), |p, i| p * pace(base, d, i));
}

fn jump(s: &mut Spot<'_>) {
    if s.positions[0] > 0 {
        at(s, |p| p + 11.0);
    }
}

/// Only the first half of each head is rotated, as a head of that length.
fn half_turned(s: &mut Spot<'_>) {
    let (d, base) = (s.config.head_dim, s.config.rope_base);
    turned(s, halves(d / 2), |p, i| p * pace(base, d / 2, i));
}

/// The rows of this step, at the end of the cache, are turned.
fn values_turned(s: &mut Spot<'_>) {
    let (d, base) = (s.config.head_dim, s.config.rope_base);
    let start = s.out.len() - s.inputs[0].data.len();
    turn((&mut s.out[start..], d), s.positions, halves(d), |p, i| p * pace(base, d, i));
}

/// Only the rows of this step are there.
fn stuck(s: &mut Spot<'_>) {
    s.out.clone_from(&s.inputs[0].data);
    s.shape[0] = s.positions.len();
}

fn both(_: &Graph, n: &Node, _: &Model) -> bool {
    rope(n, &[Role::Query, Role::Key])
}

pub(super) const FAULTS: &[Fault] = &[
    fault("rope-base:base=10000", both, |s| base_of(s, 10_000.0)),
    fault("rope-base:base=250000", both, |s| base_of(s, 250_000.0)),
    fault("rope-pairing", both, adjacent),
    fault("rope-twice", both, |s| at(s, |p| 2.0 * p)),
    fault("rope-position-off-by-one:by=1", both, |s| at(s, |p| p + 1.0)),
    fault("decode-offset:by=11", both, jump),
    fault("rope-not-on-q", |_, n, _| rope(n, &[Role::Query]), input_alone),
    fault("rope-not-on-k", |_, n, _| rope(n, &[Role::Key]), input_alone),
    fault("rope-partial", both, half_turned),
    fault("rope-on-v", |_, n, _| matches!((&n.op, n.role), (Op::KvCache(_), Role::Value)), values_turned),
    fault("kv-position-stuck", |_, n, _| matches!(n.op, Op::KvCache(_)), stuck),
];
