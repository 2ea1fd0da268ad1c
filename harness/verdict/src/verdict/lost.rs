//! Rows that a cache lost: which positions they are of, read off what it still holds.

use crate::capture::{Capture, Step};
use qdiff_engine::model::{Graph, Node};
use qdiff_engine::ops::anatomy::{Contraction, RowReduction};
use qdiff_engine::ops::{Anatomy, Tensor};
use std::ops::Range;

/// How far a cached row may lie off the row that was written, relative to that row's largest value: a cache may be rounded to
/// a format of 8 bits of precision.
const ROUNDED: f32 = 0.01;

/// The positions whose rows the cache `node` lacks after the step of this index, where one run of them is missing and every
/// other row is seen to be there: those of earlier steps as the step before left them, those of this one as they were
/// written. `None` where nothing is missing, rows are not captured, or several runs would leave the same.
pub(super) fn rows(graph: &Graph, node: &Node, capture: &Capture, index: usize) -> Option<Range<usize>> {
    let step = &capture.steps[index];
    let cache = step.stages.get(&node.id)?;
    if cache.shape().first().is_none_or(|rows| *rows >= step.keys()) {
        return None;
    }
    // After a shift, rows are no longer those of the step before.
    let before = index.checked_sub(1).filter(|_| step.shift.is_none()).and_then(|i| capture.steps[i].get(node.id));
    let written = node.inputs.first().and_then(|i| step.get(graph.nodes[*i].id));
    let written = written.filter(|_| step.rows() == step.tokens.len());
    between(&cache.get(), (before.as_deref(), step.first), (written.as_deref(), step.tokens.len()))
}

/// The same of a cache, that of the step before with the number of rows it should have, and the rows written since.
pub(super) fn between(
    cache: &Tensor<f32>, (before, earlier): (Option<&Tensor<f32>>, usize),
    (written, fresh): (Option<&Tensor<f32>>, usize),
) -> Option<Range<usize>> {
    let (rows, keys) = (cache.rows(), earlier + fresh);
    let lost = keys.checked_sub(rows).filter(|lost| *lost > 0)?;
    // A cache that was short before shows no position.
    let before = before.filter(|before| before.rows() == earlier);
    // Whether a row is that of a position, as far as it is known.
    let is = |row: usize, position: usize| match position.checked_sub(earlier) {
        None => before.map(|before| before.row(position) == cache.row(row)),
        Some(at) => written.map(|written| at < written.rows() && rounded(written.row(at), cache.row(row))),
    };
    let first = (0..rows).find(|&row| is(row, row) != Some(true)).unwrap_or(rows);
    let behind = || (first..rows).map(|row| is(row, row + lost));
    let follow = behind().all(|is| is != Some(false)) && (first == rows || behind().any(|is| is == Some(true)));
    // A row that may stand before the gap and behind it leaves open where the gap begins.
    let open = first.checked_sub(1).is_some_and(|row| is(row, row + lost) != Some(false));
    (follow && !open).then_some(first..first + lost)
}

/// Whether `cached` is `written`, perhaps in a narrower format.
fn rounded(written: &[f32], cached: &[f32]) -> bool {
    let largest = written.iter().fold(0f32, |largest, v| largest.max(v.abs()));
    written.len() == cached.len() && written.iter().zip(cached).all(|(w, c)| (w - c).abs() <= ROUNDED * largest)
}

