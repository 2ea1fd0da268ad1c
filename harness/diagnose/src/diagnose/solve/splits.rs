//! Softmax by tiles or splits of the keys: each has a maximum and a sum of its own, which must be brought to a common
//! maximum, `l = Σ l_t·e^(m_t − m)`, before weights are divided by it. What they become where that is done otherwise.
//!
//! A tile is a number of keys; splits are so many parts of the keys that a query sees, as long as each other but the last.

use super::scene::Scene;
use super::{Law, keys};
use crate::verdict::RowAt;
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::RowReduction;

/// How the keys fall into parts.
#[derive(Clone, Copy)]
pub(super) enum Parts {
    Tiles(usize),
    Splits(usize),
}

impl Parts {
    pub(super) const ALL: [Self; 16] = [
        Self::Tiles(1),
        Self::Tiles(2),
        Self::Tiles(4),
        Self::Tiles(8),
        Self::Tiles(16),
        Self::Tiles(32),
        Self::Tiles(64),
        Self::Tiles(128),
        Self::Tiles(256),
        Self::Splits(2),
        Self::Splits(3),
        Self::Splits(4),
        Self::Splits(5),
        Self::Splits(6),
        Self::Splits(7),
        Self::Splits(8),
    ];

    /// Keys of a part, of so many.
    pub(super) fn len(self, keys: usize) -> usize {
        match self {
            Self::Tiles(n) => n,
            Self::Splits(n) => keys.div_ceil(n).max(1),
        }
    }

    pub(super) fn told(self) -> String {
        match self {
            Self::Tiles(n) => format!("in tiles of {n} keys"),
            Self::Splits(n) => format!("in {n} splits of the keys"),
        }
    }
}

