//! Outputs that are not written, not everywhere, or not where they belong.

use super::{Fault, Spot, context, linear, norm, residual, rope, softmax};
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
    Fault {
        cause: "stale-from-previous-step",
        places: |_, n, _| {
            norm(n, &[Role::AttnInput]) || rope(n, &[Role::Key]) || hidden(n) || residual(n, &[Role::FfnOutput])
        },
        spoil: stale,
    },
    Fault {
        cause: "logits-stale:stride=96,phase=5",
        places: |_, n, _| linear(n, &[Role::Logits]),
        spoil: ids_unwritten,
    },
    Fault {
        cause: "copied-from-previous-layer",
        places: |_, n, _| {
            let of_kind = linear(n, &[Role::Value, Role::Up]) || rope(n, &[Role::Key]);
            of_kind && n.id.layer.is_some_and(|l| l > 0)
        },
        spoil: layer_before,
    },
    Fault {
        cause: "zeroed",
        places: |_, n, _| residual(n, &[Role::AttnOutput]) || hidden(n),
        spoil: |s| s.out.fill(0.0),
    },
    Fault {
        cause: "tail-skipped",
        places: |_, n, _| linear(n, &[Role::Query, Role::Gate]),
        spoil: |s| tail(s, |_| 0.0),
    },
    Fault {
        cause: "tail-skipped",
        places: |_, n, _| linear(n, &[Role::Up]),
        spoil: |s| {
            let old = s.old;
            tail(s, |at| before(old, at));
        },
    },
    Fault {
        cause: "heads-misplaced",
        places: |_, n, _| linear(n, &[Role::Query]) || rope(n, &[Role::Query]) || context(n),
        spoil: heads_swapped,
    },
    Fault {
        cause: "rows-misplaced",
        places: |_, n, _| norm(n, &[Role::FfnInput]) || linear(n, &[Role::FfnOutput]),
        spoil: rows_swapped,
    },
    Fault { cause: "columns-misplaced", places: |_, n, _| linear(n, &[Role::AttnOutput]), spoil: columns_rotated },
    Fault {
        cause: "scaled:by=2",
        places: |_, n, _| linear(n, &[Role::AttnOutput, Role::FfnOutput]),
        spoil: |s| s.out.iter_mut().for_each(|v| *v *= 2.0),
    },
    Fault {
        cause: "offset:by=0.25,scale=1",
        places: |_, n, _| linear(n, &[Role::Up]) || residual(n, &[Role::AttnOutput]),
        spoil: |s| s.out.iter_mut().for_each(|v| *v += 0.25),
    },
    Fault {
        cause: "one-head-wrong",
        places: |_, n, _| rope(n, &[Role::Query]) || context(n),
        spoil: |s| {
            let (d, last) = (s.config.head_dim, s.config.n_heads - 1);
            s.spoil_where(|_, column| column / d == last, noise);
        },
    },
    Fault { cause: "one-head-wrong:head=1", places: |_, n, _| softmax(n), spoil: one_plane },
    Fault {
        cause: "one-column-wrong",
        places: |_, n, _| linear(n, &[Role::FfnOutput, Role::Value]),
        spoil: |s| {
            let third = s.width() / 3;
            s.spoil_where(|_, column| column == third, noise);
        },
    },
    Fault {
        cause: "one-row-wrong:position=3",
        places: |_, n, _| norm(n, &[Role::AttnInput]) || hidden(n),
        spoil: |s| s.spoil_where(|position, _| position == 3, noise),
    },
    Fault {
        cause: "one-tile-wrong:row=4,rows=4,column=32,columns=16",
        places: |_, n, _| linear(n, &[Role::Gate]),
        spoil: |s| s.spoil_where(|p, column| (4..8).contains(&p) && (32..48).contains(&column), noise),
    },
];
