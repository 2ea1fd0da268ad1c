//! Attention of a query, computed otherwise: over other keys, of other scores, by tiles or splits that are put together
//! otherwise, with a rounding between, or from rows and heads of others.
//!
//! One evaluator serves the stage of the weights and that of the context, whether the scores between queries and context
//! were captured or not: every difference comes down to the weight of each key. `o = Σ w_k·v_k`, where of a stage of weights
//! the value of an element's own key is 1 and that of all others 0.

mod beside;
mod fitted;
mod keys;
mod parts;
mod power;
mod queries;
mod rounded;
mod told;

use super::form::Form;
use super::heads::HeadOf;
use super::held::allowed;
use super::index::Index;
use super::scene::Scene;
use super::{Alternative, Law, Row};
use crate::verdict::RowAt;
pub use beside::Beside;
pub(in super::super) use keys::{Keys, Seat, Seats};
pub(super) use parts::Parts;
use parts::{Maxima, Parted, Rule, largest};
use qdiff_engine::ops::UNIT;
pub(super) use queries::weights;
use queries::{Made, Queries, Query, over};
pub use rounded::{Half, Rounded};
use rounded::{exponentials, in_splits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::rc::Rc;

/// What is otherwise in an attention.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Attended {
    /// The softmax is over these keys.
    Over(Keys),
    /// The sum is over these keys.
    Divided(Keys),
    /// Another function of the scores.
    Weighed(Weighed),
    /// Keys fill up the last so many in the sum: of those that the query sees, or of those of its part.
    Padded {
        /// Keys of a tile.
        tile: usize,
        /// With which score.
        with: Padding,
        /// The part's.
        part: bool,
    },
    /// Exponents below a limit are cut off there, or their exponentials are 0.
    Below {
        /// The limit.
        limit: f64,
        /// Whether they are 0.
        zero: bool,
    },
    /// The sum is that of another query.
    SumOf {
        /// So many tokens on.
        tokens: i64,
        /// So many heads on.
        heads: usize,
    },
    /// The sum is that of a query beside it.
    SumBeside(Beside),
    /// What parts have is brought to the row's maximum by the factors of a query beside it; the sum is its own.
    FactorsBeside(Beside, Parts),
    /// The parts are put together by the maxima and the sums of a query beside it.
    MeasuresBeside(Beside, Parts),
    /// What came before is rescaled by the factors of a query beside it when the maximum moves, in tiles of so many keys, within each
    /// of these parts if there are several; the sum by its own.
    RescaledBeside(Beside, usize, Option<Parts>),
    /// The sum is over the queries of the part, for each key.
    SumOfQueries,
    /// Scores are scaled by another number.
    Scaled {
        /// This one.
        by: f64,
        /// Instead of this one.
        instead: f64,
    },
    /// A soft cap.
    Capped(f64),
    /// So much is added for each key further on; of ALiBi's own slopes where there is no number.
    Slope(Option<f64>),
    /// A key of this score without a value is in the sum.
    Sink(f64),
    /// Maxima are taken off otherwise.
    Maxima(Maxima),
    /// Parts are put together otherwise.
    Joined(Rule, Parts),
    /// The same within each split of the keys of parts of one token, which are put together right.
    Split(Box<Attended>, Parts),
    /// Keys after the query that are among these are let in.
    LetIn {
        /// Which.
        keys: Keys,
        /// With this added to their scores, or with this score.
        by: f64,
        /// Whether it is added.
        added: bool,
    },
    /// Keys that are not among these count so many times.
    Times {
        /// The others.
        but: Keys,
        /// How many times.
        by: f64,
    },
    /// Keys that weigh little are left out.
    Dropped {
        /// What is small.
        what: Small,
        /// What is left out is below.
        limit: f64,
        /// Whether the weights that are left are divided by their own sum.
        normed: bool,
    },
    /// Query heads read other heads of the cache.
    Heads {
        /// Keys, values or both.
        of: Operand,
        /// Which.
        heads: HeadOf,
    },
    /// Rows of others are read from the cache.
    Rows {
        /// Keys, values or both.
        of: Operand,
        /// Which.
        from: Place,
    },
    /// Rows of other keys than these are read as zeros.
    Cleared {
        /// Keys, values or both.
        of: Operand,
        /// The others.
        but: Keys,
    },
    /// Something is rounded to f16 or bf16.
    Rounded(Rounded),
    /// The softmax of the captured scores is used, and not the captured weights.
    Scores,
}

