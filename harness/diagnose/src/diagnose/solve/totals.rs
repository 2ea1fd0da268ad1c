//! Rows of shares, which sum to 1: the total that they are divided by is made of some of them, or otherwise.

use super::index::Index;
use super::scene::Scene;
use super::{Law, Row};
use crate::verdict::RowAt;
use qdiff_engine::ops::anatomy::RowReduction;
use qdiff_engine::ops::{Anatomy, UNIT};
use std::rc::Rc;

/// What a row of shares is divided by, where it should be 1.
type Total = Rc<dyn Fn(&[f64]) -> f64>;

/// The smallest share of the right total that another one may be.
const SMALLEST: f64 = 1e-3;

/// Rows by which it is seen that a stage has shares, and how near to 1 they sum.
const ROWS: usize = 4;
const NEAR: f64 = 1e-5;

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let whole = |row: &&RowAt| Some(row.range.len()) == scene.width();
    let sums = |row: &RowAt| (scene.e.row(row).1.iter().sum::<f64>() - 1.0).abs() < NEAR;
    let of_shares = matches!(scene.node().op.anatomy(), Anatomy::RowReduction(RowReduction::Other))
        && scene.e.rows.iter().filter(whole).count() > 0
        && scene.e.rows.iter().filter(whole).take(ROWS).all(sums);
    let Some(n) = scene.width().filter(|_| of_shares) else { return Vec::new() };
    let law = |(what, total): (String, Total)| {
        Law::new(what, 1, move |row: &RowAt| {
            let (_, want, bound) = scene.e.row(row);
            if want.len() != n {
                return None;
            }
            let by = total(want);
            // No bound says anything of a total that is nearly nothing.
            if by < SMALLEST {
                return None;
            }
            let value: Vec<f64> = want.iter().map(|v| v / by).collect();
            // As many roundings as the right one; a difference of sums is good to those of the sums.
            let wider = (1.0 / by).abs().max(1.0);
            let reach = |(v, b): (&f64, &f32)| {
                let own = f64::from(*b) * wider * wider;
                (own + UNIT * (n as f64 + 8.0) * v.abs() * wider) as f32
            };
            Some(Row { bound: value.iter().zip(bound).map(reach).collect(), value })
        })
    };
    totals(n).into_iter().map(law).chain(of_others(scene, n)).chain(filled_up(scene, n)).collect()
}

/// Scores of 0 that fill up a row to a multiple of so many count in the total of a softmax.
fn filled_up<'a>(scene: &'a Scene<'a>, n: usize) -> Vec<Law<'a>> {
    let scores = move |row: &RowAt| -> Option<Vec<f64>> {
        let (operand, token) =
            (scene.operand(row.step, 0).filter(|operand| operand.row_len() == n)?, scene.token(row).0);
        Some(operand.data.get(token * n..(token + 1) * n)?.iter().map(|v| f64::from(*v)).collect())
    };
    // The total with the largest score taken off, and that score.
    let total = |scores: &[f64]| {
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        (scores.iter().map(|s| (s - top).exp()).sum::<f64>(), top)
    };
    let is_softmax = |row: &RowAt| {
        scores(row).is_some_and(|scores| {
            let ((total, top), want) = (total(&scores), scene.e.row(row).1);
            scores.iter().zip(want).all(|(s, want)| ((s - top).exp() / total - want).abs() < NEAR)
        })
    };
    let whole = |row: &&RowAt| Some(row.range.len()) == scene.width();
    if !scene.e.rows.iter().filter(whole).take(ROWS).all(is_softmax) {
        return Vec::new();
    }
    let law = |run: usize| {
        let more = n.next_multiple_of(run) - n;
        let what = format!("each row is filled up to a multiple of {run} with scores of 0, which count in its total");
        Law::new(what, 1, move |row: &RowAt| {
            let ((_, want, bound), (total, top)) = (scene.e.row(row), total(&scores(row)?));
            let by = 1.0 + more as f64 * (-top).exp() / total;
            let value: Vec<f64> = want.iter().map(|v| v / by).collect();
            let reach = |(v, b): (&f64, &f32)| (f64::from(*b) + UNIT * (n as f64 + 8.0 + top.abs()) * v.abs()) as f32;
            Some(Row { bound: value.iter().zip(bound).map(reach).collect(), value })
        })
    };
    let runs = [4, 8, 16, 32, 64, 128, 256].into_iter();
    runs.filter(|run| !n.is_multiple_of(*run)).map(law).collect()
}

/// Maps of a part's tokens go over so many.
const TOKENS: usize = 8;

