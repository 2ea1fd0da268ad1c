//! Index maps: which number replaces an index: of a token, a column, a head, a key, a term, an id or a slot.
//!
//! One list serves them all: a kernel computes indices in the same few ways, and makes the same slips, for anything
//! that the index counts. Maps are data; a rule that gives some pairs is looked for among those that the pairs allow.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A number in the place of an index `i` of `n`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Index {
    /// i + by; nothing beyond the ends.
    By(i64),
    /// i + by, wrapping around.
    Round(i64),
    /// This one, for any i.
    Is(usize),
    /// The last.
    End,
    /// As far from the last as i is from the first.
    Mirrored,
    /// i ⊕ m, where that is below n.
    Apart(usize),
    /// i mod m.
    Mod(usize),
    /// i / m, without remainder.
    Div(usize),
    /// The first of each m.
    First(usize),
    /// The last of each m.
    Last(usize),
    /// The last one that is ≡ i mod m.
    LastAlike(usize),
    /// At the same place of the last m, for those behind the last whole m: a last tile that is moved back to be whole.
    Whole(usize),
    /// The same, where there is no whole m as well: as far before as the last m lacks, but no further than the first.
    Ending(usize),
    /// At the other end of each m.
    Reversed(usize),
    /// One further on, wrapping around in each m.
    Next(usize),
    /// One before, wrapping around in each m.
    Before(usize),
    /// i, and m − 1 from there on.
    AtMost(usize),
    /// In the last run that there is, where there is no run of so many for i.
    Clamped {
        /// Indices of a run.
        each: usize,
        /// The last run.
        last: usize,
    },
    /// The transposed place in each m, read as so many rows.
    Turned {
        /// Indices that are read as a matrix.
        each: usize,
        /// Rows of it.
        rows: usize,
    },
    /// The same place of its run of so many, where runs begin so far apart.
    Strided {
        /// Indices of a run.
        each: usize,
        /// From one run to the next.
        stride: usize,
    },
    /// 2·i, wrapping around.
    Twice,
    /// i without its lowest bit.
    Even,
    /// i with its lowest bit set.
    Odd,
    /// In each run of as many as are listed: the one with this number in the run.
    Permuted(Vec<usize>),
    /// The same place of another run of so many.
    Runs {
        /// Indices of a run.
        each: usize,
        /// The run for its own.
        of: Box<Index>,
    },
    /// These, and every other one its own.
    Pairs(BTreeMap<usize, usize>),
}

impl Index {
    /// The number in the place of i, of so many; nothing where there is none.
    pub(super) fn of(&self, i: usize, n: usize) -> Option<usize> {
        let within = |o: usize| if o < n { o } else { i };
        let there = match self {
            Self::By(by) => usize::try_from(i as i64 + by).ok()?,
            Self::Round(by) => (i as i64 + by).rem_euclid(n.max(1) as i64) as usize,
            Self::Is(one) => *one,
            Self::End => n.checked_sub(1)?,
            Self::Mirrored => n.checked_sub(i + 1)?,
            Self::Apart(m) => within(i ^ m),
            Self::Mod(m) => i % m,
            Self::Div(m) => i / m,
            Self::First(m) => i / m * m,
            Self::LastAlike(m) => i + n.checked_sub(i + 1)? / m * m,
            Self::Last(m) => (i / m * m + m - 1).min(n.checked_sub(1)?),
            Self::Whole(m) => {
                let rest = n % m;
                if rest > 0 && n >= *m && i >= n - rest { i + rest - m } else { i }
            }
            Self::Ending(m) => {
                let rest = n % m;
                if rest > 0 && i >= n - rest { (i + rest).saturating_sub(*m) } else { i }
            }
            Self::Reversed(m) => within(i / m * m + m - 1 - i % m),
            Self::Next(m) => within(i / m * m + (i % m + 1) % m),
            Self::Before(m) => within(i / m * m + (i % m + m - 1) % m),
            Self::AtMost(m) => i.min(m - 1),
            Self::Clamped { each, last } => (i / each).min(*last) * each + i % each,
            Self::Turned { each, rows } => {
                let columns = each / rows;
                within(i / each * each + i % each % rows * columns + i % each / rows)
            }
            Self::Strided { each, stride } => i / each * stride + i % each,
            Self::Twice => 2 * i % n.max(1),
            Self::Even => i & !1,
            Self::Odd => i | 1,
            Self::Permuted(order) => within(i / order.len() * order.len() + order[i % order.len()]),
            Self::Runs { each, of } => of.of(i / each, n.div_ceil(*each))? * each + i % each,
            Self::Pairs(pairs) => *pairs.get(&i).unwrap_or(&i),
        };
        (there < n).then_some(there)
    }

