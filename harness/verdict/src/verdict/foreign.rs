//! Attention that looks at slots of the cache which its sequence does not have.

use super::Place;
use crate::capture::{Capture, Foreign, Step};
use crate::number::{counted, number};
use qdiff_engine::model::{Graph, Node};
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::Contraction;

/// Whether the row at this place of the weights `node` looks at such slots.
pub(super) fn looks(step: &Step, node: &Node, at: Place) -> bool {
    let of_row = |foreign: &Foreign| foreign.position == at.position && at.head.is_none_or(|head| head == foreign.head);
    step.foreign.get(&node.id).is_some_and(|rows| rows.iter().any(of_row))
}

/// Whether the row at this place reads weights on such slots: then the values that it should have read are in no capture of
/// its sequence.
pub(super) fn reads(graph: &Graph, node: &Node, step: &Step, at: Place) -> bool {
    matches!(node.op.anatomy(), Anatomy::Contraction(Contraction::Context(_)))
        && node.inputs.iter().any(|&i| looks(step, &graph.nodes[i], Place { head: None, ..at }))
}

/// What such rows are, in words.
pub(super) fn words(rows: &[Foreign]) -> Option<String> {
    let most = rows.iter().max_by(|a, b| a.weight.abs().total_cmp(&b.weight.abs()))?;
    let &Foreign { position, head, sequence, weight } = most;
    Some(format!(
        "attention looks at cache slots that its sequence does not have: {} of the weight of p{position} h{head} is there, the \
         largest part on a slot of sequence {sequence}; {} in all",
        number(weight.into()),
        counted(rows.len(), "such row"),
    ))
}

/// The same of the stage `node`, of the first step where there are any. Laws of attention know the keys of one sequence.
pub fn told(node: &Node, capture: &Capture) -> Option<String> {
    let rows = capture.steps.iter().find_map(|step| step.foreign.get(&node.id))?;
    Some(format!("{}; look at the mask and the block table", words(rows)?))
}
