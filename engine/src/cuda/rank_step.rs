//! A decode step of a rank as it was captured.

use super::launch::Call;
use super::slots::Slots;
use crate::model::Graph;
use cudarc::driver::{CudaGraph, sys};
use std::sync::Arc;

/// A captured decode step.
pub(super) struct RankGraph {
    pub(super) graph: CudaGraph,
    /// The kernels that may change, in the order of the launches: what they were given last, and their nodes.
    pub(super) kernels: Vec<(Call, sys::CUgraphNode)>,
    /// Which nodes are tapped.
    pub(super) wanted: Vec<bool>,
    /// Where those stand that are copied.
    pub(super) slots: Arc<Slots>,
}

impl RankGraph {
    /// Which nodes are copied to the slot.
    pub(super) fn copied(&self, graph: &Graph) -> Vec<bool> {
        self.wanted.iter().zip(&graph.nodes).map(|(wanted, node)| *wanted && !node.op.has_state()).collect()
    }
}