/// The row of the cache with each kept token's own key, for scores or weights over a cache that lost rows: a query sees
/// the rows up to there. `None` where it lost none, or unknown ones.
pub(super) fn own_rows(graph: &Graph, node: &Node, capture: &Capture, index: usize) -> Option<Vec<u32>> {
    let scores = match node.op.anatomy() {
        Anatomy::Contraction(Contraction::Scores(_)) => node,
        Anatomy::RowReduction(RowReduction::Exponentials(_)) => &graph.nodes[*node.inputs.first()?],
        Anatomy::Gather(_) | Anatomy::Contraction(_) | Anatomy::RowReduction(_) | Anatomy::Elementwise(_) => {
            return None;
        }
        Anatomy::State(_) | Anatomy::Decision(_) | Anatomy::Collective(_) => return None,
    };
    let step = &capture.steps[index];
    let keys = &graph.nodes[*scores.inputs.get(1)?];
    let lost = rows(graph, keys, capture, index)?;
    // A query without a row of its own has no defined view.
    (lost.end <= step.first).then(|| shifted(step, &lost))
}

/// What is wrong of attention over a cache that lost rows, in words: of which positions, and how many keys after its own token a
/// query sees. `None` where no cache lost any.
pub fn told(graph: &Graph, node: &Node, capture: &Capture) -> Option<String> {
    let (index, own) = (0..capture.steps.len()).find_map(|i| Some((i, own_rows(graph, node, capture, i)?)))?;
    let weights = capture.steps[index].get(node.id)?;
    let keys = weights.shape.last().copied().unwrap_or(1).max(1);
    let after = |(r, row): (usize, &[f32])| {
        let own = own.get(r % own.len().max(1)).map_or(keys, |own| *own as usize + 1);
        row.iter().skip(own).filter(|weight| **weight > 0.0).count()
    };
    let chosen = matches!(node.op.anatomy(), Anatomy::RowReduction(_));
    let ahead = weights.data.chunks(keys).enumerate().map(after).max().filter(|_| chosen);
    let seen = match ahead.unwrap_or(0) {
        0 => String::new(),
        1 => "the key after the token is seen; ".to_owned(),
        n => format!("keys after the token are seen, up to {n} of them; "),
    };
    Some(format!("{seen}its cache lacks rows: no other cause is looked for before the cache is right"))
}

fn shifted(step: &Step, lost: &Range<usize>) -> Vec<u32> {
    step.positions().iter().map(|p| p - lost.len() as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cache(positions: impl Iterator<Item = usize>) -> Tensor<f32> {
        let data: Vec<f32> = positions.flat_map(|p| [p as f32 + 1.0, 0.5]).collect();
        Tensor { shape: vec![data.len() / 2, 1, 2], data }
    }

    proptest! {
        /// Whichever run of rows is lost, earlier ones, new ones or some of both, its positions are found.
        #[test]
        fn a_lost_run_is_found(earlier in 1usize..12, fresh in 1usize..12, from in 0usize..23, count in 1usize..23) {
            let keys = earlier + fresh;
            let lost = from % keys..(from % keys + count).min(keys);
            let left = cache((0..keys).filter(|p| !lost.contains(p)));
            let (before, written) = (cache(0..earlier), cache(earlier..keys));
            let found = between(&left, (Some(&before), earlier), (Some(&written), fresh));
            prop_assert_eq!(found, Some(lost.clone()));
            // If the written rows are unknown, a row of an earlier step must follow the gap.
            let found = between(&left, (Some(&before), earlier), (None, fresh));
            prop_assert_eq!(found, Some(lost.clone()).filter(|lost| lost.end < earlier || *lost == (0..keys)));
        }
    }

    /// Equal rows do not show which of them is gone.
    #[test]
    fn of_equal_rows_none_is_named() {
        let left = cache([0, 0, 0, 1].into_iter());
        let before = cache([0, 0, 0, 0].into_iter());
        assert_eq!(between(&left, (Some(&before), 4), (Some(&cache(1..2)), 1)), None);
    }

    /// A cache in a narrower format holds the rows that were written.
    #[test]
    fn rounding_loses_no_row() {
        let mut left = cache([0, 1, 4, 5].into_iter());
        left.data[4] *= 1.003;
        assert_eq!(between(&left, (Some(&cache(0..4)), 4), (Some(&cache(4..6)), 2)), Some(2..4));
    }
}
