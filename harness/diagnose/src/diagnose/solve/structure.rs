//! What an error is made of where nothing more is known of it: a factor or an offset per row, head or column. It says which
//! part of a kernel is wrong, such as what rows are divided by, and not how.
//!
//! A factor of a row is read off its even elements and must give the odd ones; one of a column is read off half of the
//! rows and must give the others. A row or column all of which is right has none: such a law says nothing of it, and a
//! condition must tell it from the wrong ones.

use super::scene::Scene;
use super::{Law, Row};
use crate::verdict::RowAt;
use qdiff_engine::ops::anatomy::{Contraction, Elementwise, RowReduction};
use qdiff_engine::ops::{Anatomy, UNIT};
use std::collections::BTreeMap;

/// Elements of a row that share a factor, at least.
const RUN: usize = 16;

/// Rows that a column's factor is read off, at least.
const ROWS: usize = 3;

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let of_columns = [true, false].into_iter().filter_map(|factor| of_columns(scene, factor));
    std::iter::once(of_rows(scene)).chain(of_columns.map(|law| Law { parts: true, ..law })).collect()
}

/// What a right element of a row or column without a factor of its own is, as far as a law of the others goes: something
/// else.
fn changed(want: f64, bound: f32) -> f64 {
    want + 64.0 * (f64::from(bound) + UNIT * want.abs())
}

/// What the words for a row and its factor begin with.
const OF_ROWS: [&str; 2] = ["each wrong head of a row", "each wrong row"];

/// Whether these are the words for a factor of each row, or of each head of it.
pub(super) fn is_of_rows(what: &str) -> bool {
    OF_ROWS.iter().any(|words| what.starts_with(words))
}

/// A factor for each row, or for each head of it.
pub(super) fn of_rows<'a>(scene: &'a Scene<'a>) -> Law<'a> {
    let divided = match scene.node().op.anatomy() {
        Anatomy::RowReduction(RowReduction::MeanSquare(_)) => ": what it is divided by is wrong, its weight is right",
        Anatomy::RowReduction(RowReduction::Exponentials(_)) => {
            ": the sum that weights are divided by is wrong, their ratios are right"
        }
        Anatomy::Contraction(Contraction::Context(_)) => ": the weights' common factor is wrong, or not divided out",
        Anatomy::Contraction(Contraction::Weight(None)) => {
            ": what is common to the row is wrong, such as the scale of its activations"
        }
        _ => "",
    };
    let head = scene.head();
    let of = match head.is_some() || scene.of_pairs() {
        true if !heads_share(scene) => OF_ROWS[0],
        _ => OF_ROWS[1],
    };
    let law = Law::new(format!("{of} is multiplied by a factor of its own{divided}"), 1, move |row: &RowAt| {
        let (got, want, bound) = scene.e.row(row);
        let run = head.unwrap_or(got.len()).max(1);
        let mut value = vec![f64::NAN; got.len()];
        for first in (0..got.len()).step_by(run) {
            let part = first..(first + run).min(got.len());
            let (gw, ww) = factor((got, want, bound), part.clone().step_by(2));
            let wrong = part.clone().any(|i| !crate::verdict::right(got[i], want[i], bound[i]));
            if !wrong {
                part.for_each(|i| value[i] = changed(want[i], bound[i]));
                continue;
            }
            let told = part.clone().filter(|&i| want[i].abs() > 8.0 * f64::from(bound[i])).count();
            if ww > 0.0 && told >= RUN {
                part.for_each(|i| value[i] = want[i] * gw / ww);
            } else if row.bad {
                return None;
            }
        }
        Some(Row { value, bound: bound.to_vec() })
    });
    Law { of_even: Some(head.unwrap_or(usize::MAX)), parts: true, ..law }
}

/// Numerator and denominator of the factor of these elements, each in units of its bound.
fn factor((got, want, bound): (&[f32], &[f64], &[f32]), some: impl Iterator<Item = usize>) -> (f64, f64) {
    some.fold((0.0, 0.0), |(gw, ww), i| {
        let weight = 1.0 / (f64::from(bound[i]) + UNIT * want[i].abs() + f64::MIN_POSITIVE).powi(2);
        (gw + weight * f64::from(got[i]) * want[i], ww + weight * want[i] * want[i])
    })
}

