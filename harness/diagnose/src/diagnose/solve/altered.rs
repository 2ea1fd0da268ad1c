//! Some terms of a sum with another factor (`factors`).
//!
//! `y = Σ a_k·b_k` errs by `Σ_{k in G} (a'_k·b'_k − a_k·b_k)` if the terms of G have the factors a', b' instead. G is all
//! terms, or groups of them (`terms`): each group takes part or does not, which least squares on the wrong elements tells.
//! What few groups cannot explain at all is dropped before it is fitted closely.

use super::factors::{Terms, others};
use super::fields;
use super::groups::{Groups, which};
use super::held::EACH;
use super::scene::Scene;
use super::terms::{Sums, least_squares};
use super::{At, Law, Row};
use crate::verdict::RowAt;
use std::cell::LazyCell;
use std::rc::Rc;

/// Elements that are fitted, at first and closely.
const FIRST: usize = 160;
const CLOSELY: usize = 512;

/// Terms of all elements together, of which both factors are kept.
const TERMS: usize = 4 << 20;

/// The share of the error that groups must give when each is fitted alone: of noise they give a fifth.
const GIVEN: f64 = 0.4;

/// The share that may be left when they are fitted together, for as many degrees of freedom as are left.
const LEFT: f64 = 0.25;

/// Groups of a rough fit at most.
const ROUGH: usize = 32;

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let Some(sums) = Sums::new(scene).map(Rc::new) else {
        return Vec::new();
    };
    let Some(first) = Known::all(&sums, FIRST) else {
        return Vec::new();
    };
    let longest = first.iter().map(|known| known.factors.0.len()).max().unwrap_or(0).max(1);
    let closely = LazyCell::new(|| Known::all(&sums, CLOSELY.min(TERMS / longest).max(FIRST)));
    let readings = LazyCell::new(|| fields::readings(scene, &sums));
    let (mut whole, mut some) = (Vec::new(), Vec::new());
    for (what, terms) in others(scene, &sums) {
        if scene.over() {
            break;
        }
        let Some(fit) = Fit::new(scene, &terms, &first) else { continue };
        let law = |what: String, taken: Option<(Groups, Vec<bool>)>| {
            let (sums, terms) = (sums.clone(), terms.clone());
            let parameters = taken.as_ref().map_or(0, |(_, taken)| taken.iter().filter(|t| **t).count());
            Law::new(what, parameters, move |row: &RowAt| Some(altered(scene, &sums, &terms, taken.as_ref(), row)))
        };
        if fit.is_whole() {
            let reads = readings.get(&what).cloned();
            whole.push(Law { reads, ..law(what, None) });
            continue;
        }
        let (longest, kinds) = sums.kinds(fit.longest(), first.len());
        let few = |k: &&Groups| k.count(longest) <= ROUGH && !matches!(k, Groups::Dealt { .. });
        let mut rough = kinds.iter().filter(few).rev().take(3);
        if !rough.any(|kind| fit.promises(*kind, longest)) {
            continue;
        }
        let Some(closely) = &*closely else { continue };
        let Some(fit) = Fit::new(scene, &terms, closely) else { continue };
        let (longest, kinds) = sums.kinds(fit.longest(), closely.len());
        let near = fit.near(longest);
        for kind in kinds.into_iter().chain(near) {
            let Some(taken) = fit.taken(kind, longest) else { continue };
            let same: Vec<usize> = (0..taken.len()).filter(|g| taken[*g]).collect();
            let at = which(scene, kind, &same, longest);
            some.push(law(format!("{what}, at {}", at.trim_end_matches(',')), Some((kind, taken))));
        }
    }
    whole.into_iter().chain(some).collect()
}

fn altered(
    scene: &Scene<'_>, sums: &Sums<'_>, terms: &Terms<'_>, taken: Option<&(Groups, Vec<bool>)>, row: &RowAt,
) -> Row {
    let (_, want, bound) = scene.e.row(row);
    let value = |(i, want): (usize, &f64)| {
        let Some((a, b)) = sums.factors(row, i) else { return f64::NAN };
        let Some(other) = terms(row, i, &a, &b) else { return f64::NAN };
        let n = other.len();
        let takes = |k: usize| taken.is_none_or(|(kind, taken)| taken.get(kind.of(k, n)).is_some_and(|t| *t));
        want + (0..n).filter(|k| takes(*k)).map(|k| other[k] - a[k] * b[k]).sum::<f64>()
    };
    Row { value: want.iter().enumerate().map(value).collect(), bound: bound.to_vec() }
}

/// A wrong element with the right factors of its terms.
struct Known {
    at: At,
    factors: (Vec<f64>, Vec<f64>),
}

impl Known {
    /// So many at most; `None` where some have no terms at hand.
    fn all(sums: &Sums<'_>, most: usize) -> Option<Vec<Self>> {
        let known = |at: At| Some(Self { at, factors: sums.factors(&sums.scene.e.rows[at.0], at.1)? });
        sums.sample(most).into_iter().map(known).collect()
    }
}

/// Errors of elements, in units of their bounds, and what another way to make the terms would change of each term.
struct Fit<'a> {
    scene: &'a Scene<'a>,
    errors: Vec<f64>,
    changes: Vec<Vec<f64>>,
}

