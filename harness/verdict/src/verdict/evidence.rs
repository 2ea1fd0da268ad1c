//! One origin laid open: what its stage gave and what it should have given, row by row, for those who ask why.

use super::evaluate::assembled;
use super::grain::{Grain, Parameters, settle_all};
use super::held::Row;
use super::inside::{Rows, part};
use super::operands::{Expected, Side};
use super::rows::rows_given;
use super::tolerance::ELEMENT_FACTOR;
use super::{Place, Policy};
use crate::capture::{Capture, Filter, Step};
use crate::oracle::Oracle;
use qdiff_engine::model::{Axis, Node};
use qdiff_engine::ops::Tensor;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

/// Elements of a stage, or of its largest operand, that hypotheses are tried on; of a larger one, as many rows.
pub const TRIED: usize = 1 << 20;

/// The same, that are described.
pub const DESCRIBED: usize = 1 << 24;

/// Rows of a linear stage that a hypothesis is tried on first.
const SAMPLE: usize = 3;

/// A judged row of the stage.
#[derive(Clone, Debug)]
pub struct RowAt {
    /// Index of the step in the capture.
    pub step: usize,
    /// Where it is in the run.
    pub place: Place,
    /// Its judged elements in the step's tensor.
    pub range: Range<usize>,
    /// Whether it is beyond what is allowed.
    pub bad: bool,
}

/// A wrong element.
#[derive(Clone, Copy, Debug)]
pub struct Wrong {
    /// Index of its row in [`Evidence::rows`].
    pub row: usize,
    /// Index in its row.
    pub index: usize,
    /// The subject's value.
    pub got: f32,
    /// The f64 value.
    pub want: f64,
}

/// Everything about one stage of one runner.
pub struct Evidence<'a> {
    /// Graph and weights.
    pub oracle: &'a Oracle<'a>,
    /// The stage as it should be.
    pub node: &'a Node,
    /// The runner.
    pub side: Side<'a>,
    /// What it gave, step by step.
    pub given: Vec<Option<Cow<'a, Tensor<f32>>>>,
    /// What it should have given, the rounding to a narrow format read off what it gave.
    pub expected: Expected,
    /// The same as f64 has it, where that is something else.
    exactly: Option<Expected>,
    /// What rounding its values to a narrow format may have done.
    pub grain: Grain,
    /// Judged rows of the steps whose extent is right.
    pub rows: Vec<RowAt>,
    /// Steps whose extent is not what the operands ask for.
    pub misshapen: Vec<usize>,
    /// The user's own tolerance for this stage.
    pub rule: Option<f64>,
    /// The selection.
    pub filter: &'a Filter,
}

impl<'a> Evidence<'a> {
    /// Evaluates `node` and judges every row of it.
    pub fn new(oracle: &'a Oracle<'a>, node: &'a Node, side: Side<'a>, filter: &'a Filter, policy: &Policy) -> Self {
        let expected = assembled(node, oracle, side, filter);
        Self::judged(oracle, node, side, (filter, policy.rule(node.id)), expected)
    }

    /// Judges every row of what the stage should be.
    fn judged(
        oracle: &'a Oracle<'a>, node: &'a Node, side: Side<'a>, (filter, rule): (&'a Filter, Option<f64>),
        expected: Expected,
    ) -> Self {
        let grain = Grain::of(node, &oracle.graph, side);
        let mut expected = expected;
        let exactly = (!grain.exact()).then(|| expected.clone());
        settle_all(node, &oracle.graph, side, &mut expected);
        let given: Vec<_> = side.capture.steps.iter().map(|s| s.get(node.id)).collect();
        let (mut rows, mut misshapen) = (Vec::new(), Vec::new());
        for (index, step) in side.capture.steps.iter().enumerate() {
            let (Some(got), Some((want, bound))) = (&given[index], &expected[index]) else {
                continue;
            };
            if got.data.len() != want.data.len() {
                misshapen.push(index);
                continue;
            }
            for (place, range) in rows_given(node, step, got) {
                let (g, w, b) = (&got.data[range.clone()], &want.data[range.clone()], &bound[range.clone()]);
                // A row of a state that nothing is known of.
                let unknown = node.has_state() && w.iter().all(|v| v.is_nan());
                if unknown || !filter.position(place.position) {
                    continue;
                }
                let finite = g.iter().all(|v| v.is_finite());
                rows.push(RowAt { step: index, place, bad: !finite || Row::of(g, w, b, rule).used > 1.0, range });
            }
        }
        // A wrong row of another sequence's prefix is reported for that sequence, whose steps are whole.
        let own = |row: &RowAt| side.capture.is_own(row.step);
        if rows.iter().any(|row| row.bad && own(row)) {
            rows.retain(|row| !row.bad || own(row));
        }
        Self { oracle, node, side, given, expected, exactly, grain, rows, misshapen, rule, filter }
    }

    /// What it should have given, as f64 has it.
    pub fn exactly(&self) -> &Expected {
        self.exactly.as_ref().unwrap_or(&self.expected)
    }

    /// The model's tensors as the runner says that it holds them.
    pub fn parameters(&self) -> Parameters<'a> {
        Parameters(&self.oracle.weights, self.side.arithmetic.parameters)
    }

