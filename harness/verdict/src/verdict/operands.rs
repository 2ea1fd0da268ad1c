//! The operands of a runner, captured or evaluated, and what a node makes of them.

use crate::arithmetic::Arithmetic;
use crate::capture::{Capture, Stored};
use qdiff_engine::model::Node;
use qdiff_engine::ops::anatomy::Elementwise;
use qdiff_engine::ops::{self, Anatomy, Context, Tensor, UNIT, rope};
use qdiff_engine::quant::{self, ActivationFormat};
use std::borrow::Cow;
use std::ops::Range;

/// One runner's part in a verdict.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    /// What it gave.
    pub capture: &'a Capture,
    /// What it says it computes in.
    pub arithmetic: &'a Arithmetic,
}

/// Value and bound of every element.
pub type Valued = (Tensor<f64>, Vec<f32>);

/// What a stage should be on one side, step by step.
pub type Expected = Vec<Option<Valued>>;

/// An operand: as captured, so exact; rounded where it was stored, or evaluated, so uncertain.
pub(super) enum Operand<'a> {
    Captured(Cow<'a, Tensor<f32>>),
    Stored(Cow<'a, Tensor<f32>>, Vec<f32>),
    Computed(&'a Tensor<f64>, &'a [f32]),
}

impl Operand<'_> {
    /// As the runner holds it, which stores f32.
    pub(super) fn narrow(&self) -> Cow<'_, [f32]> {
        match self {
            Self::Captured(t) | Self::Stored(t, _) => Cow::Borrowed(&t.data),
            Self::Computed(t, _) => t.data.iter().map(|&v| v as f32).collect(),
        }
    }

    pub(super) fn wide(&self) -> Cow<'_, [f64]> {
        match self {
            Self::Captured(t) | Self::Stored(t, _) => t.data.iter().map(|&v| f64::from(v)).collect(),
            Self::Computed(t, _) => Cow::Borrowed(&t.data),
        }
    }

    pub(super) fn delta(&self) -> Option<&[f32]> {
        match self {
            Self::Captured(_) => None,
            Self::Stored(_, delta) => Some(delta),
            Self::Computed(_, delta) => Some(delta),
        }
    }

    pub(super) fn shape(&self) -> &[usize] {
        match self {
            Self::Captured(t) | Self::Stored(t, _) => &t.shape,
            Self::Computed(t, _) => &t.shape,
        }
    }

    pub(super) fn finite(&self) -> bool {
        match self {
            Self::Captured(t) | Self::Stored(t, _) => t.data.iter().all(|v| v.is_finite()),
            Self::Computed(t, _) => t.data.iter().all(|v| v.is_finite()),
        }
    }

    /// In what the runner multiplies in: the value, and how uncertain it is.
    pub(super) fn rounded(&self, format: ActivationFormat) -> (Tensor<f64>, Option<Vec<f32>>) {
        let shape = self.shape().to_vec();
        if format == ActivationFormat::F32 {
            let data = self.wide().into_owned();
            return (Tensor { shape, data }, self.delta().map(<[f32]>::to_vec));
        }
        let narrow = self.narrow();
        let mut value = Tensor::zeros(shape);
        quant::emulate(format, &narrow, &mut value.data);
        let delta = self.delta();
        let delta = delta.map(|d| quant::uncertainty(format, &narrow, Some(d)));
        (value, delta)
    }

    /// Where it becomes `format` at a scale that is not its own, such as the weights of flash attention, which are divided
    /// by their sum later: as it is, uncertain by half a step of the format.
    pub(super) fn rounded_at_a_scale(&self, format: ActivationFormat) -> (Tensor<f64>, Option<Vec<f32>>) {
        let Some(unit) = format.unit() else { return self.rounded(format) };
        let (shape, value) = (self.shape().to_vec(), self.wide().into_owned());
        let mut delta: Vec<f32> = value.iter().map(|v| (v.abs() * unit) as f32).collect();
        if let Some(own) = self.delta() {
            widen(&mut delta, own.iter().copied());
        }
        (Tensor { shape, data: value }, Some(delta))
    }
}

/// How large sums of `n` products are whose terms do not cancel, at least, by their bound in f32: that is
/// `u·√n·Σ|term|`, and the root of the sum of squares is no less than `Σ|term|/√n`.
pub(super) fn uncancelled(bound: &[f32], n: usize) -> Vec<f32> {
    bound.iter().map(|b| (f64::from(*b) / (UNIT * n as f64)) as f32).collect()
}

/// What the node computes: its op, or the fault in the op's place.
pub(super) fn forward(node: &Node, operands: &[&Tensor<f64>], context: &Context<'_>) -> (Tensor<f64>, Vec<f32>) {
    if node.faults.left_out {
        return (operands[0].clone(), vec![0.0; operands[0].data.len()]);
    }
    match &node.faults.compute {
        Some(fault) => fault(operands, context),
        None => ops::forward_with_bound(&node.op, operands, context),
    }
}

/// Makes `bound` wider by an error that does not depend on what it holds of already.
pub(super) fn widen(bound: &mut [f32], by: impl IntoIterator<Item = f32>) {
    bound.iter_mut().zip(by).for_each(|(b, by)| *b = b.hypot(by));
}

/// How uncertain operands make what the node computes: see
/// [`ops::propagate_error`]. A fault in the op's place carries errors as the op; a fault in a rotation's place, as one
/// by any angle.
pub(super) fn propagate_error(
    node: &Node, operands: &[&Tensor<f64>], deltas: &[Option<&[f32]>], value: &Tensor<f64>, context: &Context<'_>,
) -> Vec<f32> {
    match deltas.first() {
        Some(delta) if node.faults.left_out => delta.map_or_else(|| vec![0.0; value.data.len()], <[f32]>::to_vec),
        _ => {
            let mut carried = ops::propagate_error(&node.op, operands, deltas, value, context);
            if let (Anatomy::Elementwise(Elementwise::Rotation(turn)), Some(_)) =
                (node.op.anatomy(), &node.faults.compute)
            {
                rope::spread(turn, &mut carried);
            }
            carried
        }
    }
}

/// The rows `rows` of a stage's tensor; all of it where no axis counts tokens.
pub(super) fn rows_of<'a>(node: &Node, stored: &'a Stored, rows: &Range<usize>) -> Option<Cow<'a, Tensor<f32>>> {
    match node.token_axis() {
        Some(axis) => {
            let extent = *stored.shape().get(axis)?;
            if rows.end > extent {
                return None;
            }
            if *rows == (0..extent) {
                return Some(stored.get());
            }
            Some(Cow::Owned(stored.slice(axis, rows.clone())))
        }
        None => Some(stored.get()),
    }
}
