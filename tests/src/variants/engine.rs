//! The interpreter.

use super::{Angles, Gate, Norm, Order, Variant, Weights};
use qdiff_engine::model::{Graph, Node};
use qdiff_engine::ops::{Attention, Op, RmsNorm, Rope, Tensor};
use qdiff_engine::quant::WeightSource;
use std::collections::HashMap;

impl Variant {
    fn sum(&self, products: &[(f32, f32)], first: f32) -> f32 {
        let add = |sum: f32, (a, b): &(f32, f32)| if self.style.fma { a.mul_add(*b, sum) } else { sum + a * b };
        match self.order {
            Order::Forward => products.iter().fold(first, add),
            Order::Reverse => products.iter().rev().fold(first, add),
            Order::Pairwise => first + pairwise(products, &add),
            Order::Lanes(n) => {
                let lanes = (0..n).map(|lane| products.iter().skip(lane).step_by(n).fold(0.0, add));
                lanes.fold(first, |sum, lane| sum + lane)
            }
            Order::Blocks(n) => products.chunks(n).fold(first, |sum, block| sum + block.iter().fold(0.0, add)),
            Order::Wide => {
                let wide = products.iter().map(|(a, b)| f64::from(*a) * f64::from(*b));
                wide.fold(f64::from(first), |sum, p| sum + p) as f32
            }
        }
    }

    fn dot(&self, a: &[f32], b: &[f32], first: f32) -> f32 {
        let products: Vec<(f32, f32)> = a.iter().copied().zip(b.iter().copied()).collect();
        self.sum(&products, first)
    }

    fn total(&self, terms: &[f32]) -> f32 {
        let products: Vec<(f32, f32)> = terms.iter().map(|t| (*t, 1.0)).collect();
        self.sum(&products, 0.0)
    }
}

fn pairwise(products: &[(f32, f32)], add: &impl Fn(f32, &(f32, f32)) -> f32) -> f32 {
    match products {
        [] => 0.0,
        [only] => add(0.0, only),
        _ => {
            let (left, right) = products.split_at(products.len() / 2);
            pairwise(left, add) + pairwise(right, add)
        }
    }
}

/// A running engine.
pub struct Engine<'a> {
    graph: &'a Graph,
    weights: &'a dyn WeightSource,
    variant: Variant,
    caches: HashMap<usize, Tensor<f32>>,
    position: usize,
}

impl<'a> Engine<'a> {
    /// At position 0.
    pub fn new(graph: &'a Graph, weights: &'a dyn WeightSource, variant: Variant) -> Self {
        Self { graph, weights, variant, caches: HashMap::new(), position: 0 }
    }

