//! What belongs to a query that a kernel works on beside another one: its sum, or the factors that bring tiles or splits to a common
//! maximum. Threads hold several lines, a line being a query of one of the heads that share a head of the cache.

use super::super::index::Index;
use super::parts::{Parted, largest};
use super::queries::{Made, Queries, Query};
use super::{Attended, Parts};
use crate::verdict::RowAt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::rc::Rc;

/// A query beside another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Beside {
    /// Of another head.
    Head(Index),
    /// The line with this number.
    Line(Index),
    /// The line whose bit is that of the column, where its own is another.
    Column {
        /// The bit of the line's number.
        line: usize,
        /// The bit of the column of the head.
        column: usize,
    },
}

impl Beside {
    fn all(heads: usize) -> Vec<Self> {
        let pairs = [Index::Even, Index::Odd, Index::Apart(1), Index::By(-1), Index::By(1), Index::Is(0)];
        let mut all: Vec<Self> = pairs.into_iter().filter(|_| heads > 1).map(Self::Head).collect();
        all.extend([2, 4, 8].into_iter().filter(|m| *m < heads).map(|m| Self::Head(Index::Mod(m))));
        for bit in [1, 2, 4, 8, 16] {
            all.extend([Index::Apart(bit), Index::By(-(bit as i64)), Index::By(bit as i64)].map(Self::Line));
            all.extend([1, 2, 4].map(|column| Self::Column { line: bit, column }));
        }
        all
    }

    /// The bit of columns on which it depends.
    pub(super) fn column(&self) -> Option<usize> {
        if let Self::Column { column, .. } = self { Some(*column) } else { None }
    }

    /// The query for a row's head, and for columns that have the bit or have it not; nothing where there is none.
    pub(super) fn query(&self, queries: &Queries<'_>, row: &RowAt, (head, bit): (usize, bool)) -> Option<Rc<Query>> {
        let (heads, kv_heads) = queries.heads();
        let group = heads / kv_heads;
        let (number, tokens) = queries.scene.number(row.step, queries.scene.token(row).0);
        let line = number * group + head % group;
        let (number_there, head_there) = match self {
            Self::Head(index) => (number, index.of(head, heads)?),
            Self::Line(index) => {
                let line = index.of(line, tokens * group)?;
                (line / group, head / group * group + line % group)
            }
            Self::Column { line: of_line, .. } => {
                let line = if bit { line | of_line } else { line & !of_line };
                (line / group, head / group * group + line % group)
            }
        };
        let token = queries.scene.numbered(row.step, number_there)?;
        let position = (row.place.position + number_there).checked_sub(number)?;
        queries.query_at((row.step, token, position), head_there, (queries.own(head_there), Made::AsItIs))
    }
}

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Head(index) => write!(f, "the {}", index.told("head", "h")),
            Self::Line(index) => {
                write!(
                    f,
                    "the {}, counted over tokens and the heads that share a head of the cache",
                    index.told("line", "l")
                )
            }
            Self::Column { line, column } => write!(
                f,
                "the line {line} away, in columns whose bit {column} differs from the line's bit {line} (lines are counted over tokens and the heads that share a head of the cache)"
            ),
        }
    }
}

/// Laws of queries beside others, by these parts.
pub(super) fn all(heads: usize, parts: &[Parts]) -> Vec<Attended> {
    let usual = |parts: &Parts| matches!(parts, Parts::Splits(_) | Parts::Least { .. });
    let parts: Vec<Parts> = parts.iter().copied().filter(usual).chain(Parts::in_turn()).collect();
    let of = |beside: Beside| {
        let factors = parts.iter().map(|parts| Attended::FactorsBeside(beside.clone(), *parts));
        let alone = [16, 32, 64, 128].map(|tile| Attended::RescaledBeside(beside.clone(), tile, None));
        let in_turn = Parts::in_turn().filter_map(|parts| match parts {
            Parts::InTurn { run, .. } => Some(Attended::RescaledBeside(beside.clone(), run, Some(parts))),
            _ => None,
        });
        let of_head = matches!(beside, Beside::Head(_));
        let measures = parts.iter().filter(|_| of_head).map(|parts| Attended::MeasuresBeside(beside.clone(), *parts));
        let mut all = vec![Attended::SumBeside(beside.clone())];
        all.extend(measures.chain(factors).chain(alone).chain(in_turn));
        all
    };
    Beside::all(heads).into_iter().flat_map(of).collect()
}

/// Weights of the keys that a query sees, where the factors of parts are those of another one; with a tile, those by which what came
/// before is rescaled within each part. Nothing if the other one sees no key of a part of which the query sees some: a factor of
/// nothing would leave out these keys, as many other bugs do.
pub(super) fn weights(own: &[f64], other: &[f64], (parts, tile): (Parts, Option<usize>)) -> Option<Vec<f64>> {
    let top = largest(own);
    let sum: f64 = own.iter().map(|s| (s - top).exp()).sum();
    // One of the two may see more keys, up to which the kernel goes with both.
    let n = own.len().max(other.len());
    let padded = |seen: &[f64]| (0..n).map(|k| seen.get(k).copied().unwrap_or(f64::NEG_INFINITY)).collect::<Vec<f64>>();
    let (own_keys, other_keys) = (padded(own), padded(other));
    let (mine, theirs) = (parts.sorted(&own_keys), parts.sorted(&other_keys));
    let weight = |s: f64, off: f64| if s == f64::NEG_INFINITY { 0.0 } else { (s + off).exp() / sum };
    let (mut all, mut from) = (Vec::with_capacity(n), 0);
    for end in Parted::of(&mine, parts).ends {
        let (part, there) = (&mine[from..end], &theirs[from..end]);
        if largest(there) == f64::NEG_INFINITY && largest(part) > f64::NEG_INFINITY {
            return None;
        }
        match tile {
            None => {
                let off = largest(there) - largest(other) - largest(part);
                all.extend(part.iter().map(|s| weight(*s, off)));
            }
            Some(tile) => {
                // The parts themselves are put together right.
                let (last, whole) = (largest(there), largest(part) - top);
                let (mut before, mut before_there) = (f64::NEG_INFINITY, f64::NEG_INFINITY);
                for (part, there) in part.chunks(tile).zip(there.chunks(tile)) {
                    before = largest(part).max(before);
                    before_there = largest(there).max(before_there);
                    let by = if before_there == last { 0.0 } else { before_there - last };
                    all.extend(part.iter().map(|s| weight(*s, by + whole - before)));
                }
            }
        }
        from = end;
    }
    let mut all = parts.restored(all);
    all.truncate(own.len());
    Some(all)
}

/// The same where parts are put together by the maxima and the sums of the other one.
pub(super) fn weights_by_measures(own: &[f64], other: &[f64], parts: Parts) -> Option<Vec<f64>> {
    let sum = |seen: &[f64]| seen.iter().map(|s| (s - largest(seen)).exp()).sum::<f64>();
    let by = sum(own) / sum(other);
    Some(weights(own, other, (parts, None))?.into_iter().map(|w| w * by).collect())
}
