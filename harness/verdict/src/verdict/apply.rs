//! The op of a node on the operands of several sides: linear layers together,
//! so that a weight is read once, caches as they grow, all else row by row.

use super::caches::{CacheState, caches};
use super::choices;
use super::grain::{Parameters, inside};
use super::groups;
use super::joined;
use super::linear;
use super::lost;
use super::operands::{Operand, forward, propagate_error, rows_of, uncancelled, widen};
use super::orders;
use super::recurrent;
use super::scores::stored_sums;
use super::softmax;
use super::source::{Block, Sink, Source, Stage};
use crate::arithmetic::Accumulation;
use qdiff_engine::dtype::DType;
use qdiff_engine::model::Graph;
use qdiff_engine::ops::anatomy::{Contraction, Gather, RowReduction, State as Kept};
use qdiff_engine::ops::{Anatomy, Context, Tensor};
use qdiff_engine::quant::ActivationFormat;
use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::ControlFlow;

/// Elements that a stage evaluates at once, unless one row has more: few enough that what becomes of them stays in the caches.
const ELEMENTS_AT_ONCE: usize = 1 << 16;

/// Each side's cache so far.
pub(super) type State = HashMap<usize, CacheState>;

/// The op on the operands of the given sides.
pub(super) fn apply(stage: Stage<'_>, sides: &[Source<'_>], state: &mut State, sink: &mut Sink<'_>) -> ControlFlow<()> {
    let mut one_by_one = || {
        sides.iter().try_for_each(|side| {
            let mut steps = side.steps.iter();
            steps.try_for_each(|&step| pointwise(stage, side, step, sink))
        })
    };
    if stage.node.faults.left_out {
        return one_by_one();
    }
    match stage.node.op.anatomy() {
        Anatomy::Contraction(Contraction::Weight(None)) => linear::layers(stage, sides, sink),
        Anatomy::Contraction(Contraction::Weight(Some(picked))) if stage.node.faults.compute.is_none() => {
            groups::layers(stage, picked, sides, sink)
        }
        Anatomy::State(Kept::Own) => {
            sides.iter().try_for_each(|side| recurrent::states(stage, side, state.entry(side.index).or_default(), sink))
        }
        Anatomy::State(Kept::Rows(_)) => {
            sides.iter().try_for_each(|side| caches(stage, side, state.entry(side.index).or_default(), sink))
        }
        Anatomy::Contraction(_) | Anatomy::Gather(_) | Anatomy::RowReduction(_) => one_by_one(),
        Anatomy::Elementwise(_) | Anatomy::Decision(_) | Anatomy::Collective(_) => one_by_one(),
    }
}

