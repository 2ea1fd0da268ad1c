//! The same tokens in steps of different size: how far one run is from
//! another, row by row, in whichever step a row was computed.

use super::global::same_bits;
use super::rows::row_len;
use super::{Global, Place};
use crate::capture::{Capture, Filter, Step, Whose};
use crate::metrics::distance;
use qdiff_engine::model::{Axis, Graph, Node, StageId};
use std::collections::HashMap;

/// The largest relative L2 distance of a row of `a` from the same row of `b`
/// over all stages, where that is, and at which stage.
pub fn largest_difference(graph: &Graph, a: &Capture, b: &Capture, filter: &Filter) -> Option<(StageId, Global)> {
    let stages = graph.nodes.iter().filter(|n| filter.stage(n.id));
    stages
        .filter_map(|node| Some((node.id, difference(node, a, b, filter)?)))
        .max_by(|x, y| x.1.error.total_cmp(&y.1.error))
}

/// The stage's rows side by side, by position. For a cache its last state is
/// compared: the result of all steps together.
fn difference(node: &Node, a: &Capture, b: &Capture, filter: &Filter) -> Option<Global> {
    let mut worst: Option<Global> = None;
    let mut note = |at: Place, x: &[f32], y: &[f32]| {
        if filter.position(at.position) {
            let (error, same) = (distance(x, y), same_bits(x, y));
            let identical = same && worst.is_none_or(|w| w.identical);
            let before = worst.filter(|w| error <= w.error).unwrap_or(Global { error, at, identical });
            worst = Some(Global { identical, ..before });
        }
    };
    let Some(axis) = node.token_axis() else {
        let (a, b) = (a.steps.last()?.get(node.id)?, b.steps.last()?.get(node.id)?);
        let n = a.row_len();
        for (position, (x, y)) in a.data.chunks(n).zip(b.data.chunks(n)).enumerate() {
            note(Place { whose: Whose::default(), step: 0, position, head: None }, x, y);
        }
        return worst;
    };
    let steps = b.steps.iter();
    let rows: HashMap<usize, (&Step, usize)> =
        steps.flat_map(|step| (0..step.rows()).map(move |r| (step.first + step.offset(r), (step, r)))).collect();
    for step in &a.steps {
        let Some(of_step) = step.stages.get(&node.id) else { continue };
        for r in 0..step.rows() {
            let position = step.first + step.offset(r);
            let there = rows.get(&position).and_then(|(other, s)| Some((other.stages.get(&node.id)?, *s)));
            let Some((of_other, s)) = there else { continue };
            let (x, y) = (of_step.slice(axis, r..r + 1), of_other.slice(axis, s..s + 1));
            let (n, m) = (row_len(&x.shape), row_len(&y.shape));
            for (head, (x, y)) in x.data.chunks(n).zip(y.data.chunks(m)).enumerate() {
                let judged = judged(node, position, n.min(m));
                let head = (of_step.shape().len() == 3).then_some(head);
                let at = Place { whose: step.whose, step: step.index, position, head };
                note(at, &x[..judged], &y[..judged]);
            }
        }
    }
    worst
}

/// How much of a row both runs must agree in: of attention the keys that the
/// token sees, since more of them exist in a longer step.
fn judged(node: &Node, position: usize, n: usize) -> usize {
    if node.shape.last() == Some(&Axis::Keys) { n.min(position + 1) } else { n }
}
