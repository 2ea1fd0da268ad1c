//! Attention by tiles or splits of the keys: each has a maximum, a sum and a result of its own, which must be brought to a
//! common maximum, `l = Σ l_t·e^(m_t − m)` and `o = Σ o_t·e^(m_t − m) / l`. What weights become where that is done otherwise.
//!
//! A tile is a number of keys; splits are so many parts of the keys that a query sees, as long as each other but the last,
//! or of the tiles of these keys.

use super::keys::Seat;
pub use super::power::Power;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;

/// How the keys fall into parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Parts {
    /// So many keys each.
    Tiles(usize),
    /// So many parts.
    Splits(usize),
    /// So many parts, which end where a tile ends; one where there are fewer tiles.
    Cut {
        /// Parts.
        splits: usize,
        /// Keys of a tile.
        tile: usize,
    },
    /// So many parts of as many keys, and of so many at least.
    Least {
        /// Parts.
        splits: usize,
        /// Keys of a part.
        keys: usize,
    },
    /// So many parts of as many keys, rounded up to whole tiles.
    Whole {
        /// Parts.
        splits: usize,
        /// Keys of a tile.
        tile: usize,
    },
    /// The same, and of so many tiles at least.
    Dealt {
        /// Parts.
        splits: usize,
        /// Keys of a tile.
        tile: usize,
        /// Tiles of a part.
        least: usize,
    },
    /// Runs of keys that are dealt out to so many parts in turn.
    InTurn {
        /// Parts.
        ways: usize,
        /// Keys of a run.
        run: usize,
    },
    /// Two parts: the keys that were in the cache before the pass, and those of the pass.
    Passes,
    /// Two parts: the keys of a prefix that another sequence wrote, and the sequence's own.
    Received,
    /// Two parts: the keys that the sequence shares with another one, whichever wrote them, and its own.
    Shared,
}

impl Parts {
    pub(in super::super) fn all() -> Vec<Self> {
        let mut all: Vec<Self> = (0..9).map(|b| Self::Tiles(1 << b)).collect();
        all.extend((2..=8).map(Self::Splits));
        let both = || [2, 3, 4, 8].into_iter().flat_map(|splits| [8, 16, 32, 64, 128].map(|tile| (splits, tile)));
        all.extend(both().map(|(splits, tile)| Self::Cut { splits, tile }));
        all.extend(both().map(|(splits, keys)| Self::Least { splits, keys }));
        all.extend(both().map(|(splits, tile)| Self::Whole { splits, tile }));
        all.extend(both().flat_map(|(splits, tile)| [2, 4].map(|least| Self::Dealt { splits, tile, least })));
        all
    }

    /// Those whose keys do not stand one after another.
    pub(in super::super) fn in_turn() -> impl Iterator<Item = Self> + Clone {
        [2, 4].into_iter().flat_map(|ways| [8, 16, 32, 64].map(|run| Self::InTurn { ways, run }))
    }

    /// The place of each key where each part's stand one after another, as `ends` counts them.
    fn order(self, keys: usize) -> Option<Vec<usize>> {
        let Self::InTurn { ways, run } = self else { return None };
        Some((0..ways).flat_map(|way| (0..keys).filter(move |k| k / run % ways == way)).collect())
    }

    /// The number of the part of each of so many keys.
    pub(in super::super) fn owners(self, keys: usize) -> Vec<usize> {
        let ends = self.ends(keys);
        let sorted = (0..keys).map(|k| ends.partition_point(|end| *end <= k) as f64).collect();
        self.restored(sorted).into_iter().map(|part| part as usize).collect()
    }