    /// Runs `tokens`, and gives each node's value; none of what is fused into another.
    pub fn step(&mut self, tokens: &[u32]) -> Vec<Option<Tensor<f32>>> {
        let positions: Vec<usize> = (self.position..self.position + tokens.len()).collect();
        let mut values: Vec<Option<Tensor<f32>>> = vec![None; self.graph.nodes.len()];
        for (index, node) in self.graph.nodes.iter().enumerate() {
            let x = |i: usize| values[node.inputs[i]].as_ref().expect("what is read is there");
            let value = match &node.op {
                Op::Embed => {
                    let rows = tokens.iter().flat_map(|t| self.row(node, 0, *t as usize));
                    Tensor { shape: vec![tokens.len(), self.extent(node).0], data: rows.collect() }
                }
                Op::RmsNorm(norm) => self.norm(norm, x(0), &self.row(node, 0, 0)),
                // Where a reader begins with what it adds, the product is made there.
                Op::Linear if self.variant.style.accumulated && self.summed_on(index) => continue,
                Op::Linear => self.linear(node, x(0), |_, _| 0.0),
                Op::Bias => match self.product(node.inputs[0]) {
                    Some((linear, input)) if values[node.inputs[0]].is_none() => {
                        let bias = self.row(node, 0, 0);
                        self.linear(linear, values[input].as_ref().expect("it is there"), |_, o| bias[o])
                    }
                    _ => {
                        let bias = self.row(node, 0, 0);
                        let x = x(0);
                        let data = x.data.iter().enumerate().map(|(i, v)| v + bias[i % bias.len()]);
                        Tensor { shape: x.shape.clone(), data: data.collect() }
                    }
                },
                Op::Residual => match self.product(node.inputs[0]) {
                    Some((linear, input)) if values[node.inputs[0]].is_none() => {
                        let other = x(1);
                        let n = other.row_len();
                        let input = values[input].as_ref().expect("it is there");
                        self.linear(linear, input, |t, o| other.data[t * n + o])
                    }
                    _ => {
                        let data = x(0).data.iter().zip(&x(1).data).map(|(a, b)| a + b);
                        Tensor { shape: x(0).shape.clone(), data: data.collect() }
                    }
                },
                Op::Rope(rope) => self.rope(rope, x(0), &positions),
                Op::KvCache(cache) => {
                    let rows = x(0).data.clone();
                    let kept = self.caches.entry(index).or_default();
                    kept.data.extend(rows);
                    let width = cache.n_kv_heads * cache.head_dim;
                    kept.shape = vec![kept.data.len() / width, cache.n_kv_heads, cache.head_dim];
                    kept.clone()
                }
                Op::AttnScores(a) => match self.variant.style.weights {
                    Weights::Online { .. } => continue,
                    _ => self.scores(a, x(0), x(1), 1.0),
                },
                Op::AttnWeights(softmax) => match self.variant.style.weights {
                    Weights::Online { fused: true, .. } => continue,
                    Weights::Online { block, .. } => {
                        let (a, q, k) = self.attention(&values, node.inputs[0]);
                        let scores = self.scores(a, q, k, softmax.scale);
                        self.online(&scores, &positions, block, None)
                    }
                    _ => self.softmax(x(0), softmax.scale as f32, &positions),
                },
                Op::AttnContext(a) => match self.variant.style.weights {
                    Weights::Online { block, fused: true } => {
                        let weights = &self.graph.nodes[node.inputs[0]];
                        let Op::AttnWeights(softmax) = &weights.op else { unreachable!("context reads weights") };
                        let (a, q, k) = self.attention(&values, weights.inputs[0]);
                        let scores = self.scores(a, q, k, softmax.scale);
                        self.online(&scores, &positions, block, Some((a, x(1))))
                    }
                    _ => self.context(a, x(0), x(1)),
                },
                Op::Collective(_) => unreachable!("no model here is cut over ranks"),
                Op::Defined(op) => unreachable!("no model here has {}", op.name()),
                Op::SwiGlu => {
                    let pairs = x(0).data.iter().zip(&x(1).data);
                    Tensor { shape: x(0).shape.clone(), data: pairs.map(|(g, u)| self.gated(*g, *u)).collect() }
                }
            };
            values[index] = Some(value);
        }
        self.position += tokens.len();
        values
    }

    fn extent(&self, node: &Node) -> (usize, usize) {
        self.weights.extent(&node.weights[0].name)
    }

    fn row(&self, node: &Node, weight: usize, row: usize) -> Vec<f32> {
        let name = &node.weights[weight].name;
        let mut values = vec![0.0; self.weights.extent(name).0];
        self.weights.rows(name, row, &mut values);
        values
    }

    /// Whether a bias or the residual stream is added to the node, as the first operand.
    fn summed_on(&self, index: usize) -> bool {
        let adds = |n: &Node| matches!(n.op, Op::Bias | Op::Residual) && n.inputs[0] == index;
        self.graph.nodes.iter().any(adds)
    }

    /// The node, where it is a product, and what it reads.
    fn product(&self, index: usize) -> Option<(&'a Node, usize)> {
        let node = &self.graph.nodes[index];
        (node.op == Op::Linear).then(|| (node, node.inputs[0]))
    }

    /// Products whose sums begin with what `first` says of token and output.
    fn linear(&self, node: &Node, x: &Tensor<f32>, first: impl Fn(usize, usize) -> f32) -> Tensor<f32> {
        let (tokens, outputs) = (x.rows(), self.extent(node).1);
        let mut y = Tensor::zeros(vec![tokens, outputs]);
        for o in 0..outputs {
            let w = self.row(node, 0, o);
            for t in 0..tokens {
                y.data[t * outputs + o] = self.variant.dot(&w, x.row(t), first(t, o));
            }
        }
        y
    }

