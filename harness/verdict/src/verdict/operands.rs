//! What an evaluation takes and gives: the operands of a runner, captured or
//! evaluated, and blocks of rows as they should be.

use super::evaluate::Expected;
use super::grain;
use super::probe::Passed;
use crate::arithmetic::Arithmetic;
use crate::capture::{Capture, Filter, Step, Stored};
use crate::products::Judging;
use qdiff_engine::dtype::DType;
use qdiff_engine::model::{Graph, Node, WeightSource};
use qdiff_engine::ops::anatomy::Elementwise;
use qdiff_engine::ops::{self, Anatomy, Context, Tensor, UNIT, rope};
use qdiff_engine::quant::{self, ActivationFormat};
use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::{ControlFlow, Range};

/// One runner's part in a verdict.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    /// What it gave.
    pub capture: &'a Capture,
    /// What it says it computes in.
    pub arithmetic: &'a Arithmetic,
}

/// Some rows of a stage in one step of one side, as they should be.
pub struct Block<'a> {
    /// Index of the side.
    pub side: usize,
    /// The step.
    pub step: &'a Step,
    /// Index of the step in its capture.
    pub index: usize,
    /// Rows of the step; of a cache, which has no axis of tokens, all of them.
    pub rows: Range<usize>,
    /// Of a cache, which rows are known: those whose operands were captured.
    pub known: Option<&'a [bool]>,
    /// What the rows should be, shaped as the stage.
    pub value: Cow<'a, Tensor<f64>>,
    /// What each element may be off by: the forward error bound of the op, and
    /// the uncertainty of operands that were not captured.
    pub bound: Cow<'a, [f32]>,
    /// Whether an operand of these rows is not finite.
    pub poisoned: bool,
    /// Whether it was evaluated over a segment.
    pub segment: bool,
    /// Whether the runner declares sums or results coarser than f32 for it, or operands were rounded where they were stored.
    pub coarse: bool,
    /// Of sums of products of rounded operands: how large each would be if its terms did not cancel, at least.
    pub terms: Option<Cow<'a, [f32]>>,
    /// Row by row, whether it was held to what operands within their rounding give, because that makes it uncertain by too
    /// much otherwise; empty where none was.
    pub by_operands: Vec<bool>,
}

impl Block<'_> {
    /// Positions of its rows; none of a cache, whose rows count themselves.
    pub(super) fn positions(&self) -> Vec<u32> {
        if self.known.is_some() { Vec::new() } else { self.step.positions()[self.rows.clone()].to_vec() }
    }

    /// Whether its row of this position is known.
    pub(super) fn knows(&self, position: usize) -> bool {
        self.known.is_none_or(|known| known.get(position).is_none_or(|known| *known))
    }
}

/// Takes blocks, in order of side, step and row, until it breaks off.
pub type Sink<'s> = dyn FnMut(Block<'_>) -> ControlFlow<()> + 's;

/// Value and uncertainty of nodes that were not captured, by node and step.
#[derive(Default)]
pub(super) struct Computed<'a> {
    pub(super) own: HashMap<usize, Expected>,
    /// Where those stand that are not its own.
    pub(super) beneath: Option<&'a Computed<'a>>,
}

impl Computed<'_> {
    pub(super) fn get(&self, node: usize) -> Option<&Expected> {
        self.own.get(&node).or_else(|| self.beneath?.get(node))
    }
}

/// A stage that is evaluated.
#[derive(Clone, Copy)]
pub(super) struct Stage<'a> {
    pub(super) node: &'a Node,
    /// The nodes that its inputs are.
    pub(super) graph: &'a Graph,
    /// As it reads them.
    pub(super) weights: &'a dyn WeightSource,
    /// What evaluates products with them, wherever in a segment.
    pub(super) products: Judging<'a>,
}

/// Where the operands of one side come from.
#[derive(Clone)]
pub(super) struct Source<'a> {
    /// Index of the side.
    pub(super) index: usize,
    pub(super) side: Side<'a>,
    /// Steps to evaluate.
    pub(super) steps: Vec<usize>,
    /// What was evaluated because it was not captured.
    pub(super) computed: Option<&'a Computed<'a>>,
    /// Whether a cache goes on from its own contents where they were captured, as it does inside a segment.
    pub(super) resumes: bool,
    /// Whose positions alone are evaluated; all where `None`.
    pub(super) filter: Option<&'a Filter>,
    /// Rows that are not evaluated: probes have no doubt of them.
    pub(super) passed: Option<&'a Passed>,
}

/// An operand: as captured, hence exact; rounded where it was stored, or evaluated, hence uncertain.
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

impl<'a> Source<'a> {
    /// Whether any of the rows is asked for.
    pub(super) fn asked(&self, step: &Step, rows: &Range<usize>) -> bool {
        self.filter.is_none_or(|filter| rows.clone().any(|r| filter.position(step.first + step.offset(r))))
    }

    /// From `from` on the first rows that are evaluated and follow each other, `most` of them at most.
    pub(super) fn next_rows(&self, index: usize, from: usize, most: usize) -> Range<usize> {
        let rows = self.step(index).rows();
        let passed = |row: &usize| self.passed.is_some_and(|p| p.row(self.index, index, *row));
        let from = (from..rows).find(|row| !passed(row)).unwrap_or(rows);
        let end = rows.min(from + most);
        from..(from..end).find(passed).unwrap_or(end)
    }

    pub(super) fn step(&self, index: usize) -> &'a Step {
        &self.side.capture.steps[index]
    }

    /// What operand `place` of `node` is in a step, some rows of it or, where it was computed, all: of one that looks back, the
    /// value before the step.
    pub(super) fn read(
        &self, graph: &Graph, node: &Node, place: usize, step: usize, rows: &Range<usize>,
    ) -> Option<Operand<'a>> {
        match node.looks_back(place) {
            true => self.before(graph, node.inputs[place], step),
            false => self.operand(graph, node.inputs[place], step, rows),
        }
    }

    /// A state as it was before a step: zeros before the first of a sequence.
    pub(super) fn before(&self, graph: &Graph, state: usize, step: usize) -> Option<Operand<'a>> {
        if self.step(step).first == 0 {
            let zeros = Tensor::zeros(Graph::extent(&graph.nodes[state], 0, 0));
            return Some(Operand::Captured(Cow::Owned(zeros)));
        }
        let earlier = step.checked_sub(1)?;
        // Nothing is known of what went before a gap.
        let follows = self.step(earlier).keys() == self.step(step).first;
        if follows { self.operand(graph, state, earlier, &(0..1)) } else { None }
    }

    /// Some rows of the node `input` as this side has them; all of them where they were computed.
    pub(super) fn operand(&self, graph: &Graph, input: usize, step: usize, rows: &Range<usize>) -> Option<Operand<'a>> {
        let node = &graph.nodes[input];
        if let Some(stored) = self.step(step).stages.get(&node.id) {
            let tensor = rows_of(node, stored, rows)?;
            return Some(match self.side.capture.rounding.stored(node.id) {
                DType::F32 => Operand::Captured(tensor),
                format => grain::uncertain(format, tensor),
            });
        }
        let (value, delta) = self.computed?.get(input)?[step].as_ref()?;
        Some(Operand::Computed(value, delta))
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
/// [`ops::propagate_error`]. A fault in the op's place carries errors as the op; what stands in a rotation's, as one by any
/// angle.
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