    /// What there is of each key, in that order.
    pub(super) fn sorted(self, of_keys: &[f64]) -> Cow<'_, [f64]> {
        match self.order(of_keys.len()) {
            Some(order) => order.into_iter().map(|k| of_keys[k]).collect(),
            None => Cow::Borrowed(of_keys),
        }
    }

    /// The same in the order of the keys again.
    pub(super) fn restored(self, sorted: Vec<f64>) -> Vec<f64> {
        let Some(order) = self.order(sorted.len()) else { return sorted };
        let mut of_keys = vec![0.0; sorted.len()];
        order.into_iter().zip(sorted).for_each(|(k, v)| of_keys[k] = v);
        of_keys
    }

    /// Whether a query of a part of many tokens has them too.
    pub(super) fn are_of_all(self) -> bool {
        matches!(self, Self::InTurn { .. })
    }

    /// Whether the parts are of keys of one origin each.
    pub(in super::super) fn are_by_origin(self) -> bool {
        matches!(self, Self::Passes | Self::Received | Self::Shared)
    }

    /// Where the parts of so many keys end, of which this query sees.
    fn ends_in(self, keys: usize, seat: &Seat) -> Vec<usize> {
        let end = match self {
            Self::Passes => seat.first,
            Self::Received => seat.received,
            Self::Shared => seat.shared,
            _ => 0,
        };
        if (1..keys).contains(&end) { vec![end, keys] } else { self.ends(keys) }
    }

    /// Where the parts of so many keys end.
    pub(in super::super) fn ends(self, keys: usize) -> Vec<usize> {
        let by = |len: usize| (1..=keys.div_ceil(len)).map(|i| (i * len).min(keys)).collect();
        match self {
            Self::Tiles(n) => by(n),
            Self::Splits(n) => by(keys.div_ceil(n).max(1)),
            Self::Passes | Self::Received | Self::Shared => vec![keys],
            Self::Least { splits, keys: least } => by(keys.div_ceil(splits).max(least)),
            Self::Whole { splits, tile } => by(keys.div_ceil(splits).next_multiple_of(tile).max(tile)),
            Self::Dealt { splits, tile, least } => by(keys.div_ceil(splits).next_multiple_of(tile).max(least * tile)),
            Self::InTurn { ways, run } => {
                let of = |way: usize| (0..keys).filter(|k| k / run % ways == way).count();
                let mut end = 0;
                let ends = (0..ways).map(of).filter(|keys| *keys > 0);
                ends.map(|keys| {
                    end += keys;
                    end
                })
                .collect()
            }
            Self::Cut { splits, tile } => {
                // Fewer tiles are not split.
                let splits = if keys.div_ceil(tile) < splits { 1 } else { splits };
                let mut ends: Vec<usize> = (1..splits).map(|i| i * keys / splits / tile * tile).collect();
                ends.push(keys);
                ends.retain(|end| *end > 0);
                ends.dedup();
                ends
            }
        }
    }
}

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tiles(n) => write!(f, "in tiles of {n} keys"),
            Self::Splits(n) => write!(f, "in {n} splits of the keys"),
            Self::Cut { splits, tile } => write!(f, "in {splits} splits of whole tiles of {tile} keys"),
            Self::Least { splits, keys } => write!(f, "in {splits} splits of the keys, of {keys} keys at least"),
            Self::Whole { splits, tile } => {
                write!(f, "in {splits} splits of the keys, each rounded up to whole tiles of {tile}")
            }
            Self::Dealt { splits, tile, least } => {
                write!(f, "in {splits} splits of the keys, each rounded up to whole tiles of {tile}, {least} at least")
            }
            Self::InTurn { ways, run } => {
                write!(f, "in {ways} parts of the keys, to which runs of {run} are dealt out in turn")
            }
            Self::Passes => f.write_str("in two parts: the keys of earlier passes and those of this pass"),
            Self::Received => {
                f.write_str("in two parts: the keys of a prefix from another sequence and the sequence's own")
            }
            Self::Shared => f.write_str("in two parts: the keys shared with another sequence and the sequence's own"),
        }
    }
}

/// Scores of the keys that are seen, in parts.
pub(super) struct Parted<'s> {
    pub(super) s: &'s [f64],
    pub(super) ends: Vec<usize>,
}

impl<'s> Parted<'s> {
    pub(super) fn of(s: &'s [f64], parts: Parts) -> Self {
        Self { s, ends: parts.ends(s.len()) }
    }

    /// The same of a query where parts may be by the origin of keys.
    pub(super) fn within(s: &'s [f64], parts: Parts, seat: &Seat) -> Self {
        Self { s, ends: parts.ends_in(s.len(), seat) }
    }

