//! LoRA adapters: rows that have another one than theirs, and terms with another scale.

use super::{Mutation, Param, each};
use qdiff_engine::model::{Graph, Node, Weight, of_other_adapter, rank_beside};
use qdiff_engine::ops::anatomy::RowReduction;
use qdiff_engine::ops::{self, Anatomy, Context, Defined, Definition, Op, Tensor, UNIT};
use std::fmt::Debug;

/// The numbers of adapters; 0 is none.
fn numbers(graph: &Graph) -> Vec<Vec<f64>> {
    each((0..=graph.adapters).map(|number| number as f64))
}

/// Whether a stage is a product with a matrix of an adapter, or is the sum to which the adapter adds.
fn adapted(graph: &Graph, node: &Node) -> bool {
    node.is_of_adapter() && node.op == Op::Linear || sums(graph, node)
}

fn sums(graph: &Graph, node: &Node) -> bool {
    graph.adapted_of(node).is_some()
}

/// `base + t·B·(A·x)`, of base `[T, m]` and x `[T, n]`; A, B, the scale and the rank of an adapter are its weights. `t` is what the second field
/// makes of the scale and the rank; the first is its number in the list of the mutation, by which two of them differ.
#[derive(Clone, Copy)]
struct AdaptedSum(usize, fn(f64, f64) -> f64);

impl Debug for AdaptedSum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AdaptedSum({})", self.0)
    }
}

impl AdaptedSum {
    /// By what the term is multiplied.
    fn factor(self, c: &Context<'_>) -> f64 {
        self.1(c.vector::<f64>(2)[0], c.vector::<f64>(3)[0])
    }
}

/// The context of a product with the weight of this number.
fn with<'c>(c: &Context<'c>, at: usize) -> Context<'c> {
    Context { weights: &c.weights[at..=at], ..*c }
}

impl Definition for AdaptedSum {
    fn name(&self) -> &'static str {
        "adapted_sum"
    }
    fn about(&self) -> &'static str {
        "the product with a matrix, and the term of an adapter"
    }
    fn anatomy(&self) -> Anatomy<'_> {
        Anatomy::RowReduction(RowReduction::Other)
    }
    fn forward32(&self, inputs: &[&Tensor<f32>], c: &Context<'_>) -> Tensor<f32> {
        let low = ops::forward(&Op::Linear, &inputs[1..], &with(c, 0));
        let term = ops::forward(&Op::Linear, &[&low], &with(c, 1));
        let factor = self.factor(c) as f32;
        let data = inputs[0].data.iter().zip(&term.data).map(|(base, term)| base + factor * term).collect();
        Tensor { shape: inputs[0].shape.clone(), data }
    }
    fn forward64(&self, inputs: &[&Tensor<f64>], c: &Context<'_>) -> Tensor<f64> {
        let low = ops::forward(&Op::Linear, &inputs[1..], &with(c, 0));
        let term = ops::forward(&Op::Linear, &[&low], &with(c, 1));
        let factor = self.factor(c);
        let data = inputs[0].data.iter().zip(&term.data).map(|(base, term)| base + factor * term).collect();
        Tensor { shape: inputs[0].shape.clone(), data }
    }
    /// The roundings of both products, and those of scale and sum.
    fn bound(&self, inputs: &[&Tensor<f64>], y: &Tensor<f64>, c: &Context<'_>) -> Vec<f32> {
        let (low, off) = ops::forward_with_bound(&Op::Linear, &inputs[1..], &with(c, 0));
        let (term, own) = ops::forward_with_bound(&Op::Linear, &[&low], &with(c, 1));
        let carried = ops::propagate_error(&Op::Linear, &[&low], &[Some(&off)], &term, &with(c, 1));
        let factor = self.factor(c).abs();
        let products = own.iter().zip(&carried).map(|(own, carried)| factor * f64::from(own + carried));
        let rounded = y.data.iter().zip(&term.data).map(|(y, term)| UNIT * (y.abs() + 2.0 * factor * term.abs()));
        products.zip(rounded).map(|(products, rounded)| (products + rounded) as f32).collect()
    }
    fn propagate_error(
        &self, inputs: &[&Tensor<f64>], deltas: &[Option<&[f32]>], y: &Tensor<f64>, c: &Context<'_>,
    ) -> Vec<f32> {
        let mut off = deltas[0].map_or_else(|| vec![0f32; y.data.len()], <[f32]>::to_vec);
        if deltas[1].is_some() {
            let low = ops::forward(&Op::Linear, &inputs[1..], &with(c, 0));
            let term = ops::forward(&Op::Linear, &[&low], &with(c, 1));
            let first = ops::propagate_error(&Op::Linear, &inputs[1..], &deltas[1..], &low, &with(c, 0));
            let both = ops::propagate_error(&Op::Linear, &[&low], &[Some(&first)], &term, &with(c, 1));
            let factor = self.factor(c).abs() as f32;
            off.iter_mut().zip(both).for_each(|(off, both)| *off = off.hypot(factor * both));
        }
        off
    }
}

