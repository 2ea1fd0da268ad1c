//! A term of low rank: to every row a combination of the same few vectors is added, as an adapter that nobody asked for adds
//! it, or one input that meets another weight.
//!
//! The vectors are read off the errors of some rows, the one that is furthest off first; the errors of every other row must
//! be a combination of them. What the factors of a row are made of is not told: for that a run has too few tokens.

use super::scene::Scene;
use super::{Alternative, Form, Law, Row};
use crate::verdict::RowAt;
use qdiff_engine::ops::UNIT;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Vectors at most.
const MOST: usize = 4;

/// Elements of a row: so many for each vector at least, and no more than these in all.
const EACH: usize = 16;
const WIDEST: usize = 8192;

/// Vectors that are orthogonal, of unit length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Rank {
    vectors: Vec<Vec<f64>>,
}

impl Rank {
    /// Numbers that were read off the wrong elements: in a row one for each vector is.
    pub(super) fn parameters(&self) -> usize {
        self.vectors.len()
    }

    /// What a row would be.
    pub(super) fn on<'a>(&self, scene: &'a Scene<'a>) -> Option<Alternative<'a>> {
        let vectors = self.vectors.clone();
        Some(Box::new(move |row: &RowAt| {
            let (_, want, bound) = scene.e.row(row);
            let mut left = error(scene, row)?;
            if left.len() != vectors.first()?.len() {
                return None;
            }
            scene.count(2 * left.len() * vectors.len());
            let error = left.clone();
            vectors.iter().for_each(|vector| take_off(&mut left, vector));
            let value: Vec<f64> = (0..want.len()).map(|i| want[i] + error[i] - left[i]).collect();
            // The vectors are as uncertain as the rows that they were read off.
            let reach = |i: usize| bound[i] * (1 + vectors.len()) as f32 + (UNIT * value[i].abs()) as f32;
            Some(Row { bound: (0..want.len()).map(reach).collect(), value })
        }))
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.vectors.len() {
            1 => f.write_str("to every row a multiple of one vector is added, the same vector for all tokens"),
            n => write!(f, "to every row a combination of {n} vectors is added, the same vectors for all tokens"),
        }?;
        f.write_str(": a term of low rank")
    }
}

/// How far off a row is; nothing where that is no number.
fn error(scene: &Scene<'_>, row: &RowAt) -> Option<Vec<f64>> {
    let (got, want, _) = scene.e.row(row);
    let all: Vec<f64> = got.iter().zip(want).map(|(g, w)| f64::from(*g) - w).collect();
    all.iter().all(|v| v.is_finite()).then_some(all)
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Takes off what a vector of unit length gives.
fn take_off(from: &mut [f64], vector: &[f64]) {
    let by = dot(from, vector);
    from.iter_mut().zip(vector).for_each(|(v, u)| *v -= by * u);
}

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let width = scene.width().unwrap_or(0);
    if !scene.node().op.anatomy().is_layer() || width > WIDEST {
        return Vec::new();
    }
    let rows: Vec<usize> = scene.rows.iter().copied().filter(|&r| scene.wrong_in(r) && scene.fitted(r, 0)).collect();
    let errors: Option<Vec<Vec<f64>>> = rows.iter().map(|&r| error(scene, &scene.e.rows[r])).collect();
    let Some(mut errors) = errors.filter(|all| all.len() > 2 * MOST) else { return Vec::new() };
    // The other elements of a row must predict most of its error.
    let wrong = rows.iter().map(|&r| scene.wrong_of(&scene.e.rows[r]).len()).max().unwrap_or(0);
    scene.count(errors.len() * width * MOST * 3);
    let size = |row: &Vec<f64>| dot(row, row);
    let first = errors.iter().map(size).fold(0f64, f64::max);
    let mut vectors: Vec<Vec<f64>> = Vec::new();
    let mut all = Vec::new();
    while vectors.len() < MOST.min(wrong / EACH) {
        let Some(largest) = errors.iter().max_by(|a, b| size(a).total_cmp(&size(b))) else { break };
        let length = size(largest).sqrt();
        if length <= 1e-12 * first.sqrt() {
            break;
        }
        let vector: Vec<f64> = largest.iter().map(|v| v / length).collect();
        errors.iter_mut().for_each(|row| take_off(row, &vector));
        vectors.push(vector);
        all.extend(Law::of(Form::Rank(Rank { vectors: vectors.clone() }), scene));
    }
    all
}
