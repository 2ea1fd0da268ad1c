//! A KV cache as it should be after each step.

use super::grain::copied;
use super::operands::{Operand, widen};
use super::source::{Block, Sink, Source, Stage};
use crate::capture::Shift;
use qdiff_engine::dtype::DType;
use qdiff_engine::model::{Graph, Node};
use qdiff_engine::ops::{self, Context, Tensor, rope};
use qdiff_engine::quant::{self, ActivationFormat};
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

/// The format of a cache, and by what its rows are divided before they are rounded to it, if not by 1.
type Format = (ActivationFormat, Option<f32>);

/// Rows as the cache holds them, and how uncertain that is.
fn held(node: &Node, (format, scale): Format, width: usize, given: &Operand<'_>) -> (Tensor<f64>, Option<Vec<f32>>) {
    let (mut values, uncertain) = match scale {
        Some(scale) => divided(format, scale, given),
        None if format == ActivationFormat::Q8_0 => by_vectors_or_reference(given),
        None => given.rounded(format),
    };
    if node.faults.hold.is_some() {
        node.faults.held(format, width, &given.narrow(), &mut values.data);
    }
    (values, uncertain)
}

/// Rows in q8_0. ggml's vector code for a CPU multiplies by 127 over the largest magnitude and rounds halves to even; its reference,
/// and its code for GPUs, multiply by the reciprocal of the scale and round halves away from zero. Where that is not the same, either
/// is right.
fn by_vectors_or_reference(given: &Operand<'_>) -> (Tensor<f64>, Option<Vec<f32>>) {
    let (values, uncertain) = given.rounded(ActivationFormat::Q8_0);
    let mut other = vec![0.0; values.data.len()];
    quant::emulate(ActivationFormat::Q8_0Ref, &given.narrow(), &mut other);
    let apart = || values.data.iter().zip(&other).map(|(a, b)| (a - b).abs() as f32);
    let uncertain = match uncertain {
        Some(own) => Some(own.into_iter().zip(apart()).map(|(own, apart)| own.max(apart)).collect()),
        None if values.data != other => Some(apart().collect()),
        None => None,
    };
    (values, uncertain)
}

/// Rows that are divided by a scale, rounded, and multiplied by it. An engine divides, or multiplies by the reciprocal: where that is
/// not the same, either is right.
fn divided(format: ActivationFormat, scale: f32, given: &Operand<'_>) -> (Tensor<f64>, Option<Vec<f32>>) {
    let (shape, narrow) = (given.shape().to_vec(), given.narrow());
    let [by_quotient, by_product] =
        [|v: f32, scale: f32| v / scale, |v: f32, scale: f32| v * (1.0 / scale)].map(|of| {
            let small: Vec<f32> = narrow.iter().map(|v| of(*v, scale)).collect();
            let mut rounded = vec![0.0; small.len()];
            quant::emulate(format, &small, &mut rounded);
            rounded.iter().map(|v| f64::from(*v as f32 * scale)).collect::<Vec<f64>>()
        });
    let own = given.delta().map(|d| {
        let small: Vec<f32> = narrow.iter().map(|v| v / scale).collect();
        let off: Vec<f32> = d.iter().map(|d| d / scale).collect();
        let uncertain = quant::uncertainty(format, &small, Some(&off));
        uncertain.into_iter().map(|d| d * scale).collect::<Vec<f32>>()
    });
    let apart = by_quotient.iter().zip(&by_product).map(|(a, b)| (a - b).abs() as f32);
    let uncertain = match own {
        Some(own) => Some(own.into_iter().zip(apart).map(|(own, apart)| own + apart).collect()),
        None if by_quotient != by_product => Some(apart.collect()),
        None => None,
    };
    (Tensor { shape, data: by_quotient }, uncertain)
}