/// The sum with these matrices of an adapter, whose term is multiplied otherwise.
fn sum(graph: &Graph, node: &Node, of: impl Fn(&Weight) -> Weight, definition: AdaptedSum) -> Option<Node> {
    let [_, a, b, term] = graph.adapted_of(node)?;
    let rank = rank_beside(term.weights.first()?)?;
    let weights = [a, b, term].iter().filter_map(|node| node.weights.first()).chain([&rank]).map(of).collect();
    let (inputs, op) = (vec![node.inputs[0], a.inputs[0]], Defined::op(definition));
    Some(Node { op, inputs, weights, ..node.clone() })
}

/// What the term is multiplied by in the place of alpha / rank, its scale.
const FACTORS: [fn(f64, f64) -> f64; 6] = [
    |_, _| 1.0,
    |scale, _| scale * scale,
    |scale, rank| scale * rank,
    |scale, rank| scale * rank.sqrt(),
    |scale, rank| scale / rank,
    |scale, _| -scale,
];

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "adapter-of-another",
        fits: Some(adapted),
        story: "the rows have another adapter than their own: {which}",
        seen: "one request of a batch answers as another adapter does, or as the model without one; alone it is right",
        remedy: "check which adapter each row of a batch takes: by its sequence, and not by its place in the batch, the first row's, or \
                 that of a step before",
        params: &[Param::new(
            "which",
            "0: none, 1: the first, 2: the second, 3: the third, 4: the fourth, 5: the fifth, 6: the sixth, 7: the seventh, 8: the eighth",
            0.0,
        )],
        apply: |node, values, graph| {
            let number = values[0];
            if !(0..=graph.adapters).any(|known| known as f64 == number) {
                return None;
            }
            let other = |weight: &Weight| of_other_adapter(weight, number as usize);
            if !sums(graph, node) {
                return Some(Node { weights: node.weights.iter().map(other).collect(), ..node.clone() });
            }
            sum(graph, node, other, AdaptedSum(FACTORS.len(), |scale, _| scale))
        },
        guess: Some(|graph, _| numbers(graph)),
        propose: Some(|e| numbers(&e.oracle.graph)),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "adapter-scale",
        fits: Some(sums),
        story: "the term of the adapter {kind}",
        seen: "products are wrong where an adapter is added, all by the same multiple of its term",
        remedy: "multiply the product with B by alpha / rank, once",
        params: &[Param::new(
            "kind",
            "0: is not multiplied by alpha / rank, 1: is multiplied by alpha / rank twice, 2: is multiplied by alpha and not divided by the \
             rank, 3: is divided by the square root of the rank and not by the rank, 4: is divided by the rank twice, 5: is subtracted",
            0.0,
        )],
        apply: |node, values, graph| {
            let kind = (0..FACTORS.len()).find(|kind| *kind as f64 == values[0])?;
            sum(graph, node, Weight::clone, AdaptedSum(kind, FACTORS[kind]))
        },
        guess: Some(|_, _| each((0..FACTORS.len()).map(|kind| kind as f64))),
        propose: Some(|_| each((0..FACTORS.len()).map(|kind| kind as f64))),
        ..Mutation::PLAIN
    },
];
