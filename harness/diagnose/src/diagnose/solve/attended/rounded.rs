//! What a kernel of attention rounds, and to what.

use super::parts::largest;
use super::queries::{Query, half, over};
use qdiff_engine::ops::UNIT;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What is rounded, and to which of the halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Rounded {
    /// Exponentials before they are multiplied with the values.
    Exponentials {
        /// The format.
        to: Half,
        /// Keys of a tile, whose largest score so far is taken off; 0 for all keys.
        tile: usize,
        /// In their sum as well.
        sum: bool,
    },
    /// The same, to multiples of one over a number, and not in their sum.
    Steps {
        /// The number.
        of: u8,
        /// Whether they are cut off; else rounded to the nearest one.
        cut: bool,
        /// Keys of a tile, whose largest score so far is taken off; 0 for all keys.
        tile: usize,
    },
    /// Weights, once they are divided by their sum.
    Weights(Half),
    /// The result after each tile.
    Result {
        /// The format.
        to: Half,
        /// Keys of a tile; 0 for all keys, or all of a split.
        tile: usize,
        /// Whether the share of a tile is rounded before it is added.
        share: bool,
    },
    /// Scores, once they are scaled or before.
    Scores(Half, bool),
    /// Queries, once they are scaled or before.
    Queries(Half, bool),
    /// Keys.
    Keys(Half),
    /// Values.
    Values(Half),
}

/// A format of half as many bits as f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Half {
    /// bf16.
    Bf16,
    /// f16.
    F16,
}

impl Half {
    pub(in super::super) const ALL: [Self; 2] = [Self::Bf16, Self::F16];

    pub(in super::super) fn round(self, x: f64) -> f64 {
        half(self as usize).1(x)
    }

    pub(in super::super) fn name(self) -> &'static str {
        half(self as usize).0
    }

    /// How far a value moves that is known to `off` alone.
    pub(in super::super) fn either(self, x: f64, off: f64) -> f64 {
        (self.round(x + off) - self.round(x - off)).abs()
    }
}

impl Rounded {
    pub(super) fn all() -> Vec<Self> {
        let tiles = [0, 256, 128, 64, 32, 16, 8, 4, 2, 1];
        let mut all = Vec::new();
        for to in Half::ALL {
            let of = |tile: usize| [false, true].map(|sum| Self::Exponentials { to, tile, sum });
            all.extend(tiles.into_iter().flat_map(of));
            all.push(Self::Weights(to));
            all.extend([true, false].map(|scaled| Self::Scores(to, scaled)));
            all.extend([false, true].map(|scaled| Self::Queries(to, scaled)));
            all.extend([Self::Keys(to), Self::Values(to)]);
            let of = |tile: usize| [false, true].map(|share| Self::Result { to, tile, share });
            all.extend(of(0).into_iter().take(1));
            all.extend(tiles[1..].iter().copied().flat_map(of));
        }
        let steps = [255, 127, 15].into_iter().flat_map(|of| [true, false].map(|cut| (of, cut)));
        all.extend(steps.flat_map(|(of, cut)| tiles.map(|tile| Self::Steps { of, cut, tile })));
        all
    }

    /// Weights with it, and how far each may be off.
    pub(super) fn weights(self, query: &Query) -> (Vec<f64>, Vec<f64>) {
        let seen = &query.s[..=query.seat.position];
        let top = largest(seen);
        let relative = |s: f64, top: f64| UNIT * (8.0 + 2.0 * s.abs() + 2.0 * top.abs()) + query.off;
        let plain = || over(seen, |_| true);
        match self {
            Self::Exponentials { to, tile, sum } => {
                divided(exponentials(seen, query.off, (&|e| to.round(e), tile, sum)))
            }
            Self::Steps { of, cut, tile } => {
                let of = f64::from(of);
                let round = |e: f64| if cut { (e * of).floor() / of } else { (e * of).round() / of };
                divided(exponentials(seen, query.off, (&round, tile, false)))
            }
            Self::Weights(to) => {
                let w = plain();
                let either = w.iter().zip(seen).map(|(w, s)| to.either(*w, w * relative(*s, top))).collect();
                (w.into_iter().map(|w| to.round(w)).collect(), either)
            }
            Self::Scores(to, scaled) => {
                // A factor that is no power of two: what is rounded is the scaled score or the product.
                let by = if scaled { 1.0 } else { query.scale };
                let rounded: Vec<f64> = seen.iter().map(|s| to.round(s / by) * by).collect();
                let moved: Vec<f64> =
                    seen.iter().map(|s| to.either(s / by, (query.off + UNIT * s.abs()) / by) * by).collect();
                let w = over(&rounded, |_| true);
                let either = w.iter().zip(moved).map(|(w, moved)| 2.0 * w * moved).collect();
                (w, either)
            }
            Self::Result { .. } | Self::Queries(..) | Self::Keys(_) | Self::Values(_) => (plain(), Vec::new()),
        }
    }
}

/// Exponentials and how far each may be off, divided by their sum.
fn divided((mut w, mut either, total): (Vec<f64>, Vec<f64>, f64)) -> (Vec<f64>, Vec<f64>) {
    w.iter_mut().chain(&mut either).for_each(|v| *v /= total);
    (w, either)
}

