//! Where the operands of a side come from, and blocks of rows as they should be.

use super::grain;
use super::mode::Seed;
use super::operands::{Expected, Operand, Side, rows_of};
use super::remade::made_again;
use crate::capture::{Filter, Step};
use crate::products::Judging;
use qdiff_engine::dtype::DType;
use qdiff_engine::model::{Graph, Node, WeightSource};
use qdiff_engine::ops::Tensor;
use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::{ControlFlow, Range};

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
    /// The known rows of a cache: those whose operands were captured.
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

/// Rows of a stage that the probes have no doubt of, by side, step and row.
#[derive(Default)]
pub(super) struct Passed {
    pub(super) rows: Vec<Vec<Vec<bool>>>,
    /// From about so many of its bounds on a single output that is off raises doubt, for any rounding.
    pub(super) sees: f64,
    /// What the random numbers were drawn from.
    pub(super) seed: Option<Seed>,
}

impl Passed {
    pub(super) fn row(&self, side: usize, step: usize, row: usize) -> bool {
        self.rows.get(side).and_then(|steps| steps.get(step)?.get(row)).is_some_and(|passed| *passed)
    }

    /// Nothing is passed of this side.
    pub(super) fn clear(&mut self, side: usize) {
        self.rows[side].clear();
    }

    /// All of them.
    pub(super) fn rows(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let steps =
            self.rows.iter().enumerate().flat_map(|(side, steps)| (0..steps.len()).map(move |step| (side, step)));
        steps.flat_map(|(side, step)| {
            let rows = &self.rows[side][step];
            (0..rows.len()).filter(|row| rows[*row]).map(move |row| (side, step, row))
        })
    }
}

impl<'a> Source<'a> {
    /// Whether any of the rows is selected.
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

    /// These rows of a step; their values are still to be filled in.
    pub(super) fn block(&self, index: usize, rows: Range<usize>) -> Block<'a> {
        Block {
            side: self.index,
            step: self.step(index),
            index,
            rows,
            known: None,
            value: Cow::Owned(Tensor::default()),
            bound: Cow::Owned(Vec::new()),
            poisoned: false,
            segment: self.computed.is_some(),
            coarse: false,
            terms: None,
            by_operands: Vec::new(),
        }
    }

    /// What operand `place` of `node` is in a step, some rows of it or, where it was computed, all: of one that looks back, the
    /// value before the step.
    pub(super) fn read(
        &self, stage: Stage<'_>, node: &Node, place: usize, step: usize, rows: &Range<usize>,
    ) -> Option<Operand<'a>> {
        match node.looks_back(place) {
            true => self.before(stage, node.inputs[place], step),
            false => self.operand(stage.graph, node.inputs[place], step, rows),
        }
    }

    /// A state as it was before a step: zeros before the first of a sequence.
    pub(super) fn before(&self, stage: Stage<'_>, state: usize, step: usize) -> Option<Operand<'a>> {
        let graph = stage.graph;
        if let Some(again) = self.step(step).before.get(&graph.nodes[state].id) {
            return Some(Operand::Captured(again.get()));
        }
        if self.step(step).first == 0 {
            let zeros = Tensor::zeros(Graph::extent(&graph.nodes[state], 0, 0));
            return Some(Operand::Captured(Cow::Owned(zeros)));
        }
        let earlier = step.checked_sub(1)?;
        // Nothing is known of what went before a gap.
        let follows = self.step(earlier).keys() == self.step(step).first;
        let operand = self.operand(graph, state, earlier, &(0..1)).filter(|_| follows)?;
        if !self.step(earlier).handed_on {
            return Some(operand);
        }
        let (shape, values) = (operand.shape().to_vec(), operand.wide());
        let (arithmetic, tokens) = (self.side.arithmetic, self.step(earlier).tokens.len());
        let deltas = made_again((graph, stage.weights), arithmetic, tokens, (&shape, &values), operand.delta());
        let data = operand.narrow().into_owned();
        Some(Operand::Stored(Cow::Owned(Tensor { shape, data }), deltas))
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

/// Puts a block with those of the same step.
pub(super) fn put(node: &Node, block: Block<'_>, all: &mut Expected) {
    let slot = &mut all[block.index];
    match node.token_axis().filter(|a| *a < block.value.shape.len()) {
        Some(axis) if block.rows != (0..block.step.rows()) => {
            let mut shape = block.value.shape.clone();
            shape[axis] = block.step.rows();
            let (whole, bound) = slot.get_or_insert_with(|| {
                let whole = Tensor::zeros(shape);
                let bound = vec![0f32; whole.data.len()];
                (whole, bound)
            });
            let inner: usize = block.value.shape[axis + 1..].iter().product();
            let (part, plane) = (block.rows.len() * inner, block.step.rows() * inner);
            for i in 0..block.value.data.len() / part.max(1) {
                let to = i * plane + block.rows.start * inner;
                let from = i * part..(i + 1) * part;
                whole.data[to..to + part].copy_from_slice(&block.value.data[from.clone()]);
                bound[to..to + part].copy_from_slice(&block.bound[from]);
            }
        }
        _ => *slot = Some((block.value.into_owned(), block.bound.into_owned())),
    }
}
