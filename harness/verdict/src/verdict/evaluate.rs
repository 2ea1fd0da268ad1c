//! What a stage should be: its op in f64 on the operands that a runner itself captured, in the arithmetic it declares,
//! in blocks of rows, so that memory stays bounded however long the run is.

use super::apply::{State, apply};
use super::grain::{Grain, settled};
use super::mode::CheckMode;
use super::operands::{Expected, Side, rows_of};
use super::probe;
use super::segment::{self, Plan};
use super::source::{Passed, Sink, Source, Stage, put};
use super::tolerance::Policy;
use crate::capture::Filter;
use crate::oracle::Oracle;
use qdiff_engine::model::fault::{FaultyWeights, Output};
use qdiff_engine::model::{Node, WeightSource};
use qdiff_engine::ops::Tensor;
use qdiff_engine::quant::SomeRows;
use std::borrow::Cow;
use std::ops::{ControlFlow, Range};

/// Evaluates `node` in f64 on the operands of every side, all steps, as its faults, if it carries any, read and compute
/// it. Operands that were not captured are evaluated themselves, from the nearest captured ones on, with the nodes of
/// the graph (see [`super::Segment`]). What is known from neither is left out, and so are blocks of which `filter` asks
/// for no position. The rounding of its own values to a narrow format is read off what the side has of it.
pub fn evaluate(node: &Node, oracle: &Oracle<'_>, sides: &[Side<'_>], filter: &Filter, sink: &mut Sink<'_>) {
    evaluate_but(node, oracle, sides, (filter, None), sink);
}

/// As [`evaluate`], but not the rows that probes have no doubt of.
pub(super) fn evaluate_but(
    node: &Node, oracle: &Oracle<'_>, sides: &[Side<'_>], which: (&Filter, Option<&Passed>), sink: &mut Sink<'_>,
) {
    let grains: Vec<Grain> = sides.iter().map(|side| Grain::of(node, &oracle.graph, *side)).collect();
    exactly(node, oracle, sides, which, &mut |mut block| {
        let given = block.step.stages.get(&node.id).filter(|_| !grains[block.side].exact());
        if let Some(given) = given.and_then(|given| rows_of(node, given, &block.rows)) {
            settled(grains[block.side], &given.data, &mut block.value.to_mut().data);
        }
        sink(block)
    });
}

/// The same, as f64 has it.
fn exactly(
    node: &Node, oracle: &Oracle<'_>, sides: &[Side<'_>], (filter, passed): (&Filter, Option<&Passed>),
    sink: &mut Sink<'_>,
) {
    let (graph, source): (_, &dyn WeightSource) = (&oracle.graph, &oracle.weights);
    let faulty = node.faults.read.as_ref().map(|fault| FaultyWeights { source, fault: fault.as_ref() });
    let weights = faulty.as_ref().map_or(source, |m| m);
    let stage = Stage { node, graph, weights, products: oracle.products.judging(node.id) };
    let plans: Vec<Plan> = sides.iter().map(|side| segment::plan(node, graph, side.capture)).collect();
    let captured = |index: usize| {
        let side = sides[index];
        let steps = (0..side.capture.steps.len()).collect();
        Source { index, side, steps, computed: None, resumes: false, filter: Some(filter), passed }
    };
    let direct: Vec<_> = (0..sides.len()).filter(|&i| plans[i].is_empty()).map(captured).collect();
    let mut flow = apply(stage, &direct, &mut State::new(), sink);
    for (index, plan) in plans.iter().enumerate().filter(|(_, p)| !p.is_empty()) {
        if flow.is_continue() {
            flow = segment::evaluate(stage, (index, sides[index]), plan, sink);
        }
    }
}

/// The rows of a stage whose operands were captured that probes have no doubt of; `None` where they save nothing.
pub(super) fn probed(
    node: &Node, oracle: &Oracle<'_>, sides: &[Side<'_>], filter: &Filter, policy: &Policy,
) -> Option<Passed> {
    let graph = &oracle.graph;
    // There they save nothing: weights are read once, and products cost little.
    if policy.mode == CheckMode::Auto && oracle.products.on_device() {
        return None;
    }
    // What looks at another sequence's slots is looked at row by row.
    if sides.iter().any(|side| side.capture.steps.iter().any(|step| !step.foreign.is_empty())) {
        return None;
    }
    let direct = sides.iter().enumerate().filter(|(_, side)| segment::plan(node, graph, side.capture).is_empty());
    let sources: Vec<Source<'_>> = direct
        .map(|(index, &side)| {
            let steps = (0..side.capture.steps.len()).collect();
            Source { index, side, steps, computed: None, resumes: false, filter: Some(filter), passed: None }
        })
        .collect();
    let stage = Stage { node, graph, weights: &oracle.weights, products: oracle.products.judging(node.id) };
    probe::passed(stage, &sources, (policy.mode, policy.seed))
}

/// Only these outputs of a linear layer whose operands were captured; the capture must hold no others.
pub fn outputs(node: &Node, oracle: &Oracle<'_>, side: Side<'_>, filter: &Filter, outputs: Range<usize>) -> Expected {
    let (graph, source): (_, &dyn WeightSource) = (&oracle.graph, &oracle.weights);
    let faulty = node.faults.read.as_ref().map(|fault| FaultyWeights { source, fault: fault.as_ref() });
    let some = SomeRows { source: faulty.as_ref().map_or(source, |m| m), rows: outputs };
    let steps = (0..side.capture.steps.len()).collect();
    let source = Source { index: 0, side, steps, computed: None, resumes: false, filter: Some(filter), passed: None };
    let mut all: Expected = side.capture.steps.iter().map(|_| None).collect();
    let stage = Stage { node, graph, weights: &some, products: oracle.products.judging(node.id) };
    // Nothing breaks it off.
    let _ = apply(stage, &[source], &mut State::new(), &mut |block| {
        put(node, block, &mut all);
        ControlFlow::Continue(())
    });
    all
}

/// All blocks of one side put together, step by step, with what a fault of
/// writing leaves in them, as f64 has it. `None` where operands were not captured.
pub fn assembled(node: &Node, oracle: &Oracle<'_>, side: Side<'_>, filter: &Filter) -> Expected {
    let mut all: Expected = side.capture.steps.iter().map(|_| None).collect();
    exactly(node, oracle, &[side], (filter, None), &mut |block| {
        put(node, block, &mut all);
        ControlFlow::Continue(())
    });
    written(node, side, &mut all);
    all
}

/// Lets a fault of writing change what was computed. The buffer holds what the runner gave a step before.
pub fn written(node: &Node, side: Side<'_>, expected: &mut Expected) {
    let Some(fault) = &node.faults.write else {
        return;
    };
    let mut old: Option<Cow<'_, Tensor<f32>>> = None;
    for (step, expected) in side.capture.steps.iter().zip(expected) {
        if let Some((value, bound)) = expected {
            // A state takes every row of a step, whichever of them were kept.
            let positions = match node.has_state() {
                true => (step.first..step.keys()).map(|p| p as u32).collect(),
                false => step.positions(),
            };
            let old = old.as_ref().map(|t| t.data.as_slice());
            fault(Output { value, bound, old, positions: &positions });
        }
        old = step.get(node.id);
    }
}
