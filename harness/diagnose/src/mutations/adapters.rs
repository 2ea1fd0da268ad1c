//! LoRA adapters: rows that have another one than theirs, and terms with another scale.

use super::{Mutation, Param, each};
use qdiff_engine::model::{Graph, Node, Weight, of_other_adapter};
use qdiff_engine::ops::{self, Context, Op, Tensor, UNIT};

/// The numbers of adapters; 0 is none.
fn numbers(graph: &Graph) -> Vec<Vec<f64>> {
    each((0..=graph.adapters).map(|number| number as f64))
}

/// Whether a stage is made with an adapter, or is the sum to which the adapter adds.
fn adapted(graph: &Graph, node: &Node) -> bool {
    node.is_of_adapter() || graph.adapted_of(node).is_some()
}

fn sums(graph: &Graph, node: &Node) -> bool {
    graph.adapted_of(node).is_some()
}

/// The sum with these matrices A and B and this scale of an adapter, which is then multiplied by what `times` makes of it and of the rank.
fn sum(
    graph: &Graph, node: &Node, of: impl Fn(&Weight) -> Weight, times: impl Fn(f64, f64) -> f64 + Send + Sync + 'static,
) -> Option<Node> {
    let [_, a, b, term] = graph.adapted_of(node)?;
    let weights: Vec<Weight> = [a, b, term].iter().filter_map(|node| node.weights.first()).map(of).collect();
    let rank = *a.weights[0].extent.get(1)?;
    let names = weights.clone();
    let made = node.computing(move |inputs, c| {
        let with = |at: usize| Context { weights: &names[at..=at], ..*c };
        let (low, off) = ops::forward_with_bound(&Op::Linear, &[inputs[1]], &with(0));
        let (mut y, mut bound) = ops::forward_with_bound(&Op::Linear, &[&low], &with(1));
        // The error of the first product, carried through the second.
        let mut row = vec![0f32; rank];
        for i in 0..y.row_len() {
            c.source.rows(&names[1].name, i, &mut row);
            for (t, off) in off.chunks(rank).enumerate() {
                let carried: f32 = row.iter().zip(off).map(|(w, off)| w.abs() * off).sum();
                bound[t * y.row_len() + i] += carried;
            }
        }
        let mut scale = [0f32];
        c.source.rows(&names[2].name, 0, &mut scale);
        let scale = times(f64::from(scale[0]), rank as f64);
        for ((y, bound), base) in y.data.iter_mut().zip(&mut bound).zip(&inputs[0].data) {
            *y *= scale;
            *bound = (f64::from(*bound) * scale.abs() + UNIT * (2.0 * y.abs() + base.abs())) as f32;
            *y += base;
        }
        (Tensor { shape: inputs[0].shape.clone(), data: y.data }, bound)
    });
    Some(Node { inputs: vec![node.inputs[0], a.inputs[0]], weights, ..made })
}

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
            if node.is_of_adapter() {
                return Some(Node { weights: node.weights.iter().map(other).collect(), ..node.clone() });
            }
            sum(graph, node, other, |scale, _| scale)
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
            let times: fn(f64, f64) -> f64 = match values[0] {
                0.0 => |_, _| 1.0,
                1.0 => |scale, _| scale * scale,
                2.0 => |scale, rank| scale * rank,
                3.0 => |scale, rank| scale * rank.sqrt(),
                4.0 => |scale, rank| scale / rank,
                5.0 => |scale, _| -scale,
                _ => return None,
            };
            sum(graph, node, Weight::clone, times)
        },
        guess: Some(|_, _| each((0..6).map(f64::from))),
        propose: Some(|_| each((0..6).map(f64::from))),
        ..Mutation::PLAIN
    },
];
