//! Rows of a cache that are the rows of other tokens, bit by bit: of which sequence, and of which tokens. A sequence alone does not
//! tell, since the content of its rows is not its own.

use super::shared_page;
use super::siblings::{Runs, origin};
use super::spots::{Link, SHORTEST, Shown, Token, Told, place};
use super::taken_over::REMEDY_OF_FILLERS;
use crate::number::counted;
use crate::verdict::{Evidence, RowAt, right, work_of};
use qdiff_engine::model::Axis;
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::State;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// How to mend it.
const REMEDY: &str = "look at which rows a pass writes and which it leaves as they were: the slots that a pass is given, what moves rows, and tables that \
                      still name a slot which was moved or is free";

/// The same of stages that have a row for each token.
const REMEDY_OF_ROWS: &str = "look at which row of a pass is taken for a token: the order of its sequences, the rows that are gathered \
                              from it, and where results are scattered to";

/// Runs of rows that are reported.
const MOST: usize = 4;

/// A part of a row of a cache: where it begins, and the bits of its elements.
type Bits = (usize, Vec<u32>);

fn bits(from: usize, row: &[f32]) -> Bits {
    (from, row.iter().map(|v| v.to_bits()).collect())
}

/// Whose rows a cache holds.
pub(super) fn words(e: &Evidence<'_>, (runs, run): Runs<'_>) -> Option<Told> {
    if !matches!(e.node.op.anatomy(), Anatomy::State(State::Rows(_))) {
        return None;
    }
    let bad: Vec<&RowAt> = e.bad_rows().collect();
    let mut wanted: HashMap<Bits, BTreeSet<Token>> = HashMap::new();
    for row in &bad {
        wanted.entry(bits(place(e, row)?.1, e.row(row).0)).or_default();
    }
    let parts: BTreeSet<(usize, usize)> =
        bad.iter().map(|row| Some((place(e, row)?.1, row.range.len()))).collect::<Option<_>>()?;
    if wanted.is_empty() {
        return None;
    }
    for (searcher, diagnosis) in runs {
        let judged = origin(diagnosis, e.node.id).and_then(|stage| stage.subject.as_ref());
        for step in &searcher.subject.capture.steps {
            let Some(cache) = step.get(e.node.id) else { continue };
            let width: usize = cache.shape[1..].iter().product();
            searcher.meter.count(cache.data.len() as u64);
            let rows = cache.data.chunks(width.max(1)).enumerate();
            // In the step that wrote it: later ones may hold others. A row that is wrong there is no token's.
            for (slot, whole) in rows.take(step.keys()).skip(step.first) {
                if judged.is_none_or(|local| local.is_wrong_at(step.index, slot)) {
                    continue;
                }
                for &(from, len) in &parts {
                    let Some(part) = whole.get(from..from + len) else { continue };
                    if let Some(tokens) = wanted.get_mut(&bits(from, part)) {
                        tokens.insert((step.whose, slot));
                    }
                }
            }
        }
    }
    // For each wrong slot, the tokens whose row it may be.
    let steps = &e.side.capture.steps;
    let whose = steps.last()?.whose;
    let own = |slot: usize| {
        let step = steps.iter().find(|step| (step.first..step.keys()).contains(&slot));
        (step.map_or(whose, |step| step.whose), slot)
    };
    let mut slots: BTreeMap<(usize, usize), BTreeSet<Token>> = BTreeMap::new();
    for row in &bad {
        let (slot, from) = place(e, row)?;
        let mut tokens = wanted.get(&bits(from, e.row(row).0))?.clone();
        tokens.remove(&own(slot));
        slots.entry((row.step, slot)).and_modify(|all| all.retain(|t| tokens.contains(t))).or_insert(tokens);
    }
    if slots.values().any(BTreeSet::is_empty) {
        return None;
    }
    if let Some(told) = shared_page::written_last(e, &slots, (runs, run)) {
        return Some(told);
    }
    // A row may be overwritten more than once: each slot is reported as it is first.
    let mut first: BTreeMap<usize, BTreeSet<Token>> = BTreeMap::new();
    let mut again = false;
    for ((_, slot), tokens) in &slots {
        let known = first.entry(*slot).or_insert_with(|| tokens.clone());
        again |= known.is_disjoint(tokens);
    }
    if !again {
        return told(&first, (runs, run), REMEDY);
    }
    if let Some(told) = fillers(&slots, (runs, run)) {
        return Some(told);
    }
    let told = told(&first, (runs, run), REMEDY)?;
    Some(Told { words: format!("{}; some of them hold rows of other tokens later", told.words), ..told })
}

