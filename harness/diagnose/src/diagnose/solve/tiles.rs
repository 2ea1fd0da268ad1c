//! The context as attention in tiles makes it: a running maximum, a running sum, and a result so far that must be rescaled
//! when the maximum moves. What becomes of it if one of them is not.
//!
//! The scores are those that the subject gave; `o = Σ e^(s_k − m) v_k / l`, tile by tile.

use super::rounded::HALVES;
use super::scene::Scene;
use super::splits::Parts;
use super::terms::{Sums, grouped};
use super::{Law, Row, keys};
use crate::verdict::RowAt;
use qdiff_engine::ops::anatomy::{Contraction, RowReduction};
use qdiff_engine::ops::{Anatomy, Attention, UNIT};
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
    /// All but the last tile.
    WithoutLast,
    /// All but the first tile.
    WithoutFirst,
}

const JOINED: [(Joined, &str); 9] = [
    (Joined::Result, "the result so far is not rescaled when the maximum moves"),
    (Joined::Neither, "neither sum nor result are rescaled when the maximum moves"),
    (Joined::Sum, "the sum is not rescaled when the maximum moves, the result is"),
    (Joined::Mean, "the results of the tiles are put together as if each had the same sum"),
    (Joined::Added, "the results of the tiles are added up, each divided by its own sum"),
    (Joined::Last, "the last tile's result alone is there instead"),
    (Joined::First, "the first tile's result alone is there instead"),
    (Joined::WithoutLast, "the last tile is left out of sum and result"),
    (Joined::WithoutFirst, "the first tile is left out of sum and result"),
];

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let (Anatomy::Contraction(Contraction::Context(attention)), Some(sums)) =
        (scene.node().op.anatomy(), Sums::new(scene))
    else {
        return Vec::new();
    };
    let sums = Rc::new(sums);
    let all = Parts::ALL.into_iter().flat_map(|parts| JOINED.map(|joined| (parts, joined)));
    let mut laws: Vec<Law<'a>> = all
        .map(|(parts, (joined, what))| {
            let sums = sums.clone();
            let what = match parts {
                Parts::Tiles(_) => what.to_owned(),
                Parts::Splits(_) => what.replace("tile", "split"),
            };
            Law::new(format!("{what}, {}", parts.told()), 1, move |row: &RowAt| {
                let (keys, tile) = (row.place.position + 1, parts.len(row.place.position + 1));
                // What fits into one tile is put together with nothing.
                if keys <= tile {
                    return None;
                }
                context(scene, attention, &sums, row, |s, v| (joined_up(s, v, tile, joined), beside(s, v, joined)))
            })
        })
        .collect();
    let what = "it is made of the softmax of the captured scores, not of the weights that were captured";
    let plain = sums.clone();
    laws.push(Law::new(what, 0, move |row: &RowAt| {
        context(scene, attention, &plain, row, |s, v| (joined_up(s, v, usize::MAX, Joined::Sum), 0.0))
    }));
    let tiles = [usize::MAX, 256, 128, 64, 32, 16, 8, 4, 2, 1];
    let all = HALVES.into_iter().flat_map(|format| tiles.map(|tile| (format, tile)));
    laws.extend(all.flat_map(|((name, round), tile)| [false, true].map(|of_sum| (name, round, tile, of_sum))).map(
        |(name, round, tile, of_sum)| {
            let sums = sums.clone();
            let tiles = if tile == usize::MAX { String::new() } else { format!(", in tiles of {tile} keys") };
            let sum = if of_sum { ", as in their sum" } else { ", and not in their sum" };
            let what =
                format!("exponentials are rounded to {name} before they are multiplied with the values{sum}{tiles}");
            Law::new(what, 1, move |row: &RowAt| {
                context(scene, attention, &sums, row, |s, v| rounded(s, v, tile, round, of_sum))
            })
        },
    ));
    laws
}

