//! The context as attention in tiles makes it: a running maximum, a running sum, and a result so far that must be rescaled
//! when the maximum moves. What becomes of it if one of them is not.
//!
//! The scores are those that the subject gave; `o = Σ e^(s_k − m) v_k / l`, tile by tile.

use super::scene::Scene;
use super::terms::{Sums, grouped};
use super::{Law, Row, keys};
use crate::verdict::RowAt;
use qdiff_engine::ops::{Attention, Op, UNIT};
use std::rc::Rc;

/// How a tile's share is put together with what came before.
#[derive(Clone, Copy)]
enum Joined {
    /// The result so far is not rescaled, the sum is.
    Result,
    /// Neither is.
    Neither,
    /// The sum is not rescaled, the result is.
    Sum,
    /// Each tile has its own softmax, and all count alike.
    Mean,
    /// Each tile has its own softmax, and they are added.
    Added,
    /// The last tile's softmax alone.
    Last,
    /// The first tile's alone.
    First,
}

const JOINED: [(Joined, &str); 7] = [
    (Joined::Result, "the result so far is not rescaled when the maximum moves"),
    (Joined::Neither, "neither sum nor result are rescaled when the maximum moves"),
    (Joined::Sum, "the sum is not rescaled when the maximum moves, the result is"),
    (Joined::Mean, "the results of the tiles are put together as if each had the same sum"),
    (Joined::Added, "the results of the tiles are added up, each divided by its own sum"),
    (Joined::Last, "the last tile's result alone stands there"),
    (Joined::First, "the first tile's result alone stands there"),
];

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let (Op::AttnContext(attention), Some(sums)) = (&scene.node().op, Sums::new(scene)) else {
        return Vec::new();
    };
    let sums = Rc::new(sums);
    let tiles = [1usize, 2, 4, 8, 16, 32, 64, 128];
    let all = tiles.into_iter().flat_map(|tile| JOINED.map(|joined| (tile, joined)));
    let mut laws: Vec<Law<'a>> = all
        .map(|(tile, (joined, what))| {
            let sums = sums.clone();
            Law::new(format!("{what}, in tiles of {tile} keys"), 1, move |row: &RowAt| {
                // What fits into one tile is put together with nothing.
                if row.place.position < tile {
                    return None;
                }
                context(scene, attention, &sums, row, tile, joined)
            })
        })
        .collect();
    let what = "it is made of the softmax of the captured scores, not of the weights that were captured";
    laws.push(Law::new(what, 0, move |row: &RowAt| context(scene, attention, &sums, row, usize::MAX, Joined::Sum)));
    laws
}

fn context(
    scene: &Scene<'_>, attention: &Attention, sums: &Sums<'_>, row: &RowAt, tile: usize, joined: Joined,
) -> Option<Row> {
    let graph = &scene.e.oracle.graph;
    let weights = &graph.nodes[scene.node().inputs[0]];
    let Op::AttnWeights(softmax) = &weights.op else { return None };
    let (got, _, bound) = scene.e.row(row);
    let (token, from) = scene.token(row);
    let mut value = vec![f64::NAN; got.len()];
    let (mut known, mut scores) = (usize::MAX, Vec::new());
    for (i, value) in value.iter_mut().enumerate() {
        let head = (from + i) / attention.head_dim;
        if head != known {
            scores = keys::of_weights(scene, weights, softmax.scale, row.step, token, head)?;
            known = head;
        }
        let v = sums.right(row, i, grouped, |at, _| at)?;
        *value = joined_up(scores.get(..v.len())?, &v, tile, joined);
    }
    let reach = |(v, b): (&f64, &f32)| b + (32.0 * UNIT * v.abs()) as f32;
    Some(Row { bound: value.iter().zip(bound).map(reach).collect(), value })
}

fn joined_up(s: &[f64], v: &[f64], tile: usize, joined: Joined) -> f64 {
    let largest = |s: &[f64]| s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let (mut top, mut sum, mut result) = (f64::NEG_INFINITY, 0.0, 0.0);
    let mut own = Vec::new();
    for (s, v) in s.chunks(tile).zip(v.chunks(tile)) {
        let new = top.max(largest(s));
        let rescale = if top == f64::NEG_INFINITY { 0.0 } else { (top - new).exp() };
        let (of_sum, of_result) = match joined {
            Joined::Result => (rescale, 1.0),
            Joined::Neither => (1.0, 1.0),
            Joined::Sum => (1.0, rescale),
            Joined::Mean | Joined::Added | Joined::Last | Joined::First => (rescale, rescale),
        };
        sum = sum * of_sum + s.iter().map(|s| (s - new).exp()).sum::<f64>();
        result = result * of_result + s.iter().zip(v).map(|(s, v)| (s - new).exp() * v).sum::<f64>();
        top = new;
        let m = largest(s);
        let (a, b) = s.iter().zip(v).fold((0.0, 0.0), |(a, b), (s, v)| (a + (s - m).exp(), b + (s - m).exp() * v));
        own.push(b / a);
    }
    match joined {
        Joined::Result | Joined::Neither | Joined::Sum => result / sum,
        Joined::Mean => own.iter().sum::<f64>() / own.len() as f64,
        Joined::Added => own.iter().sum(),
        Joined::Last => own.last().copied().unwrap_or(f64::NAN),
        Joined::First => own.first().copied().unwrap_or(f64::NAN),
    }
}
