//! Weights read in another order than they are stored in.

use super::{Fault, Spot, fault, linear};
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
    fault("qkv-weight-transposed", |_, n, _| linear(n, &[Role::Query, Role::Key, Role::Value]), across),
    fault(
        "linear-weight-transposed",
        |_, n, _| linear(n, &[Role::AttnOutput, Role::Gate, Role::Up, Role::FfnOutput]),
        across,
    ),
    fault("lm-head-transposed", |_, n, _| linear(n, &[Role::Logits]), across),
    fault("lm-head-ld:extra=8", |_, n, _| linear(n, &[Role::Logits]), leading),
    fault("embed-transposed", |_, n, _| n.op == Op::Embed, embed_across),
];
