//! Where a fault can be planted: read off the graph, by ops and what they read.

use crate::model::{Graph, Node};
use crate::ops::Op;

/// Whether whatever reads the node, past biases and norms, is one of these.
fn read_by(graph: &Graph, node: &Node, is: fn(&Op) -> bool) -> bool {
    let passes = |op: &Op| matches!(op, Op::Bias | Op::RmsNorm(_));
    let index = graph.index(node.id).unwrap_or(graph.nodes.len());
    let readers = graph.after(index, &|i| !passes(&graph.nodes[i].op));
    !readers.is_empty() && readers.iter().all(|&i| is(&graph.nodes[i].op))
}

fn linear(node: &Node) -> bool {
    matches!(node.op, Op::Linear(_))
}

pub(super) fn any_linear_of_a_layer(_: &Graph, node: &Node) -> bool {
    linear(node) && node.id.layer.is_some()
}

pub(super) fn qkv(graph: &Graph, node: &Node) -> bool {
    linear(node) && read_by(graph, node, |op| matches!(op, Op::Rope(_) | Op::KvCache(_)))
}

pub(super) fn lm_head(graph: &Graph, node: &Node) -> bool {
    linear(node) && graph.nodes.last().is_some_and(|last| last.id == node.id)
}

pub(super) fn other_linear(graph: &Graph, node: &Node) -> bool {
    linear(node) && !qkv(graph, node) && !lm_head(graph, node)
}

pub(super) fn gate_or_up(graph: &Graph, node: &Node) -> bool {
    linear(node) && read_by(graph, node, |op| matches!(op, Op::SwiGlu(_)))
}

pub(super) fn bias(_: &Graph, node: &Node) -> bool {
    matches!(node.op, Op::Bias)
}

pub(super) fn norm(_: &Graph, node: &Node) -> bool {
    matches!(node.op, Op::RmsNorm(_))
}

pub(super) fn rope(_: &Graph, node: &Node) -> bool {
    matches!(node.op, Op::Rope(_))
}

pub(super) fn rope_of_queries(graph: &Graph, node: &Node) -> bool {
    rope(graph, node) && read_by(graph, node, |op| matches!(op, Op::AttnScores(_)))
}

pub(super) fn rope_of_keys(graph: &Graph, node: &Node) -> bool {
    rope(graph, node) && read_by(graph, node, |op| matches!(op, Op::KvCache(_)))
}

pub(super) fn cache(_: &Graph, node: &Node) -> bool {
    matches!(node.op, Op::KvCache(_))
}

pub(super) fn scores(_: &Graph, node: &Node) -> bool {
    matches!(node.op, Op::AttnScores(_))
}

pub(super) fn softmax(_: &Graph, node: &Node) -> bool {
    matches!(node.op, Op::AttnWeights(_))
}

pub(super) fn swiglu(_: &Graph, node: &Node) -> bool {
    matches!(node.op, Op::SwiGlu(_))
}

pub(super) fn residual(_: &Graph, node: &Node) -> bool {
    matches!(node.op, Op::Residual)
}