/// The rows of a cache after tokens were removed from the middle of the sequence before the step `index`. What the side stored before
/// counts, where it was captured. Rows behind those that are gone turn back by as many positions, from what was stored, and are
/// rounded to the format of the cache again, if rows of this cache were rotated; values stay.
fn shift(
    stage: Stage<'_>, source: &Source<'_>, (index, shift): (usize, Shift), format: Format, state: &mut CacheState,
) {
    let (node, Shift { tokens, from }) = (stage.node, shift);
    let stored = index.checked_sub(1).and_then(|before| source.step(before).get(node.id));
    if let Some(stored) = stored.filter(|stored| source.computed.is_none() && stored.shape == state.values.shape) {
        state.deltas = match source.side.capture.rounding.stored(node.id) {
            DType::F32 => Tensor::zeros(stored.shape.clone()),
            own => stored.map(|v| own.half_step(f64::from(v)) as f32),
        };
        state.values = stored.wide();
        state.known.fill(true);
    }
    let (width, end) = (state.values.row_len(), from + tokens);
    if state.values.rows() <= end {
        state.lost = true;
        return;
    }
    state.values.data.drain(from * width..end * width);
    state.deltas.data.drain(from * width..end * width);
    state.known.drain(from..end);
    state.values.shape[0] -= tokens;
    state.deltas.shape[0] -= tokens;
    let moved = state.values.rows() - from;
    let by = vec![-(tokens as f64); moved];
    let Some(rope) = stage.graph.moves_by(node) else { return };
    let own = Tensor { shape: vec![moved, width], data: state.values.data[from * width..].to_vec() };
    let turned = rope::forward(&rope, &own, &by);
    let mut deltas = rope::propagate_error(&rope, &state.deltas.data[from * width..], width, &by);
    let rounding = rope::bound(&rope, &Tensor { shape: vec![moved, width], data: turned.data.clone() }, &by);
    widen(&mut deltas, rounding);
    let (values, uncertain) = held(node, format, width, &Operand::Computed(&turned, &deltas));
    state.values.data[from * width..].copy_from_slice(&values.data);
    state.deltas.data[from * width..].copy_from_slice(&uncertain.unwrap_or(deltas));
    // An engine may dequantise all rows, turn those that move, and quantise all: the others may be another step away.
    if format.0.block_size() > 1 && from > 0 {
        let kept = Tensor { shape: vec![from, width], data: state.values.data[..from * width].to_vec() };
        let exact = vec![0.0; kept.data.len()];
        let (again, _) = held(node, format, width, &Operand::Computed(&kept, &exact));
        let apart = again.data.iter().zip(&kept.data).map(|(a, b)| (a - b).abs() as f32);
        widen(&mut state.deltas.data[..from * width], apart);
    }
}

/// The cache after each step, from all rows captured so far. A row that was
/// not captured is not known; without a step's rows, no later cache is.
pub(super) fn caches(
    stage: Stage<'_>, source: &Source<'_>, state: &mut CacheState, sink: &mut Sink<'_>,
) -> ControlFlow<()> {
    let node = stage.node;
    let row_shape: Vec<usize> = Graph::extent(node, 0, 0)[1..].to_vec();
    let width: usize = row_shape.iter().product();
    let arithmetic = source.side.arithmetic;
    let format = (arithmetic.kv.of(node.is_of_values()), arithmetic.kv_scale(node.id));
    // A fault changes the rows before they go into blocks.
    let late = node.faults.compute.is_some() && format.0.block_size() > 1;
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
        if let Some(removed) = step.shift.filter(|_| !state.lost) {
            shift(stage, source, (index, removed), format, state);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// An engine that stored 41 for a quotient of 40.5, as ggml's reference does, was said to be wrong.
    #[test]
    fn halves_in_q8_0_may_be_rounded_either_way() {
        let mut row = [1.25f32; 64];
        (row[0], row[1], row[33]) = (127.0, 40.5, 2.0);
        let given = Operand::Captured(Cow::Owned(Tensor { shape: vec![1, 64], data: row.to_vec() }));
        let (values, uncertain) = by_vectors_or_reference(&given);
        let uncertain = uncertain.unwrap();
        assert_eq!((values.data[1], uncertain[1]), (40.0, 1.0));
        assert!((0..64).all(|i| i == 1 || uncertain[i] == 0.0), "{uncertain:?}");
    }
}