/// Factors as near as this are one: both are read off rounded values.
const SHARED: f64 = 1e-5;

/// Whether the wrong heads of a token have one factor, in every token that has several.
fn heads_share(scene: &Scene<'_>) -> bool {
    let mut by_token: BTreeMap<(usize, usize), Vec<f64>> = BTreeMap::new();
    for &r in scene.rows.iter().filter(|&&r| scene.wrong_in(r)) {
        let (row, (token, _)) = (&scene.e.rows[r], scene.token(&scene.e.rows[r]));
        let run = scene.head().unwrap_or(row.range.len()).max(1);
        let (got, want, bound) = scene.e.row(row);
        let factors = (0..got.len()).step_by(run).filter_map(|first| {
            let part = first..(first + run).min(got.len());
            let wrong = part.clone().any(|i| !crate::verdict::right(got[i], want[i], bound[i]));
            let (gw, ww) = factor((got, want, bound), part);
            (wrong && ww > 0.0).then_some(gw / ww)
        });
        by_token.entry((row.step, token)).or_default().extend(factors);
    }
    let mut several = by_token.values().filter(|factors| factors.len() > 1).peekable();
    several.peek().is_some()
        && several.all(|factors| factors.iter().all(|f| (f - factors[0]).abs() <= SHARED * factors[0].abs()))
}

/// A factor, or an offset, for each column.
fn of_columns<'a>(scene: &'a Scene<'a>, factor: bool) -> Option<Law<'a>> {
    scene.width().filter(|_| !scene.of_pairs())?;
    // Sums over the fitted rows, by column, and whether it is wrong in any.
    let mut sums: BTreeMap<usize, (f64, f64, usize, bool)> = BTreeMap::new();
    for &r in scene.rows.iter().filter(|&&r| scene.e.rows[r].bad && scene.fitted(r, 0)) {
        let row = &scene.e.rows[r];
        let (got, want, bound) = scene.e.row(row);
        let from = scene.token(row).1;
        for i in 0..got.len() {
            let z = if factor { want[i] } else { 1.0 };
            let weight = 1.0 / (f64::from(bound[i]) + UNIT * want[i].abs() + f64::MIN_POSITIVE).powi(2);
            let sum = sums.entry(from + i).or_default();
            let wrong = sum.3 || !crate::verdict::right(got[i], want[i], bound[i]);
            *sum = (sum.0 + weight * (f64::from(got[i]) - want[i]) * z, sum.1 + weight * z * z, sum.2 + 1, wrong);
        }
    }
    if sums.values().map(|s| s.2).min()? < ROWS {
        return None;
    }
    let by: BTreeMap<usize, Option<f64>> = sums
        .into_iter()
        .map(|(c, (dz, zz, _, wrong))| (c, wrong.then_some(if zz > 0.0 { dz / zz } else { 0.0 })))
        .collect();
    let what = match (factor, scene.node().op.anatomy()) {
        (true, Anatomy::RowReduction(RowReduction::MeanSquare(_))) => {
            "each wrong column is multiplied by a factor of its own, the same in all rows: its weight is wrong"
        }
        (true, _) => "each wrong column is multiplied by a factor of its own, the same in all rows",
        (false, Anatomy::Elementwise(Elementwise::Offset)) => {
            "each wrong column has a number of its own added, the same in all rows: the bias is wrong"
        }
        (false, _) => "each wrong column has a number of its own added, the same in all rows",
    };
    Some(Law::new(what, ROWS, move |row: &RowAt| {
        let (_, want, bound) = scene.e.row(row);
        let from = scene.token(row).1;
        let of = |(i, w): (usize, &f64)| match by.get(&(from + i)) {
            Some(Some(by)) => w + if factor { by * w } else { *by },
            Some(None) => changed(*w, bound[i]),
            None => f64::NAN,
        };
        Some(Row { value: want.iter().enumerate().map(of).collect(), bound: bound.to_vec() })
    }))
}
