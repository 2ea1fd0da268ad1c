//! Scores and contexts that are made of the keys or values of another sequence, at the positions of its own: a kernel goes by the block
//! table of another row.

use super::siblings::Runs;
use super::spots::{Shown, Told};
use crate::capture::Whose;
use crate::verdict::{Evidence, RowAt, right};
use qdiff_engine::ops::anatomy::Contraction;
use qdiff_engine::ops::{Anatomy, Attention, Tensor, UNIT};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// How to mend it.
const REMEDY: &str = "look up the slot of each key by the table of the row's own sequence, not by that of another row of the tile or pass";

/// Wrong rows that there must be.
const ROWS: usize = 4;

/// The keys of a row that are another sequence's.
#[derive(Clone, Copy)]
struct Span {
    /// The first and the last one that its own cannot be.
    sure: (usize, usize),
    /// How far the keys next to these may be the other's as well: both sequences may have the same token there.
    perhaps: (usize, usize),
}

impl Span {
    /// The keys that a row's elements show, by whether each may be its own, and the other's.
    fn of(n: usize, is_own: impl Fn(usize) -> bool, is_other: impl Fn(usize) -> bool) -> Option<Self> {
        let sure = ((0..n).find(|i| !is_own(*i))?, (0..n).rfind(|i| !is_own(*i))?);
        let from = (0..sure.0).rev().take_while(|i| is_other(*i)).last().unwrap_or(sure.0);
        let to = (sure.1 + 1..n).take_while(|i| is_other(*i)).last().unwrap_or(sure.1);
        (sure.0..=sure.1).all(is_other).then_some(Self { sure, perhaps: (from, to) })
    }
}

/// Whether the keys may be the other's from the first one on, as where both have the same tokens.
fn from_first(spans: &[(Span, usize)]) -> bool {
    spans.iter().all(|(span, _)| span.perhaps.0 == 0)
}

/// Where the keys of another sequence are read, by the rows' spans and positions.
fn place(spans: &[(Span, usize)]) -> Option<(usize, String)> {
    let from_first = from_first(spans);
    let to_own = spans.iter().all(|(span, position)| span.perhaps.1 == *position);
    let &(Span { sure: (first, _), .. }, _) = spans.first()?;
    let alike = |end: fn(&Span) -> usize| spans.iter().all(|(span, _)| end(span) == end(&spans[0].0));
    // The first queries see a part of them.
    let last = spans.iter().map(|(span, _)| span.sure.1).max()?;
    let up_to_last = spans.iter().all(|(span, position)| span.sure.1 == last.min(*position));
    match (from_first, to_own) {
        (true, true) => Some((0, "at the same positions".to_owned())),
        (false, true) if alike(|span| span.sure.0) => Some((first, format!("at the same positions from {first} on"))),
        (_, false) if up_to_last && (from_first || alike(|span| span.sure.0)) => {
            // Those that both sequences have are its own as well.
            let first = if alike(|span| span.sure.0) { first } else { 0 };
            Some((first, format!("at the same positions {first}..{last}")))
        }
        _ => None,
    }
}

