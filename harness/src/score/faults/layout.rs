//! Weights read in another order than they are stored in.

use super::{Fault, Spot, linear};
use qdiff_engine::model::Role;
use qdiff_engine::ops::Op;

/// The memory of W `[m, n]` taken for `[n, m]`.
fn across(s: &mut Spot<'_>) {
    let w = s.values(s.weight());
    let (n, m) = s.extent(s.weight());
    s.multiply(|o| (0..n).map(|i| w[i * m + o]).collect());
}

/// Rows that begin 8 values further from each other than they do.
fn leading(s: &mut Spot<'_>) {
    let w = s.values(s.weight());
    let (n, _) = s.extent(s.weight());
    s.multiply(|o| (0..n).map(|i| *w.get(o * (n + 8) + i).unwrap_or(&0.0)).collect());
}

fn embed_across(s: &mut Spot<'_>) {
    let w = s.values(s.weight());
    let (n, m) = s.extent(s.weight());
    for (t, &token) in s.tokens.iter().enumerate() {
        for i in 0..n {
            s.out[t * n + i] = w[i * m + token as usize];
        }
    }
}

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        cause: "qkv-weight-transposed",
        places: |_, n, _| linear(n, &[Role::Query, Role::Key, Role::Value]),
        spoil: across,
    },
    Fault {
        cause: "linear-weight-transposed",
        places: |_, n, _| linear(n, &[Role::AttnOutput, Role::Gate, Role::Up, Role::FfnOutput]),
        spoil: across,
    },
    Fault { cause: "lm-head-transposed", places: |_, n, _| linear(n, &[Role::Logits]), spoil: across },
    Fault { cause: "lm-head-ld:extra=8", places: |_, n, _| linear(n, &[Role::Logits]), spoil: leading },
    Fault { cause: "embed-transposed", places: |_, n, _| n.op == Op::Embed, spoil: embed_across },
];
