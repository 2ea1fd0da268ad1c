//! Attention that looks at slots of the cache which its sequence does not have.

use super::Place;
use crate::capture::{Capture, Foreign, Step};
use crate::number::{counted, number};
use qdiff_engine::model::{Graph, Node};
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::Contraction;

/// Whether the row at this place of the weights `node` looks at slots of another sequence.
pub(super) fn looks(step: &Step, node: &Node, at: Place) -> bool {
    of_others(step, node).any(|row| row.position == at.position && at.head.is_none_or(|head| head == row.head))
}

/// The rows of the weights `node` that look at slots of another sequence. Those that look at tokens which their own one took back
/// are judged where these tokens are there.
fn of_others<'a>(step: &'a Step, node: &Node) -> impl Iterator<Item = &'a Foreign> {
    step.foreign.get(&node.id).into_iter().flatten().filter(|row| row.sequence != step.whose.sequence)
}

/// Whether the row at this place reads weights on slots that its sequence does not have: then the values that it should have read
/// are in no capture of its sequence.
pub(super) fn reads(graph: &Graph, node: &Node, step: &Step, at: Place) -> bool {
    let of_row = |input: &usize| {
        let rows = step.foreign.get(&graph.nodes[*input].id);
        rows.is_some_and(|rows| rows.iter().any(|row| row.position == at.position))
    };
    matches!(node.op.anatomy(), Anatomy::Contraction(Contraction::Context(_))) && node.inputs.iter().any(of_row)
}

/// What such rows of a step are, in words.
pub(super) fn in_step(step: &Step, node: &Node) -> Option<String> {
    let rows: Vec<&Foreign> = of_others(step, node).collect();
    let &&Foreign { position, head, sequence, weight } =
        rows.iter().max_by(|a, b| a.weight.abs().total_cmp(&b.weight.abs()))?;
    Some(format!(
        "attention looks at cache slots that its sequence does not have: {} of the weight of p{position} h{head} is there, the \
         largest part on a slot of sequence {sequence}; {} in all",
        number(weight.into()),
        counted(rows.len(), "such row"),
    ))
}

/// The same of the stage `node`, of the first step where there are any. Laws of attention know the keys of one sequence.
pub fn told(node: &Node, capture: &Capture) -> Option<String> {
    let words = capture.steps.iter().find_map(|step| in_step(step, node))?;
    Some(format!("{words}; look at the mask and the block table"))
}