/// Another function of the scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Weighed {
    /// Not divided by their sum.
    NotDivided,
    /// 1 is added to the sum.
    PlusOne,
    /// A key of score 0 is added to the sum.
    OffByOne,
    /// All alike.
    Alike,
    /// Powers of two.
    PowersOfTwo,
}

/// With which score keys fill up a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Padding {
    /// 0.
    Zero,
    /// The largest.
    Largest,
    /// That of the last key.
    Last,
    /// 0, before the sum is brought to the maximum of the last tile.
    Early,
}

/// What is small of a key that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Small {
    /// Its weight.
    Weight,
    /// Its exponential, that of the largest score being 1.
    Exponential,
    /// Its rank: as many are kept.
    Rank,
}

/// What is read from the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Operand {
    /// Keys and values.
    Both,
    /// Keys.
    Keys,
    /// Values.
    Values,
}

impl Operand {
    const ALL: [Self; 3] = [Self::Both, Self::Keys, Self::Values];

    fn name(self) -> &'static str {
        match self {
            Self::Both => "keys and values",
            Self::Keys => "keys",
            Self::Values => "values",
        }
    }
}

/// The row of the cache that is read for a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// By its number; where there is no such row its own.
    Of(Index),
    /// That of the tile before, for keys of the last tile.
    LastAsBefore(usize),
    /// That of the first tile, for keys of the last tile.
    LastAsFirst(usize),
}

impl Place {
    fn all() -> Vec<Self> {
        let tiles = [4, 8, 16, 32, 64, 128];
        let mut all: Vec<Self> = [Index::By(-1), Index::By(1), Index::End].map(Self::Of).into();
        all.extend(tiles.iter().flat_map(|m| [Self::LastAsBefore(*m), Self::LastAsFirst(*m)]));
        all.extend(tiles.iter().flat_map(|m| [*m as i64, -(*m as i64)]).map(|by| Self::Of(Index::By(by))));
        all.extend(Index::tiled(257).into_iter().chain(Index::runs(512)).map(Self::Of));
        all
    }

    fn of(&self, k: usize, p: usize) -> usize {
        let last = |m: usize| k / m == p / m;
        match self {
            Self::Of(index) => index.of(k, p + 1).unwrap_or(k),
            Self::LastAsBefore(m) if last(*m) && k >= *m => k - m,
            Self::LastAsFirst(m) if last(*m) => k % m,
            Self::LastAsBefore(_) | Self::LastAsFirst(_) => k,
        }
    }
}

/// What each key weighs in a query's head, and how far weights are off that a rounding may move either way.
struct Weights {
    w: Vec<f64>,
    either: Vec<f64>,
    query: Rc<Query>,
    /// The head of the values.
    group: usize,
    /// Where it is another in columns that have a bit: the bit, and what each key weighs there.
    columns: Option<(usize, Vec<f64>)>,
}

impl Weights {
    /// Whether they are those of plain attention over the keys that the query sees.
    fn are_plain(&self) -> bool {
        let plain = over(self.query.seen(), |_| true);
        let alike = |w: &[f64]| plain.iter().zip(w).all(|(plain, w)| (plain - w).abs() <= 1e-9 * plain);
        alike(&self.w) && self.columns.as_ref().is_none_or(|(_, w)| alike(w))
    }
}

impl Attended {
    pub(super) fn on<'a>(&self, scene: &'a Scene<'a>) -> Option<Alternative<'a>> {
        let (queries, own) = (Queries::of(scene)?, self.clone());
        (queries.of_weights <= own.of_weights()).then(|| own.alternative(queries))
    }

    /// Whether it says something of weights, and not of the context alone.
    fn of_weights(&self) -> bool {
        let inner = if let Self::Split(inner, _) = self { inner } else { self };
        !matches!(inner, Self::Rounded(Rounded::Result { .. } | Rounded::Values(_) | Rounded::Weights(_)))
            && !matches!(inner, Self::Scores | Self::Heads { of: Operand::Values, .. })
            && !matches!(inner, Self::Rows { of: Operand::Values, .. } | Self::Cleared { of: Operand::Values, .. })
    }