/// Slots that each pass writes its last row to, or leaves as they are.
fn fillers(slots: &BTreeMap<(usize, usize), BTreeSet<Token>>, (runs, run): Runs<'_>) -> Option<Told> {
    let capture = runs[run].0.subject.capture;
    // The last row of each pass.
    let mut last: BTreeMap<usize, (usize, Token)> = BTreeMap::new();
    for (searcher, _) in runs {
        for step in &searcher.subject.capture.steps {
            let at = step.in_pass?;
            let token = (step.whose, step.keys() - 1);
            last.entry(at.number)
                .and_modify(|known| *known = (*known).max((at.before, token)))
                .or_insert((at.before, token));
        }
    }
    let mut held: BTreeMap<usize, &BTreeSet<Token>> = BTreeMap::new();
    for ((step, slot), tokens) in slots {
        let of_pass = last.get(&capture.steps[*step].in_pass?.number)?.1;
        let stays = held.get(slot).is_some_and(|before| !before.is_disjoint(tokens));
        if !stays && !tokens.contains(&of_pass) {
            return None;
        }
        held.insert(*slot, tokens);
    }
    let names: Vec<String> = held.keys().map(ToString::to_string).collect();
    let (row, holds) = if names.len() == 1 { ("row", "holds") } else { ("rows", "hold") };
    let words = format!(
        "{row} {} {holds} the row of the last token of a pass, and then those of later passes, as if a row that fills up a pass repeated that \
         and were written there",
        names.join(", ")
    );
    let shown = Shown { what: "the last row of a pass".to_owned(), ..Shown::default() };
    Some(Told { words, remedy: REMEDY_OF_FILLERS, shown })
}

/// Rows of a stage that are what the stage should give for other tokens of the run.
pub(super) fn rows(e: &Evidence<'_>, (runs, run): Runs<'_>) -> Option<Told> {
    let node = e.node;
    if node.token_axis() != Some(0) || node.has_state() || node.shape.contains(&Axis::Keys) || runs.len() < 2 {
        return None;
    }
    let own = |row: &RowAt| (e.side.capture.steps[row.step].whose, row.place.position);
    let bad: Vec<&RowAt> = e.bad_rows().filter(|row| row.range.len() >= SHORTEST).collect();
    let mut slots: BTreeMap<usize, BTreeSet<Token>> = BTreeMap::new();
    let mut found: Vec<BTreeSet<Token>> = vec![BTreeSet::new(); bad.len()];
    for (searcher, _) in runs {
        let capture = searcher.subject.capture;
        let work = work_of(node, searcher.oracle, capture);
        if work > searcher.meter.left() {
            return None;
        }
        searcher.meter.count(work);
        let theirs = searcher.evidence(node, capture);
        for row in theirs.rows.iter().filter(|row| capture.is_own(row.step)) {
            let (_, want, reach) = theirs.row(row);
            let token = (capture.steps[row.step].whose, row.place.position);
            for (bad, found) in bad.iter().zip(&mut found) {
                let (got, _, bound) = e.row(bad);
                let alike = bad.place.head == row.place.head && got.len() == want.len() && own(bad) != token;
                if alike && (0..got.len()).all(|i| right(got[i], want[i], bound[i].max(reach[i]))) {
                    found.insert(token);
                }
            }
        }
    }
    for (row, found) in bad.iter().zip(found) {
        let all = slots.entry(row.place.position).or_insert_with(|| found.clone());
        all.retain(|token| found.contains(token));
    }
    if slots.is_empty() || slots.values().any(BTreeSet::is_empty) || bad.len() < e.bad_rows().count() {
        return None;
    }
    // Some lines or heads of a token alone are not its row.
    let right: BTreeSet<(usize, usize)> =
        e.rows.iter().filter(|row| !row.bad).map(|row| (row.step, row.place.position)).collect();
    if bad.iter().any(|bad| right.contains(&(bad.step, bad.place.position))) {
        return None;
    }
    told(&slots, (runs, run), REMEDY_OF_ROWS)
}

