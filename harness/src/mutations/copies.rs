//! A stage that is not computed and shows what another left.

use super::Mutation;
use qdiff_engine::model::fault::{Output, Write};
use qdiff_engine::model::{Graph, Node, StageId};
use qdiff_engine::ops::Op;
use std::sync::Arc;

/// From the second step on, the buffer keeps what the step before left at the
/// same addresses.
#[derive(Debug)]
struct Previous;

impl Write for Previous {
    fn write(&self, out: Output<'_>) {
        let Some(old) = out.old else { return };
        for ((v, b), old) in out.value.data.iter_mut().zip(out.bound).zip(old) {
            *v = f64::from(*old);
            *b = 0.0;
        }
    }
}

fn previous_layer(node: &mut Node, _: &[f64], graph: &Graph) -> bool {
    let source = node
        .id
        .layer
        .and_then(|l| l.checked_sub(1))
        .and_then(|layer| graph.index(StageId { layer: Some(layer), ..node.id }));
    if let Some(source) = source {
        node.inputs = vec![source];
        node.op = Op::Copy;
    }
    source.is_some()
}

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "stale-from-previous-step",
        stages: &["*"],
        story: "the stage is not computed after the first step: its buffer keeps what the step before left there",
        seen: "the prefill is right, and decode steps repeat it",
        remedy: "check that the kernel is launched, and into this buffer, at every decode step",
        apply: |node, _, _| {
            node.faults.write = Some(Arc::new(Previous));
            !matches!(node.op, Op::KvCache(_))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "copied-from-previous-layer",
        stages: &["*"],
        story: "the stage is not computed: it shows the same stage of the layer before",
        seen: "two layers give the same tensor bit by bit",
        remedy: "check that the layer's index enters the kernel's arguments and the buffer's address",
        apply: previous_layer,
        ..Mutation::PLAIN
    },
];
