//! An operand that is right where it was captured, and otherwise where it is added: a fused kernel adds what it has made itself.
//!
//! What was added follows from the sum. It is held against the operand's own product as if the operand had been given so.

use super::scene::Scene;
use super::{Confidence, Law, Row, Solver, shares, sum, terms, weigh};
use crate::capture::Step;
use crate::verdict::{Evidence, Policy, RowAt, Side};
use qdiff_engine::model::{Node, WeightSource as _};
use qdiff_engine::ops::anatomy::{Contraction, Elementwise};
use qdiff_engine::ops::{Anatomy, Tensor, UNIT};
use std::collections::HashMap;

/// Solvers of what a product may be instead.
const OF_PRODUCTS: &[Solver] = &[terms::laws, shares::laws, sum::laws];

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let (node, nodes) = (scene.node(), &scene.e.oracle.graph.nodes);
    if !matches!(node.op.anatomy(), Anatomy::Elementwise(Elementwise::Sum | Elementwise::Offset)) {
        return Vec::new();
    }
    let mut all = Vec::new();
    for (i, &input) in node.inputs.iter().enumerate() {
        let added = implied(scene, i);
        let producer = &nodes[input];
        if is_product(producer) {
            all.extend(of_operand(scene, producer, &added));
        }
        // What is added may be a sum itself, of which a kernel has not all.
        if producer.op.anatomy() == Anatomy::Elementwise(Elementwise::Sum) {
            for (j, &of_sum) in producer.inputs.iter().enumerate().filter(|(_, of)| is_product(&nodes[**of])) {
                all.extend(of_operand(scene, &nodes[of_sum], &less(scene, &added, (producer, j))));
            }
        }
    }
    all
}

fn is_product(node: &Node) -> bool {
    matches!(node.op.anatomy(), Anatomy::Contraction(Contraction::Weight(_) | Contraction::Rows(_)))
}

/// Values of each step, and how far they may be off.
type Added = Vec<Option<OfStep>>;
type OfStep = (Tensor<f32>, Vec<f32>);

/// What is left of a sum without its other operands.
fn less(scene: &Scene<'_>, added: &Added, (sum, operand): (&Node, usize)) -> Added {
    let nodes = &scene.e.oracle.graph.nodes;
    let of = |(step, added): (usize, &Option<OfStep>)| {
        let (mut left, mut off) = added.clone()?;
        for (_, &other) in sum.inputs.iter().enumerate().filter(|(j, _)| *j != operand) {
            let other = scene.tensor(step, nodes[other].id).filter(|other| other.data.len() == left.data.len())?;
            for ((left, off), other) in left.data.iter_mut().zip(&mut off).zip(&other.data) {
                *off += (UNIT * f64::from(left.abs() + other.abs())) as f32;
                *left -= other;
            }
        }
        Some((left, off))
    };
    added.iter().enumerate().map(of).collect()
}

/// What operand `i` was where it was added, step by step, and how far that may be off.
fn implied(scene: &Scene<'_>, i: usize) -> Added {
    let node = scene.node();
    let bias = node.weights.first().map(|w| scene.vector(&w.name, scene.weights().extent(&w.name).0));
    let of = |step: usize| {
        let given = scene.e.given[step].as_ref()?;
        let mut rest = vec![0f64; given.data.len()];
        for j in (0..node.inputs.len()).filter(|j| *j != i) {
            let other = scene.operand(step, j).filter(|other| other.data.len() == rest.len())?;
            rest.iter_mut().zip(&other.data).for_each(|(r, v)| *r += f64::from(*v));
        }
        if let Some(bias) = &bias {
            rest.iter_mut().enumerate().for_each(|(at, r)| *r += f64::from(bias[at % bias.len()]));
        }
        let data = given.data.iter().zip(&rest).map(|(g, r)| (f64::from(*g) - r) as f32).collect();
        let off = given.data.iter().zip(&rest).map(|(g, r)| (UNIT * (f64::from(g.abs()) + r.abs())) as f32);
        Some((Tensor { shape: given.shape.clone(), data }, off.collect()))
    };
    (0..scene.e.given.len()).map(of).collect()
}

fn of_operand<'a>(scene: &'a Scene<'a>, producer: &'a Node, implied: &Added) -> Option<Law<'a>> {
    let e = scene.e;
    let (captured, graph) = (e.side.capture, &e.oracle.graph);
    let mut capture = captured.sibling();
    for (step, added) in captured.steps.iter().zip(implied) {
        let mut own = Step { kept: step.kept.clone(), last_row: step.last_row.clone(), ..step.bare() };
        for &input in &producer.inputs {
            let tensor = step.get(graph.nodes[input].id)?.into_owned();
            own.stages.insert(graph.nodes[input].id, captured.store.keep(tensor));
        }
        if let Some((tensor, _)) = added {
            own.stages.insert(producer.id, captured.store.keep(tensor.clone()));
        }
        capture.steps.push(own);
    }
    let (side, policy) = (Side { capture: &capture, ..e.side }, Policy::default());
    let as_given = Evidence::new(e.oracle, producer, side, e.filter, &policy);
    let mut expected = as_given.exactly().clone();
    for (expected, added) in expected.iter_mut().zip(implied) {
        if let (Some((_, bound)), Some((_, off))) = (expected, added) {
            bound.iter_mut().zip(off).for_each(|(b, off)| *b += off);
        }
    }
    let of_product = as_given.assuming(expected);
    let inner = Scene::new(&of_product, scene.meter())?;
    let laws = OF_PRODUCTS.iter().flat_map(|solver| solver(&inner));
    let law = laws.into_iter().find(|law| {
        !scene.over() && weigh(&inner, (0, law), &[]).is_some_and(|found| found.confidence == Confidence::Proved)
    })?;
    let what = format!("where it is added, {} is otherwise than it was captured: {}", producer.id, law.what);
    let mut rows: HashMap<(usize, usize), (Vec<f64>, Vec<f32>)> = HashMap::new();
    for row in &of_product.rows {
        let (Some(other), (_, added, _)) = ((law.row)(row), of_product.row(row)) else { continue };
        let (_, want, bound) = e.row(row);
        let value = (0..want.len()).map(|i| want[i] + other.value[i] - added[i]).collect();
        let bound = bound.iter().zip(&other.bound).map(|(a, b)| a + b).collect();
        rows.insert((row.step, row.range.start), (value, bound));
    }
    Some(Law::new(what, law.parameters, move |row: &RowAt| {
        let (value, bound) = rows.get(&(row.step, row.range.start))?.clone();
        Some(Row { value, bound })
    }))
}
