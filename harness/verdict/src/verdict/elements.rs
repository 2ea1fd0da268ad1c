//! The elements of the stages where faults begin, around the worst one: what a heatmap is drawn from.

use super::evaluate::evaluate;
use super::rows::row_at;
use super::source::Block;
use super::{Place, Side, StageResult};
use crate::capture::{Capture, Filter};
use crate::number::{Real, rounded};
use crate::oracle::Oracle;
use qdiff_engine::model::{Node, StageId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::{ControlFlow, Range};

/// Stages shown.
const STAGES: usize = 3;

/// Rows shown of a stage.
const ROWS: usize = 32;

/// Cells that a whole row is shown in, at most.
const CELLS: usize = 96;

/// The same where there is one row: what is drawn of it is folded into lines.
const CELLS_OF_ONE: usize = 64 * CELLS;

/// Elements shown one by one around the worst.
const NEAR: usize = 48;

/// The rows of a stage around its worst element, of one step and one head.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ElementMap {
    /// The stage.
    pub stage: StageId,
    /// The row of the worst element.
    pub at: Place,
    /// Its index in that row.
    pub index: usize,
    /// Elements in a row; of attention scores, in the longest.
    pub width: usize,
    /// Positions of the rows shown, one step's.
    pub positions: Vec<usize>,
    /// The whole rows.
    pub whole: Elements,
    /// The elements around the worst one, where `whole` does not show each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub near: Option<Elements>,
}

/// A part of some rows in cells. A cell shows one element: that which is the
/// furthest from f64 relative to its bound. Values in three digits.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Elements {
    /// Index of the first element.
    pub first: usize,
    /// Elements in a cell.
    pub pool: usize,
    /// Index in its cell of the element shown, one list per row; no lists where `pool` is 1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shown: Vec<Vec<usize>>,
    /// What the subject has.
    pub subject: Vec<Vec<Real>>,
    /// What f64 gives on the subject's operands.
    pub f64: Vec<Vec<Real>>,
    /// What the reference has; a list is empty where it has no such row.
    pub reference: Vec<Vec<Real>>,
}

/// A row on all sides.
struct Row {
    position: usize,
    got: Vec<f32>,
    want: Vec<f64>,
    bound: Vec<f32>,
    other: Option<Vec<f32>>,
}

/// A map for each of the first stages where a fault begins.
pub(super) fn maps(
    oracle: &Oracle<'_>, origins: &[&StageResult], subject: Side<'_>, reference: &Capture, filter: &Filter,
) -> Vec<ElementMap> {
    let map = |stage: &&StageResult| {
        // With a wrong extent no element has its place.
        let local = stage.subject.as_ref().filter(|l| l.extent.is_none())?;
        let worst = local.non_finite.as_ref().or(local.worst.as_ref())?;
        let (at, index) = (worst.place, worst.index);
        let node = &oracle.graph.nodes[oracle.graph.index(stage.id)?];
        let rows = rows(oracle, node, at, subject, reference, filter);
        let width = rows.iter().map(|r| r.want.len()).max()?;
        let pool = width.div_ceil(if rows.len() == 1 { CELLS_OF_ONE } else { CELLS });
        let whole = elements(&rows, 0..width, pool);
        let near = (pool > 1).then(|| {
            let first = index.saturating_sub(NEAR / 2).min(width - NEAR);
            elements(&rows, first..first + NEAR, 1)
        });
        let positions = rows.iter().map(|r| r.position).collect();
        Some(ElementMap { stage: stage.id, at, index, width, positions, whole, near })
    };
    origins.iter().filter_map(map).take(STAGES).collect()
}

/// The rows around `at`, of its step and its head.
fn rows(
    oracle: &Oracle<'_>, node: &Node, at: Place, subject: Side<'_>, reference: &Capture, filter: &Filter,
) -> Vec<Row> {
    let first = at.position.saturating_sub(ROWS / 2);
    let mut rows = Vec::new();
    let sink = &mut |block: Block<'_>| {
        if block.step.index > at.step {
            return ControlFlow::Break(());
        }
        if block.step.index < at.step {
            return ControlFlow::Continue(());
        }
        for (here, range) in super::rows::rows(node, &block.value.shape, block.step, block.positions()) {
            let wanted = here.head == at.head && (first..first + ROWS).contains(&here.position);
            let given = block.step.has_row(node.id, here.position) && block.knows(here.position);
            if !wanted || !given || !filter.position(here.position) {
                continue;
            }
            let got = row_at(node, subject.capture, here).filter(|got| got.len() >= range.len());
            let Some(mut got) = got else { continue };
            got.truncate(range.len());
            rows.push(Row {
                position: here.position,
                got,
                want: block.value.data[range.clone()].to_vec(),
                bound: block.bound[range].to_vec(),
                other: row_at(node, reference, here),
            });
        }
        ControlFlow::Continue(())
    };
    // A cache starts at its first row, for any selection.
    let asked = if node.token_axis().is_some() { &filter.since(first) } else { filter };
    evaluate(node, oracle, &[subject], asked, sink);
    rows
}

fn elements(rows: &[Row], range: Range<usize>, pool: usize) -> Elements {
    let mut map = Elements { first: range.start, pool, ..Elements::default() };
    for row in rows {
        let end = range.end.min(row.want.len());
        let starts = (range.start..end).step_by(pool);
        let shown: Vec<usize> = starts.map(|start| worst(row, start..(start + pool).min(end))).collect();
        let pick = |value: &dyn Fn(usize) -> f64| shown.iter().map(|&i| Real(rounded(value(i)))).collect::<Vec<_>>();
        map.subject.push(pick(&|i| f64::from(row.got[i])));
        map.f64.push(pick(&|i| row.want[i]));
        let other = row.other.as_ref().filter(|o| o.len() >= row.want.len());
        map.reference.push(other.map_or_else(Vec::new, |o| pick(&|i| f64::from(o[i]))));
        if pool > 1 {
            map.shown.push(shown.iter().map(|i| (i - range.start) % pool).collect());
        }
    }
    map
}

/// The element of a cell that is shown.
fn worst(row: &Row, cell: Range<usize>) -> usize {
    let share = |i: usize| {
        let off = (f64::from(row.got[i]) - row.want[i]).abs();
        if off.is_finite() { off / f64::from(row.bound[i]).max(f64::MIN_POSITIVE) } else { f64::INFINITY }
    };
    cell.clone().reduce(|a, b| if share(b) > share(a) { b } else { a }).unwrap_or(cell.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_shows_its_worst_element() {
        let row = Row {
            position: 0,
            got: vec![0.0, 1.0, f32::NAN, 3.0, 4.5],
            want: vec![0.0, 1.5, 2.0, 3.0, 4.0],
            bound: vec![1.0, 1.0, 1.0, 1.0, 0.1],
            other: None,
        };
        let map = elements(&[row], 0..5, 2);
        assert_eq!(map.shown, [[1, 0, 0]]);
        assert_eq!(map.f64[0], [Real(1.5), Real(2.0), Real(4.0)]);
        assert!(map.subject[0][1].0.is_nan());
        assert!(map.reference[0].is_empty());
    }
}
