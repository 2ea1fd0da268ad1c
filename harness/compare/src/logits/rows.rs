//! Once through all logits, row by row, beside their f64 values.

use crate::capture::{Filter, Step};
use crate::metrics::{argmax, distance, largest};
use crate::number::Real;
use crate::oracle::Oracle;
use crate::pair::Recording;
use crate::verdict::{Block, Side, evaluate, right};
use qdiff_engine::model::{Graph, Node, WeightSource as _};
use schemars::JsonSchema;
use serde::Serialize;
use std::borrow::Cow;
use std::ops::ControlFlow;

/// Robust deviations (1.4826 times the median absolute deviation) beyond which a difference to the other side stands
/// out. Differences of a correct engine are near normal, and 4 million of them reach 5.
const APART: f32 = 12.0;

/// Wrong logits and outliers that are kept.
const KEPT: usize = 4;

/// A logit.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    /// Index of the step in the capture.
    pub(super) index: usize,
    /// Row in the step.
    pub(super) row: usize,
    /// Id.
    pub(super) id: usize,
}

/// Where wrong ids are.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct Places {
    /// Rows with a wrong id.
    pub rows: usize,
    /// Positions of the first of them, at most a hundred.
    pub positions: Vec<usize>,
    /// Step of the first.
    pub first_step: Option<usize>,
}

/// What was seen of all rows: every logit beside its f64 value.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct Seen {
    /// Rows of logits looked at: positions, over all steps.
    pub rows: usize,
    /// Logits of the subject that are not the product they should be.
    pub wrong: usize,
    /// The rows in which an id is wrong.
    pub places: Places,
    /// Ids wrong in the row that has most of them.
    pub most_in_a_row: usize,
    /// Logits of the reference that are not the product they should be.
    pub reference_wrong: usize,
    /// Logits that are NaN or infinite.
    pub non_finite: usize,
    /// Wrong logits that are exactly zero: never written.
    pub zero: usize,
    /// Other wrong logits that equal, bit by bit, what the step before left at their address.
    pub stale: usize,
    /// Other wrong logits that equal the position before, bit by bit.
    pub repeated: usize,
    /// Logits that lie further from the other side's than the others of their row: beyond 12 robust deviations.
    pub outliers: usize,
    /// Outliers that are wrong by their own product.
    pub outliers_wrong: usize,
    /// Per id, in how many rows it is wrong.
    #[serde(skip)]
    pub(super) bad: Vec<u32>,
    #[serde(skip)]
    pub(super) first_non_finite: Option<At>,
    /// The worst by share of what is allowed, the worst first; an id once.
    #[serde(skip)]
    pub(super) worst: Vec<(f64, At)>,
    /// The furthest outliers.
    #[serde(skip)]
    pub(super) furthest: Vec<(f64, At)>,
    /// Per row, the id that the f64 values choose.
    #[serde(skip)]
    pub(super) rightly: Vec<((usize, usize), usize)>,
}

/// Holds every logit of both sides against its f64 value.
pub(super) fn go_through(
    oracle: &Oracle<'_>, node: &Node, subject: Side<'_>, reference: Option<Side<'_>>, filter: &Filter,
) -> Seen {
    let width = oracle.weights.extent(&node.weights[0].name).1;
    let mut seen = Seen { bad: vec![0; width], ..Seen::default() };
    let sides: Vec<Side<'_>> = [Some(subject), reference].into_iter().flatten().collect();
    let mut sink = |block: Block<'_>| {
        for (i, row) in block.rows.clone().enumerate() {
            let position = block.step.first + block.step.offset(row);
            let got = row_of(node, block.step, row).filter(|g| g.len() == width);
            let (Some(got), true) = (got, filter.position(position)) else {
                continue;
            };
            let range = i * width..(i + 1) * width;
            let (want, bound) = (&block.value.data[range.clone()], &block.bound[range]);
            if block.side == 1 {
                let off = |((g, w), b): ((&f32, &f64), &f32)| !right(*g, *w, *b);
                let wrong = got.iter().zip(want).zip(bound).filter(|e| off(*e)).count();
                seen.reference_wrong += wrong;
                continue;
            }
            let other = reference
                .and_then(|r| row_of(node, r.capture.steps.get(block.index)?, row))
                .filter(|o| o.len() == width);
            let at = At { index: block.index, row, id: 0 };
            seen.row(node, subject, at, (&got, want, bound), other.as_deref());
        }
        ControlFlow::Continue(())
    };
    evaluate(node, oracle, &sides, filter, &mut sink);
    seen
}

impl Seen {
    /// Whether most ids of a row are wrong: then none is special.
    pub fn everywhere(&self) -> bool {
        2 * self.most_in_a_row > self.bad.len()
    }

