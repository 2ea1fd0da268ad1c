//! Where mutations may happen, for those that share it.

use qdiff_engine::model::{Graph, Node, Role};
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::{Activation, Contraction, Elementwise, RowReduction};

pub(super) fn norms(_: &Graph, n: &Node) -> bool {
    matches!(n.op.anatomy(), Anatomy::RowReduction(RowReduction::MeanSquare(_)))
}

pub(super) fn rotations(_: &Graph, n: &Node) -> bool {
    matches!(n.op.anatomy(), Anatomy::Elementwise(Elementwise::Rotation(_)))
}

pub(super) fn softmax(_: &Graph, n: &Node) -> bool {
    matches!(n.op.anatomy(), Anatomy::RowReduction(RowReduction::Exponentials(_)))
}

pub(super) fn scores(_: &Graph, n: &Node) -> bool {
    matches!(n.op.anatomy(), Anatomy::Contraction(Contraction::Scores(_)))
}

pub(super) fn context(_: &Graph, n: &Node) -> bool {
    matches!(n.op.anatomy(), Anatomy::Contraction(Contraction::Context(_)))
}

pub(super) fn activation(_: &Graph, n: &Node) -> bool {
    n.op.anatomy() == Anatomy::Elementwise(Elementwise::Gated(Activation::Silu))
}

pub(super) fn gates(_: &Graph, n: &Node) -> bool {
    matches!(n.op.anatomy(), Anatomy::Elementwise(Elementwise::Gated(_)))
}

pub(super) fn residuals(graph: &Graph, n: &Node) -> bool {
    // Other sums are none of the residual stream.
    let stream = matches!(n.role, Role::AttnOutput | Role::FfnOutput) && graph.adapted_of(n).is_none();
    stream && n.op.anatomy() == Anatomy::Elementwise(Elementwise::Sum)
}

pub(super) fn head(_: &Graph, n: &Node) -> bool {
    matches!((n.op.anatomy(), n.role), (Anatomy::Contraction(Contraction::Weight(None)), Role::Logits))
}