    fn parts(&self) -> impl DoubleEndedIterator<Item = &'s [f64]> + '_ {
        (0..self.ends.len()).map(|i| &self.s[if i == 0 { 0 } else { self.ends[i - 1] }..self.ends[i]])
    }

    /// The weights of each key, given its own part.
    fn each(&self, f: impl FnMut(&[f64]) -> Vec<f64>) -> Vec<f64> {
        self.parts().flat_map(f).collect()
    }

    fn first(&self) -> &'s [f64] {
        self.parts().next().unwrap_or(&[])
    }

    fn last(&self) -> &'s [f64] {
        self.parts().next_back().unwrap_or(&[])
    }

    /// Numerators with the right maximum over a sum.
    fn over(&self, sum: f64) -> Vec<f64> {
        exponentials(self.s, largest(self.s)).map(|e| e / sum).collect()
    }
}

pub(super) fn largest(s: &[f64]) -> f64 {
    s.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

fn exponentials(s: &[f64], top: f64) -> impl Iterator<Item = f64> + '_ {
    s.iter().map(move |s| (s - top).exp())
}

/// What a sum is of a part's scores with a maximum taken off.
fn total(s: &[f64], top: f64) -> f64 {
    exponentials(s, top).sum()
}

/// What is brought to the new maximum when it moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Carried {
    /// The sum.
    Sum,
    /// The result.
    Result,
    /// Both.
    Both,
}

impl Carried {
    /// What each key counts in the result, and the sum, both to be divided by e to the largest score.
    pub(super) fn made(self, by: By, parted: &Parted<'_>, scale: f64) -> (Vec<f64>, f64) {
        self.of(by.counts(parted, scale), parted)
    }

    /// The same where keys count so much in what is brought to another maximum.
    fn of(self, counts: Vec<f64>, parted: &Parted<'_>) -> (Vec<f64>, f64) {
        let (s, top) = (parted.s, largest(parted.s));
        match self {
            Self::Both => (counts.clone(), counts.iter().sum()),
            Self::Sum => (exponentials(s, top).collect(), counts.iter().sum()),
            Self::Result => (counts, total(s, top)),
        }
    }
}

/// By what, instead of e^(m_old − m_new).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// Not at all.
    Nothing,
    /// The wrong way round.
    Inverse,
    /// Powers of two.
    PowersOfTwo,
    /// Twice.
    Twice,
    /// What came before is dropped.
    Dropped,
    /// Maxima that are not scaled.
    Unscaled,
    /// Maxima that are scaled twice.
    ScaledTwice,
    /// The part's own maximum instead of the largest so far.
    Own,
    /// It is the part that is rescaled.
    OfPart,
    /// Not at all where the maximum grows by so much or less.
    IfLarge(u8),
    /// Not at all where it grows by 8 or less to base 2.
    IfLargeToBaseTwo,
}

impl By {
    const ALL: [Self; 14] = [
        Self::Nothing,
        Self::Inverse,
        Self::PowersOfTwo,
        Self::Twice,
        Self::Dropped,
        Self::Unscaled,
        Self::ScaledTwice,
        Self::Own,
        Self::OfPart,
        Self::IfLarge(8),
        Self::IfLargeToBaseTwo,
        Self::IfLarge(4),
        Self::IfLarge(2),
        Self::IfLarge(1),
    ];

    /// Whether a part may be brought so from its own maximum to the row's.
    fn is_of_shares(self) -> bool {
        !matches!(self, Self::Nothing | Self::Own | Self::OfPart | Self::IfLarge(_) | Self::IfLargeToBaseTwo)
    }

    /// The factor of what came before, and that of the part, where the maximum moves by so much.
    fn factors(self, by: f64, scale: f64) -> (f64, f64) {
        match self {
            Self::Nothing => (1.0, 1.0),
            Self::Inverse => ((-by).exp(), 1.0),
            Self::PowersOfTwo => (by.exp2(), 1.0),
            Self::Twice => ((2.0 * by).exp(), 1.0),
            Self::Dropped => (if by < 0.0 { 0.0 } else { 1.0 }, 1.0),
            Self::Unscaled => ((by / scale).exp(), 1.0),
            Self::ScaledTwice => ((by * scale).exp(), 1.0),
            Self::Own => (by.exp(), 1.0),
            Self::OfPart => (1.0, by.exp()),
            Self::IfLarge(least) => (if -by <= f64::from(least) { 1.0 } else { by.exp() }, 1.0),
            Self::IfLargeToBaseTwo => (if -by <= 8.0 * std::f64::consts::LN_2 { 1.0 } else { by.exp() }, 1.0),
        }
    }

