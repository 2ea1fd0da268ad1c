//! A small model that has been run, and one stage of it into which other values are put.

use super::super::super::work::Meter;
use super::super::{Solution, solve};
use crate::arithmetic::Arithmetic;
use crate::capture::{Capture, Collector, Filter, Passes, Store, Want, steps};
use crate::llama::gguf::GgmlWeights;
use crate::llama::{Load, Model};
use crate::oracle::Oracle;
use crate::verdict::{Evidence, Policy, Side};
use qdiff_engine::cpu::CpuEngine;
use qdiff_engine::gguf::Gguf;
use qdiff_engine::model::{Axis, Graph, Node, StageId, WeightSource as _};
use qdiff_engine::ops::Tensor;
use qdiff_synth::Synth;
use std::collections::BTreeSet;

/// A model that the engine has run twice, on other tokens each time.
pub(super) struct Bench<'a> {
    pub(super) oracle: Oracle<'a>,
    pub(super) capture: Capture,
    pub(super) other: Capture,
    filter: Filter,
    policy: Policy,
    arithmetic: Arithmetic,
}

/// What became of values that were put into a stage.
pub(super) struct Judged {
    /// Positions with wrong elements; none if what was planted changes nothing.
    pub(super) positions: BTreeSet<usize>,
    pub(super) solution: Option<Solution>,
}

impl<'a> Bench<'a> {
    /// Runs the model in this file: a prompt of so many tokens in parts of `ubatch`, and three decode steps.
    pub(super) fn new(model: &Synth, file: &'a Gguf, (prompt, ubatch): (usize, usize)) -> Self {
        let path = file.parts()[0].path.as_deref().unwrap();
        let oracle =
            Oracle::new(GgmlWeights::open(file).unwrap(), &Model::load(path, Load::Vocabulary).unwrap()).unwrap();
        let filter = Filter::default();
        let store = Store::usual(None);
        // Ids whose parity is not that of their position.
        let token = |i: usize, of: usize| ((i * 37 + i / 3 * of + 11 * of) % model.n_vocab) as u32;
        let run = |of: usize| {
            let tokens: Vec<u32> = (0..prompt + 3).map(|i| token(i, of)).collect();
            let want = Want::new(&oracle.graph, &filter, &|_| true, &store);
            let mut engine = CpuEngine::new(oracle.graph.clone(), &oracle.weights);
            let mut capture = Capture::new(store.clone());
            for step in steps(&tokens[..prompt], Passes::Of(ubatch), &tokens[prompt..]) {
                let mut taps = Collector::new(&want, engine.position(), &step.tokens);
                engine.step(&step.tokens, &mut taps);
                let mut done = taps.finish();
                done.index = step.index;
                capture.steps.push(done);
            }
            capture
        };
        let (capture, other) = (run(1), run(2));
        Self { oracle, capture, other, filter, policy: Policy::default(), arithmetic: Arithmetic::default() }
    }

    /// A stage as it was given.
    pub(super) fn stage(&self, node: &Node) -> Stage {
        let of = |capture: &Capture, id: StageId| -> Vec<Tensor<f32>> {
            capture.steps.iter().map(|s| s.get(id).unwrap().into_owned()).collect()
        };
        let nodes = &self.oracle.graph.nodes;
        let alike = |n: &&Node| n.shape == node.shape && n.id != node.id;
        let matrix = node.weights.first().map(|w| {
            let (n, rows) = self.oracle.weights.extent(&w.name);
            let mut all = vec![0f32; n * rows];
            self.oracle.weights.rows(&w.name, 0, &mut all);
            all.chunks(n).map(<[f32]>::to_vec).collect()
        });
        let another = node.inputs.first().and_then(|&i| {
            let known = |n: &&Node| n.id.layer == node.id.layer && n.shape == nodes[i].shape;
            nodes.iter().find(|n| known(n) && !node.inputs.iter().any(|&i| nodes[i].id == n.id) && n.id != node.id)
        });
        Stage {
            node: node.clone(),
            graph: self.oracle.graph.clone(),
            given: of(&self.capture, node.id),
            inputs: node.inputs.iter().map(|&i| of(&self.capture, nodes[i].id)).collect(),
            of_another_run: of(&self.other, node.id),
            alike: nodes.iter().filter(alike).map(|n| (n.id, of(&self.capture, n.id))).collect(),
            another: another.map(|n| (n.id, of(&self.capture, n.id))),
            matrix: matrix.unwrap_or_default(),
            steps: self.capture.steps.iter().map(|s| (s.first, s.tokens.len())).collect(),
        }
    }

    /// Whether the stage is wrong with these values in its place, and what is solved for.
    pub(super) fn judged(&mut self, stage: &Stage, values: Vec<Tensor<f32>>) -> Judged {
        self.put(stage, values);
        let node = &self.oracle.graph.nodes[self.oracle.graph.index(stage.node.id).unwrap()];
        let side = Side { capture: &self.capture, arithmetic: &self.arithmetic };
        let e = Evidence::new(&self.oracle, node, side, &self.filter, &self.policy);
        let positions: BTreeSet<usize> = e.wrong().iter().map(|w| e.rows[w.row].place.position).collect();
        let solution = match positions.is_empty() {
            true => None,
            false => solve(&e, (&[], &[]), &Meter::new(u64::MAX)),
        };
        self.put(stage, stage.given.clone());
        Judged { positions, solution }
    }

