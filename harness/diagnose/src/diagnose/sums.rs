//! Whether an error is that of sums kept in f16: not by its size, which other faults have too, but element by element.
//!
//! A sum that is rounded after every few terms errs at each rounding by a unit in the last place of the partial sum S at
//! most, evenly between -ulp/2 and ulp/2 (Hull & Swenson 1966): with variance ulp(S)²/12, or with that of the terms
//! themselves where these are too small to be seen beside S. So its error is large where partial sums are, and nothing
//! of it is fitted. What else makes a dense error goes with the products (operands of few bits, weights that are
//! others), with the result (rounded or scaled), or with neither, and may have any size.

use crate::verdict::{Evidence, RowAt};
use half::f16;
use qdiff_engine::model::WeightSource as _;
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::Contraction;
use std::collections::BTreeSet;

/// Rows that are looked at, and elements of each.
const ROWS: usize = 32;
const COLUMNS: usize = 256;

/// Fewest finite elements for a conclusion.
const LEAST: usize = 32;

/// Terms between two roundings: one (a loop over half), to what several instructions of a tensor core take.
const CHUNKS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// By how much the mean square of the error may be another than that of the rounding.
const ALIKE: std::ops::RangeInclusive<f64> = 0.5..=2.0;

/// Logarithm of the odds, for each element and at least in all, by which rounding must explain the error better than
/// anything else. Sums in f16 reach 0.06 to 0.17 an element, other errors of the same size stay below -0.2.
const ODDS: (f64, f64) = (0.02, 4.0);

/// Where f16 rounds to infinity, and the distance from it within which nothing can be concluded.
const OVERFLOW: f64 = 65_520.0;
const NEAR: f64 = 0.02;

/// One element, and the terms that it is the sum of.
struct Sum {
    row: usize,
    got: f32,
    want: f64,
    terms: Vec<f64>,
}

/// What the partial sums of an element say of it, rounded after every so many terms.
struct Rounded {
    variance: f64,
    /// The largest partial sum.
    reach: f64,
}

impl Sum {
    fn rounded(&self, chunk: usize) -> Rounded {
        let mut rounded = Rounded { variance: 0.0, reach: 0.0 };
        let mut sum = 0.0f64;
        for terms in self.terms.chunks(chunk) {
            let part: f64 = terms.iter().sum();
            sum += part;
            rounded.variance += (part * part).min(uniform(sum));
            rounded.reach = rounded.reach.max(sum.abs());
        }
        rounded
    }
}

/// Variance of rounding `x` to f16.
fn uniform(x: f64) -> f64 {
    let exponent = (x.abs().max(f64::from(f16::MIN_POSITIVE)).log2()).floor();
    (exponent - 10.0).exp2().powi(2) / 12.0
}

/// Whether the rows that are wrong have the error of sums kept in f16.
pub(super) fn of_halves(e: &Evidence<'_>) -> bool {
    let scores = matches!(e.node.op.anatomy(), Anatomy::Contraction(Contraction::Scores(_)));
    let (mut halves, mut shorter, mut stored) = (true, true, scores);
    for row in e.bad_rows() {
        let (got, want, bound) = e.row(row);
        for ((g, w), b) in got.iter().zip(want).zip(bound).filter(|((g, _), _)| g.is_finite()) {
            let apart = |half: f16| (half.to_f64() - f64::from(*g)).abs() > 0.0;
            halves &= !apart(f16::from_f32(*g));
            shorter &= g.to_bits() & 0xffff == 0;
            let b = 4.0 * f64::from(*b);
            stored &= !apart(f16::from_f64(w - b)) || !apart(f16::from_f64(w + b)) || !apart(f16::from_f64(*w));
        }
    }
    // Values that are all bf16 were rounded to bf16; values that are f16 anyway show nothing.
    if !halves || shorter || !e.grain.exact() {
        return false;
    }
    let sums = sums(e);
    let last = sums.first().map_or(0, |s| s.terms.len());
    // Scores that were rounded once, and no sum on the way to them.
    (stored && overflows(&sums, last))
        || CHUNKS.into_iter().filter(|c| c * 4 <= last).any(|chunk| overflows(&sums, chunk) && likely(&sums, chunk))
}

/// Whether infinity and NaN stand where a partial sum overflows, and nowhere else.
fn overflows(sums: &[Sum], chunk: usize) -> bool {
    let agrees = |s: &Sum| {
        let reach = s.rounded(chunk).reach / OVERFLOW;
        if s.got.is_finite() { reach < 1.0 + NEAR } else { reach > 1.0 - NEAR }
    };
    sums.iter().filter(|s| s.got.is_finite()).count() >= LEAST && sums.iter().all(agrees)
}