    /// What each key counts where every part has its own maximum, and is brought to the row's once.
    fn shares(self, parted: &Parted<'_>, scale: f64) -> Vec<f64> {
        let top = largest(parted.s);
        parted.each(|part| {
            let (own, (by, _)) = (largest(part), self.factors(largest(part) - top, scale));
            exponentials(part, own).map(|e| e * by).collect()
        })
    }

    /// What each key counts in the end.
    fn counts(self, parted: &Parted<'_>, scale: f64) -> Vec<f64> {
        let (mut before, mut all) = (f64::NEG_INFINITY, Vec::with_capacity(parted.s.len()));
        for part in parted.parts() {
            let new = if self == Self::Own { largest(part) } else { largest(part).max(before) };
            let (old, own) = if all.is_empty() { (0.0, 1.0) } else { self.factors(before - new, scale) };
            all.iter_mut().for_each(|e| *e *= old);
            all.extend(exponentials(part, new).map(|e| own * e));
            before = new;
        }
        all
    }
}

/// Some of the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Which {
    /// All but the first.
    ButFirst,
    /// Every second, from the second on.
    Second,
}

impl Which {
    const ALL: [Self; 2] = [Self::ButFirst, Self::Second];

    /// Whether part `i` is one of them.
    fn has(self, i: usize) -> bool {
        match self {
            Self::ButFirst => i > 0,
            Self::Second => i % 2 == 1,
        }
    }
}

/// How parts are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// Each part has a maximum of its own, and is brought to the row's otherwise.
    Shares(Carried, By),
    /// The shares of some parts are added as they are, with their own maximum; of the others as they should be.
    SharesOf(Carried, Which),
    /// A softmax for each part.
    OwnSoftmax,
    /// The mean of these.
    Mean,
    /// Softmaxes of parts, weighted by e^(m_t − m) alone.
    ByMaxima,
    /// Softmaxes of parts, weighted by this of the logarithm of their sums.
    ByLogarithm(Power),
    /// The same of the first part alone, or of the others.
    OneByLogarithm {
        /// What is made of its logarithm.
        power: Power,
        /// Whether it is the first part.
        of_first: bool,
    },
    /// Divided by the sum of their own part.
    OwnSum,
    /// Divided by the sum up to their own part.
    SumSoFar,
    /// What came before is rescaled otherwise when the maximum moves.
    Rescaled(Carried, By),
    /// The sum of the last part with its own maximum.
    SumOfLastAsItIs,
    /// The sum of the last part.
    SumOfLast,
    /// The sum of the first part with its own maximum.
    SumOfFirstAsItIs,
    /// The sum takes off the first part's maximum.
    SumOffFirst,
    /// The sum takes off the last part's maximum.
    SumOffLast,
    /// Numerators take off the last part's maximum.
    NumeratorsOffLast,
    /// Numerators take off the first part's maximum.
    NumeratorsOffFirst,
    /// The last part is left out.
    WithoutLast,
    /// The first part is left out.
    WithoutFirst,
    /// The last part alone.
    LastAlone,
    /// The first part alone.
    FirstAlone,
    /// The last part counts twice.
    LastTwice,
    /// The first part counts twice.
    FirstTwice,
    /// The first key of each part but the first counts twice.
    BoundaryTwice,
    /// The last key of each part but the last is left out.
    WithoutBoundary,
    /// No maximum is taken off the last part's exponentials in the sum.
    LastOfSumPlain,
    /// The same, and in the result.
    LastPlain,
}

/// How exponentials and their sum take off maxima, for parts of any kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Maxima {
    /// None off the sum.
    NoneOffSum,
    /// None off the exponentials.
    NoneOffNumerators,
    /// At least 0 off the sum.
    NotNegativeOffSum,
    /// At least 0 off the exponentials.
    NotNegativeOffNumerators,
}

