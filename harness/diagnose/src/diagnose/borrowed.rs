//! Scores and contexts that are made of the keys or values of another sequence, at the positions of its own: a kernel goes by the block
//! table of another row.

use super::siblings::Runs;
use super::spots::{Shown, Told};
use crate::capture::Whose;
use crate::verdict::{Evidence, RowAt, right};
use qdiff_engine::ops::anatomy::Contraction;
use qdiff_engine::ops::{Anatomy, Attention, Tensor, UNIT};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// How to mend it.
const REMEDY: &str = "look up the slot of each key by the table of the row's own sequence, not by that of another row of the tile or pass";

/// Wrong rows that there must be.
const ROWS: usize = 4;

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
    // The first and the last key that is another one, and whether that is the last that the row sees.
    let mut ends: Option<(usize, usize, bool)> = None;
    let (mut rows, mut known) = (0, others.iter().map(|(sequence, _)| *sequence).collect::<BTreeSet<Whose>>());
    for row in e.bad_rows() {
        let step = &e.side.capture.steps[row.step];
        let token = (0..step.rows()).find(|&r| step.first + step.offset(r) == row.place.position)?;
        let operand = step.get(first)?;
        let gives = |cache: &Tensor<f32>| match of_scores {
            true => scores(e, row, (&operand, token), (attention, cache)),
            false => context(e, row, (&operand, token), (attention, cache)).then_some((0, row.place.position)),
        };
        let of: Vec<(Whose, (usize, usize))> =
            others.iter().filter_map(|(sequence, cache)| Some((*sequence, gives(cache)?))).collect();
        // Whoever has them, they are the same.
        let &(_, (first, last)) = of.first()?;
        let of: BTreeSet<Whose> = of.into_iter().map(|(sequence, _)| sequence).collect();
        let all = *ends.get_or_insert((first, last, last == row.place.position));
        if all.0 != first || all.2 != (last == row.place.position) || !all.2 && all.1 != last {
            return None;
        }
        known.retain(|sequence| of.contains(sequence));
        read.extend(of.first());
        rows += 1;
    }
    let own = e.side.capture.steps.last()?.whose;
    let whose = match known.first() {
        Some(one) => one.beside(own),
        None => format!("others ({})", read.iter().map(|one| one.beside(own)).collect::<Vec<_>>().join(", ")),
    };
    let what = if of_scores { "keys" } else { "values" };
    let (first, at) = match ends? {
        (0, _, true) => (0, "at the same positions".to_owned()),
        (first, _, true) => (first, format!("at the same positions from {first} on")),
        (first, last, _) => (first, format!("at the same positions {first}..{last}")),
    };
    let words = format!("{what} of {whose} are read in the place of its own, {at}");
    // Where they end is a number of the run.
    let shown = Shown { what: format!("{what} of {whose} from {first} on"), links: Vec::new() };
    (rows >= ROWS).then_some(Told { words, remedy: REMEDY, shown })
}

/// The first and the last key of which the score of a row is that of its query and another key; nothing where a wrong score is not.
fn scores(
    e: &Evidence<'_>, row: &RowAt, (queries, token): (&Tensor<f32>, usize), (a, keys): (&Attention, &Tensor<f32>),
) -> Option<(usize, usize)> {
    let (head, (got, want, bound)) = (row.place.head?, e.row(row));
    let q = queries.row(token).get(head * a.head_dim..(head + 1) * a.head_dim)?;
    let (mut wrong, mut ended): (Option<(usize, usize)>, bool) = (None, false);
    for i in 0..got.len().min(row.place.position + 1) {
        let is_own = right(got[i], want[i], bound[i]);
        if i >= keys.rows() || is_own && wrong.is_none() {
            if is_own {
                continue;
            }
            return None;
        }
        let k = keys.row(i).get(a.kv_head(head) * a.head_dim..)?.get(..a.head_dim)?;
        let (mut sum, mut size) = (0.0, 0.0);
        for (q, k) in q.iter().zip(k) {
            let product = f64::from(*q) * f64::from(*k);
            (sum, size) = (sum + product, size + product.abs());
        }
        // Between the first and the last that is another one all are, if some may be its own as well.
        match (is_own, right(got[i], sum, bound[i].max((4.0 * UNIT * size) as f32))) {
            (false, true) if !ended => wrong = Some((wrong.map_or(i, |(first, _)| first), i)),
            (false, _) => return None,
            (true, is_other) => ended |= !is_other,
        }
    }
    wrong
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
