//! What the last stage of a graph is in runs that round by chance: each is evaluated in f64 from the tokens on, and every stage
//! on the way is moved by a random share of its bound.

use super::Seed;
use super::operands::{Side, widen};
use super::segment::{evaluate_drawn, plan_of};
use super::source::Stage;
use crate::capture::{Capture, Step};
use crate::oracle::Oracle;
use qdiff_engine::dtype::DType;
use std::ops::ControlFlow;

/// Evaluates the last stage of the graph for all rows of the run of `side`, in its declared arithmetic, and hands over each row with
/// its position. Nothing that the side captured is read but the tokens and the steps. With a seed, every element of every stage is
/// moved by a share of its bound that is drawn evenly from −1 to 1: one run of an engine that rounds by chance (Monte Carlo
/// arithmetic, Parker 1997). Without a seed nothing is moved.
pub fn drawn(oracle: &Oracle<'_>, side: Side<'_>, seed: Option<Seed>, row: &mut dyn FnMut(usize, &[f64])) {
    let graph = &oracle.graph;
    let Some(node) = graph.nodes.last() else { return };
    let steps = side.capture.steps.iter().map(Step::bare).collect();
    let capture = Capture { steps, ..side.capture.sibling() };
    let bare = Side { capture: &capture, ..side };
    let stage = Stage { node, graph, weights: &oracle.weights, products: oracle.products.judging(node.id) };
    let (mut inside, mut last) = (seed.map(|seed| seed.random(0)), seed.map(|seed| seed.random(1)));
    let narrow = capture.rounding.output(node.id);
    let plan = plan_of(node, graph, &capture, true);
    // Nothing breaks it off.
    let _ = evaluate_drawn(stage, (0, bare), &plan, inside.as_mut(), &mut |mut block| {
        if let Some(random) = &mut last {
            if narrow != DType::F32 {
                let steps: Vec<f32> = block.value.data.iter().map(|v| narrow.half_step(*v) as f32).collect();
                widen(block.bound.to_mut(), steps);
            }
            random.scatter(&mut block);
        }
        let width = block.value.data.len() / block.rows.len().max(1);
        for (at, values) in block.rows.clone().zip(block.value.data.chunks(width.max(1))) {
            row(block.step.first + block.step.offset(at), values);
        }
        ControlFlow::Continue(())
    });
}