/// Whether roundings after every `chunk` terms explain the errors, and better than anything else of any size does.
fn likely(sums: &[Sum], chunk: usize) -> bool {
    let finite: Vec<&Sum> = sums.iter().filter(|s| s.got.is_finite()).collect();
    let squares: Vec<f64> = finite.iter().map(|s| (f64::from(s.got) - s.want).powi(2)).collect();
    let predicted: Vec<f64> = finite.iter().map(|s| s.rounded(chunk).variance.max(f64::MIN_POSITIVE)).collect();
    let n = squares.len() as f64;
    let size = squares.iter().zip(&predicted).map(|(d, v)| d / v).sum::<f64>() / n;
    let products: Vec<f64> = finite.iter().map(|s| s.terms.iter().map(|t| t * t).sum::<f64>()).collect();
    let results: Vec<f64> = finite.iter().map(|s| s.want * s.want).collect();
    let by_row = |of: &[f64]| -> Vec<f64> {
        let mean = |row: usize| {
            let own = || finite.iter().zip(of).filter(|(s, _)| s.row == row).map(|(_, v)| v);
            own().sum::<f64>() / own().count() as f64
        };
        let rows: BTreeSet<usize> = finite.iter().map(|s| s.row).collect();
        let means: Vec<(usize, f64)> = rows.into_iter().map(|row| (row, mean(row))).collect();
        finite.iter().map(|s| means.iter().find(|(row, _)| *row == s.row).map_or(0.0, |(_, m)| *m)).collect()
    };
    let mixed = |a: &[f64], b: &[f64], share: f64| a.iter().zip(b).map(|(a, b)| a + share * b).collect::<Vec<f64>>();
    let once: Vec<f64> = finite.iter().map(|s| uniform(s.want)).collect();
    // Unit roundoffs squared, from those of f32 to those of a few bits.
    let units = (-24..=-8).map(|k| f64::from(k).exp2());
    let others = [products.clone(), by_row(&products), by_row(&results)].into_iter();
    let others = others.chain([0.001, 0.01, 0.1, 1.0, 10.0].map(|share| mixed(&results, &products, share)));
    let others = others.chain(units.map(|unit| mixed(&once, &products, unit))).chain([once.clone()]);
    let best = others.map(|v| fitted(&squares, &v)).fold(f64::NEG_INFINITY, f64::max);
    ALIKE.contains(&size) && likelihood(&squares, &predicted) - best >= (ODDS.0 * n).max(ODDS.1)
}

/// Logarithm of the likelihood of errors with these squares, normally distributed with these variances.
fn likelihood(squares: &[f64], variances: &[f64]) -> f64 {
    -0.5 * squares.iter().zip(variances).map(|(d, v)| v.ln() + d / v).sum::<f64>()
}

/// The same with variances in these proportions, of the size that fits best.
fn fitted(squares: &[f64], proportions: &[f64]) -> f64 {
    let some: Vec<f64> = proportions.iter().map(|v| v.max(f64::MIN_POSITIVE)).collect();
    let size = squares.iter().zip(&some).map(|(d, v)| d / v).sum::<f64>() / squares.len() as f64;
    likelihood(squares, &some.iter().map(|v| v * size).collect::<Vec<f64>>())
}

/// Elements of the wrong rows with their terms, evenly taken; none where an operand was not captured.
fn sums(e: &Evidence<'_>) -> Vec<Sum> {
    let bad: Vec<&RowAt> = e.bad_rows().collect();
    let rows: Vec<(usize, &RowAt)> = bad.iter().copied().enumerate().step_by(bad.len().div_ceil(ROWS).max(1)).collect();
    let evenly = |width: usize| (0..width).step_by(width.div_ceil(COLUMNS).max(1));
    let sum = |(row, at): (usize, &RowAt), i: usize, terms: Vec<f64>| {
        let (got, want, _) = e.row(at);
        Sum { row, got: got[i], want: want[i], terms }
    };
    let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).collect();
    let operand = |at: &RowAt| e.operand(at, 0);
    let mut all = Vec::new();
    match e.node.op.anatomy() {
        Anatomy::Contraction(Contraction::Weight(None)) => {
            let Some(weight) = e.node.weights.first() else { return all };
            let operands: Vec<_> = rows.iter().filter_map(|r| Some((*r, operand(r.1)?))).collect();
            let mut w = vec![0f32; e.oracle.weights.extent(&weight.name).0];
            for i in evenly(rows.first().map_or(0, |r| r.1.range.len())) {
                e.oracle.weights.rows(&weight.name, i, &mut w);
                all.extend(operands.iter().map(|(row, x)| sum(*row, i, product(x, &w))));
            }
        }
        Anatomy::Contraction(Contraction::Scores(a)) => {
            for row in rows {
                let key = e.oracle.graph.nodes[e.node.inputs[1]].id;
                let (Some(head), Some(q), Some(k)) =
                    (row.1.place.head, operand(row.1), e.side.capture.steps[row.1.step].get(key))
                else {
                    continue;
                };
                let (d, from) = (a.head_dim, a.kv_head(head) * a.head_dim);
                for i in evenly(row.1.range.len()).filter(|i| *i < k.rows()) {
                    all.push(sum(row, i, product(&q[head * d..(head + 1) * d], &k.row(i)[from..from + d])));
                }
            }
        }
        // No other stage is a sum that a mutation keeps in f16.
        Anatomy::Gather(_) | Anatomy::Contraction(_) | Anatomy::RowReduction(_) | Anatomy::Elementwise(_) => {}
        Anatomy::State(_) | Anatomy::Decision(_) | Anatomy::Collective(_) => {}
    }
    all
}