    fn alternative<'a>(self, queries: Rc<Queries<'a>>) -> Alternative<'a> {
        Box::new(move |row: &RowAt| {
            let (_, _, bound) = queries.scene.e.row(row);
            let mut made = Row { value: vec![f64::NAN; bound.len()], bound: bound.to_vec() };
            for (head, range) in queries.heads_of(row) {
                if !range.clone().any(|i| queries.scene.asks(queries.scene.token(row).1 + i)) {
                    continue;
                }
                let weights = match self.weights(&queries, row, head) {
                    None if self.is_beside() => continue,
                    weights => weights?,
                };
                for i in range {
                    (made.value[i], made.bound[i]) = self.element(&queries, row, (i, head), &weights)?;
                }
            }
            Some(made)
        })
    }

    /// What it says of an element of a row, and how far that may be off.
    fn element(
        &self, queries: &Queries<'_>, row: &RowAt, (i, head): (usize, usize), weights: &Weights,
    ) -> Option<(f64, f32)> {
        let Weights { w, either, query, group, columns } = weights;
        let column = (queries.scene.token(row).1 + i) % queries.width();
        let w = columns.as_ref().filter(|(bit, _)| column & bit != 0).map_or(w, |(_, w)| w);
        let (n, size) = (w.len(), query.size);
        let sees_later = w.iter().skip(query.seat.position + 1).any(|w| *w != 0.0);
        let off = query.off + if sees_later { query.later_off } else { 0.0 };
        let relative = UNIT * (8.0 + size) + 2.0 * off;
        if queries.of_weights {
            let v = *w.get(i)?;
            // Numbers below the least normal one have fewer bits, or none.
            let least = f64::from(f32::MIN_POSITIVE);
            return Some((v, (v.abs() * relative + either.get(i).unwrap_or(&0.0) + least) as f32));
        }
        let mut v = queries.values(row, i, (head, *group), n)?;
        match self {
            Self::Rows { of: Operand::Both | Operand::Values, from } => {
                let p = query.seat.position;
                v = (0..n).map(|k| v[if k <= p { from.of(k, p) } else { k }]).collect();
            }
            Self::Cleared { of: Operand::Both | Operand::Values, but } => {
                v.iter_mut().enumerate().filter(|(k, _)| !but.has(*k, query.seat)).for_each(|(_, v)| *v = 0.0);
            }
            Self::Rounded(Rounded::Values(to)) => v.iter_mut().for_each(|v| *v = to.round(*v)),
            _ => {}
        }
        let bound = f64::from(queries.scene.e.row(row).2[i]);
        let (inner, splits) = match self {
            Self::Split(inner, splits) if query.seat.single || splits.are_of_all() => (&**inner, Some(splits)),
            Self::Split(inner, _) => (&**inner, None),
            own => (own, None),
        };
        if let Self::Rounded(Rounded::Result { to, tile, share }) = inner {
            let keys = query.seat.position + 1;
            let ends = splits.map_or_else(|| vec![keys], |splits| splits.ends(keys));
            let (value, off) = in_splits(query, &v, &ends, (*to, *tile, *share), relative);
            return Some((value, (bound + off) as f32));
        }
        let (mut value, mut sizes, mut moved) = (0.0, 0.0, 0.0);
        for ((w, v), either) in w.iter().zip(&v).zip(either.iter().chain(std::iter::repeat(&0.0))) {
            value += w * v;
            sizes += (w * v).abs();
            moved += either * v.abs();
        }
        Some((value, (bound + 2.0 * relative * sizes + moved + 24.0 * UNIT * value.abs()) as f32))
    }

    /// The weights of a row's head.
    fn weights(&self, queries: &Queries<'_>, row: &RowAt, head: usize) -> Option<Weights> {
        let own = queries.own(head);
        let (mut of_keys, mut group) = (own, own);
        if let Self::Heads { of, heads } = self {
            let other = heads.of(head, queries.heads());
            of_keys = if *of == Operand::Values { own } else { other };
            group = if *of == Operand::Keys { own } else { other };
        }
        let made = match self {
            Self::Rounded(Rounded::Queries(to, scaled)) => Made::Queries(*to as usize, *scaled),
            Self::Rounded(Rounded::Keys(to)) => Made::Keys(*to as usize),
            _ => Made::AsItIs,
        };
        let query = queries.query(row, head, (of_keys, made))?;
        let (n, p) = (query.s.len(), query.seat.position);
        let (mut either, mut columns) = (Vec::new(), None);
        let mut w = match self {
            Self::SumBeside(beside) => {
                let [own, other] = [false, true].map(|bit| beside.query(queries, row, (head, bit)));
                let seen = &query.s[..=p];
                let by = |other: Rc<Query>| -> Vec<f64> {
                    let sum: f64 = other.seen().iter().map(|s| (s - largest(other.seen())).exp()).sum();
                    seen.iter().map(|s| (s - largest(seen)).exp() / sum).collect()
                };
                columns = beside.column().and_then(|bit| Some((bit, by(other?))));
                by(own?)
            }
            Self::MeasuresBeside(beside, parts) => {
                beside::weights_by_measures(query.seen(), beside.query(queries, row, (head, false))?.seen(), *parts)?
            }
            Self::FactorsBeside(beside, _) | Self::RescaledBeside(beside, ..) => {
                let parts = match self {
                    Self::FactorsBeside(_, parts) => (*parts, None),
                    Self::RescaledBeside(_, tile, parts) => (parts.unwrap_or(Parts::Splits(1)), Some(*tile)),
                    _ => return None,
                };
                let [own, other] = [false, true].map(|bit| beside.query(queries, row, (head, bit)));
                let by = |other: Rc<Query>| beside::weights(query.seen(), other.seen(), parts);
                if let Some(bit) = beside.column() {
                    columns = Some((bit, by(other?)?));
                }
                by(own?)?
            }
            Self::SumOf { tokens, heads } => {
                let token = usize::try_from(queries.scene.token(row).0 as i64 + tokens).ok()?;
                let position = usize::try_from(p as i64 + tokens).ok()?;
                let other_head = (head + heads) % query.heads;
                let how = (queries.own(other_head), Made::AsItIs);
                let other = queries.query_at((row.step, token, position), other_head, how)?;
                let seen = other.s.get(..=position)?;
                let sum: f64 = seen.iter().map(|s| (s - largest(seen)).exp()).sum();
                let top = largest(&query.s[..=p]);
                query.s[..=p].iter().map(|s| (s - top).exp() / sum).collect()
            }
            Self::SumOfQueries => {
                let (sums, seen) = (queries.sums_over_queries(row.step, head)?, &query.s[..=p]);
                let top = largest(seen);
                // A sum of one query alone may be as small as f32 can tell, where digits are lost, or smaller.
                let small = |sum: f64| if sum < LEAST { f64::NAN } else { LEAST / sum };
                either = sums.iter().take(seen.len()).map(|sum| 2.0 * small(*sum)).collect();
                seen.iter().zip(sums.iter()).map(|(s, sum)| (s - top).exp() / sum + 0.0 * small(*sum)).collect()
            }
            Self::Split(inner, splits) if query.seat.single || splits.are_of_all() => {
                let (w, moved) = inner.split(&query, *splits)?;
                either = moved;
                w
            }
            Self::Split(inner, _) => return inner.weights(queries, row, head),
            Self::Rounded(rounded) => {
                let (w, moved) = rounded.weights(&query);
                either = moved;
                w
            }
            Self::Rows { of: Operand::Both | Operand::Keys, from } => {
                let s: Vec<f64> = (0..=p).map(|k| query.s[from.of(k, p)]).collect();
                over(&s, |_| true)
            }
            Self::Cleared { of: Operand::Both | Operand::Keys, but } => {
                let s: Vec<f64> = (0..=p).map(|k| if but.has(k, query.seat) { query.s[k] } else { 0.0 }).collect();
                over(&s, |_| true)
            }
            _ => self.of_scores(&query, queries.scale)?,
        };
        w.resize(n, 0.0);
        Some(Weights { w, either, query, group, columns })
    }

    /// Whether it says nothing of a query that has none beside it.
    pub(super) fn is_beside(&self) -> bool {
        matches!(
            self,
            Self::SumBeside(_) | Self::MeasuresBeside(..) | Self::FactorsBeside(..) | Self::RescaledBeside(..)
        )
    }

    /// The weights of splits that are put together right, each with this within.
    fn split(&self, query: &Query, splits: Parts) -> Option<(Vec<f64>, Vec<f64>)> {
        let seen = splits.sorted(query.seen());
        let top = largest(&seen);
        let (mut w, mut either, mut sum, mut from) = (Vec::new(), Vec::new(), 0.0, 0);
        for end in splits.ends(seen.len()) {
            let part = &seen[from..end];
            let by = (largest(part) - top).exp();
            let (own, moved, total) = match self {
                Self::Joined(Rule::Rescaled(carried, of), tiles) => {
                    let (own, total) = carried.made(*of, &Parted::of(part, *tiles), query.scale);
                    (own, vec![0.0; part.len()], total)
                }
                Self::Rounded(Rounded::Exponentials { to, tile, sum }) => {
                    exponentials(part, query.off, (&|e| to.round(e), *tile, *sum))
                }
                // Weights that come of a rounded result are rounded as well.
                Self::Rounded(Rounded::Result { .. }) => {
                    let own: Vec<f64> = part.iter().map(|s| (s - largest(part)).exp()).collect();
                    let total = own.iter().sum();
                    (own, vec![0.0; part.len()], total)
                }
                _ => return None,
            };
            w.extend(own.into_iter().map(|e| e * by));
            either.extend(moved.into_iter().map(|e| e * by));
            sum += total * by;
            from = end;
        }
        w.iter_mut().chain(&mut either).for_each(|v| *v /= sum);
        Some((splits.restored(w), splits.restored(either)))
    }

    /// The weights that it makes of a query's scores: of the keys that the query sees, or of all.
    fn of_scores(&self, query: &Query, scale: f64) -> Option<Vec<f64>> {
        let Query { seat, head, heads, ref s, .. } = *query;
        let seen = &s[..=seat.position];
        let top = largest(seen);
        let exponentials = || seen.iter().map(|s| (s - top).exp());
        let divided = |sum: f64| exponentials().map(|e| e / sum).collect::<Vec<f64>>();
        let sum = || exponentials().sum::<f64>();
        Some(match self {
            Self::Over(keys) => over(s, |k| keys.has(k, seat)),
            Self::Divided(keys) => {
                divided((0..s.len()).filter(|&k| keys.has(k, seat)).map(|k| (s[k] - top).exp()).sum())
            }
            Self::Weighed(weighed) => match weighed {
                Weighed::NotDivided => divided(1.0),
                Weighed::PlusOne => divided(1.0 + sum()),
                Weighed::OffByOne => divided((-top).exp() + sum()),
                Weighed::Alike => vec![1.0 / seen.len() as f64; seen.len()],
                Weighed::PowersOfTwo => {
                    over(&seen.iter().map(|s| s * std::f64::consts::LN_2).collect::<Vec<_>>(), |_| true)
                }
            },
            Self::Padded { tile, with, part } => {
                let n = if *part { s.len() } else { seen.len() };
                let more = (n.next_multiple_of(*tile) - n) as f64;
                let each = match with {
                    Padding::Zero => (-top).exp(),
                    Padding::Largest => 1.0,
                    Padding::Last => (seen[seat.position] - top).exp(),
                    Padding::Early => (largest(&seen[..(n / tile * tile).min(seen.len())]) - 2.0 * top).exp(),
                };
                divided(more * each + sum())
            }
            Self::Below { limit, zero } => {
                let of = |s: &f64| match s - top < *limit {
                    true if *zero => 0.0,
                    true => limit.exp(),
                    false => (s - top).exp(),
                };
                let e: Vec<f64> = seen.iter().map(of).collect();
                let sum: f64 = e.iter().sum();
                e.iter().map(|e| e / sum).collect()
            }
            Self::Scaled { by, .. } => over(&seen.iter().map(|s| s * by / scale).collect::<Vec<_>>(), |_| true),
            Self::Capped(cap) => over(&seen.iter().map(|s| cap * (s / cap).tanh()).collect::<Vec<_>>(), |_| true),
            Self::Slope(slope) => {
                let slope = slope.unwrap_or_else(|| 2f64.powf(-8.0 * (head + 1) as f64 / heads as f64));
                over(&seen.iter().enumerate().map(|(k, s)| s + slope * k as f64).collect::<Vec<_>>(), |_| true)
            }
            Self::Sink(score) => divided((score - top).exp() + sum()),
            Self::Maxima(maxima) => maxima.weights(seen),
            Self::Joined(rule, parts) => {
                let sorted = parts.sorted(seen);
                let parted = Parted::within(&sorted, *parts, &seat);
                // What fits into one part is put together with nothing.
                let one = parted.ends.len() == 1 && matches!(rule, Rule::WithoutLast | Rule::WithoutFirst);
                if one || parted.ends.is_empty() {
                    return None;
                }
                parts.restored(rule.weights(&parted, scale))
            }
            Self::LetIn { keys, by, added } => {
                let of = |k: usize| match (k <= seat.position, *added) {
                    (true, _) => s[k],
                    (false, true) => s[k] + by,
                    (false, false) => *by,
                };
                let s: Vec<f64> = (0..s.len()).map(of).collect();
                over(&s, |k| k <= seat.position || keys.has(k, seat))
            }
            Self::Times { but, by } => {
                let e: Vec<f64> =
                    exponentials().enumerate().map(|(k, e)| if but.has(k, seat) { e } else { e * by }).collect();
                let sum: f64 = e.iter().sum();
                e.iter().map(|e| e / sum).collect()
            }
            Self::Dropped { what, limit, normed } => {
                let (sum, mut ranks) = (sum(), Vec::new());
                if *what == Small::Rank {
                    ranks = exponentials().collect();
                    ranks.sort_by(|a, b| b.total_cmp(a));
                }
                let kept = |e: &f64| match what {
                    Small::Weight => e / sum >= *limit,
                    Small::Exponential => *e >= *limit,
                    Small::Rank => ranks.get(*limit as usize).is_none_or(|next| e > next),
                };
                let left = |e: f64| if kept(&e) { e } else { 0.0 };
                let sum = if *normed { exponentials().map(left).sum() } else { sum };
                exponentials().map(|e| left(e) / sum).collect()
            }
            Self::Scores
            | Self::Heads { .. }
            | Self::Rows { .. }
            | Self::Cleared { .. }
            | Self::SumOf { .. }
            | Self::SumBeside(_)
            | Self::MeasuresBeside(..)
            | Self::FactorsBeside(..)
            | Self::RescaledBeside(..)
            | Self::SumOfQueries
            | Self::Split(..)
            | Self::Rounded(_) => divided(sum()),
        })
    }

    /// Numbers that were read off the wrong elements.
    pub(super) fn parameters(&self) -> usize {
        match self {
            Self::Weighed(_) | Self::Maxima(_) | Self::Scores | Self::SumOfQueries => 0,
            Self::Heads { heads: HeadOf::Listed(list), .. } => list.len(),
            Self::LetIn { .. } | Self::Times { .. } | Self::Dropped { .. } | Self::Split(..) => 2,
            Self::MeasuresBeside(..) | Self::FactorsBeside(..) | Self::RescaledBeside(..) => 2,
            _ => 1,
        }
    }

    fn law<'a>(self, queries: &Rc<Queries<'a>>) -> Law<'a> {
        let law = Law::new(self.to_string(), self.parameters(), |_| None);
        let form = Some(Form::Attended(self.clone()));
        let scaled = if let Self::Scaled { by, .. } = self { Some(by) } else { None };
        let inner = if let Self::Split(inner, _) = &self { inner } else { &self };
        let halves = matches!(inner, Self::Rounded(Rounded::Result { to: Half::F16, .. }));
        let law = Law { row: self.alternative(queries.clone()), form, halves, ..law };
        match scaled {
            Some(by) => law.of_model("factor of the scores", by),
            None => law,
        }
    }

    /// Whether it gives some wrong elements. A law of queries beside others says nothing of some, but must give one, and not as plain
    /// attention does: over a cache that lacks rows plain attention is wrong, and a law that changes nothing would have its values.
    fn gives(&self, queries: &Queries<'_>, probes: &[Probe]) -> bool {
        let mut told = 0;
        let gives = probes.iter().all(|probe| {
            let row = &queries.scene.e.rows[probe.at.0];
            let made = self.weights(queries, row, probe.head).and_then(|weights| {
                let plain = self.is_beside() && weights.are_plain();
                Some((plain, self.element(queries, row, (probe.at.1, probe.head), &weights)?))
            });
            let Some((plain, (value, reach))) = made else { return self.is_beside() };
            told += usize::from(!value.is_nan() && !plain);
            value.is_nan() || (probe.got - value).abs() <= allowed(value, reach) + probe.grain
        });
        gives && (told > 0 || probes.is_empty())
    }
}

