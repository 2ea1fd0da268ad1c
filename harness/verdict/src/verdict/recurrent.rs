//! States that a definition makes anew in every step, such as a delta net's: each is held to what follows from the side's own
//! state before the step, so that what is lost between two steps shows in the second, and no error grows from step to step.

use super::caches::CacheState;
use super::grain::Parameters;
use super::operands::{Operand, forward, propagate_error, widen};
use super::remade::made_again;
use super::source::{Block, Sink, Source, Stage};
use qdiff_engine::dtype::DType;
use qdiff_engine::model::Graph;
use qdiff_engine::ops::{Context, Tensor};
use qdiff_engine::quant::ActivationFormat;
use std::borrow::Cow;
use std::ops::ControlFlow;

/// The state after each step.
pub(super) fn states(
    stage: Stage<'_>, source: &Source<'_>, state: &mut CacheState, sink: &mut Sink<'_>,
) -> ControlFlow<()> {
    let node = stage.node;
    let Some(own) = stage.graph.index(node.id) else { return ControlFlow::Continue(()) };
    let arithmetic = source.side.arithmetic;
    for &index in &source.steps {
        let step = source.step(index);
        if let Some(given) = step.get(node.id).filter(|_| source.resumes) {
            state.deltas = match source.side.capture.rounding.stored(node.id) {
                DType::F32 => Tensor::zeros(given.shape.clone()),
                stored => given.map(|v| stored.half_step(f64::from(v)) as f32),
            };
            (state.values, state.lost) = (given.wide(), false);
            continue;
        }
        if step.rows() == 0 && step.tokens.is_empty() {
            continue;
        }
        let all = 0..step.rows();
        let operands = node.inputs.iter().map(|&i| source.operand(stage.graph, i, index, &all));
        let whole = step.rows() == step.tokens.len();
        let operands = operands.collect::<Option<Vec<Operand<'_>>>>().filter(|_| whole);
        // What the side has, else what was computed so far.
        let before = source.before(stage, own, index).map(|x| x.rounded(ActivationFormat::F32));
        let before = before.or_else(|| {
            let known = !state.lost && !state.values.data.is_empty();
            known.then(|| (state.values.clone(), Some(state.deltas.data.clone())))
        });
        let (Some(operands), Some(before)) = (operands, before) else {
            state.lost = true;
            continue;
        };
        let fits = |(x, i): (&Operand<'_>, &usize)| {
            let extent = Graph::extent(&stage.graph.nodes[*i], step.tokens.len(), step.keys());
            x.shape().iter().product::<usize>() == extent.iter().product::<usize>()
        };
        let expected: usize = Graph::extent(node, 0, 0).iter().product();
        if !operands.iter().zip(&node.inputs).all(fits) || before.0.data.len() != expected {
            state.lost = true;
            continue;
        }
        let poisoned = !operands.iter().all(Operand::finite);
        let rounded = operands.iter().map(|x| x.rounded(ActivationFormat::F32)).chain([before]);
        let rounded: Vec<_> = rounded.collect();
        let inputs: Vec<&Tensor<f64>> = rounded.iter().map(|(x, _)| x).collect();
        let deltas: Vec<Option<&[f32]>> = rounded.iter().map(|(_, d)| d.as_deref()).collect();
        let parameters = Parameters(stage.weights, arithmetic.parameters);
        let positions = step.positions();
        let (tokens, positions) = (step.kept_tokens(), positions.as_slice());
        let context = Context { tokens: &tokens, positions, history: &[], source: &parameters, weights: &node.weights };
        let (value, mut bound) = forward(node, &inputs, &context);
        let factor = arithmetic.functions.factor() as f32;
        bound.iter_mut().for_each(|b| *b *= factor);
        let uncertain = deltas.iter().any(Option::is_some);
        if uncertain {
            widen(&mut bound, propagate_error(node, &inputs, &deltas, &value, &context));
        }
        if step.handed_on && step.get(node.id).is_none() {
            let state = (value.shape.as_slice(), value.data.as_slice());
            bound = made_again((stage.graph, stage.weights), arithmetic, step.tokens.len(), state, Some(&bound));
        }
        state.deltas = Tensor { shape: value.shape.clone(), data: bound };
        (state.values, state.lost) = (value, false);
        if step.rows() == 0 {
            continue;
        }
        sink(Block {
            known: Some(&[]),
            value: Cow::Borrowed(&state.values),
            bound: Cow::Borrowed(&state.deltas.data),
            poisoned,
            coarse: uncertain,
            ..source.block(index, 0..1)
        })?;
    }
    ControlFlow::Continue(())
}