    /// What it leads to, after "the": of `one`, such as "token", which is called `t` for short.
    pub(super) fn told(&self, one: &str, t: &str) -> String {
        match self {
            Self::By(by) => beside(one, *by),
            Self::Round(by) => format!("{}, wrapping around", beside(one, *by)),
            Self::Is(0) => format!("first {one}"),
            Self::Is(k) => format!("{one} {k}"),
            Self::End => format!("last {one}"),
            Self::Mirrored => format!("{one} at the other end"),
            // Within groups of 2^k the place i XOR (2^k − 1) is the one at the other end.
            Self::Apart(m) if *m > 1 && (m + 1).is_power_of_two() => {
                format!("{one} at the other end of each {}", m + 1)
            }
            Self::Apart(m) => format!("{one} {m} apart, in pairs"),
            Self::Mod(m) => format!("{one} {t} mod {m} for {one} {t}"),
            Self::Div(m) => format!("{one} {t}/{m} for {one} {t}"),
            Self::First(m) => format!("first {one} of each {m}"),
            Self::Last(m) => format!("last {one} of each {m}"),
            Self::LastAlike(m) => format!("last {one} whose number is {t} mod {m} for {one} {t}"),
            Self::Whole(m) => {
                format!("{one} at the same place of the last {m} {one}s, for {one}s behind the last whole {m}")
            }
            Self::Ending(m) => {
                format!(
                    "{one} as far before as the last {m} {one}s lack, but no further than the first, for {one}s behind the last whole {m}"
                )
            }
            Self::Reversed(m) => format!("{one} at the other end of each {m}"),
            Self::Next(m) => format!("{one} one after, wrapping around in each {m}"),
            Self::Before(m) => format!("{one} one before, wrapping around in each {m}"),
            Self::AtMost(m) => format!("{one} {t} for {t} < {m}, and {one} {} from there on", m - 1),
            Self::Clamped { each, last } => {
                format!("{one} at the same place of block {last}, of {each} {one}s each, in all later blocks")
            }
            Self::Turned { each, rows } => {
                format!("{one} of the transposed place in each {each}, read as {rows} by {}", each / rows)
            }
            Self::Strided { each, stride } => {
                format!("{one} of the same place, as if runs of {each} began {stride} apart")
            }
            Self::Twice => format!("{one} 2{t} for {one} {t}, wrapping around"),
            Self::Even => format!("{one} without its lowest bit"),
            Self::Odd => format!("{one} with its lowest bit set"),
            Self::Permuted(order) => {
                let list: Vec<String> = order.iter().map(ToString::to_string).collect();
                format!("{one} of the place {} in each {}", list.join(" "), order.len())
            }
            Self::Runs { each, of } => {
                format!("{one} of the same place in the {}", of.told(&format!("run of {each}"), "r"))
            }
            Self::Pairs(pairs) => {
                let shown: Vec<String> =
                    pairs.iter().take(4).map(|(own, other)| format!("{other} for {own}")).collect();
                let more = if pairs.len() > 4 { format!(" and {} more", pairs.len() - 4) } else { String::new() };
                format!("another {one}: {}{more}", shown.join(", "))
            }
        }
    }