    fn norm(&self, norm: &RmsNorm, x: &Tensor<f32>, w: &[f32]) -> Tensor<f32> {
        let mut y = x.clone();
        for run in y.data.chunks_mut(x.row_len() / norm.groups) {
            let mean = self.variant.dot(run, run, 0.0) / run.len() as f32 + norm.eps as f32;
            for (v, w) in run.iter_mut().zip(w) {
                *v = match self.variant.style.norm {
                    Norm::Divided => w * (*v / mean.sqrt()),
                    Norm::Reciprocal => *v * (1.0 / mean.sqrt()) * w,
                    Norm::WeightFirst => (w * *v) * (1.0 / mean.sqrt()),
                };
            }
        }
        y
    }

    fn rope(&self, rope: &Rope, x: &Tensor<f32>, positions: &[usize]) -> Tensor<f32> {
        let d = rope.head_dim;
        let mut y = Tensor { shape: vec![x.rows(), x.row_len() / d, d], data: x.data.clone() };
        let (base, n) = (rope.base as f32, rope.rotated as f32);
        let turn = |p: usize, i: usize| -> (f32, f32) {
            let exponent = -2.0 * i as f32 / n;
            let angle = match self.variant.style.angles {
                Angles::Power => p as f32 * base.powf(exponent),
                Angles::Exponential => p as f32 * (exponent * base.ln()).exp(),
                Angles::Repeated => (0..i).fold(p as f32, |angle, _| angle * base.powf(-2.0 / n)),
                Angles::Table => {
                    let (sin, cos) = (p as f64 * rope.base.powf(-2.0 * i as f64 / f64::from(n))).sin_cos();
                    return (sin as f32, cos as f32);
                }
            };
            angle.sin_cos()
        };
        for (row, p) in y.data.chunks_mut(x.row_len()).zip(positions) {
            for i in 0..rope.rotated / 2 {
                let (sin, cos) = turn(*p, i);
                for head in row.chunks_mut(d) {
                    let (a, b) = (head[i], head[i + rope.rotated / 2]);
                    let fma = self.variant.style.fma;
                    head[i] = if fma { a.mul_add(cos, -(b * sin)) } else { a * cos - b * sin };
                    head[i + rope.rotated / 2] = if fma { a.mul_add(sin, b * cos) } else { a * sin + b * cos };
                }
            }
        }
        y
    }

