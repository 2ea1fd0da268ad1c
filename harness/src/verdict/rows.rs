//! How a stage's tensor falls into rows that are judged one by one.

use super::Place;
use crate::capture::Step;
use qdiff_engine::model::{Axis, Node};
use qdiff_engine::ops::{Op, attn_scores};

/// Length of a row: a token's whole vector, or a head's part of it.
pub(super) fn row_len(shape: &[usize]) -> usize {
    shape.last().copied().unwrap_or(0).max(1)
}

/// Where row `r` of a tensor of this shape belongs.
pub(super) fn place(node: &Node, shape: &[usize], step: &Step, r: usize) -> Place {
    let (index, head) = match (node.shape.first(), shape.len()) {
        (Some(Axis::Fixed(_)), _) => (step.first + r % shape[1].max(1), Some(r / shape[1].max(1))),
        (Some(Axis::Keys), _) => (r / shape[1].max(1), Some(r % shape[1].max(1))),
        (_, 3) => (step.first + r / shape[1].max(1), Some(r % shape[1].max(1))),
        _ => (step.first + r, None),
    };
    Place {
        step: step.index,
        position: index,
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