    /// What `of` makes of the evidence with these values in the place of a stage.
    pub(super) fn seen<T>(
        &mut self, stage: &Stage, values: Vec<Tensor<f32>>, of: impl FnOnce(&Evidence<'_>) -> T,
    ) -> T {
        self.put(stage, values);
        let node = &self.oracle.graph.nodes[self.oracle.graph.index(stage.node.id).unwrap()];
        let side = Side { capture: &self.capture, arithmetic: &self.arithmetic };
        let made = of(&Evidence::new(&self.oracle, node, side, &self.filter, &self.policy));
        self.put(stage, stage.given.clone());
        made
    }

    fn put(&mut self, stage: &Stage, values: Vec<Tensor<f32>>) {
        for (step, tensor) in self.capture.steps.iter_mut().zip(values) {
            step.stages.insert(stage.node.id, self.capture.store.keep(tensor));
        }
    }
}

/// A stage with its operands, step by step.
pub(super) struct Stage {
    pub(super) node: Node,
    pub(super) graph: Graph,
    pub(super) given: Vec<Tensor<f32>>,
    pub(super) inputs: Vec<Vec<Tensor<f32>>>,
    pub(super) of_another_run: Vec<Tensor<f32>>,
    /// Stages of the same shape.
    pub(super) alike: Vec<(StageId, Vec<Tensor<f32>>)>,
    /// A stage of the layer with the shape of the first operand.
    pub(super) another: Option<(StageId, Vec<Tensor<f32>>)>,
    /// Rows of its first weight.
    pub(super) matrix: Vec<Vec<f32>>,
    /// First position and number of tokens of each step.
    pub(super) steps: Vec<(usize, usize)>,
}

/// One element of a stage.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    pub(super) step: usize,
    /// Row of its token in the step.
    pub(super) token: usize,
    pub(super) position: usize,
    pub(super) head: usize,
    /// Place in its token's vector; of attention scores and weights the key.
    pub(super) column: usize,
    /// Place in the tensor.
    pub(super) index: usize,
}

impl Stage {
    pub(super) fn head_dim(&self) -> usize {
        self.graph.config.head_dim
    }

    /// Whether its elements are pairs of tokens.
    pub(super) fn of_pairs(&self) -> bool {
        self.node.shape.contains(&Axis::Keys) && !self.node.op.has_state()
    }

    /// Elements of a token; of attention scores and weights all keys there are.
    pub(super) fn width(&self, step: usize) -> usize {
        let shape = &self.given[step].shape;
        if self.of_pairs() { shape[2] } else { shape[1..].iter().product() }
    }

    pub(super) fn at(&self, step: usize, index: usize) -> At {
        let ((first, tokens), width) = (self.steps[step], self.width(step));
        let (row, column) = (index / width, index % width);
        let (token, head) =
            if self.of_pairs() { (row % tokens, row / tokens) } else { (row, column / self.head_dim()) };
        // A cache has the rows of all positions.
        let position = if self.node.op.has_state() { token } else { first + token };
        At { step, token, position, head, column, index }
    }

    /// What it gave there.
    pub(super) fn own(&self, at: &At) -> f64 {
        f64::from(self.given[at.step].data[at.index])
    }

    /// What it gave in another token and column of the step, if there is one.
    pub(super) fn elsewhere(&self, at: &At, token: i64, column: i64) -> Option<f64> {
        let tokens = if self.node.op.has_state() { self.given[at.step].shape[0] } else { self.steps[at.step].1 } as i64;
        let width = self.width(at.step) as i64;
        let inside = (0..tokens).contains(&token) && (0..width).contains(&column);
        let row = if self.of_pairs() { at.head as i64 * tokens + token } else { token };
        inside.then(|| f64::from(self.given[at.step].data[(row * width + column) as usize]))
    }

    /// What `f` makes of the element as if its query were that of another token of the step, with as many keys as its own.
    pub(super) fn moved_query(&self, at: &At, token: usize, f: impl Fn(&At) -> f64) -> f64 {
        f(&At { token, ..*at })
    }

    /// Operand `i`'s vector of the element's token, or of one so many tokens on.
    pub(super) fn x(&self, i: usize, at: &At, by: i64) -> Option<&[f32]> {
        let token = usize::try_from(at.token as i64 + by).ok()?;
        (token < self.steps[at.step].1).then(|| self.inputs[i][at.step].row(token))
    }

    /// Root mean square of a token's vector.
    pub(super) fn size(&self, at: &At) -> f64 {
        let width = self.width(at.step);
        let row = &self.given[at.step].data[at.index / width * width..][..width];
        (row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / width as f64).sqrt()
    }
}
