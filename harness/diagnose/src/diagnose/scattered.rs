//! Heads of the rows of a pass of several sequences, where they are written as heads by rows and read as rows by heads, or the other
//! way round.

use super::siblings::Runs;
use super::spots::{Shown, Told};
use crate::verdict::{Evidence, right};
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::Contraction;
use std::collections::{BTreeMap, BTreeSet};

/// How to mend it.
const REMEDY: &str =
    "write and read the buffer in one order: the row of a sequence first, then its heads, or the other way round";

/// Wrong rows that there must be.
const ROWS: usize = 2;

/// The rows of a pass, in its order: what each should be.
type Pass = BTreeMap<usize, (Vec<f64>, Vec<f32>)>;

/// In which order heads stand.
pub(super) fn words(e: &Evidence<'_>, (runs, _): Runs<'_>) -> Option<Told> {
    let Anatomy::Contraction(Contraction::Context(attention)) = e.node.op.anatomy() else { return None };
    let (heads, d) = (attention.n_heads, attention.head_dim);
    let place = |step: &crate::capture::Step| step.in_pass.filter(|pass| pass.most == 1).map(|p| (p.number, p.before));
    let bad: Vec<_> = e.bad_rows().collect();
    let wrong: BTreeSet<(usize, usize)> =
        bad.iter().map(|row| place(&e.side.capture.steps[row.step])).collect::<Option<_>>()?;
    if wrong.len() < ROWS {
        return None;
    }
    let mut passes: BTreeMap<usize, Pass> = BTreeMap::new();
    for (searcher, _) in runs {
        let capture = searcher.subject.capture;
        let work = crate::verdict::work_of(e.node, searcher.oracle, capture);
        if work > searcher.meter.left() {
            return None;
        }
        searcher.meter.count(work);
        let theirs = searcher.evidence(e.node, capture);
        for row in theirs.rows.iter().filter(|row| capture.is_own(row.step)) {
            let Some((number, before)) = place(&capture.steps[row.step]) else { continue };
            let (_, want, bound) = theirs.row(row);
            passes.entry(number).or_default().insert(before, (want.to_vec(), bound.to_vec()));
        }
    }
    let gives = |written: bool| {
        bad.iter().all(|row| {
            let Some((number, before)) = place(&e.side.capture.steps[row.step]) else { return false };
            let (pass, (got, ..)) = (&passes[&number], e.row(row));
            let rows = pass.len();
            got.len() == heads * d
                && pass.keys().copied().eq(0..rows)
                && (0..heads).all(|head| {
                    // As heads by rows, read as rows by heads; or as rows by heads, read as heads by rows.
                    let (from, of) = match written {
                        true => ((before * heads + head) % rows, (before * heads + head) / rows),
                        false => ((head * rows + before) / heads, (head * rows + before) % heads),
                    };
                    let (want, bound) = &pass[&from];
                    (0..d).all(|i| right(got[head * d + i], want[of * d + i], bound[of * d + i]))
                })
        })
    };
    let written = [true, false].into_iter().find(|written| gives(*written))?;
    let (a, b) = if written {
        ("heads by sequences", "sequences by heads")
    } else {
        ("sequences by heads", "heads by sequences")
    };
    let words = format!("in passes of one token of each sequence, the rows are written as {a} and read as {b}");
    let shown = Shown { what: words.clone(), links: Vec::new(), ..Shown::default() };
    Some(Told { words, remedy: REMEDY, shown })
}