    /// Numbers that were read off the wrong elements.
    pub(super) fn parameters(&self) -> usize {
        match self {
            Self::Pairs(pairs) => 2 * pairs.len(),
            Self::Permuted(order) => order.len(),
            Self::Runs { of, .. } => 1 + of.parameters(),
            _ => 1,
        }
    }

    /// Runs that are read in the place of others: pages of a table, tiles, blocks.
    pub(super) fn runs(n: usize) -> Vec<Self> {
        let each = [2usize, 4, 8, 16, 32, 64, 128, 256].into_iter().filter(|each| 2 * each <= n);
        let of = [Self::By(-1), Self::By(1), Self::Is(0), Self::End, Self::Mirrored];
        let of = of.into_iter().chain([
            Self::Apart(2),
            Self::Mod(2),
            Self::Even,
            Self::Odd,
            Self::Round(1),
            Self::Round(-1),
        ]);
        // As warps have them, each several.
        let shapes = [(4, 2), (8, 2), (8, 4), (16, 2), (16, 4), (16, 8)];
        let of = of.chain(shapes.map(|(each, rows)| Self::Turned { each, rows }));
        each.flat_map(|each| of.clone().map(move |of| Self::Runs { each, of: Box::new(of) })).collect()
    }

    /// Runs that begin as far apart as those of half the size, or of twice the size.
    pub(super) fn apart(n: usize) -> Vec<Self> {
        let each = [4usize, 8, 16, 32, 64, 128, 256].into_iter().filter(|each| 2 * each <= n);
        each.flat_map(|each| [each / 2, 2 * each].map(|stride| Self::Strided { each, stride })).collect()
    }

    /// Orders of so many indices, which are read as numbers of three digits of which two are exchanged: as fragments of tiles are.
    pub(super) fn digits(n: usize) -> Vec<Self> {
        let within = |n: usize| {
            let rows = (1..16).map(|b| 1usize << b).take_while(move |rows| 2 * rows <= n);
            rows.filter(move |rows| n.is_multiple_of(*rows)).map(move |rows| Self::Turned { each: n, rows })
        };
        let runs = [2usize, 4, 8].into_iter().filter(move |each| n.is_multiple_of(*each));
        let of_runs = runs.flat_map(|each| within(n / each).map(move |of| Self::Runs { each, of: Box::new(of) }));
        within(n).chain(of_runs).collect()
    }

    /// The maps that a kernel's author slips into, the simpler first, of at most so many indices.
    pub(super) fn slips(n: usize) -> Vec<Self> {
        let mut all = vec![Self::By(-1), Self::By(1), Self::Is(0), Self::End, Self::Apart(1), Self::Mirrored];
        all.extend([-2, 2, -3, 3, -4, 4].map(Self::By));
        let mut by = 1;
        while by < n {
            all.extend([Self::Round(by as i64), Self::Round(-(by as i64)), Self::Apart(by)]);
            by *= 2;
        }
        all.extend(Self::tiled(n));
        all
    }

    /// Those of them that have to do with tiles, the smaller first, and those of powers of two before others.
    pub(super) fn tiled(n: usize) -> Vec<Self> {
        let mut all = Vec::new();
        for m in [2usize, 4, 8, 16, 32, 64, 128, 3, 5, 6, 7, 12, 24].into_iter().filter(|m| *m < n) {
            all.extend([Self::Mod(m), Self::Div(m)]);
            // Of pairs it is the one before, or after, of every second.
            if m > 2 {
                all.extend([
                    Self::First(m),
                    Self::Last(m),
                    Self::LastAlike(m),
                    Self::Reversed(m),
                    Self::Next(m),
                    Self::Before(m),
                    Self::AtMost(m),
                ]);
            }
            all.extend(m.is_power_of_two().then_some(Self::Apart(m)));
            let shapes = [2usize, 4, 8].into_iter().filter(|rows| m.is_power_of_two() && m > *rows && m / rows >= 2);
            all.extend(shapes.map(|rows| Self::Turned { each: m, rows }));
        }
        all.push(Self::Twice);
        all
    }

