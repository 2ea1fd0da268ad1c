//! A page of a cache that two sequences write to: the one that holds the end of a prefix, which was to be copied first, or the one
//! that a rollback cuts.

use super::Diagnosis;
use super::leaks::in_common;
use super::pass::{Fit, PAGES, rules};
use super::searcher::Searcher;
use super::siblings::Runs;
use super::spots::{Shown, Token, Told, place};
use crate::capture::{Capture, Whose};
use crate::verdict::Evidence;
use qdiff_engine::model::StageId;
use std::collections::{BTreeMap, BTreeSet};

/// How to mend it.
const REMEDY: &str = "copy a page that is not full before a sequence writes to it, if another sequence has it too, and give the copy to the block \
                      table of the one that writes";

/// A sequence that begins with the same rows: whose, how many, and when it writes each later one.
struct Sharer {
    whose: Whose,
    shared: usize,
    writes: BTreeMap<usize, (usize, usize)>,
}

/// The pass in which a sequence writes a row, and the rows of that pass before it.
fn writes(capture: &Capture) -> BTreeMap<usize, (usize, usize)> {
    let own = (0..capture.steps.len()).filter(|index| capture.is_own(*index)).map(|index| &capture.steps[index]);
    let rows = own.filter_map(|step| {
        let pass = step.in_pass?;
        Some((step.first..step.keys()).map(move |at| (at, (pass.number, pass.before + at - step.first))))
    });
    rows.flatten().collect()
}

