//! Engines that compute in bf16 or f16: as PyTorch does, where every operation's result is rounded and sums
//! are f32, or with a flash attention. With faults of
//! their own, on request.
//!
//! As [`crate::variants`], it shares no arithmetic with the engine or the checks: rounding is that of the crate `half`, and
//! where it happens is what transformers' Qwen2 does.

use half::{bf16, f16};
use qdiff::arithmetic::{Arithmetic, Named};
use qdiff::capture::{Capture, Filter, Passes, Store, steps};
use qdiff::diagnose::{Diagnosis, explain};
use qdiff::formats::Formats;
use qdiff::oracle::Oracle;
use qdiff::progress::silent;
use qdiff::verdict::{Policy, Side, Verdict, judge};
use qdiff_engine::dtype::DType;
use qdiff_engine::model::{Graph, Node, Role};
use qdiff_engine::ops::{Op, Pairing, Tensor};
use qdiff_engine::quant::WeightSource;
use std::collections::HashMap;

/// What an engine does wrong, in its layer 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bug {
    /// The context of head 0 is this many times what it should be.
    Head(f32),
    /// Queries are rotated with half the base.
    Base,
    /// Queries of decoded tokens are rotated as those of the position after.
    Late,
    /// The bias of the queries is not added.
    Bias,
    /// Two outputs of the up projection are exchanged.
    Swapped,
    /// The stage of this index in the graph is this many times what it should be, before it is rounded.
    Scaled(usize, f32),
}

/// One of every kind with a place of its own.
pub const BUGS: [Bug; 5] = [Bug::Head(0.9), Bug::Base, Bug::Late, Bug::Bias, Bug::Swapped];

/// The layer of bugs.
const LAYER: u16 = 1;

impl Bug {
    /// Whether this is the stage where it enters.
    pub fn at(self, (index, node): (usize, &Node)) -> bool {
        let layer = node.id.layer == Some(LAYER);
        match self {
            Self::Scaled(scaled, _) => scaled == index,
            _ => {
                layer
                    && match self {
                        Self::Head(_) => matches!(node.op, Op::AttnContext(_)),
                        Self::Base | Self::Late => matches!(node.op, Op::Rope(_)) && node.role == Role::Query,
                        Self::Bias => node.op == Op::Bias && node.role == Role::Query,
                        Self::Swapped => node.op == Op::Linear && node.role == Role::Up,
                        Self::Scaled(..) => false,
                    }
            }
        }
    }
}

/// A running engine.
pub struct Engine<'a> {
    graph: &'a Graph,
    weights: &'a dyn WeightSource,
    named: Named,
    bug: Option<Bug>,
    caches: HashMap<usize, Tensor<f32>>,
    position: usize,
}

impl<'a> Engine<'a> {
    /// At position 0.
    pub fn new(oracle: &'a Oracle<'_>, named: Named, bug: Option<Bug>) -> Self {
        Self { graph: &oracle.graph, weights: &oracle.weights, named, bug, caches: HashMap::new(), position: 0 }
    }

    fn r(&self, x: f32) -> f32 {
        match self.named {
            Named::F32 => x,
            Named::F16 | Named::F16Flash => f16::from_f32(x).to_f32(),
            Named::Bf16 | Named::Bf16ResidualF32 | Named::Bf16Flash => bf16::from_f32(x).to_f32(),
        }
    }

    /// Whether scores and weights are f32, and the weights are rounded before they are divided by their sum.
    fn flash(&self) -> bool {
        matches!(self.named, Named::F16Flash | Named::Bf16Flash)
    }

    fn row(&self, node: &Node, row: usize) -> Vec<f32> {
        let name = &node.weights[0].name;
        let mut values = vec![0.0; self.weights.extent(name).0];
        self.weights.rows(name, row, &mut values);
        values.iter().map(|v| self.r(*v)).collect()
    }

    /// Runs `tokens`, and gives each node's value.
    pub fn step(&mut self, tokens: &[u32]) -> Vec<Tensor<f32>> {
        let positions: Vec<usize> = (self.position..self.position + tokens.len()).collect();
        let mut values: Vec<Tensor<f32>> = Vec::new();
        for (index, node) in self.graph.nodes.iter().enumerate() {
            let bug = self.bug.filter(|bug| bug.at((index, node)));
            let inputs: Vec<&Tensor<f32>> = node.inputs.iter().map(|&i| &values[i]).collect();
            let value = match &node.op {
                Op::KvCache(cache) => {
                    let kept = self.caches.entry(index).or_default();
                    kept.data.extend(&inputs[0].data);
                    let width = cache.n_kv_heads * cache.head_dim;
                    kept.shape = vec![kept.data.len() / width, cache.n_kv_heads, cache.head_dim];
                    kept.clone()
                }
                _ => self.value(node, &inputs, tokens, &positions, bug),
            };
            values.push(value);
        }
        self.position += tokens.len();
        values
    }