    /// Whether so many replacements are enough to tell it: of a few, some number that no kernel counts by fits any.
    fn is_shown_by(&self, replacements: usize) -> bool {
        let odd = match self {
            Self::Mod(m) | Self::Div(m) | Self::First(m) | Self::Last(m) | Self::LastAlike(m) | Self::Reversed(m) => {
                !m.is_power_of_two()
            }
            Self::Next(m) | Self::Before(m) => !m.is_power_of_two(),
            Self::AtMost(m) => m % 4 != 0,
            Self::Is(one) => *one >= SMALL,
            _ => false,
        };
        !odd || replacements >= SHOWN
    }

    /// Maps that give a possible replacement of each of these indices: the simpler first.
    pub(super) fn giving(sources: &Sources) -> Vec<Self> {
        let Some((&(i, n), first)) = sources.iter().min_by_key(|(_, first)| first.len()) else { return Vec::new() };
        let longest = sources.keys().map(|(_, n)| *n).max().unwrap_or(n);
        // Of one replacement, it is a shift as well.
        let whole = [4, 8, 16, 32, 64, 128, 256].into_iter().filter(|_| sources.len() > 1);
        let mut all: Vec<Self> = whole.map(Self::Whole).collect();
        for &o in first.iter().take(4) {
            let by = o as i64 - i as i64;
            // A shift wrapping around has a second name, from the other side.
            let other = if by > 0 { by - n as i64 } else { by + n as i64 };
            all.extend([Self::By(by), Self::Round(by), Self::Round(other), Self::Is(o), Self::Apart(i ^ o)]);
            all.extend((i > o && o > 0).then_some(Self::AtMost(o + 1)));
            // Beyond the end of a table of pages, or of blocks.
            // In the first block of all it is a remainder.
            let pages =
                [8, 16, 32, 64, 128, 256].into_iter().filter(|each| i > o && o >= *each && i % each == o % each);
            all.extend(pages.map(|each| Self::Clamped { each, last: o / each }));
        }
        all.extend(Self::slips(longest));
        for each in (2..=longest).filter(|each| longest.is_multiple_of(*each)) {
            all.push(Self::Reversed(each));
            all.extend((2..each).filter(|rows| each.is_multiple_of(*rows)).map(|rows| Self::Turned { each, rows }));
        }
        // The number that divides every replacement, and the difference.
        let pairs =
            || sources.iter().filter_map(|((i, _), some)| if let [o] = some[..] { Some((*i, o)) } else { None });
        let modulus = pairs().fold(0, |m, (i, o)| common_divisor(m, i.abs_diff(o)));
        let first = pairs().fold(0, |m, (_, o)| common_divisor(m, o));
        all.extend((modulus > 64).then_some(Self::Mod(modulus)));
        all.extend((first > 64).then_some(Self::First(first)));
        all.extend((2..=64).flat_map(|m| [Self::Mod(m), Self::Reversed(m), Self::First(m)]));
        all.extend(Self::runs(longest));
        all.extend([4, 8, 16, 32].into_iter().filter_map(|m| permuted(sources, m)));
        let gives = |map: &Self| {
            let given =
                |((i, n), some): (&(usize, usize), &Vec<usize>)| map.of(*i, *n).is_some_and(|o| some.contains(&o));
            sources.iter().any(|((i, n), _)| map.of(*i, *n) != Some(*i)) && sources.iter().all(given)
        };
        let mut fitting: Vec<Self> = Vec::new();
        for map in all {
            if !fitting.contains(&map) && map.is_shown_by(sources.len()) && gives(&map) {
                fitting.push(map);
            }
        }
        fitting
    }
}

/// The largest number that divides both; of 0 and another one, that.
fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// Replacements that show a map by a number that kernels seldom count by, or by a single place beyond the first few.
const SHOWN: usize = 4;
const SMALL: usize = 8;