fn largest(s: &[f64]) -> f64 {
    s.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

/// What a sum is of a part's scores with a maximum taken off.
fn total(s: &[f64], top: f64) -> f64 {
    s.iter().map(|s| (s - top).exp()).sum()
}

/// The weights of the keys that are seen, of which so many make a part.
type Make = fn(&[f64], usize, f64) -> Vec<f64>;

/// Each key's own part.
fn by_part(s: &[f64], len: usize, f: impl Fn(&[f64], f64) -> f64) -> Vec<f64> {
    s.chunks(len).flat_map(|part| part.iter().map(|s| f(part, *s)).collect::<Vec<_>>()).collect()
}

/// Numerators with the right maximum over a sum.
fn over(s: &[f64], sum: f64) -> Vec<f64> {
    let top = largest(s);
    s.iter().map(|s| (s - top).exp() / sum).collect()
}

/// The sum so far rescaled by `f` of how far the maximum moves.
fn rescaled(s: &[f64], len: usize, f: impl Fn(f64) -> f64) -> f64 {
    let (mut top, mut sum) = (f64::NEG_INFINITY, 0.0);
    for part in s.chunks(len) {
        let new = top.max(largest(part));
        sum = if top == f64::NEG_INFINITY { 0.0 } else { sum * f(top - new) } + total(part, new);
        top = new;
    }
    sum
}

const MAKES: &[(&str, Make)] = &[
    ("each part's sum is added as it is, not rescaled from its own maximum to the row's", |s, len, _| {
        over(s, s.chunks(len).map(|part| total(part, largest(part))).sum())
    }),
    (
        "exponentials are of the distance from their own part's maximum, and the sum of that from the row's",
        |s, len, _| {
            let sum = total(s, largest(s));
            by_part(s, len, |part, s| (s - largest(part)).exp() / sum)
        },
    ),
    ("nothing is rescaled from a part's own maximum to the row's, exponentials and sum alike", |s, len, _| {
        let sum: f64 = s.chunks(len).map(|part| total(part, largest(part))).sum();
        by_part(s, len, |part, s| (s - largest(part)).exp() / sum)
    }),
    ("each part is divided by its own sum: a softmax of its own", |s, len, _| {
        by_part(s, len, |part, s| (s - largest(part)).exp() / total(part, largest(part)))
    }),
    ("each part is divided by its own sum, and by the number of parts", |s, len, _| {
        let parts = s.len().div_ceil(len) as f64;
        by_part(s, len, |part, s| (s - largest(part)).exp() / total(part, largest(part)) / parts)
    }),
    ("weights are divided by the sum of their own part alone", |s, len, _| {
        let top = largest(s);
        by_part(s, len, |part, s| (s - top).exp() / total(part, top))
    }),
    ("weights are divided by the sum so far, up to their own part", |s, len, _| {
        let (top, mut sum, mut all) = (largest(s), 0.0, Vec::with_capacity(s.len()));
        for part in s.chunks(len) {
            sum += total(part, top);
            all.extend(part.iter().map(|s| (s - top).exp() / sum));
        }
        all
    }),
    (
        "exponentials are of the largest score up to their own part and not rescaled when the maximum moves, as their sum is: the factor e^(m_old − m_new) is missing",
        |s, len, _| {
            let (mut top, sum, mut all) = (f64::NEG_INFINITY, total(s, largest(s)), Vec::with_capacity(s.len()));
            for part in s.chunks(len) {
                top = top.max(largest(part));
                all.extend(part.iter().map(|s| (s - top).exp() / sum));
            }
            all
        },
    ),
    (
        "neither exponentials nor sum so far are rescaled when the maximum moves: the factor e^(m_old − m_new) is missing",
        |s, len, _| {
            let (mut top, mut all) = (f64::NEG_INFINITY, Vec::with_capacity(s.len()));
            for part in s.chunks(len) {
                top = top.max(largest(part));
                all.extend(part.iter().map(|s| (s - top).exp()));
            }
            let sum: f64 = all.iter().sum();
            all.into_iter().map(|e| e / sum).collect()
        },
    ),
    ("the sum is that of the last part alone, with its own maximum", |s, len, _| {
        over(s, s.chunks(len).last().map_or(f64::NAN, |part| total(part, largest(part))))
    }),
    ("the sum is that of the last part alone", |s, len, _| {
        over(s, s.chunks(len).last().map_or(f64::NAN, |part| total(part, largest(s))))
    }),
    ("the sum is that of the first part alone, with its own maximum", |s, len, _| {
        over(s, s.chunks(len).next().map_or(f64::NAN, |part| total(part, largest(part))))
    }),
    ("the sum takes the first part's maximum off, exponentials the row's", |s, len, _| {
        over(s, total(s, largest(&s[..len.min(s.len())])))
    }),
    ("the sum takes the last part's maximum off, exponentials the row's", |s, len, _| {
        over(s, s.chunks(len).last().map_or(f64::NAN, |part| total(s, largest(part))))
    }),
    ("exponentials take the last part's maximum off, the sum the row's", |s, len, _| {
        let by = s.chunks(len).last().map_or(f64::NAN, largest);
        let sum = total(s, largest(s));
        s.iter().map(|s| (s - by).exp() / sum).collect()
    }),
    ("exponentials take the first part's maximum off, the sum the row's", |s, len, _| {
        let (by, sum) = (largest(&s[..len.min(s.len())]), total(s, largest(s)));
        s.iter().map(|s| (s - by).exp() / sum).collect()
    }),
    ("the sum so far is rescaled the wrong way round, by e^(m_new − m_old)", |s, len, _| {
        over(s, rescaled(s, len, |by| (-by).exp()))
    }),
    ("the sum so far is rescaled by 2^(m_old − m_new) instead of e^(m_old − m_new)", |s, len, _| {
        over(s, rescaled(s, len, f64::exp2))
    }),
    ("the sum so far is rescaled twice when the maximum moves", |s, len, _| {
        over(s, rescaled(s, len, |by| (2.0 * by).exp()))
    }),
    ("the sum so far is dropped when the maximum moves", |s, len, _| {
        over(s, rescaled(s, len, |by| if by < 0.0 { 0.0 } else { 1.0 }))
    }),
    ("the sum so far is rescaled by the unscaled maxima", |s, len, scale| {
        over(s, rescaled(s, len, |by| (by / scale).exp()))
    }),
    ("the sum so far is rescaled by maxima that are scaled twice", |s, len, scale| {
        over(s, rescaled(s, len, |by| (by * scale).exp()))
    }),
    (
        "the factor by which the sum so far is rescaled is taken of the part's own maximum, not of the largest so far",
        |s, len, _| {
            let (mut before, mut sum) = (f64::NEG_INFINITY, 0.0);
            for part in s.chunks(len) {
                let own = largest(part);
                sum = if before == f64::NEG_INFINITY { 0.0 } else { sum * (before - own).exp() } + total(part, own);
                before = own;
            }
            over(s, sum)
        },
    ),
    ("a part's sum is rescaled, and what came before it is not", |s, len, _| {
        let (mut top, mut sum) = (f64::NEG_INFINITY, 0.0);
        for part in s.chunks(len) {
            let new = top.max(largest(part));
            let by = if top == f64::NEG_INFINITY { 1.0 } else { (top - new).exp() };
            sum += by * total(part, new);
            top = new;
        }
        over(s, sum)
    }),
];

/// Whatever the parts are.
const WHOLE: &[(&str, Make)] = &[
    ("the sum is of exponentials from which no maximum was taken off", |s, _, _| over(s, total(s, 0.0))),
    ("no maximum is taken off the exponentials, and one off the sum", |s, _, _| {
        let sum = total(s, largest(s));
        s.iter().map(|s| s.exp() / sum).collect()
    }),
    ("the sum takes off a maximum that is at least 0, exponentials the row's", |s, _, _| {
        over(s, total(s, largest(s).max(0.0)))
    }),
    ("exponentials take off a maximum that is at least 0, the sum the row's", |s, _, _| {
        let (by, sum) = (largest(s).max(0.0), total(s, largest(s)));
        s.iter().map(|s| (s - by).exp() / sum).collect()
    }),
];

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let Anatomy::RowReduction(RowReduction::Exponentials(softmax)) = scene.node().op.anatomy() else {
        return Vec::new();
    };
    let scale = softmax.scale;
    let law = |what: String, parts: Parts, make: Make| {
        Law::new(what, 1, move |row: &RowAt| {
            keys::weights(scene, scale, row, |s, p, n| {
                let seen = &s[..(p + 1).min(n)];
                let mut all = make(seen, parts.len(seen.len()), scale);
                all.resize(n, 0.0);
                all
            })
        })
    };
    let mut all: Vec<Law<'a>> =
        WHOLE.iter().map(|(what, make)| law((*what).to_owned(), Parts::Splits(1), *make)).collect();
    for (what, make) in MAKES {
        all.extend(Parts::ALL.map(|parts| law(format!("{what}, {}", parts.told()), parts, *make)));
    }
    all
}
