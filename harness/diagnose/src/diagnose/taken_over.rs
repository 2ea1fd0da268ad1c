//! Rows of a cache that a sequence took over from another one, or kept at a rollback, and that are no longer what they were: what copied
//! or moved them left out a part of them.

use super::siblings::Runs;
use super::spots::{Shown, Spot, Told};
use crate::verdict::Evidence;
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::State;
use std::collections::BTreeSet;

/// How to mend it.
const REMEDY: &str = "look at what copies or moves cached rows, as when a sequence begins to write to a page that it shares: keys, values, and their \
                      scales and offsets, in every layer";

/// Which of the rows that a sequence has from elsewhere are wrong.
pub(super) fn words(e: &Evidence<'_>, (runs, run): Runs<'_>) -> Option<Told> {
    if !matches!(e.node.op.anatomy(), Anatomy::State(State::Rows(_))) {
        return None;
    }
    let capture = runs[run].0.subject.capture;
    let own = capture.steps.last()?.whose;
    let before = capture.steps.iter().enumerate().filter(|(index, _)| !capture.is_own(*index)).map(|(_, step)| step);
    let (taken, from) = before.fold((0, None), |(n, _), step| (n + step.tokens.len(), Some(step.whose)));
    let from = from?;
    let (mut rows, mut zeros) = (BTreeSet::new(), true);
    for row in e.bad_rows() {
        let width: usize = e.given[row.step].as_ref()?.shape[1..].iter().product();
        let slot = row.range.start / width;
        if slot >= taken || !capture.is_own(row.step) {
            return None;
        }
        rows.insert(slot);
        zeros &= e.row(row).0.iter().all(|v| *v == 0.0);
    }
    let (first, last) = (*rows.first()?, *rows.last()?);
    if last - first + 1 != rows.len() {
        return None;
    }
    let range = if first == last { format!("row {first}") } else { format!("rows {first}..{last}") };
    let had = match from.sequence == own.sequence {
        true => "kept at the rollback".to_owned(),
        false => format!("taken over from {from}"),
    };
    let are = match (first == last, zeros) {
        (true, true) => "is zero",
        (true, false) => "is no longer what it was",
        (false, true) => "are zero",
        (false, false) => "are no longer what they were",
    };
    let shown = Shown {
        what: format!("taken over, {}", if zeros { "zero" } else { "changed" }),
        spots: [Spot::of(capture, first)?, Spot::of(capture, last)?].to_vec(),
    };
    Some(Told { words: format!("{range}, {had}, {are}"), remedy: REMEDY, shown })
}