    /// The same, if the stage should give something else.
    pub fn assuming(&self, expected: Expected) -> Self {
        Self::judged(self.oracle, self.node, self.side, (self.filter, self.rule), expected)
    }

    /// The same of some of its rows.
    pub fn of_rows(&self, rows: &'a Rows) -> Self {
        let side = Side { capture: &rows.capture, ..self.side };
        Self::judged(self.oracle, self.node, side, (self.filter, self.rule), rows.of(self.node, self.exactly()))
    }

    /// What the subject gave in a row, what it should have, and the bound.
    pub fn row(&self, row: &RowAt) -> (&[f32], &[f64], &[f32]) {
        let got = self.given[row.step].as_ref().expect("a judged row was given");
        let (want, bound) = self.expected[row.step].as_ref().expect("a judged row was evaluated");
        let range = row.range.clone();
        (&got.data[range.clone()], &want.data[range.clone()], &bound[range])
    }

    /// The row of operand `i` that belongs to `row`, of a stage that works token by token.
    pub fn operand(&self, row: &RowAt, i: usize) -> Option<Vec<f32>> {
        let step = &self.side.capture.steps[row.step];
        let input = &self.oracle.graph.nodes[*self.node.inputs.get(i)?];
        let stored = step.stages.get(&input.id)?;
        let at = (0..step.rows()).find(|&r| step.first + step.offset(r) == row.place.position)?;
        let by_token = input.token_axis() == Some(0) && stored.shape().first() == Some(&step.rows());
        by_token.then(|| stored.slice(0, at..at + 1).data)
    }

    /// Rows beyond what is allowed.
    pub fn bad_rows(&self) -> impl Iterator<Item = &RowAt> {
        self.rows.iter().filter(|r| r.bad)
    }

    /// Every element beyond its own bound, or not finite.
    pub fn wrong(&self) -> Vec<Wrong> {
        let mut all = Vec::new();
        for (i, row) in self.rows.iter().enumerate().filter(|(_, r)| r.bad) {
            let (got, want, bound) = self.row(row);
            for (index, ((&got, &want), &bound)) in got.iter().zip(want).zip(bound).enumerate() {
                if !right(got, want, bound) {
                    all.push(Wrong { row: i, index, got, want });
                }
            }
        }
        all
    }

    /// For a linear stage: three of its bad rows alone, which is what a hypothesis is tried on first.
    pub fn sample(&self) -> Option<Capture> {
        if !self.node.op.anatomy().is_layer() || self.node.shape.first() != Some(&Axis::Tokens) {
            return None;
        }
        let bad: Vec<usize> = self.bad_rows().map(|r| r.place.position).collect();
        if bad.len() <= SAMPLE {
            return None;
        }
        let input = &self.oracle.graph.nodes[self.node.inputs[0]];
        let chosen = [bad[0], bad[bad.len() / 2], bad[bad.len() - 1]].into();
        Some(part(self.side.capture, &[self.node, input], &chosen))
    }
}

/// Where a stage or one of its operands has more than `limit` elements: as many of its rows, bad ones first, with all
/// that was captured of its own layer and the one before. `None` where it is not too large.
pub fn excerpt(
    oracle: &Oracle<'_>, node: &Node, capture: &Capture, bad: &BTreeSet<usize>, limit: usize,
) -> Option<Capture> {
    // Attention weights are much larger than the context made of them.
    let operands = node.inputs.iter().map(|&i| &oracle.graph.nodes[i]);
    let by_token = operands.chain([node]).filter(|n| n.token_axis().is_some());
    let elements = |n: &Node| -> usize {
        let stored = capture.steps.iter().filter_map(|s| s.stages.get(&n.id));
        stored.map(|s| s.shape().iter().product::<usize>()).sum()
    };
    let total = by_token.map(elements).max().unwrap_or(0);
    node.token_axis().filter(|_| total > limit)?;
    let rows: usize = capture.steps.iter().map(Step::rows).sum();
    let room = (limit / (total / rows.max(1)).max(1)).max(SAMPLE);
    // The first token of a step has the place of a decoded one: kept, so that old values of a buffer can be recognised.
    // So is the last one of a step, whose values the next step may find.
    let ends = |s: &Step| [s.first, s.keys().saturating_sub(1)];
    let mut chosen: BTreeSet<usize> = capture.steps.iter().flat_map(ends).collect();
    // So is the token before a wrong one: its values may have been written in the wrong place.
    let wrong = bad.iter().step_by(bad.len().div_ceil((room / 2).max(SAMPLE)).max(1));
    chosen.extend(wrong.flat_map(|&p| [p.saturating_sub(1), p]));
    let near = |other: &Node| match (other.id.layer, node.id.layer) {
        (Some(other), Some(own)) => other == own || other + 1 == own,
        _ => node.inputs.iter().any(|&i| oracle.graph.nodes[i].id == other.id),
    };
    let nodes: Vec<&Node> = oracle.graph.nodes.iter().filter(|n| n.id == node.id || near(n)).collect();
    Some(part(capture, &nodes, &chosen))
}

/// Whether an element is within its own bound.
pub fn right(got: f32, want: f64, bound: f32) -> bool {
    (f64::from(got) - want).abs() <= ELEMENT_FACTOR * f64::from(bound)
}
