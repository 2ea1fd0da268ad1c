//! Sums of products in splits: each gives a share of every output, and the shares are added. What becomes of the sum if
//! shares are rounded before that, or one of them is added twice or not at all.

use super::attended::Half;
use super::form::Form;
use super::held::allowed;
use super::scene::Scene;
use super::terms::Sums;
use super::{Alternative, At, Law, Row};
use crate::verdict::RowAt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::rc::Rc;

/// A sum in splits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Shares {
    /// How many.
    splits: usize,
    /// Each is a whole number of so many terms.
    tile: usize,
    /// What is otherwise.
    how: How,
}

/// What is otherwise of shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// Rounded before they are added.
    Rounded(Half),
    /// Rounded, and the sum after each as well.
    AsTheSum(Half),
    /// This one is added twice.
    Twice(usize),
    /// This one is not added.
    Lost(usize),
}

/// Elements that a law is tried on first.
const PROBES: usize = 8;

impl Shares {
    /// The sum of these terms, and how far it may be off where a rounding may go either way.
    fn of(self, terms: &[f64], off: f64) -> (f64, f64) {
        let len = terms.len().div_ceil(self.splits).next_multiple_of(self.tile).max(1);
        let shares = terms.chunks(len).map(|part| part.iter().sum::<f64>());
        match self.how {
            How::Rounded(to) => shares.fold((0.0, 0.0), |(v, e), s| (v + to.round(s), e + to.either(s, off))),
            How::AsTheSum(to) => shares.fold((0.0, 0.0), |(v, e), s| {
                let (sum, moved) = (v + to.round(s), e + to.either(s, off));
                (to.round(sum), moved + to.either(sum, off + moved))
            }),
            How::Twice(which) => (shares.enumerate().map(|(i, s)| if i == which { 2.0 * s } else { s }).sum(), 0.0),
            How::Lost(which) => (shares.enumerate().map(|(i, s)| if i == which { 0.0 } else { s }).sum(), 0.0),
        }
    }

    pub(super) fn on<'a>(self, scene: &'a Scene<'a>) -> Option<Alternative<'a>> {
        let sums = Rc::new(Sums::new(scene)?);
        let of_layer = scene.node().op.anatomy().multiplies_weights();
        of_layer.then(|| self.alternative(scene, sums))
    }

    fn alternative<'a>(self, scene: &'a Scene<'a>, sums: Rc<Sums<'a>>) -> Alternative<'a> {
        Box::new(move |row: &RowAt| {
            let (_, _, bound) = scene.e.row(row);
            let made = |i: usize| self.element(&sums, row, (i, f64::from(bound[i]))).unwrap_or((f64::NAN, 0.0));
            let all: Vec<(f64, f64)> = (0..bound.len()).map(made).collect();
            let reach = |((_, either), bound): (&(f64, f64), &f32)| bound + *either as f32;
            Some(Row {
                bound: all.iter().zip(bound).map(reach).collect(),
                value: all.iter().map(|(value, _)| *value).collect(),
            })
        })
    }

    fn element(self, sums: &Sums<'_>, row: &RowAt, (i, bound): (usize, f64)) -> Option<(f64, f64)> {
        let (a, b) = sums.factors(row, i)?;
        let terms: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a * b).collect();
        Some(self.of(&terms, bound))
    }

    fn all(terms: usize) -> Vec<Self> {
        let mut all = Vec::new();
        for splits in [2, 3, 4, 5, 6, 7, 8, 12, 16] {
            for tile in [1, 32, 64, 256].into_iter().filter(|tile| splits * tile <= terms) {
                let halves = Half::ALL.into_iter().flat_map(|to| [How::Rounded(to), How::AsTheSum(to)]);
                let shares = (0..splits).flat_map(|which| [How::Twice(which), How::Lost(which)]);
                all.extend(halves.chain(shares).map(|how| Self { splits, tile, how }));
            }
        }
        all
    }
}

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    if !scene.node().op.anatomy().multiplies_weights() {
        return Vec::new();
    }
    let Some(sums) = Sums::new(scene).map(Rc::new) else { return Vec::new() };
    let known = |at: At| -> Option<(At, Vec<f64>)> {
        let (a, b) = sums.factors(&scene.e.rows[at.0], at.1)?;
        Some((at, a.iter().zip(&b).map(|(a, b)| a * b).collect()))
    };
    let probes: Vec<(At, Vec<f64>)> = sums.sample(PROBES).into_iter().filter_map(known).collect();
    let Some(terms) = probes.iter().map(|(_, terms)| terms.len()).min() else { return Vec::new() };
    let gives = |shares: &Shares| {
        probes.iter().all(|(at, terms)| {
            let (got, _, bound) = scene.element(*at);
            let (value, either) = shares.of(terms, f64::from(bound));
            (got - value).abs() <= allowed(value, bound + either as f32) + scene.e.grain.reach(got as f32)
        })
    };
    let all = Shares::all(terms);
    scene.count(all.len() * terms * 2);
    let law = |shares: Shares| {
        let halves = matches!(shares.how, How::Rounded(Half::F16) | How::AsTheSum(Half::F16));
        let row = shares.alternative(scene, sums.clone());
        Law { row, form: Some(Form::Shares(shares)), halves, ..Law::new(shares.to_string(), 2, |_| None) }
    };
    all.into_iter().filter(gives).map(law).collect()
}

impl fmt::Display for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { splits, tile, how } = self;
        let of = match tile {
            1 => format!("{splits} splits"),
            tile => format!("{splits} splits of whole runs of {tile} terms"),
        };
        match how {
            How::Rounded(to) => {
                write!(f, "the sum is made in {of}, whose shares are rounded to {} and added", to.name())
            }
            How::AsTheSum(to) => {
                write!(f, "the sum is made in {of}; shares and their sum so far are rounded to {}", to.name())
            }
            How::Twice(which) => write!(f, "of {of} of the sum, the share of split {which} is added twice"),
            How::Lost(which) => write!(f, "of {of} of the sum, the share of split {which} is not added"),
        }
    }
}
