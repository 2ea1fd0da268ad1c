//! Positions: the rotation and the cache.

use super::{Fault, Spot, rope};
use qdiff_engine::model::{Graph, Model, Node, Role};
use qdiff_engine::ops::Op;

/// Rotates the split halves of every head of the input, plane i of a token at
/// position p by `angle(p, i)`.
fn turn(s: &mut Spot<'_>, angle: impl Fn(f32, usize) -> f32) {
    let d = s.config.head_dim;
    let x = &s.inputs[0].data;
    let width = x.len() / s.positions.len();
    for (t, &p) in s.positions.iter().enumerate() {
        for at in (t * width..(t + 1) * width).step_by(d) {
            for i in 0..d / 2 {
                let (sin, cos) = angle(p as f32, i).sin_cos();
                let (a, b) = (x[at + i], x[at + i + d / 2]);
                s.out[at + i] = a * cos - b * sin;
                s.out[at + i + d / 2] = b * cos + a * sin;
            }
        }
    }
}

fn pace(base: f64, d: usize, i: usize) -> f32 {
    (1.0 / base.powf((2 * i) as f64 / d as f64)) as f32
}

fn base_of(s: &mut Spot<'_>, base: f64) {
    let d = s.config.head_dim;
    turn(s, |p, i| p * pace(base, d, i));
}

fn base_10000(s: &mut Spot<'_>) {
    base_of(s, 10_000.0);
}

fn base_250000(s: &mut Spot<'_>) {
    base_of(s, 250_000.0);
}

fn adjacent(s: &mut Spot<'_>) {
    let (d, base) = (s.config.head_dim, s.config.rope_base);
    let x = &s.inputs[0].data;
    let width = x.len() / s.positions.len();
    for (t, &p) in s.positions.iter().enumerate() {
        for at in (t * width..(t + 1) * width).step_by(d) {
            for i in 0..d / 2 {
                let (sin, cos) = (p as f32 * pace(base, d, i)).sin_cos();
                let (a, b) = (x[at + 2 * i], x[at + 2 * i + 1]);
                s.out[at + 2 * i] = a * cos - b * sin;
                s.out[at + 2 * i + 1] = b * cos + a * sin;
            }
        }
    }
}

fn twice(s: &mut Spot<'_>) {
    let (d, base) = (s.config.head_dim, s.config.rope_base);
    turn(s, |p, i| 2.0 * p * pace(base, d, i));
}

fn one_on(s: &mut Spot<'_>) {
    let (d, base) = (s.config.head_dim, s.config.rope_base);
    turn(s, |p, i| (p + 1.0) * pace(base, d, i));
}

fn jump(s: &mut Spot<'_>) {
    let (d, base) = (s.config.head_dim, s.config.rope_base);
    if s.positions[0] > 0 {
        turn(s, |p, i| (p + 11.0) * pace(base, d, i));
    }
}

fn unturned(s: &mut Spot<'_>) {
    s.out.clone_from(&s.inputs[0].data);
}

/// Only the first half of each head is rotated, as a head of that length.
fn half_turned(s: &mut Spot<'_>) {
    let (d, base) = (s.config.head_dim, s.config.rope_base);
    let (x, r) = (&s.inputs[0].data, d / 2);
    let width = x.len() / s.positions.len();
    for (t, &p) in s.positions.iter().enumerate() {
        for at in (t * width..(t + 1) * width).step_by(d) {
            s.out[at..at + d].copy_from_slice(&x[at..at + d]);
            for i in 0..r / 2 {
                let (sin, cos) = (p as f32 * pace(base, r, i)).sin_cos();
                let (a, b) = (x[at + i], x[at + i + r / 2]);
                s.out[at + i] = a * cos - b * sin;
                s.out[at + i + r / 2] = b * cos + a * sin;
            }
        }
    }
}

/// The rows of this step, which stand at the end of the cache, are turned.
fn values_turned(s: &mut Spot<'_>) {
    let (d, base) = (s.config.head_dim, s.config.rope_base);
    let width = s.inputs[0].data.len() / s.positions.len();
    let start = s.out.len() - s.inputs[0].data.len();
    for (t, &p) in s.positions.iter().enumerate() {
        let row = start + t * width;
        for at in (row..row + width).step_by(d) {
            for i in 0..d / 2 {
                let (sin, cos) = (p as f32 * pace(base, d, i)).sin_cos();
                let (a, b) = (s.out[at + i], s.out[at + i + d / 2]);
                s.out[at + i] = a * cos - b * sin;
                s.out[at + i + d / 2] = b * cos + a * sin;
            }
        }
    }
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
    Fault { cause: "rope-base:base=10000", places: both, spoil: base_10000 },
    Fault { cause: "rope-base:base=250000", places: both, spoil: base_250000 },
    Fault { cause: "rope-pairing", places: both, spoil: adjacent },
    Fault { cause: "rope-twice", places: both, spoil: twice },
    Fault { cause: "rope-position-off-by-one:by=1", places: both, spoil: one_on },
    Fault { cause: "decode-offset:by=11", places: both, spoil: jump },
    Fault { cause: "rope-not-on-q", places: |_, n, _| rope(n, &[Role::Query]), spoil: unturned },
    Fault { cause: "rope-not-on-k", places: |_, n, _| rope(n, &[Role::Key]), spoil: unturned },
    Fault { cause: "rope-partial", places: both, spoil: half_turned },
    Fault {
        cause: "rope-on-v",
        places: |_, n, _| matches!((&n.op, n.role), (Op::KvCache(_), Role::Value)),
        spoil: values_turned,
    },
    Fault { cause: "kv-position-stuck", places: |_, n, _| matches!(n.op, Op::KvCache(_)), spoil: stuck },
];