/// Whose keys, or values, are read.
pub(super) fn words(e: &Evidence<'_>, (runs, run): Runs<'_>) -> Option<Told> {
    let (attention, of_scores) = match e.node.op.anatomy() {
        Anatomy::Contraction(Contraction::Scores(attention)) => (attention, true),
        Anatomy::Contraction(Contraction::Context(attention)) => (attention, false),
        _ => return None,
    };
    let nodes = &runs[run].0.oracle.graph.nodes;
    let [first, cache] = [0, 1].map(|i| e.node.inputs.get(i).map(|input| nodes[*input].id));
    let (first, cache) = (first?, cache?);
    let others = runs.iter().enumerate().filter(|(other, _)| *other != run).filter_map(|(_, (searcher, _))| {
        let steps = &searcher.subject.capture.steps;
        Some((steps.last()?.whose, steps.iter().rev().find_map(|step| step.get(cache))?))
    });
    let others: Vec<(Whose, Cow<'_, Tensor<f32>>)> = others.collect();
    let mut read: BTreeSet<Whose> = BTreeSet::new();
    let (mut spans, mut known) =
        (Vec::new(), others.iter().map(|(sequence, _)| *sequence).collect::<BTreeSet<Whose>>());
    for row in e.bad_rows() {
        let step = &e.side.capture.steps[row.step];
        let token = (0..step.rows()).find(|&r| step.first + step.offset(r) == row.place.position)?;
        let operand = step.get(first)?;
        let gives = |cache: &Tensor<f32>| match of_scores {
            true => scores(e, row, (&operand, token), (attention, cache)),
            false => context(e, row, (&operand, token), (attention, cache)).then(|| {
                let all = (0, row.place.position);
                Span { sure: all, perhaps: all }
            }),
        };
        let of: Vec<(Whose, Span)> =
            others.iter().filter_map(|(sequence, cache)| Some((*sequence, gives(cache)?))).collect();
        // Whoever has them, they are the same.
        spans.push((of.first()?.1, row.place.position));
        let of: BTreeSet<Whose> = of.into_iter().map(|(sequence, _)| sequence).collect();
        known.retain(|sequence| of.contains(sequence));
        read.extend(of.first());
    }
    let own = e.side.capture.steps.last()?.whose;
    let whose = match known.first() {
        Some(one) => one.beside(own),
        None => format!("others ({})", read.iter().map(|one| one.beside(own)).collect::<Vec<_>>().join(", ")),
    };
    let what = if of_scores { "keys" } else { "values" };
    let (first, at) = place(&spans)?;
    let tile = match tile(e, (runs, run)) {
        Some(m) => format!(", in rows whose tile of {m} rows of the pass begins with a row of another sequence"),
        None => String::new(),
    };
    let words = format!("{what} of {whose} are read in the place of its own, {at}{tile}");
    // Where they end is a number of the run.
    let first = if from_first(&spans) { 0 } else { first };
    let shown = Shown { what: format!("{what} of {whose} from {first} on"), links: Vec::new(), ..Shown::default() };
    (spans.len() >= ROWS).then_some(Told { words, remedy: REMEDY, shown })
}

/// Rows of a pass that are looked up together.
const TILES: [usize; 6] = [2, 4, 8, 16, 32, 64];

/// Rows of the sequence that are right, which there must be.
const RIGHT: usize = 4;

/// The rows of a pass that go by the table of the first of them, where exactly the rows are wrong whose tile begins with a row of another
/// sequence. Nothing where more than one size says so.
fn tile(e: &Evidence<'_>, (runs, run): Runs<'_>) -> Option<usize> {
    let own = e.side.capture.steps.last()?.whose;
    // The sequence of each row of a pass.
    let mut rows: BTreeMap<(usize, usize), Whose> = BTreeMap::new();
    for (searcher, _) in runs {
        let capture = searcher.subject.capture;
        for step in capture.steps.iter().enumerate().filter(|(i, _)| capture.is_own(*i)).map(|(_, step)| step) {
            let pass = step.in_pass?;
            rows.extend((0..step.tokens.len()).map(|r| ((pass.number, pass.before + r), step.whose)));
        }
    }
    let of_own = |row: &RowAt| {
        let step = &runs[run].0.subject.capture.steps[row.step];
        let pass = step.in_pass?;
        Some((pass.number, pass.before + row.place.position.checked_sub(step.first)?))
    };
    let wrong: BTreeSet<(usize, usize)> = e.bad_rows().map(of_own).collect::<Option<_>>()?;
    let right = rows.iter().filter(|(row, whose)| **whose == own && !wrong.contains(row)).count();
    let says = |m: &usize| {
        let begins_with_another =
            |(pass, row): (usize, usize)| rows.get(&(pass, row / m * m)).is_some_and(|first| *first != own);
        rows.iter().filter(|(_, whose)| **whose == own).all(|(row, _)| begins_with_another(*row) == wrong.contains(row))
    };
    let mut fitting = TILES.into_iter().filter(says);
    let one = fitting.next().filter(|_| right >= RIGHT)?;
    fitting.next().is_none().then_some(one)
}

/// The keys of which a row's scores are those of its query and another sequence's key; nothing where a wrong score is not.
fn scores(
    e: &Evidence<'_>, row: &RowAt, (queries, token): (&Tensor<f32>, usize), (a, keys): (&Attention, &Tensor<f32>),
) -> Option<Span> {
    let (head, (got, want, bound)) = (row.place.head?, e.row(row));
    let q = queries.row(token).get(head * a.head_dim..(head + 1) * a.head_dim)?;
    let is_other = |i: usize| {
        if i >= keys.rows() {
            return false;
        }
        let k = &keys.row(i)[a.kv_head(head) * a.head_dim..][..a.head_dim];
        let (mut sum, mut size) = (0.0, 0.0);
        for (q, k) in q.iter().zip(k) {
            let product = f64::from(*q) * f64::from(*k);
            (sum, size) = (sum + product, size + product.abs());
        }
        right(got[i], sum, bound[i].max((4.0 * UNIT * size) as f32))
    };
    Span::of(got.len().min(row.place.position + 1), |i| right(got[i], want[i], bound[i]), is_other)
}

/// Whether the context of a row is made of its weights and other values.
fn context(
    e: &Evidence<'_>, row: &RowAt, (weights, token): (&Tensor<f32>, usize), (a, values): (&Attention, &Tensor<f32>),
) -> bool {
    let ((got, _, bound), keys) = (e.row(row), row.place.position + 1);
    if values.rows() < keys {
        return false;
    }
    let [_, tokens, n] = weights.shape[..] else { return false };
    let from = row.range.start % (a.n_heads * a.head_dim);
    for (i, got) in got.iter().enumerate() {
        let (head, column) = ((from + i) / a.head_dim, (from + i) % a.head_dim);
        let at = a.kv_head(head) * a.head_dim + column;
        let (mut sum, mut size) = (0.0, 0.0);
        for k in 0..keys {
            let (w, v) = (weights.data.get((head * tokens + token) * n + k), values.row(k).get(at));
            let (Some(w), Some(v)) = (w, v) else { return false };
            let product = f64::from(*w) * f64::from(*v);
            (sum, size) = (sum + product, size + product.abs());
        }
        if !right(*got, sum, bound[i].max((4.0 * UNIT * size) as f32)) {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::{Span, place};

    /// The spans of rows of positions 0 to 5, where `own` and `other` say of a key whether it may be that of each sequence.
    fn told(own: impl Fn(usize) -> bool, other: impl Fn(usize) -> bool) -> Option<String> {
        let spans: Option<Vec<(Span, usize)>> = (2..6).map(|p| Some((Span::of(p + 1, &own, &other)?, p))).collect();
        Some(place(&spans?)?.1)
    }

    #[test]
    fn a_token_that_both_sequences_have_does_not_end_a_span() {
        assert_eq!(told(|k| k == 4, |_| true).as_deref(), Some("at the same positions"));
        assert_eq!(told(|k| k == 0, |_| true).as_deref(), Some("at the same positions"));
        assert_eq!(told(|k| k == 0, |k| k > 0).as_deref(), Some("at the same positions from 1 on"));
        assert_eq!(told(|k| k > 1, |k| k < 2).as_deref(), Some("at the same positions 0..1"));
    }

    #[test]
    fn a_key_of_neither_sequence_is_no_span() {
        assert_eq!(told(|_| false, |k| k != 1), None);
        assert_eq!(told(|_| true, |_| true), None);
    }
}
