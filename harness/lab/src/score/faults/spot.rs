//! A stage in the hands of a fault, and what kinds of stages faults happen to.

use qdiff_engine::model::{Config, Graph, Model, Node, Role, StageId, WeightSource as _};
use qdiff_engine::ops::{Op, Tensor};
use qdiff_engine::quant::KvType;
use std::collections::HashMap;
use std::sync::Arc;

/// Changes what a stage gives.
pub type Spoil = fn(&mut Spot<'_>);

/// A fault as it can be planted.
pub struct Fault {
    /// The mutation that should be named, with its parameters where the right ones are to be found.
    pub cause: &'static str,
    /// Stages of a model that it can be planted in, by what they are and by the formats of their weights.
    pub places: fn(&Graph, &Node, &Model) -> bool,
    /// Does it.
    pub spoil: Spoil,
}

pub(super) const fn fault(cause: &'static str, places: fn(&Graph, &Node, &Model) -> bool, spoil: Spoil) -> Fault {
    Fault { cause, places, spoil }
}

pub(super) fn linear(node: &Node, roles: &[Role]) -> bool {
    node.op == Op::Linear && roles.contains(&node.role)
}

pub(super) fn rope(node: &Node, roles: &[Role]) -> bool {
    matches!(node.op, Op::Rope(_)) && roles.contains(&node.role)
}

pub(super) fn norm(node: &Node, roles: &[Role]) -> bool {
    matches!(node.op, Op::RmsNorm(_)) && roles.contains(&node.role)
}

pub(super) fn residual(node: &Node, roles: &[Role]) -> bool {
    node.op == Op::Residual && roles.contains(&node.role)
}

pub(super) fn scores(node: &Node) -> bool {
    matches!(node.op, Op::AttnScores(_))
}

pub(super) fn softmax(node: &Node) -> bool {
    matches!(node.op, Op::AttnWeights(_))
}

pub(super) fn context(node: &Node) -> bool {
    matches!(node.op, Op::AttnContext(_))
}

/// A stage in the hands of a fault.
pub struct Spot<'a> {
    /// The stage.
    pub(super) node: &'a Node,
    /// All stages, as they should be.
    pub(super) graph: &'a Graph,
    /// Hyperparameters.
    pub(super) config: &'a Config,
    /// What it read, in the order of its inputs.
    pub(super) inputs: &'a [Arc<Tensor<f32>>],
    /// Token ids and positions of the step.
    pub(super) tokens: &'a [u32],
    pub(super) positions: &'a [u32],
    /// All weights.
    pub(super) model: &'a Model,
    /// Types of the caches.
    pub(super) kv: KvType,
    /// What other stages gave in this step.
    pub(super) others: &'a HashMap<StageId, Vec<f32>>,
    /// What the stage gave a step before.
    pub(super) old: Option<&'a [f32]>,
    /// What it gives, and its shape.
    pub(super) out: &'a mut Vec<f32>,
    pub(super) shape: &'a mut Vec<usize>,
}

impl<'a> Spot<'a> {
    /// Name of its weight.
    pub(super) fn weight(&self) -> &'a str {
        &self.node.weights[0].name
    }

    /// The stage of the same op in another layer, or of another role in this one.
    pub(super) fn other(&self, layer: Option<u16>, role: Role) -> Option<&'a Node> {
        let alike = |n: &&Node| n.id.layer == layer && n.role == role && n.op.name() == self.node.op.name();
        self.graph.nodes.iter().find(alike)
    }

    /// Inputs and outputs of the weight.
    pub(super) fn extent(&self, weight: &str) -> (usize, usize) {
        self.model.extent(weight)
    }

    /// All values of a weight, row by row.
    pub(super) fn values(&self, weight: &str) -> Vec<f32> {
        let (n, m) = self.extent(weight);
        let mut all = vec![0f32; n * m];
        self.model.rows(weight, 0, &mut all);
        all
    }

    /// Elements of a token's row.
    pub(super) fn width(&self) -> usize {
        self.out.len() / self.positions.len()
    }

    /// Leaves `left(index)` wherever `wrong(position, column)`.
    pub(super) fn spoil_where(&mut self, wrong: impl Fn(u32, usize) -> bool, left: impl Fn(usize) -> f32) {
        let width = self.width();
        for at in 0..self.out.len() {
            if wrong(self.positions[at / width], at % width) {
                self.out[at] = left(at);
            }
        }
    }

    /// `out[t][o] = Σ w(o, i) x[t][i]`, with the weight of output o given as a row.
    pub(super) fn multiply(&mut self, row: impl Fn(usize) -> Vec<f32>) {
        let x = &self.inputs[0].data;
        let m = self.out.len() / self.positions.len();
        let n = x.len() / self.positions.len();
        for o in 0..m {
            let w = row(o);
            for t in 0..self.positions.len() {
                let mut sum = 0f32;
                for i in 0..n {
                    sum += w[i] * x[t * n + i];
                }
                self.out[t * m + o] = sum;
            }
        }
    }
}

/// The stage is not computed: its input is its output.
pub(super) fn input_alone(s: &mut Spot<'_>) {
    s.out.clone_from(&s.inputs[0].data);
}