fn pointwise(stage: Stage<'_>, source: &Source<'_>, index: usize, sink: &mut Sink<'_>) -> ControlFlow<()> {
    let node = stage.node;
    let anatomy = node.op.anatomy();
    let step = source.step(index);
    let all = step.rows();
    let width = step.extent(node).iter().product::<usize>() / all.max(1);
    let at_once = match source.computed {
        // Computed operands are there as a whole.
        Some(_) => all.max(1),
        None if anatomy.looks_back() => all.max(1),
        None => (ELEMENTS_AT_ONCE / width.max(1)).max(1),
    };
    let arithmetic = source.side.arithmetic;
    let attention = arithmetic.attention(step.tokens.len());
    // In a cache that lost rows a query sees the rows up to its own.
    let positions = lost::own_rows(stage.graph, node, source.side.capture, index).unwrap_or_else(|| step.positions());
    let tokens = step.kept_tokens();
    let history = match anatomy {
        Anatomy::Gather(Gather::Hashed) => source.side.capture.history(index),
        _ => Vec::new(),
    };
    let mut from = 0;
    while from < all {
        let rows = source.next_rows(index, from, at_once);
        from = rows.end;
        if rows.is_empty() {
            break;
        }
        if !source.asked(step, &rows) {
            continue;
        }
        // What goes on from token to token is known of all of them or of none.
        if anatomy.looks_back() && all < step.tokens.len() {
            return ControlFlow::Continue(());
        }
        let operand = |place: usize| source.read(stage, node, place, index, &rows);
        let Some(operands) = (0..node.inputs.len()).map(operand).collect::<Option<Vec<_>>>() else {
            return ControlFlow::Continue(());
        };
        let shape = |i: usize| operands[i].shape();
        let plain = ActivationFormat::F32;
        let whole = |i: usize| {
            let rows = if source.computed.is_some() { all } else { rows.len() };
            let extent = Graph::extent(&stage.graph.nodes[node.inputs[i]], rows, step.keys());
            shape(i).iter().product::<usize>() == extent.iter().product::<usize>()
        };
        // What operands become, the terms of sums, and whether the operands fit each other.
        let (format, terms, shapes_fit) = match anatomy {
            _ if node.faults.left_out => (plain, None, true),
            Anatomy::Contraction(Contraction::Scores(a)) => (attention.scores, Some(a.head_dim), true),
            Anatomy::Contraction(Contraction::Context(_)) => {
                let keys = shape(1).first();
                (attention.context, keys.copied(), shape(0).get(2) == keys)
            }
            Anatomy::Contraction(Contraction::Rows(terms)) => (plain, Some(terms), whole(0) && whole(1)),
            Anatomy::Elementwise(_) => (plain, None, operands.windows(2).all(|two| two[0].shape() == two[1].shape())),
            Anatomy::Contraction(Contraction::Weight(Some(_)))
            | Anatomy::Gather(Gather::Elements | Gather::Columns(_))
            | Anatomy::RowReduction(RowReduction::Other | RowReduction::Recurrent | RowReduction::Seen)
            | Anatomy::Decision(_)
            | Anatomy::Collective(_) => (plain, None, (0..operands.len()).all(whole)),
            Anatomy::Gather(Gather::Rows | Gather::Hashed)
            | Anatomy::Contraction(Contraction::Weight(None))
            | Anatomy::RowReduction(_)
            | Anatomy::State(_) => (plain, None, true),
        };
        let calls_functions = anatomy.calls_functions() && !node.faults.left_out;
        let factor = if calls_functions { arithmetic.functions.factor() } else { 1.0 };
        // An operand of a shape that the op cannot take has been reported at its own stage.
        if !shapes_fit {
            return ControlFlow::Continue(());
        }
        let parameters = Parameters(stage.weights, arithmetic.parameters);
        let context = Context {
            tokens: &tokens[rows.clone()],
            positions: &positions[rows.clone()],
            history: &history,
            source: &parameters,
            weights: &node.weights,
        };
        let flash = attention.flash && matches!(anatomy, Anatomy::Contraction(Contraction::Context(_)));
        // A format with blocks is the query's alone.
        let of_query = format.block_size() > 1;
        let rounded = operands.iter().enumerate().map(|(i, x)| match i {
            0 if flash => x.rounded_at_a_scale(format),
            1 if of_query => x.rounded(plain),
            _ => x.rounded(format),
        });
        let rounded: Vec<_> = rounded.collect();
        let inputs: Vec<&Tensor<f64>> = rounded.iter().map(|(x, _)| x).collect();
        let narrow = source.side.capture.rounding.output(node.id);
        let mut deltas: Vec<Option<&[f32]>> = rounded.iter().map(|(_, d)| d.as_deref()).collect();
        let scaled = softmax::scaled(node, narrow, inputs.first().copied(), deltas.first().copied().flatten());
        if let Some(scaled) = &scaled {
            deltas = vec![Some(scaled)];
        }
        let (mut value, mut bound) = forward(node, &inputs, &context);
        if let (true, Anatomy::Contraction(Contraction::Scores(a))) = (of_query, anatomy) {
            stored_sums((a, format), &operands[0], &inputs, &mut value, &mut bound);
        }
        let uncertain = deltas.iter().any(Option::is_some);
        // Of captured operands alone: what a segment makes of them may be anything.
        let rounded_terms = terms.filter(|_| source.computed.is_none() && (uncertain || narrow != DType::F32));
        let uncancelled = rounded_terms.map(|n| uncancelled(&bound, n));
        bound.iter_mut().for_each(|b| *b *= factor as f32);
        if let Some(terms) = terms {
            attention.accumulation.widen(&mut bound, terms, &value.data, || {
                // As an operand does that is uncertain by all it is.
                let all: Vec<f32> = inputs[0].data.iter().map(|v| v.abs() as f32).collect();
                propagate_error(node, &inputs, &[Some(&all), None], &value, &context)
            });
        }
        let joined = attention.log_sum_exp && matches!(anatomy, Anatomy::Contraction(Contraction::Context(_)));
        if joined && let Some(more) = joined::shares((stage, source), (index, &rows), &inputs, &context) {
            widen(&mut bound, more);
        }
        if let Some(more) = inside(node, narrow, &inputs, &value, &context) {
            widen(&mut bound, more);
        }
        if let Some(kv) = arithmetic.kv.number().filter(|kv| *kv != DType::F32)
            && let Some(more) = node.op.kept_rounded(kv.unit(), &inputs, &context)
        {
            widen(&mut bound, more);
        }
        let given = step.stages.get(&node.id).and_then(|given| rows_of(node, given, &rows));
        if uncertain || source.computed.is_some() {
            orders::allow(stage, (source, index), &inputs, &value, &mut bound);
        } else if let Some(given) = &given {
            orders::settle(node, &operands, &given.data, &mut value.data);
        }
        let mut by_operands = Vec::new();
        // The runner's own choice is taken, and none behind it is uncertain by what another would be.
        let taken = choices::take(node, given.as_deref(), (&inputs, &deltas), context.positions, &mut value);
        if uncertain && !taken {
            let mut more = propagate_error(node, &inputs, &deltas, &value, &context);
            if let Some(given) = given.as_ref().filter(|_| !source.side.capture.rounding.plain()) {
                let bounds = (bound.as_slice(), more.as_mut_slice());
                by_operands = softmax::settle(stage, (source, given), (&inputs, &deltas), &context, &mut value, bounds);
            }
            widen(&mut bound, more);
        }
        sink(Block {
            value: Cow::Owned(value),
            bound: Cow::Owned(bound),
            poisoned: !operands.iter().all(Operand::finite),
            coarse: uncertain || narrow != DType::F32 || terms.is_some() && attention.accumulation == Accumulation::F16,
            terms: uncancelled.filter(|_| attention.accumulation != Accumulation::F16).map(Cow::Owned),
            by_operands,
            ..source.block(index, rows)
        })?;
    }
    ControlFlow::Continue(())
}
