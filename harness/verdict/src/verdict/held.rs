//! One row of what a stage gave, held against what it should be.

use super::element::share;
use super::spread::Bins;
use super::tolerance::{ELEMENT_FACTOR, of_sums};
use qdiff_engine::isa::{Vectorised, vectorised};

pub(super) fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|v| v * v).sum::<f64>().sqrt()
}

/// The norm that a row's errors are relative to; 1 for a row of zeros.
pub(super) fn size(want: &[f64]) -> f64 {
    let norm = norm(want.iter().copied());
    if norm > 0.0 { norm } else { 1.0 }
}

/// One row held against what it should be.
pub struct Row {
    /// Share of what is allowed that the row or its worst element takes.
    pub used: f64,
    /// Relative L2 distance.
    pub residual: f64,
    /// Relative L2 distance that it is allowed.
    pub(super) allowed: f64,
    /// The element with the largest error / bound ratio, and its bound.
    pub(super) worst: usize,
    pub(super) worst_allowed: f64,
    /// Smallest rule that would have let it pass.
    pub(super) rule: f64,
}

impl Row {
    /// Judges a row; `rule` replaces the bounds where a user set one.
    pub fn of(got: &[f32], want: &[f64], bound: &[f32], rule: Option<f64>) -> Self {
        Self::new(got, want, bound, rule, &mut Bins::default())
    }

    /// The same; counts the shares of its elements.
    pub(super) fn new(got: &[f32], want: &[f64], bound: &[f32], rule: Option<f64>, bins: &mut Bins) -> Self {
        let [d2, y2, largest, squares, fourths] = vectorised(Norms { got, want, bound });
        let by_rule = rule.map(|rule| rule * largest);
        let row_allowed = match rule {
            Some(rule) => rule * y2.sqrt(),
            None => of_sums(squares, fourths),
        };
        let (worst_share, worst, furthest) = vectorised(Worst { got, want, bound, by_rule, bins });
        let rule_needed = share(d2.sqrt(), y2.sqrt()).max(share(furthest, largest));
        let scale = if y2 > 0.0 { y2.sqrt() } else { 1.0 };
        Self {
            used: share(d2.sqrt(), row_allowed).max(worst_share),
            residual: d2.sqrt() / scale,
            allowed: row_allowed / scale,
            worst,
            rule: rule_needed,
            worst_allowed: bound.get(worst).map_or(0.0, |b| by_rule.unwrap_or(ELEMENT_FACTOR * f64::from(*b))),
        }
    }
}

/// Elements that are looked at side by side.
const LANES: usize = 8;

/// A row's sums of squares of the differences and of the f64 values, the largest of these, and the sums of the
/// squares and of the fourth powers of the bounds.
struct Norms<'a> {
    got: &'a [f32],
    want: &'a [f64],
    bound: &'a [f32],
}

impl Vectorised for Norms<'_> {
    type Output = [f64; 5];

    #[inline(always)]
    fn run(self) -> [f64; 5] {
        let mut lanes = [[0f64; LANES]; 5];
        let add = |lanes: &mut [[f64; LANES]; 5], i: usize, got: f32, want: f64, bound: f32| {
            let (difference, square) = (f64::from(got) - want, f64::from(bound) * f64::from(bound));
            lanes[0][i] += difference * difference;
            lanes[1][i] += want * want;
            lanes[2][i] = if want.abs() > lanes[2][i] { want.abs() } else { lanes[2][i] };
            lanes[3][i] += square;
            lanes[4][i] += square * square;
        };
        let ((got, rest), (want, of_rest)) = (self.got.as_chunks::<LANES>(), self.want.as_chunks::<LANES>());
        let (bound, bounds_of_rest) = self.bound.as_chunks::<LANES>();
        for ((got, want), bound) in got.iter().zip(want).zip(bound) {
            for i in 0..LANES {
                add(&mut lanes, i, got[i], want[i], bound[i]);
            }
        }
        for (i, ((got, want), bound)) in rest.iter().zip(of_rest).zip(bounds_of_rest).enumerate() {
            add(&mut lanes, i, *got, *want, *bound);
        }
        let [d2, y2, largest, squares, fourths] = lanes;
        let sum = |lanes: [f64; LANES]| lanes.iter().sum();
        [sum(d2), sum(y2), largest.into_iter().fold(0.0, f64::max), sum(squares), sum(fourths)]
    }
}

/// The largest error / bound ratio in a row, its place, and the largest difference. Counts
/// the ratios.
struct Worst<'a> {
    got: &'a [f32],
    want: &'a [f64],
    bound: &'a [f32],
    /// What every element is allowed where a rule replaces the bounds.
    by_rule: Option<f64>,
    bins: &'a mut Bins,
}

impl Vectorised for Worst<'_> {
    type Output = (f64, usize, f64);

    #[inline(always)]
    fn run(self) -> (f64, usize, f64) {
        let (mut worst, mut furthest) = ((-1.0, 0), 0f64);
        let ((got, rest), (want, of_rest)) = (self.got.as_chunks::<LANES>(), self.want.as_chunks::<LANES>());
        let (bound, bounds_of_rest) = self.bound.as_chunks::<LANES>();
        let whole = got.iter().zip(want).zip(bound).map(|((got, want), bound)| (*got, *want, *bound, LANES));
        let mut last = ([0f32; LANES], [0f64; LANES], [0f32; LANES], rest.len());
        for (i, ((got, want), bound)) in rest.iter().zip(of_rest).zip(bounds_of_rest).enumerate() {
            (last.0[i], last.1[i], last.2[i]) = (*got, *want, *bound);
        }
        for (first, (got, want, bound, count)) in (0..).step_by(LANES).zip(whole.chain([last])) {
            // By themselves, so that they are divided together.
            let (mut differences, mut shares) = ([0f64; LANES], [0f64; LANES]);
            for i in 0..LANES {
                differences[i] = (f64::from(got[i]) - want[i]).abs();
                shares[i] = share(differences[i], self.by_rule.unwrap_or(ELEMENT_FACTOR * f64::from(bound[i])));
            }
            for (i, (share, difference)) in shares.into_iter().zip(differences).take(count).enumerate() {
                self.bins.count(i, share);
                if share > worst.0 {
                    worst = (share, first + i);
                }
                // Not `f64::max`, which passes over NaN.
                furthest = if difference <= furthest { furthest } else { difference };
            }
        }
        (worst.0, worst.1, furthest)
    }
}
