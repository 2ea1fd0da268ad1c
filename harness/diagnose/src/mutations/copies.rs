//! A stage that is not computed and shows what another left.

use super::Mutation;
use qdiff_engine::model::fault::Output;
use qdiff_engine::model::{Graph, Node, StageId};

/// From the second step on, the buffer keeps what the step before left at the same addresses.
fn previous(out: Output<'_>) {
    let Some(old) = out.old else { return };
    for ((v, b), old) in out.value.data.iter_mut().zip(out.bound).zip(old) {
        *v = f64::from(*old);
        *b = 0.0;
    }
}

fn previous_layer(node: &Node, _: &[f64], graph: &Graph) -> Option<Node> {
    let layer = node.id.layer?.checked_sub(1)?;
    let source = graph.index(StageId { layer: Some(layer), ..node.id })?;
    Some(Node { inputs: vec![source], ..node.left_out() })
}

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "stale-from-previous-step",
        // A state is nothing else.
        fits: Some(|_, n| !n.op.has_state()),
        story: "the stage is not computed after the first step: its buffer keeps what the step before left there",
        seen: "the prefill is right, and decode steps repeat it",
        remedy: "check that the kernel is launched, and into this buffer, at every decode step",
        apply: |node, _, _| Some(node.writing(previous)),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "copied-from-previous-layer",
        story: "the stage is not computed: it shows the same stage of the layer before",
        seen: "two layers give the same tensor bit by bit",
        remedy: "check that the layer's index enters the kernel's arguments and the buffer's address",
        apply: previous_layer,
        ..Mutation::ANYWHERE
    },
];