/// A row of which each element is made of scaled scores and values, with how far it may be off for roundings that go
/// either way.
fn context(
    scene: &Scene<'_>, attention: &Attention, sums: &Sums<'_>, row: &RowAt, made: impl Fn(&[f64], &[f64]) -> (f64, f64),
) -> Option<Row> {
    let graph = &scene.e.oracle.graph;
    let weights = &graph.nodes[scene.node().inputs[0]];
    let Anatomy::RowReduction(RowReduction::Exponentials(softmax)) = weights.op.anatomy() else { return None };
    let (got, _, bound) = scene.e.row(row);
    let (token, from) = scene.token(row);
    let mut value = vec![(f64::NAN, 0.0); got.len()];
    let (mut known, mut scores) = (usize::MAX, Vec::new());
    for (i, value) in value.iter_mut().enumerate() {
        let head = (from + i) / attention.head_dim;
        if head != known {
            scores = keys::of_weights(scene, weights, softmax.scale, row.step, token, head)?;
            known = head;
        }
        let v = sums.right(row, i, grouped, |at, _| at)?;
        *value = made(scores.get(..v.len())?, &v);
    }
    let reach = |((v, either), b): (&(f64, f64), &f32)| b + (either + 32.0 * UNIT * v.abs()) as f32;
    Some(Row { bound: value.iter().zip(bound).map(reach).collect(), value: value.iter().map(|(v, _)| *v).collect() })
}

/// With every exponential rounded, of the distance from the largest score up to its own tile, as the result is rescaled.
fn rounded(s: &[f64], v: &[f64], tile: usize, round: fn(f64) -> f64, of_sum: bool) -> (f64, f64) {
    let (mut top, mut sum, mut result, mut either) = (f64::NEG_INFINITY, 0.0, 0.0, 0.0);
    for (s, v) in s.chunks(tile).zip(v.chunks(tile)) {
        let new = s.iter().copied().fold(top, f64::max);
        let by = if top == f64::NEG_INFINITY { 0.0 } else { (top - new).exp() };
        (sum, result, either, top) = (sum * by, result * by, either * by, new);
        for (s, v) in s.iter().zip(v) {
            let e = (s - new).exp();
            let off = e * UNIT * (8.0 + 2.0 * s.abs() + 2.0 * new.abs());
            let step = round(e + off) - round(e - off);
            result += round(e) * v;
            sum += if of_sum { round(e) } else { e };
            either += step * (v.abs() + if of_sum { result.abs() / sum } else { 0.0 });
        }
    }
    (result / sum, either / sum)
}

/// How far a result is off that takes tiles of small weight for as much as others: their weights are as uncertain as those
/// of any.
fn beside(s: &[f64], v: &[f64], joined: Joined) -> f64 {
    let size = |of: &[f64]| of.iter().fold(0f64, |m, v| m.max(v.abs()));
    match joined {
        Joined::Mean | Joined::Added | Joined::Last | Joined::First => UNIT * (8.0 + 2.0 * size(s)) * size(v),
        _ => 0.0,
    }
}

fn joined_up(s: &[f64], v: &[f64], tile: usize, joined: Joined) -> f64 {
    let largest = |s: &[f64]| s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let (mut top, mut sum, mut result) = (f64::NEG_INFINITY, 0.0, 0.0);
    let mut own = Vec::new();
    // Whole tiles before or after.
    let (s, v) = match joined {
        Joined::WithoutLast => (&s[..(s.len() - 1) / tile * tile], &v[..(s.len() - 1) / tile * tile]),
        Joined::WithoutFirst => (&s[tile.min(s.len())..], &v[tile.min(s.len())..]),
        _ => (s, v),
    };
    for (s, v) in s.chunks(tile).zip(v.chunks(tile)) {
        let new = top.max(largest(s));
        let rescale = if top == f64::NEG_INFINITY { 0.0 } else { (top - new).exp() };
        let (of_sum, of_result) = match joined {
            Joined::Result => (rescale, 1.0),
            Joined::Neither => (1.0, 1.0),
            Joined::Sum => (1.0, rescale),
            Joined::Mean
            | Joined::Added
            | Joined::Last
            | Joined::First
            | Joined::WithoutLast
            | Joined::WithoutFirst => (rescale, rescale),
        };
        sum = sum * of_sum + s.iter().map(|s| (s - new).exp()).sum::<f64>();
        result = result * of_result + s.iter().zip(v).map(|(s, v)| (s - new).exp() * v).sum::<f64>();
        top = new;
        let m = largest(s);
        let (a, b) = s.iter().zip(v).fold((0.0, 0.0), |(a, b), (s, v)| (a + (s - m).exp(), b + (s - m).exp() * v));
        own.push(b / a);
    }
    match joined {
        Joined::Result | Joined::Neither | Joined::Sum | Joined::WithoutLast | Joined::WithoutFirst => result / sum,
        Joined::Mean => own.iter().sum::<f64>() / own.len() as f64,
        Joined::Added => own.iter().sum(),
        Joined::Last => own.last().copied().unwrap_or(f64::NAN),
        Joined::First => own.first().copied().unwrap_or(f64::NAN),
    }
}
