//! Attention of a query, computed otherwise: over other keys, of other scores, by tiles or splits that are put together
//! otherwise, with a rounding between, or from rows and heads of others.
//!
//! One evaluator serves the stage of the weights and that of the context, whether the scores between queries and context
//! were captured or not: whatever is otherwise comes down to what each key weighs. `o = Σ w_k·v_k`, where of a stage of weights
//! the value of an element's own key is 1 and that of all others 0.

mod fitted;
mod keys;
mod parts;
mod queries;

use super::form::Form;
use super::held::allowed;
use super::scene::Scene;
use super::{Alternative, Law, Row, short};
use crate::verdict::RowAt;
pub(in super::super) use keys::{Keys, Seats};
use parts::{Maxima, Parted, Parts, Rule, largest};
use qdiff_engine::ops::UNIT;
pub(super) use queries::weights;
use queries::{Made, Queries, Query, half};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
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
        /// Of the part.
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

/// The head of the cache for a head of the queries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HeadOf {
    /// This one.
    Is(usize),
    /// h mod n.
    Mod,
    /// (h + 1)·n/H, the last at most.
    Shifted,
    /// h, the last at most.
    AtMost,
    /// One after its own, round the end.
    Next,
    /// One before its own, round the end.
    Before,
    /// At the other end.
    Mirrored,
    /// As listed.
    Listed(Vec<usize>),
}

impl HeadOf {
    fn of(&self, h: usize, (heads, n): (usize, usize)) -> usize {
        let own = h / (heads / n);
        match self {
            Self::Is(one) => (*one).min(n - 1),
            Self::Mod => h % n,
            Self::Shifted => ((h + 1) * n / heads).min(n - 1),
            Self::AtMost => h.min(n - 1),
            Self::Next => (own + 1) % n,
            Self::Before => (own + n - 1) % n,
            Self::Mirrored => n - 1 - own,
            Self::Listed(list) => list.get(h).copied().unwrap_or(own).min(n - 1),
        }
    }
}

/// The row of the cache that is read for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// So many further on; at the ends its own.
    By(i64),
    /// That of the tile before, for keys of the last tile.
    LastAsBefore(usize),
    /// That of the first tile, for keys of the last tile.
    LastAsFirst(usize),
    /// That of the first tile, for all.
    Mod(usize),
    /// That of the other tile of each two.
    Exchanged(usize),
    /// The other end of each tile.
    Reversed(usize),
    /// That of the query's own key.
    Own,
}

impl Place {
    fn all() -> Vec<Self> {
        let mut all = vec![Self::By(-1), Self::By(1), Self::Own];
        for m in [4, 8, 16, 32, 64, 128] {
            all.extend([Self::LastAsBefore(m), Self::LastAsFirst(m), Self::Mod(m), Self::Exchanged(m)]);
            all.extend([Self::Reversed(m), Self::By(m as i64), Self::By(-(m as i64))]);
        }
        all
    }

    fn of(self, k: usize, p: usize) -> usize {
        let last = |m: usize| k / m == p / m;
        match self {
            Self::By(by) => usize::try_from(k as i64 + by).ok().filter(|there| *there <= p).unwrap_or(k),
            Self::LastAsBefore(m) => {
                if last(m) && k >= m {
                    k - m
                } else {
                    k
                }
            }
            Self::LastAsFirst(m) => {
                if last(m) {
                    k % m
                } else {
                    k
                }
            }
            Self::Mod(m) => k % m,
            Self::Exchanged(m) => {
                if k ^ m <= p {
                    k ^ m
                } else {
                    k
                }
            }
            Self::Reversed(m) => {
                if k / m * m + m - 1 - k % m <= p {
                    k / m * m + m - 1 - k % m
                } else {
                    k
                }
            }
            Self::Own => p,
        }
    }
}

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
    /// Weights, once they are divided by their sum.
    Weights(Half),
    /// The result after each tile.
    Result {
        /// The format.
        to: Half,
        /// Keys of a tile.
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
    pub(super) const ALL: [Self; 2] = [Self::Bf16, Self::F16];

    pub(super) fn round(self, x: f64) -> f64 {
        half(self as usize).1(x)
    }

    pub(super) fn name(self) -> &'static str {
        half(self as usize).0
    }

    /// How far a value moves that is known to `off` alone.
    pub(super) fn either(self, x: f64, off: f64) -> f64 {
        (self.round(x + off) - self.round(x - off)).abs()
    }
}