    fn value(
        &self, node: &Node, x: &[&Tensor<f32>], tokens: &[u32], positions: &[usize], bug: Option<Bug>,
    ) -> Tensor<f32> {
        let by = if let Some(Bug::Scaled(_, by)) = bug { by } else { 1.0 };
        let out = |x: f32| self.r(x * by);
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).fold(0f32, |sum, (a, b)| a.mul_add(*b, sum));
        let like = |t: &Tensor<f32>, data: Vec<f32>| Tensor { shape: t.shape.clone(), data };
        match &node.op {
            Op::Embed => {
                let data: Vec<f32> = tokens.iter().flat_map(|t| self.row(node, *t as usize)).map(out).collect();
                Tensor { shape: vec![tokens.len(), data.len() / tokens.len()], data }
            }
            Op::RmsNorm(norm) => {
                let w = self.row(node, 0);
                let mut y = x[0].clone();
                for run in y.data.chunks_mut(x[0].row_len() / norm.groups) {
                    let scale = 1.0 / (dot(run, run) / run.len() as f32 + norm.eps as f32).sqrt();
                    run.iter_mut().zip(&w).for_each(|(v, w)| *v = out(w * self.r(*v * scale)));
                }
                y
            }
            Op::Linear => {
                let outputs = self.weights.extent(&node.weights[0].name).1;
                let mut y = Tensor::zeros(vec![x[0].rows(), outputs]);
                for o in 0..outputs {
                    let from = match bug {
                        Some(Bug::Swapped) if o == 3 || o == 4 => 7 - o,
                        _ => o,
                    };
                    let w = self.row(node, from);
                    for t in 0..x[0].rows() {
                        y.data[t * outputs + o] = out(dot(&w, x[0].row(t)));
                    }
                }
                y
            }
            Op::Bias if bug == Some(Bug::Bias) => x[0].clone(),
            Op::Bias => {
                let b = self.row(node, 0);
                let sums = x[0].data.iter().zip(b.iter().cycle());
                like(x[0], sums.map(|(x, b)| out(x + b)).collect())
            }
            Op::Rope(rope) => {
                assert_eq!(rope.pairing, Pairing::Neox);
                let (d, half) = (rope.head_dim, rope.rotated / 2);
                let base = if bug == Some(Bug::Base) { rope.base / 2.0 } else { rope.base } as f32;
                let mut y = Tensor { shape: vec![x[0].rows(), x[0].row_len() / d, d], data: x[0].data.clone() };
                let late = usize::from(bug == Some(Bug::Late) && positions[0] > 0);
                for (row, p) in y.data.chunks_mut(x[0].row_len()).zip(positions) {
                    for i in 0..half {
                        let angle = (p + late) as f32 * (1.0 / base.powf(2.0 * i as f32 / rope.rotated as f32));
                        let (cos, sin) = (self.r(angle.cos()), self.r(angle.sin()));
                        for head in row.chunks_mut(d) {
                            let (a, b) = (head[i], head[i + half]);
                            head[i] = out(self.r(a * cos) + self.r(-b * sin));
                            head[i + half] = out(self.r(b * cos) + self.r(a * sin));
                        }
                    }
                }
                y
            }
            Op::AttnScores(a) => {
                let (tokens, keys, d) = (x[0].rows(), x[1].rows(), a.head_dim);
                let mut y = Tensor::zeros(vec![a.n_heads, tokens, keys]);
                for (i, s) in y.data.iter_mut().enumerate() {
                    let (h, t, n) = (i / (tokens * keys), i / keys % tokens, i % keys);
                    let sum = dot(&x[0].row(t)[h * d..][..d], &x[1].row(n)[a.kv_head(h) * d..][..d]);
                    *s = if self.flash() { sum * by } else { out(sum) };
                }
                y
            }
            Op::AttnWeights(softmax) => {
                let (tokens, keys) = (x[0].shape[1], x[0].shape[2]);
                let mut y = Tensor::zeros(x[0].shape.clone());
                for (r, (y, s)) in y.data.chunks_mut(keys).zip(x[0].data.chunks(keys)).enumerate() {
                    let seen = positions[r % tokens] + 1;
                    let scaled = s[..seen].iter().map(|s| s * softmax.scale as f32);
                    let z: Vec<f32> = scaled.map(|z| if self.flash() { z } else { self.r(z) }).collect();
                    let top = z.iter().fold(f32::NEG_INFINITY, |m, z| m.max(*z));
                    let e: Vec<f32> = z.iter().map(|z| (z - top).exp()).collect();
                    let sum: f32 = e.iter().sum();
                    y.iter_mut().zip(e).for_each(|(y, e)| *y = if self.flash() { e / sum * by } else { out(e / sum) });
                }
                y
            }
            Op::AttnContext(a) => {
                let (tokens, keys, d) = (x[0].shape[1], x[0].shape[2], a.head_dim);
                let mut y = Tensor::zeros(vec![tokens, a.n_heads * d]);
                for (i, y) in y.data.iter_mut().enumerate() {
                    let (t, h, at) = (i / (a.n_heads * d), i / d % a.n_heads, i % d);
                    let v: Vec<f32> = (0..keys).map(|n| x[1].row(n)[a.kv_head(h) * d + at]).collect();
                    let weights = &x[0].data[(h * tokens + t) * keys..][..keys];
                    let sum = if self.flash() {
                        // The largest is the reciprocal of the sum of the exponentials.
                        let most = weights.iter().fold(0f32, |m, w| m.max(*w));
                        let powers: Vec<f32> = weights.iter().map(|w| self.r(w / most)).collect();
                        dot(&powers, &v) * most
                    } else {
                        dot(weights, &v)
                    };
                    *y = out(match bug {
                        Some(Bug::Head(by)) if h == 0 => sum * by,
                        _ => sum,
                    });
                }
                y
            }
            Op::Residual => {
                let sums = x[0].data.iter().zip(&x[1].data).map(|(a, b)| a + b);
                let plain = self.named == Named::Bf16ResidualF32 || self.flash();
                like(x[0], sums.map(|s| if plain { s * by } else { out(s) }).collect())
            }
            Op::SwiGlu => {
                let pairs = x[0].data.iter().zip(&x[1].data);
                like(x[0], pairs.map(|(g, u)| out(self.r(g / (1.0 + (-g).exp())) * u)).collect())
            }
            Op::KvCache(_) => unreachable!("made where the caches are kept"),
            Op::Collective(_) => unreachable!("no model here is cut over ranks"),
            Op::Defined(op) => unreachable!("no model here has {}", op.name()),
        }
    }
}

