//! How a stage's tensor falls into rows that are judged one by one.

use super::Place;
use qdiff_engine::model::{Axis, Node};
use qdiff_engine::ops::{Op, attn_scores};

/// Length of a row: a token's whole vector, or a head's part of it.
pub(super) fn row_len(shape: &[usize]) -> usize {
    shape.last().copied().unwrap_or(0).max(1)
}

/// Where row `r` of a tensor of this shape belongs, in the step of number
/// `step`, whose rows here are the tokens at `positions`.
pub(super) fn place(
    node: &Node,
    shape: &[usize],
    step: usize,
    positions: &[u32],
    r: usize,
) -> Place {
    let of = |row: usize| positions[row] as usize;
    let (position, head) = match (node.shape.first(), shape.len()) {
        (Some(Axis::Fixed(_)), _) => (of(r % shape[1].max(1)), Some(r / shape[1].max(1))),
        (Some(Axis::Keys), _) => (r / shape[1].max(1), Some(r % shape[1].max(1))),
        (_, 3) => (of(r / shape[1].max(1)), Some(r % shape[1].max(1))),
        _ => (of(r), None),
    };
    Place {
        step,
        position,
        head,
    }
}

/// How much of a row of `n` elements is judged: all of it, but of attention
/// scores the causal part.
pub(super) fn judged_len(node: &Node, at: Place, n: usize) -> usize {
    match node.op {
        Op::AttnScores(_) => attn_scores::causal(at.position as u32, n),
        _ => n,
    }
}
