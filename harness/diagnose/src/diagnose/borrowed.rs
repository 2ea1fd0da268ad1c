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
    let (mut rows, mut known) = (0, others.iter().map(|(sequence, _)| *sequence).collect::<BTreeSet<Whose>>());
    for row in e.bad_rows() {
        let step = &e.side.capture.steps[row.step];
        let token = (0..step.rows()).find(|&r| step.first + step.offset(r) == row.place.position)?;
        let operand = step.get(first)?;
        let gives = |cache: &Tensor<f32>| match of_scores {
            true => scores(e, row, (&operand, token), (attention, cache)),
            false => context(e, row, (&operand, token), (attention, cache)),
        };
        let of: BTreeSet<Whose> =
            others.iter().filter(|(_, cache)| gives(cache) == Some(true)).map(|(sequence, _)| *sequence).collect();
        if of.is_empty() {
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
    let words = format!("{what} of {whose} are read in the place of its own, at the same positions");
    let shown = Shown { what: words.clone(), links: Vec::new() };
    (rows >= ROWS).then_some(Told { words, remedy: REMEDY, shown })
}

/// Whether the scores of a row are those of its query and other keys, as far as there are such.
fn scores(
    e: &Evidence<'_>, row: &RowAt, (queries, token): (&Tensor<f32>, usize), (a, keys): (&Attention, &Tensor<f32>),
) -> Option<bool> {
    let (head, (got, want, bound)) = (row.place.head?, e.row(row));
    let q = queries.row(token).get(head * a.head_dim..(head + 1) * a.head_dim)?;
    let mut wrong = 0;
    for i in 0..got.len().min(row.place.position + 1).min(keys.rows()) {
        let k = keys.row(i).get(a.kv_head(head) * a.head_dim..)?.get(..a.head_dim)?;
        let (mut sum, mut size) = (0.0, 0.0);
        for (q, k) in q.iter().zip(k) {
            let product = f64::from(*q) * f64::from(*k);
            (sum, size) = (sum + product, size + product.abs());
        }
        if !right(got[i], sum, bound[i].max((4.0 * UNIT * size) as f32)) {
            return Some(false);
        }
        wrong += usize::from(!right(got[i], want[i], bound[i]));
    }
    Some(wrong > 0)
}

/// Whether the context of a row is made of its weights and other values.
fn context(
    e: &Evidence<'_>, row: &RowAt, (weights, token): (&Tensor<f32>, usize), (a, values): (&Attention, &Tensor<f32>),
) -> Option<bool> {
    let ((got, _, bound), keys) = (e.row(row), row.place.position + 1);
    if values.rows() < keys {
        return None;
    }
    let [_, tokens, n] = weights.shape[..] else { return None };
    let from = row.range.start % (a.n_heads * a.head_dim);
    for (i, got) in got.iter().enumerate() {
        let (head, column) = ((from + i) / a.head_dim, (from + i) % a.head_dim);
        let at = a.kv_head(head) * a.head_dim + column;
        let (mut sum, mut size) = (0.0, 0.0);
        for k in 0..keys {
            let w = f64::from(*weights.data.get((head * tokens + token) * n + k)?);
            let product = w * f64::from(*values.row(k).get(at)?);
            (sum, size) = (sum + product, size + product.abs());
        }
        if !right(*got, sum, bound[i].max((4.0 * UNIT * size) as f32)) {
            return Some(false);
        }
    }
    Some(true)
}