/// The row of a cache as a sequence wrote it.
fn written_row(
    cache: StageId, (runs, whose): (&[(&Searcher<'_>, &Diagnosis)], Whose), slot: usize,
) -> Option<Vec<f32>> {
    let captures = runs.iter().map(|(searcher, _)| searcher.subject.capture);
    let of = captures.into_iter().find(|capture| capture.steps.last().is_some_and(|step| step.whose == whose))?;
    let step = of.steps.iter().find(|step| (step.first..step.keys()).contains(&slot))?;
    Some(step.get(cache)?.row(slot).to_vec())
}

/// The sequences of a run that begin with rows of one of them.
fn sharers((runs, run): Runs<'_>) -> Vec<Sharer> {
    let capture = runs[run].0.subject.capture;
    let others = runs.iter().enumerate().filter(|(other, _)| *other != run);
    others
        .filter_map(|(_, (searcher, _))| {
            let theirs = searcher.subject.capture;
            let (shared, whose) = (in_common(theirs, capture), theirs.steps.last()?.whose);
            (shared > 0).then(|| Sharer { whose, shared, writes: writes(theirs) })
        })
        .collect()
}

/// Whose row a slot of a sequence holds after a pass by the rule, if it is not the sequence's own.
fn holder(
    (own, sharers): (&BTreeMap<usize, (usize, usize)>, &[Sharer]), page: usize, (pass, slot): (usize, usize),
) -> Option<Whose> {
    let in_page =
        |s: &&Sharer| !s.shared.is_multiple_of(page) && (s.shared..s.shared.next_multiple_of(page)).contains(&slot);
    let theirs = sharers.iter().filter(in_page).filter_map(|s| Some((*s.writes.get(&slot)?, s.whose)));
    let last = theirs.filter(|((number, _), _)| *number <= pass).max_by_key(|(when, _)| *when)?;
    own.get(&slot).is_none_or(|when| *when < last.0).then_some(last.1)
}

/// Whether the rule would make a row wrong of another sequence, in which the cache is right.
fn is_refuted(cache: StageId, (runs, run): Runs<'_>, page: usize) -> bool {
    (0..runs.len()).filter(|other| *other != run).any(|other| {
        let (searcher, diagnosis) = runs[other];
        let capture = searcher.subject.capture;
        let wrong = diagnosis.findings.iter().any(|finding| finding.id == cache);
        let Some(whose) = capture.steps.last().map(|step| step.whose).filter(|_| !wrong) else { return false };
        let (own, sharers) = (writes(capture), sharers((runs, other)));
        let steps = (0..capture.steps.len()).filter(|index| capture.is_own(*index)).map(|index| &capture.steps[index]);
        steps.filter_map(|step| Some((step, step.in_pass?.number))).any(|(step, pass)| {
            let Some(rows) = step.get(cache) else { return false };
            (0..rows.rows().min(step.keys())).any(|slot| {
                let theirs = holder((&own, &sharers), page, (pass, slot));
                let theirs = theirs.filter(|theirs| *theirs != whose).and_then(|w| written_row(cache, (runs, w), slot));
                theirs.is_some_and(|theirs| theirs != rows.row(slot))
            })
        })
    })
}

/// The rule for wrong rows that another sequence wrote to the page that both have: what is written last stays.
pub(super) fn written_last(
    e: &Evidence<'_>, slots: &BTreeMap<(usize, usize), BTreeSet<Token>>, (runs, run): Runs<'_>,
) -> Option<Told> {
    let capture = runs[run].0.subject.capture;
    let (own, sharers) = (writes(capture), sharers((runs, run)));
    let judged: BTreeSet<(usize, usize)> = e.rows.iter().filter_map(|row| Some((row.step, place(e, row)?.0))).collect();
    let fits: Vec<Fit> = PAGES
        .into_iter()
        .filter(|page| {
            let fits = judged.iter().filter(|(step, _)| capture.is_own(*step)).all(|&(step, slot)| {
                let Some(pass) = capture.steps[step].in_pass else { return false };
                match (holder((&own, &sharers), *page, (pass.number, slot)), slots.get(&(step, slot))) {
                    (Some(whose), Some(tokens)) => tokens.contains(&(whose, slot)),
                    // The same token at the same place may have the same row.
                    (Some(whose), None) => {
                        let own = capture.steps[step].get(e.node.id).map(|rows| rows.row(slot).to_vec());
                        own.is_some() && own == written_row(e.node.id, (runs, whose), slot)
                    }
                    (None, None) => true,
                    (None, Some(_)) => false,
                }
            });
            fits && !is_refuted(e.node.id, (runs, run), *page)
        })
        .map(|page| Fit::new(RULE, format!("in pages of {page} rows")))
        .collect();
    told(fits, REMEDY)
}

/// What a page that is not copied does.
const RULE: &str = "a page that holds the end of a shared prefix is not copied: the sequences that share it write to the same rows of it, and \
                    the row that was written last stays";

/// The rule for rows that were kept at a rollback and are lost, by the first of them, how many were kept, and what they are now.
pub(super) fn cut(first: usize, kept: usize, are: &str) -> Vec<Fit> {
    let pages = PAGES.into_iter().filter(|page| first > 0 && kept / page * page == first);
    let rule = format!(
        "a rollback keeps only full pages: the rows that it should keep in the last page, which is not full, {are}"
    );
    pages.map(|page| Fit::new(rule.clone(), format!("in pages of {page} rows"))).collect()
}

/// What rules say that fit.
pub(super) fn told(fits: Vec<Fit>, remedy: &'static str) -> Option<Told> {
    let words = rules(&fits.iter().collect::<Vec<_>>());
    (!fits.is_empty()).then(|| Told {
        words,
        remedy,
        shown: Shown { what: "a page".to_owned(), fits, ..Shown::default() },
    })
}

#[cfg(test)]
mod tests {
    use super::cut;

    #[test]
    fn a_page_begins_where_the_lost_rows_do() {
        let pages = |first, kept| cut(first, kept, "are zero").into_iter().map(|fit| fit.when).collect::<Vec<_>>();
        assert_eq!(pages(8, 11), ["in pages of 4 rows", "in pages of 8 rows"]);
        assert_eq!(pages(16, 27), ["in pages of 16 rows"]);
        // If the first page is lost, all rows are.
        assert_eq!(pages(0, 3), Vec::<String>::new());
        assert_eq!(pages(9, 11), Vec::<String>::new());
    }
}