/// What an engine gave of all stages.
pub struct Run {
    tokens: (Vec<u32>, Vec<u32>),
    values: Vec<Vec<Tensor<f32>>>,
}

impl Run {
    /// Of this arithmetic, on a prompt and the tokens decoded after it.
    pub fn new(oracle: &Oracle<'_>, (named, bug): (Named, Option<Bug>), (prompt, decoded): (&[u32], &[u32])) -> Self {
        let mut engine = Engine::new(oracle, named, bug);
        let values =
            steps(prompt, Passes::Of(prompt.len()), decoded).iter().map(|step| engine.step(&step.tokens)).collect();
        Self { tokens: (prompt.to_vec(), decoded.to_vec()), values }
    }

    /// Changes the values of every stage in every step.
    pub fn change(&mut self, graph: &Graph, mut change: impl FnMut(&Node, &mut [f32])) {
        let nodes = || graph.nodes.iter();
        self.values.iter_mut().flat_map(|v| nodes().zip(v)).for_each(|(node, v)| change(node, &mut v.data));
    }

    /// The same, every value rounded as it is stored.
    pub fn stored(&self, format: DType) -> Self {
        let rounded = |t: &Tensor<f32>| t.map(|v| format.round(v));
        let values = self.values.iter().map(|step| step.iter().map(rounded).collect());
        Self { tokens: self.tokens.clone(), values: values.collect() }
    }

    /// Judges it in the arithmetic and with the storage that are declared, without the stages `left_out`.
    ///
    /// # Panics
    /// If it cannot be judged at all.
    pub fn judge(
        &self, oracle: &Oracle<'_>, (declared, storage): (Named, Option<DType>), left_out: &[&str],
    ) -> Verdict {
        let (capture, arithmetic) = self.capture(oracle, (declared, storage), left_out);
        let side = Side { capture: &capture, arithmetic: &arithmetic };
        judge(oracle, side, None, &Default::default(), &Policy::default(), &silent).expect("the capture is judged")
    }

    /// The same with what explains its origins.
    ///
    /// # Panics
    /// If it cannot be judged at all.
    pub fn explain(&self, oracle: &Oracle<'_>, declared: Named, storage: Option<DType>) -> Diagnosis {
        let (capture, arithmetic) = self.capture(oracle, (declared, storage), &[]);
        let (side, filter) = (Side { capture: &capture, arithmetic: &arithmetic }, Filter::default());
        let verdict = self.judge(oracle, (declared, storage), &[]);
        explain(oracle, &side, verdict, (&filter, &Policy::default()), 1.0, &silent)
    }

    fn capture(
        &self, oracle: &Oracle<'_>, (declared, storage): (Named, Option<DType>), left_out: &[&str],
    ) -> (Capture, Arithmetic) {
        let graph = &oracle.graph;
        let mut capture = Capture::new(Store::usual(None));
        capture.steps = steps(&self.tokens.0, Passes::Of(self.tokens.0.len()), &self.tokens.1);
        for (step, values) in capture.steps.iter_mut().zip(&self.values) {
            for (node, value) in graph.nodes.iter().zip(values).filter(|(n, _)| !left_out.contains(&n.id.name)) {
                step.stages.insert(node.id, capture.store.keep(value.clone()));
            }
        }
        let (arithmetic, storage) = (declared.arithmetic(), Formats::All(storage.unwrap_or_default()));
        capture.settle_formats(graph, &arithmetic, Some(&storage)).expect("formats of stages");
        (capture, arithmetic)
    }
}
