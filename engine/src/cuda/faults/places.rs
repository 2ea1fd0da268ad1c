//! Where a fault can be planted: read off the graph, by op and role.

use crate::model::{Graph, Node, Role};
use crate::ops::Op;

pub(super) fn linear_of_several_layers(graph: &Graph, node: &Node) -> bool {
    node.op == Op::Linear && node.id.layer.is_some() && graph.config.n_layers > 1
}

pub(super) fn qkv(_: &Graph, node: &Node) -> bool {
    matches!((&node.op, node.role), (Op::Linear, Role::Query | Role::Key | Role::Value))
}

pub(super) fn lm_head(_: &Graph, node: &Node) -> bool {
    matches!((&node.op, node.role), (Op::Linear, Role::Logits))
}

pub(super) fn other_linear(_: &Graph, node: &Node) -> bool {
    matches!((&node.op, node.role), (Op::Linear, Role::AttnOutput | Role::Gate | Role::Up | Role::FfnOutput))
}

pub(super) fn gate_or_up(_: &Graph, node: &Node) -> bool {
    matches!((&node.op, node.role), (Op::Linear, Role::Gate | Role::Up))
}

pub(super) fn bias(_: &Graph, node: &Node) -> bool {
    node.op == Op::Bias
}

pub(super) fn norm(_: &Graph, node: &Node) -> bool {
    matches!(node.op, Op::RmsNorm(_))
}

pub(super) fn rope(_: &Graph, node: &Node) -> bool {
    matches!(node.op, Op::Rope(_))
}

pub(super) fn rope_of_queries(graph: &Graph, node: &Node) -> bool {
    rope(graph, node) && node.role == Role::Query
}

pub(super) fn rope_of_keys(graph: &Graph, node: &Node) -> bool {
    rope(graph, node) && node.role == Role::Key
}

pub(super) fn cache(_: &Graph, node: &Node) -> bool {
    matches!(node.op, Op::KvCache(_))
}

/// Scores of heads in groups: with one head to a group, or one group, the two maps are one.
pub(super) fn grouped_scores(_: &Graph, node: &Node) -> bool {
    matches!(&node.op, Op::AttnScores(a) if (2..a.n_heads).contains(&a.n_kv_heads))
}

pub(super) fn softmax(_: &Graph, node: &Node) -> bool {
    matches!(node.op, Op::AttnWeights(_))
}

pub(super) fn swiglu(_: &Graph, node: &Node) -> bool {
    node.op == Op::SwiGlu
}

pub(super) fn residual(_: &Graph, node: &Node) -> bool {
    node.op == Op::Residual
}