    /// The attention whose scores the node gives, with its queries and keys.
    fn attention<'v>(
        &self, values: &'v [Option<Tensor<f32>>], index: usize,
    ) -> (&'a Attention, &'v Tensor<f32>, &'v Tensor<f32>) {
        let node = &self.graph.nodes[index];
        let Op::AttnScores(a) = &node.op else { unreachable!("weights read scores") };
        let value = |i: usize| values[node.inputs[i]].as_ref().expect("queries and keys are there");
        (a, value(0), value(1))
    }

    /// Scores of queries that are scaled first, by `scale` and into units of log 2, unless `scale` is 1.
    fn scores(&self, a: &Attention, q: &Tensor<f32>, k: &Tensor<f32>, scale: f64) -> Tensor<f32> {
        let d = a.head_dim;
        let by = if scale == 1.0 { 1.0 } else { (scale * std::f64::consts::LOG2_E) as f32 };
        let mut s = Tensor::zeros(vec![a.n_heads, q.rows(), k.rows()]);
        for (i, s) in s.data.iter_mut().enumerate() {
            let (h, t, n) = (i / (q.rows() * k.rows()), i / k.rows() % q.rows(), i % k.rows());
            let query: Vec<f32> = q.row(t)[h * d..][..d].iter().map(|q| q * by).collect();
            *s = self.variant.dot(&query, &k.row(n)[a.kv_head(h) * d..][..d], 0.0);
        }
        s
    }

    fn softmax(&self, scores: &Tensor<f32>, scale: f32, positions: &[usize]) -> Tensor<f32> {
        let (tokens, keys) = (scores.shape[1], scores.shape[2]);
        let mut y = Tensor::zeros(scores.shape.clone());
        for (r, (y, s)) in y.data.chunks_mut(keys).zip(scores.data.chunks(keys)).enumerate() {
            let seen = positions[r % tokens] + 1;
            let (y, s) = (&mut y[..seen], &s[..seen]);
            let top = |z: &[f32]| z.iter().fold(f32::NEG_INFINITY, |m, z| m.max(*z));
            let z: Vec<f32> = s.iter().map(|s| s * scale).collect();
            match self.variant.style.weights {
                Weights::Exp2 => {
                    let (by, top) = (scale * std::f32::consts::LOG2_E, top(s));
                    y.iter_mut().zip(s).for_each(|(y, s)| *y = s.mul_add(by, -(top * by)).exp2());
                }
                _ => {
                    let top = top(&z);
                    y.iter_mut().zip(&z).for_each(|(y, z)| *y = (z - top).exp());
                }
            }
            let sum = self.variant.total(y);
            match self.variant.style.weights {
                Weights::Quotient | Weights::Online { .. } => y.iter_mut().for_each(|y| *y /= sum),
                Weights::Reciprocal | Weights::Exp2 => y.iter_mut().for_each(|y| *y *= 1.0 / sum),
                Weights::LogSum => {
                    let log = sum.ln() + top(&z);
                    y.iter_mut().zip(&z).for_each(|(y, z)| *y = (z - log).exp());
                }
            }
        }
        y
    }

    /// Softmax of scores in units of log 2, block by block of keys: the weights, or with values the context.
    fn online(
        &self, scores: &Tensor<f32>, positions: &[usize], block: usize, values: Option<(&Attention, &Tensor<f32>)>,
    ) -> Tensor<f32> {
        let &[heads, tokens, keys] = scores.shape.as_slice() else { unreachable!("scores have three axes") };
        let mut y = match values {
            Some((a, _)) => Tensor::zeros(vec![tokens, heads * a.head_dim]),
            None => Tensor::zeros(scores.shape.clone()),
        };
        for (r, s) in scores.data.chunks(keys).enumerate() {
            let (h, t) = (r / tokens, r % tokens);
            let s = &s[..positions[t] + 1];
            let (mut top, mut sum) = (f32::NEG_INFINITY, 0f32);
            let mut context = vec![0f32; values.map_or(0, |(a, _)| a.head_dim)];
            for (b, part) in s.chunks(block).enumerate() {
                let next = part.iter().fold(top, |m, s| m.max(*s));
                let rescale = (top - next).exp2();
                let weights: Vec<f32> = part.iter().map(|s| (s - next).exp2()).collect();
                sum = sum * rescale + self.variant.total(&weights);
                for (i, c) in context.iter_mut().enumerate() {
                    let (a, v) = values.expect("there is a context to make");
                    let of = |n: usize| v.row(b * block + n)[a.kv_head(h) * a.head_dim + i];
                    let products: Vec<(f32, f32)> = weights.iter().enumerate().map(|(n, w)| (*w, of(n))).collect();
                    *c = self.variant.sum(&products, *c * rescale);
                }
                top = next;
            }
            match values {
                Some((a, _)) => {
                    let to = &mut y.data[(t * heads + h) * a.head_dim..][..a.head_dim];
                    to.iter_mut().zip(context).for_each(|(y, c)| *y = c * (1.0 / sum));
                }
                None => {
                    let to = &mut y.data[r * keys..][..s.len()];
                    to.iter_mut().zip(s).for_each(|(y, s)| *y = (s - top).exp2() / sum);
                }
            }
        }
        y
    }

    fn context(&self, a: &Attention, w: &Tensor<f32>, v: &Tensor<f32>) -> Tensor<f32> {
        let (tokens, keys, d) = (w.shape[1], w.shape[2], a.head_dim);
        let mut y = Tensor::zeros(vec![tokens, a.n_heads * d]);
        for (i, y) in y.data.iter_mut().enumerate() {
            let (t, h, at) = (i / (a.n_heads * d), i / d % a.n_heads, i % d);
            let weights = &w.data[(h * tokens + t) * keys..][..keys];
            let values: Vec<f32> = (0..keys).map(|n| v.row(n)[a.kv_head(h) * d + at]).collect();
            *y = self.variant.dot(weights, &values, 0.0);
        }
        y
    }

    fn gated(&self, g: f32, u: f32) -> f32 {
        match self.variant.style.gate {
            Gate::Quotient => g / (1.0 + (-g).exp()) * u,
            Gate::Sigmoid => g * (1.0 / (1.0 + (-g).exp())) * u,
            Gate::Exp2 => g / (1.0 + (-g * std::f32::consts::LOG2_E).exp2()) * u,
            Gate::Tanh => g * (0.5 + 0.5 * (0.5 * g).tanh()) * u,
        }
    }
}