impl Maxima {
    pub(super) const ALL: [Self; 4] =
        [Self::NoneOffSum, Self::NoneOffNumerators, Self::NotNegativeOffSum, Self::NotNegativeOffNumerators];

    pub(super) fn weights(self, s: &[f64]) -> Vec<f64> {
        let top = largest(s);
        let (of_sum, own) = match self {
            Self::NoneOffSum => (0.0, top),
            Self::NoneOffNumerators => (top, 0.0),
            Self::NotNegativeOffSum => (top.max(0.0), top),
            Self::NotNegativeOffNumerators => (top, top.max(0.0)),
        };
        let sum = total(s, of_sum);
        exponentials(s, own).map(|e| e / sum).collect()
    }
}

impl fmt::Display for Maxima {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoneOffSum => "the sum is of exponentials from which no maximum was taken off",
            Self::NoneOffNumerators => "no maximum is taken off the exponentials, and one off the sum",
            Self::NotNegativeOffSum => "the sum takes off a maximum that is at least 0, exponentials the row's",
            Self::NotNegativeOffNumerators => "exponentials take off a maximum that is at least 0, the sum the row's",
        })
    }
}

impl Rule {
    pub(super) fn all() -> Vec<Self> {
        let mut all = vec![Self::OwnSoftmax, Self::Mean, Self::ByMaxima, Self::OwnSum, Self::SumSoFar];
        all.extend(Power::ALL.map(Self::ByLogarithm));
        let one = |power| [true, false].map(|of_first| Self::OneByLogarithm { power, of_first });
        all.extend(Power::ALL.into_iter().flat_map(one));
        let carried = [Carried::Sum, Carried::Result, Carried::Both];
        all.splice(0..0, carried.map(|carried| Self::Shares(carried, By::Nothing)));
        all.extend(carried.into_iter().flat_map(|carried| By::ALL.map(|by| Self::Rescaled(carried, by))));
        // By which a part may be brought from its own maximum to the row's, beside nothing.
        let of_shares = || By::ALL.into_iter().filter(|by| by.is_of_shares());
        let shares = carried.into_iter().flat_map(|carried| of_shares().map(move |by| (carried, by)));
        all.extend(shares.map(|(carried, by)| Self::Shares(carried, by)));
        all.extend(carried.into_iter().flat_map(|carried| Which::ALL.map(|some| Self::SharesOf(carried, some))));
        all.extend([
            Self::SumOfLastAsItIs,
            Self::SumOfLast,
            Self::SumOfFirstAsItIs,
            Self::SumOffFirst,
            Self::SumOffLast,
            Self::NumeratorsOffLast,
            Self::NumeratorsOffFirst,
            Self::WithoutLast,
            Self::WithoutFirst,
            Self::LastAlone,
            Self::FirstAlone,
            Self::LastTwice,
            Self::FirstTwice,
            Self::BoundaryTwice,
            Self::WithoutBoundary,
            Self::LastOfSumPlain,
            Self::LastPlain,
        ]);
        all
    }

