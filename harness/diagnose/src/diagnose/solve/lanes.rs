//! Lanes of a sum's terms: within each run of m, which factor meets which.
//!
//! `y = Σ_b Σ_r a[b·m + r] · Σ_s M[r][s] · x[b·m + s]`, with one matrix M for all runs b. A right kernel has the identity; one
//! that reads values in another order, leaves a lane out, takes one twice or with the wrong sign has another matrix of small
//! whole numbers. It is linear in M, so least squares on the wrong elements gives it, for any order.

use super::factors::called;
use super::form::Form;
use super::scene::Scene;
use super::terms::{Sums, least_squares};
use super::{Alternative, Law, Row};
use crate::verdict::RowAt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::rc::Rc;

/// Lanes that are tried: of m the matrix has m² numbers.
const LANES: [usize; 4] = [2, 4, 8, 16];

/// Elements that are fitted, of which there must be half as many again as numbers.
pub(super) const ELEMENTS: usize = 512;

/// A number this near a whole one is one.
pub(super) const WHOLE: f64 = 0.02;

/// Which factors meet within a run of terms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Lanes {
    /// Row by row, how often the first factor of a lane meets the second factor of each.
    matrix: Vec<Vec<i8>>,
    /// What the two factors are called.
    names: [String; 2],
}

impl Lanes {
    /// Numbers that were read off the wrong elements.
    pub(super) fn parameters(&self) -> usize {
        self.matrix.len()
    }

    /// What a row would be.
    pub(super) fn on<'a>(&self, scene: &'a Scene<'a>) -> Option<Alternative<'a>> {
        let (sums, matrix) = (Sums::new(scene)?, self.matrix.clone());
        Some(Box::new(move |row: &RowAt| {
            let (_, want, bound) = scene.e.row(row);
            let value = |i: usize| {
                let Some((a, b)) = sums.factors(row, i) else { return f64::NAN };
                products(&a, &b, matrix.len()).iter().zip(matrix.iter().flatten()).map(|(p, m)| p * f64::from(*m)).sum()
            };
            Some(Row { value: (0..want.len()).map(value).collect(), bound: bound.to_vec() })
        }))
    }
}

/// The products of every lane with every other, summed over the runs of m terms; of a shorter last run as far as it goes.
fn products(a: &[f64], b: &[f64], m: usize) -> Vec<f64> {
    let mut all = vec![0f64; m * m];
    for (a, b) in a.chunks(m).zip(b.chunks(m)) {
        for (r, a) in a.iter().enumerate() {
            all[r * m..].iter_mut().zip(b).for_each(|(sum, b)| *sum += a * b);
        }
    }
    all
}

impl fmt::Display for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([left, right], m) = (&self.names, self.matrix.len());
        let met = |row: &Vec<i8>| -> Vec<usize> { (0..m).filter(|s| row[*s] != 0).collect() };
        let one = |(row, of): (&Vec<i8>, &Vec<usize>)| if let [s] = of[..] { (row[s] == 1).then_some(s) } else { None };
        let sources: Vec<Vec<usize>> = self.matrix.iter().map(met).collect();
        let order: Option<Vec<usize>> = self.matrix.iter().zip(&sources).map(one).collect();
        if let Some(order) = order {
            let list: Vec<String> = order.iter().map(ToString::to_string).collect();
            return write!(f, "within each {m}, {left} 0 to {} are multiplied with {right} {}", m - 1, list.join(" "));
        }
        let told = |(r, row): (usize, &Vec<i8>)| {
            let own = (0..m).all(|s| row[s] == i8::from(s == r));
            let terms: Vec<String> = met(row)
                .into_iter()
                .map(|s| if row[s] == 1 { s.to_string() } else { format!("{} times {s}", row[s]) })
                .collect();
            let with = if terms.is_empty() { "none".to_owned() } else { terms.join(" and ") };
            (!own).then(|| format!("{r} with {with}"))
        };
        let lanes: Vec<String> = self.matrix.iter().enumerate().filter_map(told).collect();
        write!(f, "within each {m}, {left} are multiplied with {right} of other lanes: {}", lanes.join(", "))
    }
}

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let Some(sums) = Sums::new(scene).map(Rc::new) else { return Vec::new() };
    let names = called(scene.node().op.anatomy()).map(str::to_owned);
    let law = |m: usize| Law::of(Form::Lanes(Lanes { matrix: fitted(scene, &sums, m)?, names: names.clone() }), scene);
    LANES.into_iter().filter_map(law).take(1).collect()
}

fn fitted(scene: &Scene<'_>, sums: &Sums<'_>, m: usize) -> Option<Vec<Vec<i8>>> {
    let chosen = sums.sample(ELEMENTS);
    if chosen.len() * 2 < m * m * 3 {
        return None;
    }
    let (mut rows, mut target) = (Vec::new(), Vec::new());
    for (r, i) in chosen {
        let (a, b) = sums.factors(&scene.e.rows[r], i)?;
        let (got, _, bound) = scene.element((r, i));
        let weight = 1.0 / f64::from(bound).max(f64::MIN_POSITIVE);
        scene.count(a.len() * m + m.pow(4) / 2);
        rows.push(products(&a, &b, m).into_iter().map(|p| p * weight).collect());
        target.push(got * weight);
    }
    let whole = |v: &f64| ((v - v.round()).abs() <= WHOLE && v.abs() < 9.0).then_some(v.round() as i8);
    let numbers: Vec<i8> = least_squares(&rows, &target)?.iter().map(whole).collect::<Option<_>>()?;
    let matrix: Vec<Vec<i8>> = numbers.chunks(m).map(<[i8]>::to_vec).collect();
    // A law about left-out terms names groups of them (`terms`).
    let moved = matrix.iter().enumerate().any(|(r, row)| (0..m).any(|s| s != r && row[s] != 0));
    moved.then_some(matrix)
}