impl<'a> Fit<'a> {
    fn new(scene: &'a Scene<'a>, terms: &Terms<'_>, of: &[Known]) -> Option<Self> {
        let (mut errors, mut changes) = (Vec::new(), Vec::new());
        for Known { at: (r, i), factors: (a, b) } in of {
            let (got, want, bound) = scene.element((*r, *i));
            let weight = 1.0 / f64::from(bound).max(f64::MIN_POSITIVE);
            // Another token may not exist.
            scene.count(EACH * b.len());
            let Some(mut other) = terms(&scene.e.rows[*r], *i, a, b) else { continue };
            errors.push((got - want) * weight);
            other.iter_mut().zip(a.iter().zip(b)).for_each(|(o, (a, b))| *o = (*o - a * b) * weight);
            changes.push(other);
        }
        (errors.len() * 2 >= of.len() && errors.len() >= 2).then_some(Self { scene, errors, changes })
    }

    fn longest(&self) -> usize {
        self.changes.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Whether all terms are so.
    fn is_whole(&self) -> bool {
        let sums = self.changes.iter().map(|c| c.iter().sum::<f64>());
        let (mut es, mut ss) = (0.0, 0.0);
        for (e, s) in self.errors.iter().zip(sums) {
            (es, ss) = (es + e * s, ss + s * s);
        }
        ss > 0.0 && (es / ss - 1.0).abs() < 0.02
    }

    /// The sums of the changes in each group.
    fn rows(&self, kind: Groups, terms: usize) -> Vec<Vec<f64>> {
        let count = kind.count(terms);
        // The sums, and what fitting them takes.
        self.scene.count(self.changes.len() * (2 * terms + count * count));
        self.changes.iter().map(|changes| kind.sums(changes, count)).collect()
    }

    /// Whether groups, each fitted alone, give much of the error, and fitted together leave little of it.
    fn promises(&self, kind: Groups, terms: usize) -> bool {
        let rows = self.rows(kind, terms);
        self.given(&rows) > GIVEN && self.left(&rows) < LEFT
    }

    /// The share of the error that the groups give, each fitted alone.
    fn given(&self, rows: &[Vec<f64>]) -> f64 {
        let mut of = vec![(0f64, 0f64); rows.first().map_or(0, Vec::len)];
        for (row, e) in rows.iter().zip(&self.errors) {
            for (sum, v) in of.iter_mut().zip(row) {
                *sum = (sum.0 + e * v, sum.1 + v * v);
            }
        }
        let given = of.iter().filter(|(_, vv)| *vv > 0.0).map(|(ev, vv)| ev * ev / vv).sum::<f64>();
        given / self.errors.iter().map(|e| e * e).sum::<f64>().max(f64::MIN_POSITIVE)
    }

    /// Single terms, and small groups of them, about where they explain most.
    fn near(&self, terms: usize) -> Vec<Groups> {
        let run = terms.next_power_of_two() / ROUGH;
        if run < 2 {
            return Vec::new();
        }
        // How far the error falls if a run takes part.
        let rows = self.rows(Groups::Runs(run), terms);
        let gain = |g: usize| {
            let of = |(row, e): (&Vec<f64>, &f64)| e * e - (e - row[g]).powi(2);
            rows.iter().zip(&self.errors).map(of).sum::<f64>()
        };
        let best = (0..terms.div_ceil(run)).max_by(|a, b| gain(*a).total_cmp(&gain(*b)));
        let from = best.map_or(0, |g| (g * run).saturating_sub(run / 2));
        let sizes = [1, 2, 4, 8, 16].into_iter().filter(|n| *n < run && 2 * run / n <= 128);
        sizes.map(|n| Groups::Near { from, len: 2 * run, run: n }).collect()
    }

    /// The share of the error that is left when the groups are fitted together.
    fn left(&self, rows: &[Vec<f64>]) -> f64 {
        let Some(c) = least_squares(rows, &self.errors) else { return 1.0 };
        let left = |(row, e): (&Vec<f64>, &f64)| (e - row.iter().zip(&c).map(|(r, c)| r * c).sum::<f64>()).powi(2);
        let left: f64 = rows.iter().zip(&self.errors).map(left).sum();
        let free = 1.0 - c.len() as f64 / self.errors.len() as f64;
        left / (free.max(0.05) * self.errors.iter().map(|e| e * e).sum::<f64>()).max(f64::MIN_POSITIVE)
    }

    /// Which groups take part, if each does or does not.
    fn taken(&self, kind: Groups, terms: usize) -> Option<Vec<bool>> {
        let rows = self.rows(kind, terms);
        let c = least_squares(&rows, &self.errors)?;
        // A group that changes no element beyond its bound shows neither.
        let shows = |g: usize| rows.iter().any(|row| row.get(g).is_some_and(|v| v.abs() > 1.0));
        let mut taken = Vec::with_capacity(c.len());
        for (g, c) in c.iter().enumerate() {
            let yes = (c - 1.0).abs() < 0.25;
            if !yes && c.abs() >= 0.25 && shows(g) {
                return None;
            }
            taken.push(yes && shows(g));
        }
        let others = matches!(kind, Groups::Near { .. }) && taken[0];
        (taken.contains(&true) && !others).then_some(taken)
    }
}
