//! How a stage's tensor falls into rows that are judged one by one.

use super::Place;
use crate::capture::{Capture, Step};
use qdiff_engine::model::{Axis, Graph, Node};
use qdiff_engine::ops::Tensor;
use std::ops::Range;

/// Length of a row: a token's whole vector, or a head's part of it.
pub(super) fn row_len(shape: &[usize]) -> usize {
    shape.last().copied().unwrap_or(0).max(1)
}

/// Rows that a token has of a stage: its heads, where they are judged one by one.
pub(super) fn of_token(node: &Node) -> usize {
    let one = Graph::extent(node, 1, 1);
    one.iter().product::<usize>() / row_len(&one)
}

/// Where row `r` of a tensor of this shape belongs, in `step`, whose rows here are the tokens at `positions`.
pub(super) fn place(node: &Node, shape: &[usize], step: &Step, positions: &[u32], r: usize) -> Place {
    let of = |row: usize| positions[row] as usize;
    let (position, head) = match (node.shape.first(), shape.len()) {
        (Some(Axis::Last), _) => (step.keys() - 1, Some(r)),
        (Some(Axis::Fixed(_)), _) => (of(r % shape[1].max(1)), Some(r / shape[1].max(1))),
        (Some(Axis::Keys), _) => (r / shape[1].max(1), Some(r % shape[1].max(1))),
        (_, 3) => (of(r / shape[1].max(1)), Some(r % shape[1].max(1))),
        _ => (of(r), None),
    };
    Place { whose: step.whose, step: step.index, position, head }
}

/// The rows of a tensor of this shape, of which [`place`] says where they belong, with the judged
/// part of each: all of it, but of attention scores the causal part.
pub(super) fn rows<'a>(
    node: &'a Node, shape: &'a [usize], step: &'a Step, positions: Vec<u32>,
) -> impl Iterator<Item = (Place, Range<usize>)> + 'a {
    let n = row_len(shape);
    (0..shape.iter().product::<usize>() / n).map(move |r| {
        let at = place(node, shape, step, &positions, r);
        let judged = node.op.meaningful(at.position as u32, n);
        (at, r * n..r * n + judged)
    })
}

/// The rows of what a stage gave in `step`.
pub fn rows_given<'a>(
    node: &'a Node, step: &'a Step, given: &'a Tensor<f32>,
) -> impl Iterator<Item = (Place, Range<usize>)> + 'a {
    rows(node, &given.shape, step, step.positions()).filter(|(at, _)| step.has_row(node.id, at.position))
}

/// What `capture` holds in the row `at`.
pub(super) fn row_at(node: &Node, capture: &Capture, at: Place) -> Option<Vec<f32>> {
    let mut steps = capture.steps.iter().filter(|s| s.index == at.step && s.has_row(node.id, at.position));
    steps.find_map(|step| {
        let stored = step.stages.get(&node.id)?;
        // A cache holds the rows of all positions so far.
        let (axis, row) = match node.token_axis() {
            Some(axis) => (axis, step.positions().iter().position(|&p| p as usize == at.position)?),
            // Parts of a prompt have one number, and a state each.
            None if node.shape.first() == Some(&Axis::Last) => {
                step.positions().last().is_none_or(|last| *last as usize == at.position).then_some((0, 0))?
            }
            None => (0, at.position),
        };
        if row >= *stored.shape().get(axis)? {
            return None;
        }
        // One token has a row for each head, on whichever axis the heads are.
        let tensor = stored.slice(axis, row..row + 1);
        let n = row_len(&tensor.shape);
        let start = at.head.unwrap_or(0) * n;
        tensor.data.get(start..start + n).map(<[f32]>::to_vec)
    })
}
