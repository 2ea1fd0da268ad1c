//! Scores that are not made: the mask of a kernel, or the loops that go over its tiles, leave keys out by a rule of the keys that
//! a query sees. What the memory held before, or was cleared to, is there instead.

use super::attended::{Keys, Seats};
use super::form::Form;
use super::scene::Scene;
use super::{Alternative, Law, Row};
use crate::verdict::RowAt;
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::Contraction;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// Scores of these keys alone are made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Unmade {
    /// The keys.
    pub(super) keys: Keys,
    /// What is there for all others.
    pub(super) value: f64,
}

impl Unmade {
    /// What a row would be.
    pub(super) fn on<'a>(&self, scene: &'a Scene<'a>) -> Option<Alternative<'a>> {
        let Self { keys, value } = *self;
        let (seats, shared) = (Seats::of(scene.e.side.capture), heads_of_one(scene));
        is_of_scores(scene).then(|| -> Alternative<'a> {
            Box::new(move |row: &RowAt| {
                let (_, want, bound) = scene.e.row(row);
                let seat = seats.at(row.place.position, want.len()).of_line(row.place.head.unwrap_or(0), shared);
                let made: Vec<bool> = (0..want.len()).map(|k| keys.has(k, seat)).collect();
                Some(Row {
                    value: made.iter().zip(want).map(|(made, want)| if *made { *want } else { value }).collect(),
                    bound: made.iter().zip(bound).map(|(made, bound)| if *made { *bound } else { 0.0 }).collect(),
                })
            })
        })
    }
}

impl fmt::Display for Unmade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { keys, value } = self;
        write!(f, "the scores of other keys than these are not made, and {value} is there instead: {keys}")
    }
}

/// Query heads that share a head of the cache.
fn heads_of_one(scene: &Scene<'_>) -> usize {
    match scene.node().op.anatomy() {
        Anatomy::Contraction(Contraction::Scores(attention)) => attention.n_heads / attention.n_kv_heads.max(1),
        _ => 1,
    }
}

fn is_of_scores(scene: &Scene<'_>) -> bool {
    matches!(scene.node().op.anatomy(), Anatomy::Contraction(Contraction::Scores(_)))
}

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let Some(&first) = scene.fit.first().filter(|_| is_of_scores(scene)) else { return Vec::new() };
    let value = scene.element(first).0;
    if scene.fit.iter().any(|at| scene.element(*at).0 != value) {
        return Vec::new();
    }
    let capture = scene.e.side.capture;
    let seats = Seats::of(capture);
    // Keys that are left out of some rows, and how many a window, or the first ones, must be.
    let (mut left_out, mut window, mut ahead) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for &r in scene.rows.iter().filter(|&&r| scene.wrong_in(r)) {
        let row = &scene.e.rows[r];
        let (keys, position) = (scene.wrong_of(row), row.place.position);
        let seen = |k: &usize| !keys.contains(k);
        // A row of which nothing is made is no matter of keys.
        if position > 0 && !(0..=position).any(|k| seen(&k)) {
            return Vec::new();
        }
        window.extend((0..=position).find(seen).map(|k| position + 1 - k));
        ahead.extend((0..=position).rfind(seen).map(|k| k + 1));
        let seat = seats.at(position, row.range.len()).of_line(row.place.head.unwrap_or(0), heads_of_one(scene));
        left_out.push((seat, keys));
    }
    // What differs from row to row is a number of none of them.
    let reach: Vec<usize> = [window, ahead].into_iter().filter(|all| all.len() == 1).flatten().collect();
    let in_tiles = left_out.iter().any(|(seat, _)| !seat.is_alone());
    let leaves_out = |keys: &Keys| {
        // A rule by the key's number or distance is reported as such.
        if keys.are_of_numbers() || keys.are_of_queries() && !in_tiles || keys.are_of_lines() && heads_of_one(scene) < 2
        {
            return false;
        }
        scene.count(left_out.len() * 64);
        // It leaves out these and no others.
        left_out.iter().all(|(seat, out)| (0..=seat.position()).all(|k| keys.has(k, *seat) != out.contains(&k)))
    };
    let all = Keys::all(capture, &reach).into_iter().filter(leaves_out);
    all.filter_map(|keys| Law::of(Form::Unmade(Unmade { keys, value }), scene)).collect()
}
