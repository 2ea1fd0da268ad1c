//! Outputs that are not written, not everywhere, or not where they belong.

use super::{Fault, Spot, context, fault, linear, norm, residual, rope, softmax};
use qdiff_engine::model::{Node, Role, StageId};
use qdiff_engine::ops::Op;

fn stale(s: &mut Spot<'_>) {
    if let Some(old) = s.old {
        for (v, o) in s.out.iter_mut().zip(old) {
            *v = *o;
        }
    }
}

/// What was at a place before; zero before the first step.
fn before(old: Option<&[f32]>, at: usize) -> f32 {
    old.and_then(|o| o.get(at)).copied().unwrap_or(0.0)
}

/// Every 96th id from 5 on keeps what was there.
fn ids_unwritten(s: &mut Spot<'_>) {
    let old = s.old;
    s.spoil_where(|_, id| id % 96 == 5, |at| before(old, at));
}

fn layer_before(s: &mut Spot<'_>) {
    let before = s.node.id.layer.and_then(|l| l.checked_sub(1));
    let id = StageId { layer: before, ..s.node.id };
    if let Some(other) = s.others.get(&id) {
        s.out.copy_from_slice(other);
    }
}

/// The last columns of every row, as many as do not fill a tile of 48, show `left`.
fn tail(s: &mut Spot<'_>, left: impl Fn(usize) -> f32) {
    let from = s.width() / 48 * 48;
    s.spoil_where(|_, column| column >= from, left);
}

/// Heads 0 and 2 of each token exchange their places.
fn heads_swapped(s: &mut Spot<'_>) {
    let (d, heads) = (s.config.head_dim, s.config.n_heads);
    for row in s.out.chunks_mut(heads * d) {
        for i in 0..d {
            row.swap(i, (heads - 1) * d + i);
        }
    }
}

/// Tokens 1 and 2 of a prefill exchange their rows.
fn rows_swapped(s: &mut Spot<'_>) {
    let width = s.width();
    if s.positions.len() > 2 {
        for i in 0..width {
            s.out.swap(width + i, 2 * width + i);
        }
    }
}

/// Every row is moved on by one, the last element to the front.
fn columns_rotated(s: &mut Spot<'_>) {
    let width = s.width();
    for row in s.out.chunks_mut(width) {
        row.rotate_right(1);
    }
}

/// Something that depends on the place alone and follows no value.
fn noise(at: usize) -> f32 {
    let mut z = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((z >> 40) as f32 / (1 << 23) as f32) - 1.0
}

/// A head of scores or weights, which is the outermost axis.
fn one_plane(s: &mut Spot<'_>) {
    let plane = s.out.len() / s.config.n_heads;
    for i in plane..2 * plane {
        s.out[i] = noise(i).abs();
    }
}

fn hidden(n: &Node) -> bool {
    n.op == Op::SwiGlu
}

pub(super) const FAULTS: &[Fault] = &[
    fault(
        "stale-from-previous-step",
        |_, n, _| norm(n, &[Role::AttnInput]) || rope(n, &[Role::Key]) || hidden(n) || residual(n, &[Role::FfnOutput]),
        stale,
    ),
    fault("logits-stale:stride=96,phase=5", |_, n, _| linear(n, &[Role::Logits]), ids_unwritten),
    fault(
        "copied-from-previous-layer",
        |_, n, _| {
            let of_kind = linear(n, &[Role::Value, Role::Up]) || rope(n, &[Role::Key]);
            of_kind && n.id.layer.is_some_and(|l| l > 0)
        },
        layer_before,
    ),
    fault("zeroed", |_, n, _| residual(n, &[Role::AttnOutput]) || hidden(n), |s| s.out.fill(0.0)),
    fault("tail-skipped", |_, n, _| linear(n, &[Role::Query, Role::Gate]), |s| tail(s, |_| 0.0)),
    fault(
        "tail-skipped",
        |_, n, _| linear(n, &[Role::Up]),
        |s| {
            let old = s.old;
            tail(s, |at| before(old, at));
        },
    ),
    fault(
        "heads-misplaced",
        |_, n, _| linear(n, &[Role::Query]) || rope(n, &[Role::Query]) || context(n),
        heads_swapped,
    ),
    fault("rows-misplaced", |_, n, _| norm(n, &[Role::FfnInput]) || linear(n, &[Role::FfnOutput]), rows_swapped),
    fault("columns-misplaced", |_, n, _| linear(n, &[Role::AttnOutput]), columns_rotated),
    fault(
        "scaled:by=2",
        |_, n, _| linear(n, &[Role::AttnOutput, Role::FfnOutput]),
        |s| s.out.iter_mut().for_each(|v| *v *= 2.0),
    ),
    fault(
        "offset:by=0.25,scale=1",
        |_, n, _| linear(n, &[Role::Up]) || residual(n, &[Role::AttnOutput]),
        |s| s.out.iter_mut().for_each(|v| *v += 0.25),
    ),
    fault(
        "one-head-wrong",
        |_, n, _| rope(n, &[Role::Query]) || context(n),
        |s| {
            let (d, last) = (s.config.head_dim, s.config.n_heads - 1);
            s.spoil_where(|_, column| column / d == last, noise);
        },
    ),
    fault("one-head-wrong:head=1", |_, n, _| softmax(n), one_plane),
    fault(
        "one-column-wrong",
        |_, n, _| linear(n, &[Role::FfnOutput, Role::Value]),
        |s| {
            let third = s.width() / 3;
            s.spoil_where(|_, column| column == third, noise);
        },
    ),
    fault(
        "one-row-wrong:position=3",
        |_, n, _| norm(n, &[Role::AttnInput]) || hidden(n),
        |s| s.spoil_where(|position, _| position == 3, noise),
    ),
    fault(
        "one-tile-wrong:row=4,rows=4,column=32,columns=16",
        |_, n, _| linear(n, &[Role::Gate]),
        |s| s.spoil_where(|p, column| (4..8).contains(&p) && (32..48).contains(&column), noise),
    ),
];
