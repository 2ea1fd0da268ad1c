//! A KV cache as it should be after each step.

use super::grain::copied;
use super::operands::{Operand, widen};
use super::source::{Block, Sink, Source, Stage};
use qdiff_engine::dtype::DType;
use qdiff_engine::model::{Graph, Node};
use qdiff_engine::ops::{self, Context, Tensor};
use qdiff_engine::quant::ActivationFormat;
use std::borrow::Cow;
use std::ops::ControlFlow;

/// A cache as it grows: its rows, how uncertain they are, and which of them are known.
#[derive(Default)]
pub(super) struct CacheState {
    pub(super) values: Tensor<f64>,
    pub(super) deltas: Tensor<f32>,
    known: Vec<bool>,
    /// Whether a step's rows are missing, so that no later cache is known.
    pub(super) lost: bool,
}

/// Rows as the cache holds them, and how uncertain that is.
fn held(node: &Node, format: ActivationFormat, width: usize, given: &Operand<'_>) -> (Tensor<f64>, Option<Vec<f32>>) {
    let (mut values, uncertain) = given.rounded(format);
    if node.faults.hold.is_some() {
        node.faults.held(format, width, &given.narrow(), &mut values.data);
    }
    (values, uncertain)
}

/// The cache after each step, from all rows captured so far. A row that was
/// not captured is not known; without a step's rows, no later cache is.
pub(super) fn caches(
    stage: Stage<'_>, source: &Source<'_>, state: &mut CacheState, sink: &mut Sink<'_>,
) -> ControlFlow<()> {
    let node = stage.node;
    let row_shape: Vec<usize> = Graph::extent(node, 0, 0)[1..].to_vec();
    let width: usize = row_shape.iter().product();
    let format = source.side.arithmetic.kv.of(node.is_of_values());
    // A fault changes the rows before they go into blocks.
    let late = node.faults.compute.is_some() && format.block_size() > 1;
    // Only for the judged cache; within a segment the engine's own rows count.
    let copied = !source.resumes && source.computed.is_none() && copied(node, stage.graph, source.side);
    for &index in &source.steps {
        let step = source.step(index);
        if let Some(own) = step.get(node.id).filter(|_| source.resumes) {
            state.deltas = match source.side.capture.rounding.stored(node.id) {
                DType::F32 => Tensor::zeros(own.shape.clone()),
                stored => own.map(|v| stored.half_step(f64::from(v)) as f32),
            };
            state.values = own.wide();
            state.known = vec![true; own.rows()];
            state.lost = false;
            continue;
        }
        let count = step.tokens.len();
        let shape = [&[count], row_shape.as_slice()].concat();
        let mut rows = Tensor { data: vec![f64::NAN; count * width], shape: shape.clone() };
        let mut deltas = Tensor::zeros(shape);
        let mut fresh = vec![false; count];
        let mut poisoned = false;
        match source.operand(stage.graph, node.inputs[0], index, &(0..step.rows())) {
            Some(given) if given.shape().iter().product::<usize>() == step.rows() * width => {
                poisoned = !given.finite();
                let (given, uncertain) = match late {
                    true => given.rounded(ActivationFormat::F32),
                    false => held(node, format, width, &given),
                };
                let uncertain = uncertain.filter(|_| !copied);
                for (r, row) in given.data.chunks_exact(width).enumerate() {
                    let at = step.offset(r);
                    fresh[at] = true;
                    rows.data[at * width..][..width].copy_from_slice(row);
                    if let Some(uncertain) = &uncertain {
                        let of_row = &uncertain[r * width..][..width];
                        deltas.data[at * width..][..width].copy_from_slice(of_row);
                    }
                }
            }
            _ if step.rows() > 0 => state.lost = true,
            _ => {}
        }
        if state.lost {
            continue;
        }
        if let Some(fault) = &node.faults.compute {
            let positions: Vec<u32> = (step.first..step.keys()).map(|p| p as u32).collect();
            let (tokens, positions) = (&step.tokens, &positions);
            let context = Context { tokens, positions, history: &[], source: stage.weights, weights: &node.weights };
            let (faulty, bound) = fault(&[&rows], &context);
            rows = faulty;
            widen(&mut deltas.data, bound);
            if late {
                let (values, uncertain) = held(node, format, width, &Operand::Computed(&rows, &deltas.data));
                (rows, deltas.data) = (values, uncertain.unwrap_or(deltas.data));
            }
        }
        let context =
            Context { tokens: &[], positions: &[], history: &[], source: stage.weights, weights: &node.weights };
        ops::advance(&node.op, &mut state.values, &[&rows], &context);
        // A cache is a copy, and so is its uncertainty.
        ops::advance(&node.op, &mut state.deltas, &[&deltas], &context);
        state.known.extend(fresh);
        if step.rows() == 0 {
            continue;
        }
        sink(Block {
            known: Some(&state.known),
            value: Cow::Borrowed(&state.values),
            // Nothing but the uncertainty of its rows is allowed.
            bound: Cow::Borrowed(&state.deltas.data),
            poisoned,
            coarse: state.deltas.data.iter().any(|d| *d > 0.0),
            ..source.block(index, 0..state.values.rows())
        })?;
    }
    ControlFlow::Continue(())
}
