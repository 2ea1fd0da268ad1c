//! Faults that share no code with any hypothesis: plain loops over what a
//! stage read and gave, planted in the CPU engine right after the stage.
//!
//! Nothing here calls an op or a mutation. Weights come through the engine's own reader, or as the bytes of their
//! blocks; the hypotheses have theirs from ggml.

#![allow(clippy::needless_range_loop, reason = "plain indices, as the kernels have them whose bugs these are")]

mod attention;
mod buffers;
mod decoding;
pub mod kernels;
mod layout;
mod numerics;
mod position;
pub mod sequences;
mod weights;

use qdiff_engine::model::{Config, Graph, Model, Node, Role, StageId, WeightSource as _};
use qdiff_engine::ops::{Op, Tensor};
use qdiff_engine::tap::{Intervene, Site};
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

const fn fault(cause: &'static str, places: fn(&Graph, &Node, &Model) -> bool, spoil: Spoil) -> Fault {
    Fault { cause, places, spoil }
}

/// Every independent fault.
pub fn all() -> impl Iterator<Item = &'static Fault> {
    [
        layout::FAULTS,
        weights::FAULTS,
        position::FAULTS,
        attention::FAULTS,
        numerics::FAULTS,
        decoding::FAULTS,
        buffers::FAULTS,
    ]
    .into_iter()
    .flatten()
}

fn linear(node: &Node, roles: &[Role]) -> bool {
    node.op == Op::Linear && roles.contains(&node.role)
}

fn rope(node: &Node, roles: &[Role]) -> bool {
    matches!(node.op, Op::Rope(_)) && roles.contains(&node.role)
}

fn norm(node: &Node, roles: &[Role]) -> bool {
    matches!(node.op, Op::RmsNorm(_)) && roles.contains(&node.role)
}

fn residual(node: &Node, roles: &[Role]) -> bool {
    node.op == Op::Residual && roles.contains(&node.role)
}

fn scores(node: &Node) -> bool {
    matches!(node.op, Op::AttnScores(_))
}

fn softmax(node: &Node) -> bool {
    matches!(node.op, Op::AttnWeights(_))
}

fn context(node: &Node) -> bool {
    matches!(node.op, Op::AttnContext(_))
}

/// A stage in the hands of a fault.
pub struct Spot<'a> {
    /// The stage.
    node: &'a Node,
    /// All stages, as they should be.
    graph: &'a Graph,
    /// Hyperparameters.
    config: &'a Config,
    /// What it read, in the order of its inputs.
    inputs: &'a [Arc<Tensor<f32>>],
    /// Token ids and positions of the step.
    tokens: &'a [u32],
    positions: &'a [u32],
    /// All weights.
    model: &'a Model,
    /// What other stages gave in this step.
    others: &'a HashMap<StageId, Vec<f32>>,
    /// What the stage gave a step before.
    old: Option<&'a [f32]>,
    /// What it gives, and its shape.
    out: &'a mut Vec<f32>,
    shape: &'a mut Vec<usize>,
}

impl<'a> Spot<'a> {
    /// Name of its weight.
    fn weight(&self) -> &'a str {
        &self.node.weights[0].name
    }

    /// The stage of the same op in another layer, or of another role in this one.
    fn other(&self, layer: Option<u16>, role: Role) -> Option<&'a Node> {
        let alike = |n: &&Node| n.id.layer == layer && n.role == role && n.op.name() == self.node.op.name();
        self.graph.nodes.iter().find(alike)
    }

    /// Inputs and outputs of the weight.
    fn extent(&self, weight: &str) -> (usize, usize) {
        self.model.extent(weight)
    }

    /// All values of a weight, row by row.
    fn values(&self, weight: &str) -> Vec<f32> {
        let (n, m) = self.extent(weight);
        let mut all = vec![0f32; n * m];
        self.model.rows(weight, 0, &mut all);
        all
    }

    /// Elements of a token's row.
    fn width(&self) -> usize {
        self.out.len() / self.positions.len()
    }

    /// Leaves `left(index)` wherever `wrong(position, column)`.
    fn spoil_where(&mut self, wrong: impl Fn(u32, usize) -> bool, left: impl Fn(usize) -> f32) {
        let width = self.width();
        for at in 0..self.out.len() {
            if wrong(self.positions[at / width], at % width) {
                self.out[at] = left(at);
            }
        }
    }

    /// `out[t][o] = Σ w(o, i) x[t][i]`, with the weight of output o given as a row.
    fn multiply(&mut self, row: impl Fn(usize) -> Vec<f32>) {
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

/// The stage is not computed: its input stands alone.
fn input_alone(s: &mut Spot<'_>) {
    s.out.clone_from(&s.inputs[0].data);
}

/// Faults in the stages where they are planted; changes what those give.
pub struct FaultyStages<'a> {
    model: &'a Model,
    places: Vec<(Spoil, StageId)>,
    others: HashMap<StageId, Vec<f32>>,
    old: HashMap<StageId, Vec<f32>>,
}

impl<'a> FaultyStages<'a> {
    /// Each fault in its stage.
    pub fn new(model: &'a Model, places: Vec<(Spoil, StageId)>) -> Self {
        Self { model, places, others: HashMap::new(), old: HashMap::new() }
    }

    /// Whether a fault may want to see what this stage gives: one of its own layer or of the one before, or its like.
    fn seen_later(&self, node: &Node) -> bool {
        self.places.iter().any(|(_, at)| {
            let before = node.id.name == at.name && at.layer > node.id.layer;
            before || node.id.layer == at.layer || node.id.layer == at.layer.and_then(|l| l.checked_sub(1))
        })
    }

    /// What a stage gives with a fault.
    fn spoiled(&self, spoil: Spoil, site: &Site<'_>) -> Tensor<f32> {
        let Tensor { mut shape, mut data } = site.output.clone();
        spoil(&mut Spot {
            node: site.node,
            graph: self.model.graph(),
            config: &self.model.graph().config,
            inputs: site.inputs,
            tokens: site.context.tokens,
            positions: site.context.positions,
            model: self.model,
            others: &self.others,
            old: self.old.get(&site.node.id).map(Vec::as_slice),
            out: &mut data,
            shape: &mut shape,
        });
        Tensor { shape, data }
    }
}

impl Intervene for FaultyStages<'_> {
    fn change(&mut self, site: Site<'_>) {
        let id = site.node.id;
        for at in 0..self.places.len() {
            let (spoil, place) = self.places[at];
            if place == id {
                *site.output = self.spoiled(spoil, &site);
                self.old.insert(id, site.output.data.clone());
            }
        }
        if self.seen_later(site.node) {
            self.others.insert(id, site.output.data.clone());
        }
    }
}
