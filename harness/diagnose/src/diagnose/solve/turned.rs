//! Factors of a sum in an order that the output's number, or the token's, turns: shared memory whose runs are turned against
//! conflicts of banks, as they are for a tile of another shape.
//!
//! For each remainder of the number the factor k meets the factor k ⊕ m. Each m is read off a few wrong elements.

use super::factors::{called, gives};
use super::scene::Scene;
use super::terms::Sums;
use super::{At, Law, Row};
use crate::verdict::RowAt;
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::Contraction;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Remainders at most, wrong elements of each that are looked at, and runs of memory that are turned.
const PERIOD: usize = 32;
const SHOWN: usize = 4;
const FARTHEST: usize = 256;

/// What an order goes by.
#[derive(Clone, Copy, PartialEq)]
enum By {
    Output,
    Token,
}

impl By {
    /// The number of an element.
    fn of(self, scene: &Scene<'_>, row: &RowAt, i: usize) -> usize {
        match (self, scene.node().op.anatomy()) {
            (Self::Token, _) => scene.number(row.step, scene.token(row).0).0,
            (Self::Output, Anatomy::Contraction(Contraction::Scores(_))) => i,
            (Self::Output, _) => scene.token(row).1 + i,
        }
    }

    /// Wrong elements that orders are read off: of every token, or of every output.
    fn shown(self, scene: &Scene<'_>, sums: &Sums<'_>) -> BTreeMap<usize, Vec<At>> {
        let even = |r: usize| scene.wrong_of(&scene.e.rows[r]).into_iter().filter(|i| i % 2 == 0).take(SHOWN);
        let all: Vec<At> = match self {
            Self::Output => scene.fit.clone(),
            Self::Token => scene.rows.iter().flat_map(|&r| even(r).map(move |i| (r, i))).collect(),
        };
        let mut known = BTreeMap::<usize, Vec<At>>::new();
        for (r, i) in all.into_iter().filter(|(r, i)| sums.factors(&scene.e.rows[*r], *i).is_some()) {
            let of_one = known.entry(self.of(scene, &scene.e.rows[r], i) % PERIOD).or_default();
            if of_one.len() < SHOWN {
                of_one.push((r, i));
            }
        }
        known
    }
}

/// The turned order: factor k meets the factor k ⊕ m.
fn turned(k: usize, m: usize, n: usize) -> usize {
    if k ^ m < n { k ^ m } else { k }
}

/// For each remainder how the order is turned, of the fewest remainders.
fn orders(scene: &Scene<'_>, sums: &Sums<'_>, by: By) -> Option<Vec<usize>> {
    let mut possible: Vec<Option<Vec<usize>>> = vec![None; PERIOD];
    for (remainder, some) in by.shown(scene, sums) {
        let terms = sums.factors(&scene.e.rows[some[0].0], some[0].1)?.0.len();
        let fits = |m: &usize| {
            scene.count(terms);
            let m = *m;
            let of = move |_: &RowAt, _: usize, a: &[f64], b: &[f64]| {
                Some((0..a.len()).map(|k| a[k] * b[turned(k, m, b.len())]).collect())
            };
            gives(scene, sums, &some, &of)
        };
        let all: Vec<usize> = (0..FARTHEST.min(terms.next_power_of_two())).filter(fits).collect();
        if all.is_empty() {
            return None;
        }
        possible[remainder] = Some(all);
    }
    let of_period = |period: &usize| -> Option<Vec<usize>> {
        let of = |remainder: usize| {
            let mut alike = possible.iter().skip(remainder).step_by(*period).flatten();
            // A number without wrong elements has its own order.
            let Some(first) = alike.next() else { return Some(0) };
            let rest: Vec<&Vec<usize>> = alike.collect();
            first.iter().copied().find(|m| rest.iter().all(|other| other.contains(m)))
        };
        (0..*period).map(of).collect()
    };
    let found = (1..6).map(|bits| 1usize << bits).find_map(|period| of_period(&period))?;
    found.iter().any(|m| *m > 0).then_some(found)
}

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let Some(sums) = Sums::new(scene).map(Rc::new) else { return Vec::new() };
    let [left, right] = called(scene.node().op.anatomy());
    let law = |by: By| {
        let orders = orders(scene, &sums, by)?;
        let (m, first) = (orders.len(), orders[1]);
        let number = if by == By::Token { "token" } else { "output" };
        let what = if orders.iter().enumerate().all(|(i, order)| *order == i * first) {
            let times = if first == 1 { String::new() } else { format!(" times {first}") };
            format!(
                "{left} are multiplied with the {right} whose number is exclusive-ored with the {number}'s mod {m}{times}"
            )
        } else {
            let list: Vec<String> = orders.iter().map(ToString::to_string).collect();
            let list = list.join(" ");
            format!(
                "{left} are multiplied with the {right} whose number is exclusive-ored with another one: by the {number}'s mod {m} with {list}"
            )
        };
        let sums = sums.clone();
        let law = Law::new(what, m, move |row: &RowAt| {
            let (_, want, bound) = scene.e.row(row);
            let value = |i: usize| {
                let Some((a, b)) = sums.factors(row, i) else { return f64::NAN };
                let order = orders[by.of(scene, row, i) % m];
                (0..a.len()).map(|k| a[k] * b[turned(k, order, b.len())]).sum()
            };
            Some(Row { value: (0..want.len()).map(value).collect(), bound: bound.to_vec() })
        });
        Some(Law { of_even: (by == By::Token).then_some(usize::MAX), ..law })
    };
    [By::Output, By::Token].into_iter().filter_map(law).collect()
}