/// The order in which each run of m stands, if it is one and all runs say the same.
fn permuted(sources: &Sources, m: usize) -> Option<Index> {
    let mut order: Vec<Option<Vec<usize>>> = vec![None; m];
    // What is seen of one run alone is no rule.
    let runs: BTreeSet<usize> = sources.keys().map(|(i, _)| i / m).collect();
    if runs.len() < 3 {
        return None;
    }
    for ((i, _), some) in sources {
        let inside = some.iter().filter(|o| *o / m == i / m).map(|o| o % m);
        match &mut order[i % m] {
            Some(known) => {
                let inside: Vec<usize> = inside.collect();
                known.retain(|o| inside.contains(o));
            }
            unknown => *unknown = Some(inside.collect()),
        }
    }
    // Right elements are in their own place.
    let place = |(r, some): (usize, Option<Vec<usize>>)| some.map_or(Some(r), |some| some.first().copied());
    let order: Vec<usize> = order.into_iter().enumerate().map(place).collect::<Option<_>>()?;
    let all: BTreeSet<usize> = order.iter().copied().collect();
    (all.len() == m && order.iter().enumerate().any(|(r, o)| r != *o)).then_some(Index::Permuted(order))
}

/// The `one` so many places before or after, for a text after "the": `previous token`, `token 3 after`.
pub(super) fn beside(one: &str, by: i64) -> String {
    match by {
        -1 => format!("previous {one}"),
        1 => format!("next {one}"),
        by if by < 0 => format!("{one} {} before", -by),
        by => format!("{one} {by} after"),
    }
}

/// The possible replacements of an index, of so many.
pub(super) type Sources = BTreeMap<(usize, usize), Vec<usize>>;

#[cfg(test)]
mod tests {
    use super::{Index, Sources};
    use proptest::prelude::*;

    /// Each eight runs of 16 lie in the order in which four warps have them, two by two.
    #[test]
    fn an_order_of_runs_is_read_off_places_of_some() {
        let map = Index::Runs { each: 16, of: Box::new(Index::Turned { each: 8, rows: 2 }) };
        let moved = |i: &usize| map.of(*i, 512) != Some(*i);
        let some = (0..512).filter(moved).step_by(24);
        let sources: Sources = some.map(|i| ((i, 512), vec![map.of(i, 512).unwrap()])).collect();
        assert!(Index::giving(&sources).contains(&map));
    }

    #[test]
    fn a_last_tile_ends_with_the_last() {
        let of = |map: Index, n: usize| -> Vec<usize> { (0..n).map(|i| map.of(i, n).unwrap()).collect() };
        assert_eq!(of(Index::Whole(4), 6), of(Index::Ending(4), 6));
        assert_eq!(of(Index::Ending(4), 6), [0, 1, 2, 3, 2, 3]);
        assert_eq!((of(Index::Whole(4), 3), of(Index::Ending(4), 3)), (vec![0, 1, 2], vec![0, 0, 1]));
    }

    proptest! {
        /// For any pairs that a map gives, the map is among those found for the pairs, and all found maps give the
        /// pairs.
        #[test]
        fn a_map_is_read_off_its_pairs(n in 8usize..100, which in 0usize..200) {
            let all = Index::slips(n);
            let map = &all[which % all.len()];
            let sources: Sources = (0..n).filter_map(|i| Some(((i, n), vec![map.of(i, n)?]))).collect();
            prop_assert!(sources.values().all(|o| o[0] < n));
            let moves = sources.iter().any(|((i, _), o)| *i != o[0]);
            let found = Index::giving(&sources);
            prop_assert_eq!(moves, !found.is_empty(), "{:?}", map);
            for other in found {
                prop_assert!(sources.iter().all(|((i, n), o)| other.of(*i, *n) == Some(o[0])), "{:?}", other);
            }
        }
    }
}