/// Whose rows these slots hold.
fn told(slots: &BTreeMap<usize, BTreeSet<Token>>, (runs, run): Runs<'_>, remedy: &'static str) -> Option<Told> {
    let told = runs_of(slots)?;
    let own = runs[run].0.subject.capture.steps.last()?.whose;
    let mut links = Vec::new();
    for (slot, (whose, token), n) in &told {
        let link = |at: usize| Link::of((runs, run), slot + at, (*whose, token + at));
        links.push([link(0)?, link(n - 1)?]);
    }
    let parts: Vec<String> = told
        .iter()
        .map(|(slots, (whose, token), n)| {
            let range = |from: usize| if *n == 1 { from.to_string() } else { format!("{from}..{}", from + n - 1) };
            let (rows, holds, tokens) = if *n == 1 { ("row", "holds", "token") } else { ("rows", "hold", "tokens") };
            let row = if *n == 1 { "the row" } else { "the rows" };
            format!("{rows} {} {holds} {row} of {tokens} {} of {}", range(*slots), range(*token), whose.beside(own))
        })
        .collect();
    let more = parts.len().saturating_sub(MOST);
    let rest: usize = told[told.len() - more..].iter().map(|(.., n)| n).sum();
    let more = (more > 0).then(|| format!("{} more hold those of others", counted(rest, "row")));
    let words = parts.into_iter().take(MOST).chain(more).collect::<Vec<_>>().join("; ");
    Some(Told { words, remedy, shown: Shown { what: "rows".to_owned(), links, ..Shown::default() } })
}

/// Slots one after another that hold the rows of tokens one after another: the first slot, the first token, and how many. `None` if
/// it is not clear whose they are.
fn runs_of(slots: &BTreeMap<usize, BTreeSet<Token>>) -> Option<Vec<(usize, Token, usize)>> {
    let mut told: Vec<(usize, Token, usize)> = Vec::new();
    let mut from = slots.keys().next().copied();
    while let Some(slot) = from {
        let length = |&(whose, token): &Token| {
            (0..).take_while(|i| slots.get(&(slot + i)).is_some_and(|t| t.contains(&(whose, token + i)))).count()
        };
        let tokens = &slots[&slot];
        let longest = tokens.iter().map(length).max()?;
        let mut alike = tokens.iter().filter(|token| length(token) == longest);
        let (token, None) = (*alike.next()?, alike.next()) else { return None };
        told.push((slot, token, longest));
        from = slots.range(slot + longest..).next().map(|(slot, _)| *slot);
    }
    Some(told)
}

#[cfg(test)]
mod tests {
    use super::{Token, runs_of};
    use crate::capture::Whose;
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn rows_that_stand_side_by_side_are_told_together() {
        let token = |&(sequence, at): &(u32, usize)| -> Token { (Whose { sequence, rollbacks: 0 }, at) };
        let of = |all: &[(usize, &[(u32, usize)])]| -> BTreeMap<usize, BTreeSet<Token>> {
            all.iter().map(|(slot, tokens)| (*slot, tokens.iter().map(token).collect())).collect()
        };
        // The second one may be of two tokens, and is of that which goes on.
        let slots = of(&[(6, &[(0, 0)]), (7, &[(0, 1), (2, 5)]), (9, &[(1, 3)])]);
        assert_eq!(runs_of(&slots), Some(vec![(6, token(&(0, 0)), 2), (9, token(&(1, 3)), 1)]));
        assert_eq!(runs_of(&of(&[(6, &[(0, 0), (1, 0)])])), None);
    }
}