/// What each key weighs in a query's head, and how far weights are off that a rounding may move either way.
struct Weights {
    w: Vec<f64>,
    either: Vec<f64>,
    query: Rc<Query>,
    /// The head of the values.
    group: usize,
}

impl Attended {
    pub(super) fn on<'a>(&self, scene: &'a Scene<'a>) -> Option<Alternative<'a>> {
        let (queries, own) = (Queries::of(scene)?, self.clone());
        (queries.of_weights <= own.of_weights()).then(|| own.alternative(queries))
    }

    /// Whether it says something of weights, and not of the context alone.
    fn of_weights(&self) -> bool {
        let inner = if let Self::Split(inner, _) = self { inner } else { self };
        !matches!(
            inner,
            Self::Rounded(
                Rounded::Exponentials { .. } | Rounded::Result { .. } | Rounded::Values(_) | Rounded::Weights(_)
            )
        ) && !matches!(inner, Self::Scores | Self::Heads { of: Operand::Values, .. })
            && !matches!(inner, Self::Rows { of: Operand::Values, .. })
    }

    fn alternative<'a>(self, queries: Rc<Queries<'a>>) -> Alternative<'a> {
        Box::new(move |row: &RowAt| {
            let (_, _, bound) = queries.scene.e.row(row);
            let mut made = Row { value: vec![f64::NAN; bound.len()], bound: bound.to_vec() };
            for (head, range) in queries.heads_of(row) {
                if !range.clone().any(|i| queries.scene.asks(queries.scene.token(row).1 + i)) {
                    continue;
                }
                let weights = self.weights(&queries, row, head)?;
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
        let Weights { w, either, query, group } = weights;
        let (n, size) = (w.len(), largest_size(&query.s[..=query.seat.position]));
        let relative = UNIT * (8.0 + size) + 2.0 * query.off;
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
            Self::Rounded(Rounded::Values(to)) => v.iter_mut().for_each(|v| *v = to.round(*v)),
            _ => {}
        }
        let bound = f64::from(queries.scene.e.row(row).2[i]);
        let (inner, splits) = match self {
            Self::Split(inner, splits) if query.seat.single => (&**inner, Some(splits)),
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
        let mut either = Vec::new();
        let mut w = match self {
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
            Self::Split(inner, splits) if query.seat.single => {
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
            _ => self.of_scores(&query, queries.scale)?,
        };
        w.resize(n, 0.0);
        Some(Weights { w, either, query, group })
    }

    /// The weights of splits that are put together right, each with this within.
    fn split(&self, query: &Query, splits: Parts) -> Option<(Vec<f64>, Vec<f64>)> {
        let seen = &query.s[..=query.seat.position];
        let top = largest(seen);
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
                    exponentials(part, query.off, (*to, *tile, *sum))
                }
                // Of a result that is rounded, weights are no more than that.
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
        Some((w, either))
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
                let parted = Parted::of(seen, *parts);
                // What fits into one part is put together with nothing.
                let one = parted.ends.len() == 1 && matches!(rule, Rule::WithoutLast | Rule::WithoutFirst);
                if one || parted.ends.is_empty() {
                    return None;
                }
                rule.weights(&parted, scale)
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
            | Self::SumOf { .. }
            | Self::Split(..)
            | Self::Rounded(_) => divided(sum()),
        })
    }

    /// Numbers that were read off the wrong elements.
    pub(super) fn parameters(&self) -> usize {
        match self {
            Self::Weighed(_) | Self::Maxima(_) | Self::Scores => 0,
            Self::Heads { heads: HeadOf::Listed(list), .. } => list.len(),
            Self::LetIn { .. } | Self::Times { .. } | Self::Dropped { .. } | Self::Split(..) => 2,
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

    /// Whether it gives some wrong elements, or says nothing of them.
    fn gives(&self, queries: &Queries<'_>, probes: &[Probe]) -> bool {
        probes.iter().all(|probe| {
            let row = &queries.scene.e.rows[probe.at.0];
            let told = self
                .weights(queries, row, probe.head)
                .and_then(|weights| self.element(queries, row, (probe.at.1, probe.head), &weights));
            let Some((value, reach)) = told else { return true };
            value.is_nan() || (probe.got - value).abs() <= allowed(value, reach) + probe.grain
        })
    }
}

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

fn largest_size(s: &[f64]) -> f64 {
    s.iter().fold(0.0, |m, s| m.max(s.abs()))
}

/// The softmax over chosen keys; zero for all others.
fn over(s: &[f64], taken: impl Fn(usize) -> bool) -> Vec<f64> {
    let chosen = || (0..s.len()).filter(|&k| taken(k));
    let top = chosen().map(|k| s[k]).fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = chosen().map(|k| (s[k] - top).exp()).sum();
    // A row that sees no key has no weights.
    let each = |k: usize| {
        if sum == 0.0 {
            f64::NAN
        } else if taken(k) {
            (s[k] - top).exp() / sum
        } else {
            0.0
        }
    };
    (0..s.len()).map(each).collect()
}

impl Rounded {
    fn all() -> Vec<Self> {
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
            all.extend(tiles[1..].iter().copied().flat_map(of));
        }
        all
    }

    /// Weights with it, and how far each may be off.
    fn weights(self, query: &Query) -> (Vec<f64>, Vec<f64>) {
        let seen = &query.s[..=query.seat.position];
        let top = largest(seen);
        let relative = |s: f64, top: f64| UNIT * (8.0 + 2.0 * s.abs() + 2.0 * top.abs()) + query.off;
        let plain = || over(seen, |_| true);
        match self {
            Self::Exponentials { to, tile, sum } => {
                let (mut w, mut either, total) = exponentials(seen, query.off, (to, tile, sum));
                w.iter_mut().chain(&mut either).for_each(|v| *v /= total);
                (w, either)
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

/// Exponentials that are rounded, of the distance from the largest score up to their own tile, and brought to that of all;
/// how far each may be off; and their sum.
fn exponentials(s: &[f64], off: f64, (to, tile, of_sum): (Half, usize, bool)) -> (Vec<f64>, Vec<f64>, f64) {
    let (mut before, mut sum) = (f64::NEG_INFINITY, 0.0);
    let (mut w, mut either): (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
    for part in s.chunks(if tile == 0 { s.len() } else { tile }) {
        let new = part.iter().copied().fold(before, f64::max);
        let by = if w.is_empty() { 0.0 } else { (before - new).exp() };
        w.iter_mut().chain(&mut either).for_each(|v| *v *= by);
        sum *= by;
        for s in part {
            let (e, relative) = ((s - new).exp(), UNIT * (8.0 + 2.0 * s.abs() + 2.0 * new.abs()) + off);
            w.push(to.round(e));
            either.push(to.either(e, e * relative) * if of_sum { 2.0 } else { 1.0 });
            sum += if of_sum { to.round(e) } else { e };
        }
        before = new;
    }
    (w, either, sum)
}

/// A result of these scores and values that is rounded after each tile, how far it may be off, and their sum.
fn in_tiles(s: &[f64], v: &[f64], (to, tile, share): (Half, usize, bool), relative: f64) -> (f64, f64, f64) {
    let (mut top, mut sum, mut result, mut off) = (f64::NEG_INFINITY, 0.0, 0.0, 0.0);
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
fn in_splits(query: &Query, v: &[f64], ends: &[usize], of: (Half, usize, bool), relative: f64) -> (f64, f64) {
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

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let Some(queries) = Queries::of(scene) else { return Vec::new() };
    let probes = probes(&queries, PROBES);
    let mut all: Vec<Attended> = Vec::new();
    for keys in Keys::all(scene.e.side.capture, fitted::reach(&queries)) {
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
    all.extend([-1, 1].map(|tokens| Attended::SumOf { tokens, heads: 0 }));
    all.extend((1..queries.heads().0).map(|heads| Attended::SumOf { tokens: 0, heads }));
    all.extend(Maxima::ALL.map(Attended::Maxima));
    let parts = Parts::all();
    all.extend(Rule::all().into_iter().flat_map(|rule| parts.iter().map(move |parts| Attended::Joined(rule, *parts))));
    all.extend(fitted::heads(&queries));
    all.extend(
        Operand::ALL.into_iter().flat_map(|of| Place::all().into_iter().map(move |from| Attended::Rows { of, from })),
    );
    if !queries.of_weights {
        all.push(Attended::Scores);
    }
    all.extend(Rounded::all().into_iter().map(Attended::Rounded));
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
    let inner: Vec<Attended> =
        all.iter().filter(within).filter(|attended| attended.gives(&queries, &long)).cloned().collect();
    let probes = [single, long].concat();
    let tried = |attended: &Attended| {
        queries.of_weights <= attended.of_weights() && !scene.over() && {
            scene.count(64 * probes.len());
            attended.gives(&queries, &probes)
        }
    };
    all.retain(tried);
    let splits = parts.into_iter().filter(|parts| !matches!(parts, Parts::Tiles(_)));
    let split =
        splits.flat_map(|splits| inner.iter().map(move |inner| Attended::Split(Box::new(inner.clone()), splits)));
    all.extend(split.filter(tried));
    all.extend(fitted::numbers(&queries).into_iter().filter(tried));
    all.into_iter().map(|attended| attended.law(&queries)).collect()
}

impl fmt::Display for HeadOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Is(one) => write!(f, "KV head {one}"),
            Self::Mod => f.write_str("KV head h mod n_kv"),
            Self::Shifted => f.write_str("KV head (h + 1)·n_kv / n_heads"),
            Self::AtMost => f.write_str("KV head h, the last at most,"),
            Self::Next => f.write_str("the KV head after its own"),
            Self::Before => f.write_str("the KV head before its own"),
            Self::Mirrored => f.write_str("the KV head at the other end"),
            Self::Listed(list) => {
                let list: Vec<String> = list.iter().map(ToString::to_string).collect();
                write!(f, "the KV head of the list {}", list.join(" "))
            }
        }
    }
}

impl fmt::Display for Attended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Over(keys) => write!(f, "the softmax is over {keys}"),
            Self::Divided(keys) => write!(f, "the sum that weights are divided by is over {keys}"),
            Self::Weighed(weighed) => f.write_str(match weighed {
                Weighed::NotDivided => "weights are not divided by their sum",
                Weighed::PlusOne => "1 is added to the sum that weights are divided by",
                Weighed::OffByOne => "a key with score 0 is added to the sum: softmax off by one",
                Weighed::Alike => "all keys weigh the same",
                Weighed::PowersOfTwo => "powers of two instead of e",
            }),
            Self::Padded { tile, with, part } => {
                let score = match with {
                    Padding::Zero => "score 0",
                    Padding::Largest => "the largest score",
                    Padding::Last => "the score of the last key",
                    Padding::Early => "score 0, before the sum is rescaled to the last tile's maximum",
                };
                let of = if *part { " of the keys that the part has" } else { "" };
                write!(f, "the keys that fill up the last {tile}{of} are in the sum with {score}")
            }
            Self::Below { limit, zero: true } => {
                write!(f, "the exponential is 0 where the exponent is below {limit}")
            }
            Self::Below { limit, .. } => write!(f, "exponents are cut off at {limit} from below"),
            Self::SumOf { tokens, heads: 0 } => {
                let side = if *tokens < 0 { "before" } else { "after" };
                write!(f, "weights are divided by the sum of the token {side} in the part")
            }
            Self::SumOf { heads, .. } => {
                write!(f, "weights are divided by the sum of the head {heads} further on, round the end")
            }
            Self::Scaled { by: 1.0, instead } => {
                write!(f, "scores are not scaled: they are multiplied by 1 instead of {}", short(*instead))
            }
            Self::Scaled { by, instead } => {
                write!(f, "scores are multiplied by {} instead of {}", short(*by), short(*instead))
            }
            Self::Capped(cap) => {
                write!(f, "a soft cap is applied to the scaled scores: c·tanh(x/c) with c = {}", short(*cap))
            }
            Self::Slope(Some(slope)) => {
                let verb = if *slope > 0.0 { "taken off" } else { "added to" };
                write!(f, "{} times the key's distance is {verb} its score", short(slope.abs()))
            }
            Self::Slope(None) => {
                f.write_str("the key's distance times 2^(−8h/H) is taken off its score, as ALiBi does")
            }
            Self::Sink(score) => {
                write!(f, "a key with score {} and no value is in the sum: an attention sink", short(*score))
            }
            Self::Maxima(maxima) => maxima.fmt(f),
            Self::Joined(rule, parts) => write!(f, "{rule}, {parts}"),
            Self::Split(inner, splits) => {
                write!(f, "{inner}; single tokens are computed {splits}, each of them so")
            }
            Self::LetIn { keys, by, added: true } => {
                write!(f, "masked keys count with {} added to their scores, not with −∞: of {keys}", short(*by))
            }
            Self::LetIn { keys, by, .. } => {
                write!(f, "masked keys count with the score {}, not with −∞: of {keys}", short(*by))
            }
            Self::Times { but, by } => {
                let times = if *by == 2.0 { "twice".to_owned() } else { format!("{} times", short(*by)) };
                write!(f, "keys other than {but} count {times}, in sum and result")
            }
            Self::Dropped { what, limit, normed } => {
                let which = match what {
                    Small::Weight => format!("keys whose weight is below {limit} are left out"),
                    Small::Exponential => format!("keys whose exponential is below {limit} are left out"),
                    Small::Rank => format!("the {limit} keys that weigh most are taken alone"),
                };
                let sum = if *normed { "sum and result" } else { "the result, and not of the sum" };
                write!(f, "{which}, of {sum}")
            }
            Self::Heads { of, heads } => {
                write!(f, "query head h reads the {} of {heads} instead of h / group", of.name())
            }
            Self::Rows { of, from } => {
                let of = of.name();
                match from {
                    Place::By(by) => {
                        let side = if *by < 0 { "before" } else { "after" };
                        write!(f, "the {of} of the row {} {side} are read for each key", by.abs())
                    }
                    Place::LastAsBefore(m) => {
                        write!(f, "the last tile of {m} keys reads the {of} of the tile before it")
                    }
                    Place::LastAsFirst(m) => write!(f, "the last tile of {m} keys reads the {of} of the first tile"),
                    Place::Mod(m) => write!(f, "every tile of {m} keys reads the {of} of the first tile"),
                    Place::Exchanged(m) => write!(f, "tiles of {m} keys read the {of} of each other, in pairs"),
                    Place::Reversed(m) => {
                        write!(f, "the {of} of the key at the other end of each tile of {m} are read")
                    }
                    Place::Own => write!(f, "the {of} of the query's own row are read for all keys"),
                }
            }
            Self::Rounded(rounded) => rounded.fmt(f),
            Self::Scores => {
                f.write_str("it is made of the softmax of the captured scores, not of the weights that were captured")
            }
        }
    }
}

impl fmt::Display for Rounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let once = |scaled: bool| if scaled { "once they are scaled" } else { "before they are scaled" };
        match self {
            Self::Exponentials { to, tile, sum } => {
                let tiles = if *tile == 0 { String::new() } else { format!(", in tiles of {tile} keys") };
                let sum = if *sum { ", as in their sum" } else { ", and not in their sum" };
                let to = to.name();
                write!(f, "exponentials are rounded to {to} before they are multiplied with the values{sum}{tiles}")
            }
            Self::Weights(to) => {
                write!(f, "weights are rounded to {} before they are multiplied with the values", to.name())
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