/// Exponentials that are rounded, of the distance from the largest score up to their own tile, and brought to that of all;
/// how far each may be off; and their sum.
pub(super) fn exponentials(
    s: &[f64], off: f64, (round, tile, of_sum): (&dyn Fn(f64) -> f64, usize, bool),
) -> (Vec<f64>, Vec<f64>, f64) {
    let (mut before, mut sum) = (f64::NEG_INFINITY, 0.0);
    let (mut w, mut either): (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
    for part in s.chunks(if tile == 0 { s.len() } else { tile }) {
        let new = part.iter().copied().fold(before, f64::max);
        let by = if w.is_empty() { 0.0 } else { (before - new).exp() };
        w.iter_mut().chain(&mut either).for_each(|v| *v *= by);
        sum *= by;
        for s in part {
            let (e, relative) = ((s - new).exp(), UNIT * (8.0 + 2.0 * s.abs() + 2.0 * new.abs()) + off);
            w.push(round(e));
            let reach = (round(e * (1.0 + relative)) - round(e * (1.0 - relative))).abs();
            either.push(reach * if of_sum { 2.0 } else { 1.0 });
            sum += if of_sum { round(e) } else { e };
        }
        before = new;
    }
    (w, either, sum)
}

/// A result of these scores and values that is rounded after each tile, how far it may be off, and their sum.
fn in_tiles(s: &[f64], v: &[f64], (to, tile, share): (Half, usize, bool), relative: f64) -> (f64, f64, f64) {
    let (mut top, mut sum, mut result, mut off) = (f64::NEG_INFINITY, 0.0, 0.0, 0.0);
    let tile = if tile == 0 { s.len().max(1) } else { tile };
    for (s, v) in s.chunks(tile).zip(v.chunks(tile)) {
        let new = s.iter().copied().fold(top, f64::max);
        let by = if top == f64::NEG_INFINITY { 0.0 } else { (top - new).exp() };
        let (mut own, mut size) = (0.0, 0.0);
        sum *= by;
        for (s, v) in s.iter().zip(v) {
            let e = (s - new).exp();
            sum += e;
            own += e * v;
            size += (e * v).abs();
        }
        let mut either = 0.0;
        if share {
            either += to.either(own, relative * size);
            own = to.round(own);
        }
        let before = result * by + own;
        let noise = relative * (size + (result * by).abs()) + off * by + either;
        result = to.round(before);
        off = off * by + either + to.either(before, noise);
        top = new;
    }
    (result, off, sum)
}

/// The same of splits that are put together right; the result, divided.
pub(super) fn in_splits(
    query: &Query, v: &[f64], ends: &[usize], of: (Half, usize, bool), relative: f64,
) -> (f64, f64) {
    let seen = &query.s[..=query.seat.position];
    let (top, mut from, mut all) = (largest(seen), 0, (0.0, 0.0, 0.0));
    for &end in ends {
        let part = from..end;
        let by = (largest(&seen[part.clone()]) - top).exp();
        let (result, off, sum) = in_tiles(&seen[part.clone()], &v[part], of, relative);
        all = (all.0 + by * result, all.1 + by * off, all.2 + by * sum);
        from = end;
    }
    let value = all.0 / all.2;
    (value, all.1 / all.2 + 2.0 * relative * value.abs())
}

impl fmt::Display for Rounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let once = |scaled: bool| if scaled { "once they are scaled" } else { "before they are scaled" };
        match self {
            Self::Exponentials { to, tile, sum } => {
                let tiles = if *tile == 0 { String::new() } else { format!(", in tiles of {tile} keys") };
                let sum = if *sum { ", as in their sum" } else { ", and not in their sum" };
                let to = to.name();
                write!(f, "exponentials are rounded to {to}{sum}{tiles}")
            }
            Self::Steps { of, cut, tile } => {
                let tiles = if *tile == 0 { String::new() } else { format!(", in tiles of {tile} keys") };
                let how = if *cut { "cut off" } else { "rounded" };
                write!(f, "exponentials are {how} to multiples of 1/{of}, and not in their sum{tiles}")
            }
            Self::Weights(to) => {
                write!(f, "weights are rounded to {} before they are multiplied with the values", to.name())
            }
            Self::Result { to, tile: 0, .. } => {
                write!(f, "the sum of the weighted values is rounded to {}, before it is divided", to.name())
            }
            Self::Result { to, tile, share } => {
                let share = if *share { ", as each tile's share is before it is added" } else { "" };
                write!(f, "the result so far is rounded to {} after each tile of {tile} keys{share}", to.name())
            }
            Self::Scores(to, scaled) => write!(f, "scores are rounded to {} {}", to.name(), once(*scaled)),
            Self::Queries(to, scaled) => {
                let once = if *scaled { "once they are scaled, before" } else { "before" };
                write!(f, "queries are rounded to {} {once} they are multiplied with the keys", to.name())
            }
            Self::Keys(to) => {
                write!(f, "keys are rounded to {} before they are multiplied with the queries", to.name())
            }
            Self::Values(to) => {
                write!(f, "values are rounded to {} before they are multiplied with the weights", to.name())
            }
        }
    }
}