    /// The weights of the keys.
    pub(super) fn weights(self, parted: &Parted<'_>, scale: f64) -> Vec<f64> {
        let s = parted.s;
        let top = largest(s);
        let normed = |all: Vec<f64>| -> Vec<f64> {
            let sum: f64 = all.iter().sum();
            all.into_iter().map(|e| e / sum).collect()
        };
        let of_own = |f: &dyn Fn(&[f64]) -> f64| {
            parted.each(|part| {
                let by = f(part);
                exponentials(part, largest(part)).map(|e| e * by).collect()
            })
        };
        // Keys counted so many times.
        let counted = |count: &dyn Fn(usize) -> f64| {
            normed(s.iter().enumerate().map(|(k, s)| count(k) * (s - top).exp()).collect())
        };
        let (ends, n) = (&parted.ends, s.len());
        let begins_last = n - parted.last().len();
        let ends_first = parted.first().len();
        match self {
            Self::OwnSoftmax => of_own(&|part| 1.0 / total(part, largest(part))),
            Self::Mean => {
                let parts = ends.len() as f64;
                of_own(&|part| 1.0 / total(part, largest(part)) / parts)
            }
            Self::ByMaxima => {
                let sum: f64 = parted.parts().map(|part| (largest(part) - top).exp()).sum();
                of_own(&|part| (largest(part) - top).exp() / sum / total(part, largest(part)))
            }
            Self::ByLogarithm(power) | Self::OneByLogarithm { power, .. } => {
                let is_so = |i: usize| match self {
                    Self::OneByLogarithm { of_first, .. } => (i == 0) == of_first,
                    _ => true,
                };
                let exponent = |(i, part): (usize, &[f64])| {
                    let top = largest(part);
                    let sum = total(part, top).ln();
                    if is_so(i) { power.of_part((top, sum), scale) } else { top + sum }
                };
                let exponents: Vec<f64> = parted.parts().enumerate().map(exponent).collect();
                let most = exponents.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = exponents.iter().map(|exponent| (exponent - most).exp()).sum();
                let mut shares = exponents.iter().map(|exponent| (exponent - most).exp() / sum);
                parted.each(|part| {
                    let (top, share) = (largest(part), shares.next().unwrap_or(0.0));
                    let by = share / total(part, top);
                    exponentials(part, top).map(|e| e * by).collect()
                })
            }
            Self::OwnSum => parted.each(|part| {
                let sum = total(part, top);
                exponentials(part, top).map(|e| e / sum).collect()
            }),
            Self::SumSoFar => {
                let mut sum = 0.0;
                parted.each(|part| {
                    sum += total(part, top);
                    exponentials(part, top).map(|e| e / sum).collect()
                })
            }
            Self::Rescaled(carried, by) => {
                let (all, sum) = carried.made(by, parted, scale);
                all.into_iter().map(|e| e / sum).collect()
            }
            Self::Shares(carried, by) => {
                let (all, sum) = carried.of(by.shares(parted, scale), parted);
                all.into_iter().map(|e| e / sum).collect()
            }
            Self::SharesOf(carried, some) => {
                let mut i = 0;
                let counts = parted.each(|part| {
                    i += 1;
                    exponentials(part, if some.has(i - 1) { largest(part) } else { top }).collect()
                });
                let (all, sum) = carried.of(counts, parted);
                all.into_iter().map(|e| e / sum).collect()
            }
            Self::SumOfLastAsItIs => parted.over(total(parted.last(), largest(parted.last()))),
            Self::SumOfLast => parted.over(total(parted.last(), top)),
            Self::SumOfFirstAsItIs => parted.over(total(parted.first(), largest(parted.first()))),
            Self::SumOffFirst => parted.over(total(s, largest(parted.first()))),
            Self::SumOffLast => parted.over(total(s, largest(parted.last()))),
            Self::NumeratorsOffLast | Self::NumeratorsOffFirst => {
                let of = if self == Self::NumeratorsOffLast { parted.last() } else { parted.first() };
                let sum = total(s, top);
                exponentials(s, largest(of)).map(|e| e / sum).collect()
            }
            Self::WithoutLast => counted(&|k| f64::from(u8::from(k < begins_last))),
            Self::WithoutFirst => counted(&|k| f64::from(u8::from(k >= ends_first))),
            Self::LastAlone => counted(&|k| f64::from(u8::from(k >= begins_last))),
            Self::FirstAlone => counted(&|k| f64::from(u8::from(k < ends_first))),
            Self::LastTwice => counted(&|k| if k >= begins_last { 2.0 } else { 1.0 }),
            Self::FirstTwice => counted(&|k| if k < ends_first { 2.0 } else { 1.0 }),
            Self::BoundaryTwice => counted(&|k| if k < n && ends.contains(&k) { 2.0 } else { 1.0 }),
            Self::LastOfSumPlain | Self::LastPlain => {
                let (earlier, last) = s.split_at(begins_last);
                let sum = total(earlier, top) + total(last, 0.0);
                let of_last = if self == Self::LastPlain { 0.0 } else { top };
                exponentials(earlier, top).chain(exponentials(last, of_last)).map(|e| e / sum).collect()
            }
            Self::WithoutBoundary => counted(&|k| if k + 1 < n && ends.contains(&(k + 1)) { 0.0 } else { 1.0 }),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shares(Carried::Sum, By::Nothing) => {
                f.write_str("each part's sum is added as it is, not rescaled from its own maximum to the row's")
            }
            Self::Shares(Carried::Result, By::Nothing) => f.write_str(
                "exponentials are of the distance from their own part's maximum, and the sum of that from the row's",
            ),
            Self::Shares(Carried::Both, By::Nothing) => f.write_str(
                "nothing is rescaled from a part's own maximum to the row's, exponentials and sum alike",
            ),
            Self::Shares(carried, by) => {
                let what = match carried {
                    Carried::Sum => "each part's sum",
                    Carried::Result => "each part's result",
                    Carried::Both => "each part's share, sum and result alike,",
                };
                let how = match by {
                    By::Inverse => "by e^(m − m_t), the wrong way round",
                    By::PowersOfTwo => "by 2^(m_t − m) instead of e^(m_t − m)",
                    By::Twice => "twice",
                    By::Unscaled => "by the unscaled maxima",
                    By::ScaledTwice => "by maxima that are scaled twice",
                    _ => return write!(f, "{what} is dropped where its maximum is not the row's"),
                };
                write!(f, "{what} is brought from its own maximum m_t to the row's, m, {how}")
            }
            Self::SharesOf(carried, some) => {
                let which = match some {
                    Which::ButFirst => "all parts but the first",
                    Which::Second => "every second part",
                };
                let what = match carried {
                    Carried::Sum => "the sum",
                    Carried::Result => "the result",
                    Carried::Both => "the share, sum and result alike,",
                };
                write!(f, "{what} of {which} is added without the factor e^(m_t − m) that brings the part's maximum to the row's")
            }
            Self::OwnSoftmax => f.write_str("each part is divided by its own sum: a softmax of its own"),
            Self::Mean => f.write_str("each part is divided by its own sum, and by the number of parts"),
            Self::ByMaxima => {
                f.write_str("the parts' softmaxes are weighted by e^(m_t − m) alone, without their sums")
            }
            Self::ByLogarithm(power) => power.fmt(f),
            Self::OneByLogarithm { power, of_first } => {
                let (one, rest) = if *of_first { ("the first part", "the others") } else { ("all parts but the first", "the first") };
                write!(f, "{power}; that is so of {one}, and {rest} by e^lse of the natural logarithm")
            }
            Self::OwnSum => f.write_str("weights are divided by the sum of their own part alone"),
            Self::SumSoFar => f.write_str("weights are divided by the sum so far, up to their own part"),
            Self::Rescaled(Carried::Result, By::Nothing) => f.write_str(
                "when the maximum changes, the sum is rescaled but the result so far is not: the factor e^(m_old − m_new) is missing",
            ),
            Self::Rescaled(Carried::Sum, By::Nothing) => f.write_str(
                "the sum so far is not rescaled when the maximum changes: the factor e^(m_old − m_new) is missing",
            ),
            Self::Rescaled(Carried::Both, By::Nothing) => f.write_str(
                "neither exponentials nor sum so far are rescaled when the maximum changes: the factor e^(m_old − m_new) is missing",
            ),
            Self::Rescaled(carried, by) => {
                let what = match carried {
                    Carried::Sum => "the sum so far",
                    Carried::Result => "the result so far",
                    Carried::Both => "what came before, result and sum alike,",
                };
                match by {
                    By::Nothing => Ok(()),
                    By::Inverse => write!(f, "{what} is rescaled the wrong way round, by e^(m_new − m_old)"),
                    By::PowersOfTwo => {
                        write!(f, "{what} is rescaled by 2^(m_old − m_new) instead of e^(m_old − m_new)")
                    }
                    By::Twice => write!(f, "{what} is rescaled twice when the maximum changes"),
                    By::Dropped => write!(f, "{what} is dropped when the maximum changes"),
                    By::Unscaled => write!(f, "{what} is rescaled by the unscaled maxima"),
                    By::ScaledTwice => write!(f, "{what} is rescaled by maxima that are scaled twice"),
                    By::Own => write!(
                        f,
                        "the factor by which {what} is rescaled is taken of the part's own maximum, not of the largest so far"
                    ),
                    By::IfLarge(least) => {
                        write!(f, "{what} is not rescaled when the maximum grows by {least} or less: the factor e^(m_old − m_new) is missing")
                    }
                    By::IfLargeToBaseTwo => {
                        write!(f, "{what} is not rescaled when the maximum grows by a factor of 256 or less: the factor e^(m_old − m_new) is missing")
                    }
                    By::OfPart => write!(f, "a part's share is rescaled, and {what} is not"),
                }
            }
            Self::SumOfLastAsItIs => f.write_str("the sum is that of the last part alone, with its own maximum"),
            Self::SumOfLast => f.write_str("the sum is that of the last part alone"),
            Self::SumOfFirstAsItIs => f.write_str("the sum is that of the first part alone, with its own maximum"),
            Self::SumOffFirst => f.write_str("the sum takes the first part's maximum off, exponentials the row's"),
            Self::SumOffLast => f.write_str("the sum takes the last part's maximum off, exponentials the row's"),
            Self::NumeratorsOffLast => {
                f.write_str("exponentials take the last part's maximum off, the sum the row's")
            }
            Self::NumeratorsOffFirst => {
                f.write_str("exponentials take the first part's maximum off, the sum the row's")
            }
            Self::WithoutLast => f.write_str("the last part is left out of sum and result"),
            Self::WithoutFirst => f.write_str("the first part is left out of sum and result"),
            Self::LastAlone => f.write_str("the last part's result alone is there instead"),
            Self::FirstAlone => f.write_str("the first part's result alone is there instead"),
            Self::LastTwice => f.write_str("the last part is counted twice, in sum and result"),
            Self::FirstTwice => f.write_str("the first part is counted twice, in sum and result"),
            Self::BoundaryTwice => f.write_str("the first key of each part but the first is counted twice"),
            Self::WithoutBoundary => f.write_str("the last key of each part but the last is left out"),
            Self::LastOfSumPlain => f.write_str("no maximum is taken off the last part's exponentials in the sum"),
            Self::LastPlain => f.write_str("no maximum is taken off the last part's exponentials, in sum and result"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys::Seat;
    use super::{Carried, Parted, Parts, Power, Rule, Which, largest, total};

    /// The first part has the largest score, and the second one's result is added with its own maximum.
    #[test]
    fn some_parts_keep_their_own_maximum() {
        let s = [2.0, 0.0, 1.0];
        let of = |which| Rule::SharesOf(Carried::Result, which).weights(&Parted::of(&s, Parts::Tiles(2)), 1.0);
        let sum = 1.0 + (-2f64).exp() + (-1f64).exp();
        for which in Which::ALL {
            let weights = of(which);
            let want = [1.0 / sum, (-2f64).exp() / sum, 1.0 / sum];
            assert!(weights.iter().zip(want).all(|(w, want)| (w - want).abs() < 1e-12), "{which:?} {weights:?}");
        }
    }

    /// The keys of earlier passes are a part, and those of the query's pass; a query without earlier keys has one part.
    #[test]
    fn passes_are_parts() {
        let s = [0.5, -1.0, 2.0, 0.25, 1.5];
        let ends = |first: usize| Parted::within(&s, Parts::Passes, &Seat::of_part(first, 0, 1)).ends;
        assert_eq!([0, 2, 5].map(ends), [vec![5], vec![2, 5], vec![5]]);
        // By e^(m + log₂ l) a part counts l^(1/ln 2 − 1) times as much as by e^(m + ln l).
        let w = Rule::ByLogarithm(Power::SumToBaseTwo)
            .weights(&Parted::within(&s, Parts::Passes, &Seat::of_part(2, 0, 1)), 1.0);
        let by = |part: &[f64]| total(part, largest(part)).powf(std::f64::consts::LOG2_E - 1.0);
        let (old, new) = (by(&s[..2]), by(&s[2..]));
        let counts: Vec<f64> = s.iter().enumerate().map(|(k, s)| s.exp() * if k < 2 { old } else { new }).collect();
        let sum: f64 = counts.iter().sum();
        assert!(w.iter().zip(&counts).all(|(w, count)| (w - count / sum).abs() < 1e-12), "{w:?}");
    }
}