/// Each row is divided by the total of another token of its part, or of several, where what is shared out is an operand.
fn of_others<'a>(scene: &'a Scene<'a>, n: usize) -> Vec<Law<'a>> {
    let total = move |step: usize, token: usize| -> Option<f64> {
        let operand = scene.operand(step, 0).filter(|operand| operand.row_len() == n)?;
        Some(operand.data.get(token * n..(token + 1) * n)?.iter().map(|v| f64::from(*v)).sum())
    };
    // The operand of a softmax holds logarithms of shares, and no shares.
    let is_shared_out = |row: &RowAt| {
        let token = scene.token(row).0;
        let operand = scene.operand(row.step, 0).filter(|operand| operand.row_len() == n);
        let of_token = operand.as_ref().and_then(|operand| operand.data.get(token * n..(token + 1) * n));
        of_token.zip(total(row.step, token)).is_some_and(|(own, total)| {
            let want = scene.e.row(row).1;
            total > SMALLEST && own.iter().zip(want).all(|(v, want)| (f64::from(*v) / total - want).abs() < NEAR)
        })
    };
    let whole = |row: &&RowAt| Some(row.range.len()) == scene.width();
    if !scene.e.rows.iter().filter(whole).take(ROWS).all(is_shared_out) {
        return Vec::new();
    }
    let law = |(what, others): (String, Others)| {
        Law::new(what, 1, move |row: &RowAt| {
            let (_, want, bound) = scene.e.row(row);
            let token = scene.token(row).0;
            let (number, count) = scene.number(row.step, token);
            let others = others(number, count)?;
            let terms = others.len();
            let of = |other: usize| total(row.step, scene.numbered(row.step, other)?);
            let by = others.map(of).sum::<Option<f64>>()? / total(row.step, token)?;
            if by < SMALLEST {
                return None;
            }
            let value: Vec<f64> = want.iter().map(|v| v / by).collect();
            let roundings = (n * terms) as f64 + 8.0;
            let reach = |(v, b): (&f64, &f32)| (f64::from(*b) / by + UNIT * roundings * v.abs()) as f32;
            Some(Row { bound: value.iter().zip(bound).map(reach).collect(), value })
        })
    };
    let of_one = |index: Index| -> (String, Others) {
        let what = format!("each row is divided by the total of the {}", index.told("token", "t"));
        let other = move |number: usize, count: usize| index.of(number, count).map(|other| other..other + 1);
        (what, Box::new(other))
    };
    // Of a reduction along the wrong axis, and of a sum that is not set to 0 for each row.
    let of_all: (String, Others) =
        ("each row is divided by the total of all tokens of its part".to_owned(), Box::new(|_, count| Some(0..count)));
    let so_far: (String, Others) = (
        "each row is divided by the total of the part's tokens up to its own".to_owned(),
        Box::new(|number, _| Some(0..number + 1)),
    );
    Index::slips(TOKENS).into_iter().map(of_one).chain([of_all, so_far]).map(law).collect()
}

/// The tokens of a part whose totals are added in the place of a token's own.
type Others = Box<dyn Fn(usize, usize) -> Option<std::ops::Range<usize>>>;

fn totals(n: usize) -> Vec<(String, Total)> {
    let mut all: Vec<(String, Total)> = Vec::new();
    let mut some = |what: String, has: Box<dyn Fn(usize) -> bool>| {
        let total = move |row: &[f64]| (0..row.len()).filter(|i| has(*i)).map(|i| row[i]).sum();
        all.push((format!("the total that each row is divided by is that of {what}"), Rc::new(total)));
    };
    some(format!("the first {} of its {n} elements alone", n - 1), Box::new(move |i| i + 1 < n));
    some(format!("the last {} of its {n} elements alone", n - 1), Box::new(|i| i > 0));
    some("its even elements alone".to_owned(), Box::new(|i| i.is_multiple_of(2)));
    some("its odd elements alone".to_owned(), Box::new(|i| !i.is_multiple_of(2)));
    // Lanes and vectors; what is left over of them.
    let few = (1..n.saturating_sub(1)).filter(|first| *first < 16 || first.is_power_of_two());
    for first in few {
        some(format!("the first {first} of its {n} elements alone"), Box::new(move |i| i < first));
        some(format!("the last {first} of its {n} elements alone"), Box::new(move |i| i + first >= n));
    }
    for run in [4, 8, 16, 32, 64].into_iter().filter(|run| n > *run && !n.is_multiple_of(*run)) {
        some(format!("its whole runs of {run} elements"), Box::new(move |i| i < n / run * run));
    }
    let mut other = |what: &str, total: fn(&[f64]) -> f64| {
        all.push((format!("each row is divided by {what}"), Rc::new(total)));
    };
    let largest = |row: &[f64]| row.iter().fold(0f64, |most, v| most.max(*v));
    other("the largest of its elements, and not by their total", largest);
    other("the root of the sum of squares, and not by the total", |row| row.iter().map(|v| v * v).sum::<f64>().sqrt());
    other("the mean of its elements, and not by their total", |row| 1.0 / row.len() as f64);
    other("its total, in which the first element counts twice", |row| 1.0 + row[0]);
    other("its total, in which the last element counts twice", |row| 1.0 + row[row.len() - 1]);
    all
}