/// The least number of f32.
const LEAST: f64 = 1.401_298_464_324_817e-45;

/// A wrong element that laws are tried on first.
#[derive(Clone)]
struct Probe {
    at: (usize, usize),
    head: usize,
    got: f64,
    want: f64,
    grain: f64,
    bound: f64,
}

/// So many of them.
const PROBES: usize = 6;

/// Some wrong elements, of several rows and heads.
fn probes(queries: &Queries<'_>, most: usize) -> Vec<Probe> {
    let scene = queries.scene;
    let of = |&at: &(usize, usize)| {
        let row = &scene.e.rows[at.0];
        let head = queries.heads_of(row).into_iter().find(|(_, range)| range.contains(&at.1))?.0;
        let (got, want, bound) = scene.element(at);
        Some(Probe { at, head, got, want, grain: scene.e.grain.reach(got as f32), bound: f64::from(bound) })
    };
    super::scene::evenly(scene.fit.clone(), most).iter().filter_map(of).collect()
}

/// Rows of the cache that are read as zeros. If the weights were captured, groups of values (`terms`, `counted`) find those that a
/// sum leaves out, except where that depends on the length of the prompt, or one row of a tail stays.
fn cleared(queries: &Queries<'_>, reach: &[usize]) -> Vec<Attended> {
    let capture = queries.scene.e.side.capture;
    if queries.of_weights {
        return Keys::all(capture, reach).into_iter().map(|but| Attended::Cleared { of: Operand::Keys, but }).collect();
    }
    if queries.has_weights() {
        let of_no_group = |keys: &Keys| keys.are_of_prompt() || matches!(keys, Keys::WholeTilesAndOne(_));
        let all = Keys::all(capture, reach).into_iter().filter(of_no_group);
        return all.map(|but| Attended::Cleared { of: Operand::Values, but }).collect();
    }
    let all = Keys::all(capture, reach).into_iter();
    all.flat_map(|but| Operand::ALL.map(|of| Attended::Cleared { of, but })).collect()
}

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let Some(queries) = Queries::of(scene) else { return Vec::new() };
    let probes = probes(&queries, PROBES);
    let mut all: Vec<Attended> = Vec::new();
    let reach = fitted::reach(&queries);
    let steps = &scene.e.side.capture.steps;
    let in_tiles = scene.fit.iter().any(|(r, _)| steps[scene.e.rows[*r].step].tokens.len() > 1);
    for keys in Keys::all(scene.e.side.capture, &reach).into_iter().filter(|keys| in_tiles || !keys.are_of_queries()) {
        all.extend([Attended::Over(keys), Attended::Divided(keys)]);
    }
    let weighed = [Weighed::NotDivided, Weighed::PlusOne, Weighed::OffByOne, Weighed::Alike, Weighed::PowersOfTwo];
    all.extend(weighed.map(Attended::Weighed));
    for tile in [2, 4, 8, 16, 32, 64, 128, 256] {
        let of = |part: bool| {
            [Padding::Zero, Padding::Largest, Padding::Last, Padding::Early].map(|with| Attended::Padded {
                tile,
                with,
                part,
            })
        };
        all.extend([false, true].into_iter().flat_map(of));
    }
    all.extend(fitted::clipped(&queries));
    all.push(Attended::SumOfQueries);
    all.extend([-1, 1].map(|tokens| Attended::SumOf { tokens, heads: 0 }));
    all.extend((1..queries.heads().0).map(|heads| Attended::SumOf { tokens: 0, heads }));
    all.extend(Maxima::ALL.map(Attended::Maxima));
    let parts = Parts::all();
    // A tile of one key is that key. Kernels that put two parts together have a logarithm of each.
    let one = |rule: Rule, parts: Parts| {
        parts == Parts::Tiles(1)
            && matches!(
                rule,
                Rule::WithoutLast
                    | Rule::WithoutFirst
                    | Rule::LastAlone
                    | Rule::FirstAlone
                    | Rule::Shares(_, _)
                    | Rule::SharesOf(_, _)
                    | Rule::ByLogarithm(_)
            )
            || matches!(rule, Rule::OneByLogarithm { .. }) && !parts.are_by_origin()
    };
    let goes_on = steps.iter().any(|step| step.first > 0);
    let shares = steps.first().zip(steps.last()).is_some_and(|(a, b)| a.whose.sequence != b.whose.sequence);
    let by_origin = || {
        let of_prefix = [Parts::Received, Parts::Shared].into_iter().filter(|_| shares);
        goes_on.then_some(Parts::Passes).into_iter().chain(of_prefix)
    };
    let all_parts = || parts.iter().copied().chain(Parts::in_turn()).chain(by_origin());
    let joined = Rule::all().into_iter().flat_map(|rule| all_parts().map(move |parts| (rule, parts)));
    all.extend(joined.filter(|(rule, parts)| !one(*rule, *parts)).map(|(rule, parts)| Attended::Joined(rule, parts)));
    all.extend(beside::all(queries.heads().0, &parts));
    all.extend(fitted::heads(&queries));
    all.extend(
        Operand::ALL.into_iter().flat_map(|of| Place::all().into_iter().map(move |from| Attended::Rows { of, from })),
    );
    if !queries.of_weights {
        all.push(Attended::Scores);
    }
    // Of weights that were captured, exponentials that are rounded as in their sum are the affair of `within`.
    let of_all = |rounded: &Rounded| matches!(rounded, Rounded::Exponentials { sum: true, .. });
    let rounded = Rounded::all().into_iter().filter(|rounded| !(queries.of_weights && of_all(rounded)));
    all.extend(rounded.map(Attended::Rounded));
    all.extend(cleared(&queries, &reach));
    // What goes on within a tile may go on within splits as well, of single tokens.
    let (single, long): (Vec<Probe>, Vec<Probe>) = probes.into_iter().partition(|probe| {
        let row = &scene.e.rows[probe.at.0];
        scene.e.side.capture.steps[row.step].tokens.len() == 1
    });
    let within = |attended: &&Attended| {
        matches!(
            attended,
            Attended::Joined(Rule::Rescaled(..), Parts::Tiles(_))
                | Attended::Rounded(Rounded::Exponentials { .. } | Rounded::Result { .. })
        )
    };
    let in_turn = |inner: &Attended| -> Vec<Attended> {
        let Attended::Joined(_, Parts::Tiles(tile)) = inner else { return Vec::new() };
        let of_run = Parts::in_turn().filter(|parts| matches!(parts, Parts::InTurn { run, .. } if run == tile));
        of_run.map(|parts| Attended::Split(Box::new(inner.clone()), parts)).collect()
    };
    let within_parts: Vec<Attended> = all.iter().filter(within).flat_map(in_turn).collect();
    all.extend(within_parts);
    let inner: Vec<Attended> =
        all.iter().filter(within).filter(|attended| attended.gives(&queries, &long)).cloned().collect();
    let in_decode = !single.is_empty();
    let probes = [single, long].concat();
    let tried = |attended: &Attended| {
        queries.of_weights <= attended.of_weights() && !scene.over() && {
            scene.count(64 * probes.len());
            attended.gives(&queries, &probes)
        }
    };
    all.retain(tried);
    // If no single token is wrong, the report does not mention tokens.
    let usual = |parts: &Parts| matches!(parts, Parts::Splits(_) | Parts::Cut { .. });
    let rescales = |inner: &Attended| matches!(inner, Attended::Joined(..));
    let larger = |inner: &Attended, splits: &Parts| match (inner, splits) {
        (Attended::Joined(_, Parts::Tiles(tile)), Parts::Tiles(split)) => tile < split,
        (_, Parts::InTurn { .. }) => false,
        (_, parts) if parts.are_by_origin() => false,
        _ => true,
    };
    let splits = parts.iter().filter(|_| in_decode);
    let within_splits = |splits: &&Parts, inner: &&Attended| usual(splits) || rescales(inner) && larger(inner, splits);
    let split = splits.flat_map(|splits| {
        let inner = inner.iter().filter(move |inner| within_splits(&splits, inner));
        inner.map(move |inner| Attended::Split(Box::new(inner.clone()), *splits))
    });
    all.extend(split.filter(tried));
    all.extend(fitted::numbers(&queries).into_iter().filter(tried));
    all.into_iter().map(|attended| attended.law(&queries)).collect()
}