    fn row(
        &mut self, node: &Node, side: Side<'_>, at: At, (got, want, bound): (&[f32], &[f64], &[f32]),
        other: Option<&[f32]>,
    ) {
        self.rows += 1;
        let steps = &side.capture.steps;
        let before = at.index.checked_sub(1).and_then(|i| steps.get(i));
        // What the same address held, and what the position before gave.
        let old = before.and_then(|s| row_of(node, s, at.row));
        let last = match at.row {
            0 => before.and_then(|s| row_of(node, s, s.rows().checked_sub(1)?)),
            row => row_of(node, &steps[at.index], row - 1),
        };
        let equal = |row: &Option<Vec<f32>>, id: usize| {
            let value = row.as_ref().and_then(|r| r.get(id));
            value.is_some_and(|v| v.to_bits() == got[id].to_bits())
        };
        let mut wrong = 0;
        for id in 0..got.len() {
            let at = At { id, ..at };
            if !got[id].is_finite() {
                self.non_finite += 1;
                self.first_non_finite.get_or_insert(at);
            }
            if right(got[id], want[id], bound[id]) {
                continue;
            }
            wrong += 1;
            self.bad[id] += 1;
            if got[id] == 0.0 {
                self.zero += 1;
            } else {
                self.stale += usize::from(equal(&old, id));
                self.repeated += usize::from(equal(&last, id));
            }
            let share = (f64::from(got[id]) - want[id]).abs() / f64::from(bound[id]);
            if share.is_finite() {
                keep(&mut self.worst, share, at);
            }
        }
        self.wrong += wrong;
        self.most_in_a_row = self.most_in_a_row.max(wrong);
        if wrong > 0 {
            let step = &steps[at.index];
            self.places.rows += 1;
            self.places.first_step.get_or_insert(step.index);
            if self.places.positions.len() < 100 {
                self.places.positions.push(step.first + step.offset(at.row));
            }
        }
        let narrow = || want.iter().map(|w| *w as f32).collect();
        self.outliers(at, got, &other.map_or_else(narrow, Cow::Borrowed), |id| !right(got[id], want[id], bound[id]));
        self.rightly.push(((at.index, at.row), argmax(want)));
    }

    /// Ids whose difference to the other side is far from those of the others.
    fn outliers(&mut self, at: At, got: &[f32], other: &[f32], wrong: impl Fn(usize) -> bool) {
        let apart: Vec<f32> = got.iter().zip(other).map(|(g, o)| g - o).collect();
        let centre = median(apart.clone());
        let spread = median(apart.iter().map(|d| (d - centre).abs()).collect());
        for (id, d) in apart.iter().enumerate() {
            let far = (d - centre).abs() / (1.4826 * spread);
            // A spread of zero: all others are equal, bit by bit.
            if far > APART && d.is_finite() {
                self.outliers += 1;
                self.outliers_wrong += usize::from(wrong(id));
                keep(&mut self.furthest, f64::from(far), At { id, ..at });
            }
        }
    }
}

/// Keeps the largest few, an id once.
fn keep(list: &mut Vec<(f64, At)>, size: f64, at: At) {
    if list.len() == KEPT && size <= list[KEPT - 1].0 {
        return;
    }
    match list.iter().position(|(_, other)| other.id == at.id) {
        Some(i) if list[i].0 >= size => return,
        Some(i) => drop(list.remove(i)),
        None => {}
    }
    let to = list.partition_point(|(s, _)| *s >= size);
    list.insert(to, (size, at));
    list.truncate(KEPT);
}

fn median(mut values: Vec<f32>) -> f32 {
    if values.is_empty() {
        return 0.0;
    }
    let middle = values.len() / 2;
    *values.select_nth_unstable_by(middle, f32::total_cmp).1
}

/// The stage that the logits are made of.
fn hidden<'a>(graph: &'a Graph, node: &Node) -> Option<&'a Node> {
    node.inputs.first().map(|&i| &graph.nodes[i])
}

/// The product that a logit is: Σ w·h in f64, of one row of a step.
pub(super) fn product(oracle: &Oracle<'_>, node: &Node, step: &Step, row: usize, id: usize) -> Option<f64> {
    let weight = &node.weights.first()?.name;
    let h = row_of(hidden(&oracle.graph, node)?, step, row)?;
    let mut w = vec![0f32; oracle.weights.extent(weight).0];
    oracle.weights.rows(weight, id, &mut w);
    Some(w.iter().zip(&h).map(|(w, h)| f64::from(*w) * f64::from(*h)).sum())
}

/// How far the hidden states of the two are apart at most.
pub(super) fn hidden_apart(
    oracle: &Oracle<'_>, node: &Node, subject: &Recording, reference: &Recording,
) -> Option<Real> {
    let hidden = hidden(&oracle.graph, node)?;
    let mut worst: Option<f64> = None;
    for (s, r) in subject.capture.steps.iter().zip(&reference.capture.steps) {
        for row in 0..s.rows() {
            let (Some(a), Some(b)) = (row_of(hidden, s, row), row_of(hidden, r, row)) else {
                continue;
            };
            worst = Some(largest(worst.into_iter().chain([distance(&a, &b)])));
        }
    }
    worst.map(Real)
}

/// One row of logits.
pub(crate) fn row_of(node: &Node, step: &Step, row: usize) -> Option<Vec<f32>> {
    let stored = step.stages.get(&node.id)?;
    let there = row < *stored.shape().first()? && step.has_row(node.id, step.first + step.offset(row));
    there.then(|| stored.slice(0, row..row + 1).data)
}

/// Every selected row of logits: index of the step, and of the row.
pub(super) fn asked<'a>(
    node: &'a Node, side: Side<'a>, filter: &'a Filter,
) -> impl Iterator<Item = (usize, usize)> + 'a {
    let steps = side.capture.steps.iter().enumerate();
    steps.flat_map(move |(index, step)| {
        let kept = step.stages.contains_key(&node.id);
        let rows = 0..if kept { step.rows() } else { 0 };
        let asked = move |&r: &usize| {
            let position = step.first + step.offset(r);
            filter.position(position) && step.has_row(node.id, position)
        };
        rows.filter(asked).map(move |r| (index, r))
    })
}
