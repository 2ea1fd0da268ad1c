//! Heads of the cache for heads of the queries, where a kernel maps them otherwise.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

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
    /// One after its own, wrapping around.
    Next,
    /// One before its own, wrapping around.
    Before,
    /// At the other end.
    Mirrored,
    /// h without so many of its low bits, the last at most.
    Down(u32),
    /// h divided by this number and rounded down, the last at most.
    Over(usize),
    /// That of the first of each so many heads of the queries.
    OfFirst(usize),
    /// Each of these: with so many heads they are the same.
    Either(Vec<HeadOf>),
    /// As listed.
    Listed(Vec<usize>),
}

impl HeadOf {
    /// Rare maps of so many heads to `n` of the cache, none of which is right: a group of another size than a power of two is divided by
    /// a shift, or shared by heads that are computed together; or another number is taken for the size of a group.
    pub(super) fn rare(heads: usize, n: usize) -> Vec<Self> {
        if n < 2 {
            return Vec::new();
        }
        let group = (heads / n).max(1);
        let shifts = [group.ilog2(), group.ilog2() + 1].map(Self::Down);
        let shifts = shifts.into_iter().filter(|_| !group.is_power_of_two());
        let together = [2, 4, 8].into_iter().filter(|m| !group.is_multiple_of(*m)).map(Self::OfFirst);
        // Of two heads any border is some number's: numbers that a kernel may take for the size of a group.
        let shifted = [group.ilog2(), group.ilog2() + 1].map(|bits| 1 << bits);
        let over: BTreeSet<usize> = [n, group - 1, group + 1, 2 * group, group / 2].into();
        let is_other = |d: &usize| (2..heads).contains(d) && *d != group;
        let over = over.into_iter().filter(is_other).filter(|d| group.is_power_of_two() || !shifted.contains(d));
        shifts.chain(together).chain(over.map(Self::Over)).collect()
    }

    pub(super) fn of(&self, h: usize, (heads, n): (usize, usize)) -> usize {
        let own = h / (heads / n);
        match self {
            Self::Is(one) => (*one).min(n - 1),
            Self::Mod => h % n,
            Self::Shifted => ((h + 1) * n / heads).min(n - 1),
            Self::AtMost => h.min(n - 1),
            Self::Next => (own + 1) % n,
            Self::Before => (own + n - 1) % n,
            Self::Mirrored => n - 1 - own,
            Self::Down(bits) => (h >> bits).min(n - 1),
            Self::Over(number) => (h / number).min(n - 1),
            Self::OfFirst(m) => h / m * m / (heads / n),
            Self::Either(all) => all.first().map_or(own, |first| first.of(h, (heads, n))),
            Self::Listed(list) => list.get(h).copied().unwrap_or(own).min(n - 1),
        }
    }
}

impl fmt::Display for HeadOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Is(one) => write!(f, "KV head {one}"),
            Self::Mod => f.write_str("KV head h mod n_kv"),
            Self::Shifted => f.write_str("KV head (h + 1)·n_kv / n_heads"),
            Self::AtMost => f.write_str("KV head h (the last at most)"),
            Self::OfFirst(m) => write!(f, "the KV head of the first of each {m} query heads"),
            Self::Next => f.write_str("the KV head after its own"),
            Self::Before => f.write_str("the KV head before its own"),
            Self::Mirrored => f.write_str("the KV head at the other end"),
            Self::Down(bits) => write!(f, "KV head h >> {bits} (the last at most)"),
            Self::Over(number) => write!(f, "KV head h / {number} (the last at most)"),
            Self::Either(all) => {
                let all: Vec<String> = all.iter().map(ToString::to_string).collect();
                f.write_str(&all.join(", or "))
            }
            Self::Listed(list) => {
                let list: Vec<String> = list.iter().map(ToString::to_string).collect();
                write!(f, "the KV head of the list {}", list.join(" "))
            }
        }
    }
}
