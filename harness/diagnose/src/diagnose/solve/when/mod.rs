//! When: the simplest condition that holds of every wrong element and of none that is right although a law would change
//! it: on position, step, row of the part, token, head, column, key, or the size of the value.

mod features;
mod separating;
mod words;

pub(super) use features::PLANE;
pub(super) use separating::{Seen, separating, telling};

use super::At;
use super::scene::Scene;
use features::{
    AGAIN, AGE, ALL_ROWS, Asked, BEGAN, BEGINS, BEHIND, BESIDE, BEYOND, FEATURES, FED, FROM_LAST, IN_PAGE,
    LAST_OF_SEVERAL, LATER, LEFT_OVER, LENGTH, LOOKED, MOST, NONE, OF_PASS, PART_FIRST, SIGN, WEIGHT_ROW,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// Kernels cut rows, keys and columns at multiples of this number.
const CUT: i64 = 4;

/// Pages and larger tiles begin at multiples of this one.
const PAGE: i64 = 16;

/// Values of a feature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Values {
    /// This one.
    Is(i64),
    /// This one and larger ones.
    From(i64),
    /// This one and smaller ones.
    UpTo(i64),
    /// Those from the first to the second.
    Between(i64, i64),
    /// Those whose rest modulo the first number is between the others.
    Rest(i64, i64, i64),
    /// The listed values.
    Among(BTreeSet<i64>),
}

impl Values {
    fn has(&self, v: i64) -> bool {
        match self {
            Self::Is(value) => v == *value,
            Self::From(low) => v >= *low,
            Self::UpTo(high) => v <= *high,
            Self::Between(low, high) => (*low..=*high).contains(&v),
            Self::Rest(m, low, high) => v != NONE && (*low..=*high).contains(&v.rem_euclid(*m)),
            Self::Among(some) => some.contains(&v),
        }
    }
}

/// Sizes of right values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Size {
    /// Below 0.
    Negative,
    /// Above 0.
    Positive,
    /// Sizes above this one.
    Above(f64),
    /// Sizes below this one.
    Below(f64),
}

impl Size {
    fn has(self, want: f64) -> bool {
        match self {
            Self::Negative => want < 0.0,
            Self::Positive => want > 0.0,
            Self::Above(low) => want.abs() > low,
            Self::Below(high) => want.abs() < high,
        }
    }

    fn words(self) -> String {
        let number = crate::number::number;
        match self {
            Self::Negative => "where the right value is negative".to_owned(),
            Self::Positive => "where the right value is positive".to_owned(),
            Self::Above(low) => format!("where the right value is larger than {} in size", number(low)),
            Self::Below(high) => format!("where the right value is smaller than {} in size", number(high)),
        }
    }
}

/// A condition on one feature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Condition {
    /// The feature.
    feature: Asked,
    /// For what it holds.
    values: Values,
    /// Values beside these, from the first to the second, that no element had: nothing is known of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unseen: Option<(i64, i64)>,
}

impl Condition {
    /// What it says of a value; nothing of one that was not seen.
    fn says(&self, value: Option<i64>) -> Option<bool> {
        let Some(value) = value else { return Some(false) };
        match self.unseen {
            Some((a, b)) if (a..=b).contains(&value) => None,
            _ => Some(self.values.has(value)),
        }
    }

    /// With what is not known of values between those that it holds of and those of which it does not, which `no` are.
    fn beside(&self, no: impl Iterator<Item = i64>) -> Self {
        let unseen = match self.values {
            Values::From(low) => no.filter(|v| *v < low).max().map(|below| (below + 1, low - 1)),
            Values::UpTo(high) => no.filter(|v| *v > high).min().map(|above| (high + 1, above - 1)),
            _ => None,
        };
        Self { unseen: unseen.filter(|(a, b)| a <= b), ..self.clone() }
    }

    /// Whether another one says the same, but for where a bound lies that runs leave open.
    fn alike(&self, other: &Self) -> bool {
        let bounds = matches!(
            (&self.values, &other.values),
            (Values::From(_), Values::From(_)) | (Values::UpTo(_), Values::UpTo(_))
        );
        self.feature == other.feature && (bounds || self.values == other.values)
    }

    /// With what another run shows of values that were not seen before: of all beyond a bound if it is `open`, as where nothing was right.
    fn with(&self, scene: &Scene<'_>, (wrong, spared): (&[At], &[At]), open: bool) -> Self {
        let beyond = || match self.values {
            Values::From(low) if open => low.checked_sub(1).map(|last| (i64::MIN, last)),
            Values::UpTo(high) if open => high.checked_add(1).map(|first| (first, i64::MAX)),
            _ => None,
        };
        let Some((mut a, mut b)) = self.unseen.or_else(beyond) else { return self.clone() };
        let values = |of: &[At]| -> Vec<i64> {
            let all = of.iter().filter_map(|&at| (self.feature.feature().of)(scene, at));
            all.filter(|v| (a..=b).contains(v)).collect()
        };
        let (yes, no) = (values(wrong), values(spared));
        let mut bound = self.values.clone();
        match &mut bound {
            Values::From(low) => {
                *low = yes.into_iter().min().unwrap_or(*low);
                (a, b) = (no.into_iter().max().map_or(a, |v| v + 1), *low - 1);
            }
            Values::UpTo(high) => {
                *high = yes.into_iter().max().unwrap_or(*high);
                (a, b) = (*high + 1, no.into_iter().min().map_or(b, |v| v - 1));
            }
            _ => {}
        }
        let known = |(a, b): &(i64, i64)| a <= b && *a > i64::MIN && *b < i64::MAX;
        Self { feature: self.feature, values: bound, unseen: Some((a, b)).filter(known) }
    }

    /// For a condition on the length of parts: whether it differs for parts of several tokens.
    fn tells_parts(&self) -> bool {
        match self.values {
            Values::From(low) => self.unseen.map_or(low, |(first, _)| first) > 2,
            Values::UpTo(high) => high > 1,
            _ => false,
        }
    }

    /// Whether a bound is at no number that kernels cut by, and so may be where the rows of this run happened to end.
    fn may_be_chance(&self) -> bool {
        let (bound, unseen) = match self.values {
            Values::From(low) => (low, self.unseen.map_or(low, |(first, _)| first)..=low),
            Values::UpTo(high) => (high, high + 1..=self.unseen.map_or(high, |(_, last)| last) + 1),
            _ => return false,
        };
        bound > 2 && !unseen.into_iter().any(|v| v % CUT == 0)
    }

    /// Whether a kernel makes such a difference, wherever a run happens to begin and end.
    fn is_plain(&self) -> bool {
        match (self.feature.feature().name, &self.values) {
            ("decode step" | "step", Values::From(1)) => true,
            (LENGTH, Values::Is(value)) => *value == 1,
            (FROM_LAST | "row of the part" | LOOKED | AGE, Values::Is(value)) => *value == 0,
            (_, Values::Is(_)) => true,
            _ => false,
        }
    }

    /// Whether it counts rows from an end of their part, further than a few.
    fn counts_in_part(&self) -> bool {
        let few = match self.values {
            Values::Is(_) | Values::Rest(..) => true,
            Values::From(bound) | Values::UpTo(bound) | Values::Between(_, bound) => bound <= CUT,
            Values::Among(_) => false,
        };
        !few && matches!(self.feature.feature().name, "row of the part" | FROM_LAST)
    }

    /// Whether it lists rows instead of giving a rule for them: one position or token, several, or a range that ends where
    /// kernels do not cut.
    fn is_list(&self) -> bool {
        let feature = self.feature.feature();
        let of_ids = feature.name == "token id";
        let of_places = ["position", "row of the part", OF_PASS, FROM_LAST, PART_FIRST].contains(&feature.name);
        let of_steps = self.is_of_steps();
        match self.values {
            Values::Is(value) => of_ids || of_places && value != 0 || of_steps && value > 1,
            Values::Between(low, high) => of_ids || of_places && (low % CUT != 0 || (high + 1) % CUT != 0),
            Values::Among(_) => feature.by_row,
            _ => false,
        }
    }

    /// Whether it tells rows apart by something that one row does not show: kernels treat the first or the last one, or the
    /// decoded ones, in their own way.
    fn asks_several_rows(&self) -> bool {
        self.feature.feature().by_row && (self.is_list() || !self.is_plain())
    }

    /// Whether it is of the rows of one token, as loaders treat padding: one row shows no more than its position does.
    fn is_of_one_id(&self) -> bool {
        self.feature.feature().name == "token id" && matches!(self.values, Values::Is(_))
    }

    /// Whether it is of the rows or keys that a tile, or a page, has left over.
    fn is_left_over(&self) -> bool {
        let name = self.feature.feature().name;
        name.contains(LEFT_OVER) || name.contains(IN_PAGE)
    }

    /// Whether it is a range, or a remainder, of a number that all rows of a part have.
    fn is_rest_of_parts(&self) -> bool {
        let of_parts =
            [PART_FIRST, LENGTH, MOST, ALL_ROWS].contains(&self.feature.feature().name) || self.is_of_steps();
        of_parts && matches!(self.values, Values::Rest(..) | Values::Between(..))
    }

    /// Whether it tells prefill from decoding.
    fn is_of_steps(&self) -> bool {
        matches!(self.feature.feature().name, "decode step" | "step")
    }

    /// The same, or whether it says which step left the cache so.
    fn is_of_cache_steps(&self) -> bool {
        self.is_of_steps() || self.feature.feature().name == LOOKED
    }

    /// Whether it is about the rows of a cache that a step itself writes.
    fn is_of_newest(&self) -> bool {
        self.feature.feature().name == AGE && matches!(self.values, Values::Is(0) | Values::UpTo(0))
    }

    /// Whether it says of this run the same as that a row is decoded or not: it begins or ends where a part does, at a number that
    /// kernels do not cut by.
    fn is_bound(&self) -> bool {
        match self.values {
            // The only row of a decode step is the first and the last of its part.
            Values::Is(0) => matches!(self.feature.feature().name, "row of the part" | FROM_LAST),
            Values::From(bound) => bound % PAGE != 0,
            Values::UpTo(bound) => (bound + 1) % PAGE != 0,
            _ => false,
        }
    }

    /// How much there is to it.
    fn weight(&self) -> usize {
        let name = self.feature.feature().name;
        match &self.values {
            Values::Is(_)
                if self.is_left_over()
                    || [LATER, BEHIND, FED, LAST_OF_SEVERAL].contains(&name)
                    || name.contains(BEYOND)
                    || name.contains(SIGN)
                    || name.contains(AGAIN)
                    || name.contains(BEGAN) =>
            {
                2
            }
            // What is not so in some passes of a batch is many things.
            Values::Is(0) if [BESIDE, BEGINS].contains(&name) => 3,
            // Parts of several lengths that differ by nothing else tell a kernel's choice between two paths. Where all are of one
            // length, it says no more than prefill and decode.
            Values::Is(_) | Values::From(_) | Values::UpTo(_) if name == LENGTH => {
                if self.tells_parts() {
                    0
                } else {
                    2
                }
            }
            // Another rule may say the same of few parts.
            Values::From(_) | Values::UpTo(_) if name == PART_FIRST => 2,
            _ if name == PART_FIRST => 5,
            // What lists rows comes after rules.
            Values::Is(_) if self.is_list() => 3,
            Values::Is(_) => 0,
            // Conditions on decoding come before those on rows or lengths; conditions on ids come last.
            Values::From(1) if matches!(name, "decode step" | "step") => 0,
            Values::From(_) | Values::UpTo(_) => {
                if name == "token id" {
                    3
                } else {
                    1
                }
            }
            Values::Rest(_, a, b) if a == b => 2,
            Values::Between(..) if name == "token id" => 4,
            Values::Rest(..) | Values::Between(..) => 3,
            Values::Among(_) => 4,
        }
    }
}

/// A condition that can be tested on elements of any run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum When {
    /// On one feature.
    One(Condition),
    /// On two.
    Both(Condition, Condition),
    /// On the size of the right value.
    Size(Size),
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(c) => c.fmt(f),
            Self::Both(a, b) => write!(f, "{a} and {b}"),
            Self::Size(size) => f.write_str(&size.words()),
        }
    }
}

impl When {
    /// That something holds from a position on.
    pub(super) fn since(position: usize) -> Self {
        let feature = FEATURES.iter().position(|feature| feature.name == "position").map_or(Asked(0), Asked);
        Self::One(Condition { feature, values: Values::From(position as i64), unseen: None })
    }

    /// The token ids, from the first to the second, of which the runs do not tell whether it holds.
    pub(in super::super) fn ids_untold(&self) -> Option<(u32, u32)> {
        let (a, b) = self.untold("token id")?;
        Some((a.try_into().ok()?, b.try_into().ok()?))
    }

    /// The same of positions at which a part begins.
    pub(in super::super) fn begins_untold(&self) -> Option<(usize, usize)> {
        let (a, b) = self.untold(PART_FIRST)?;
        Some((a.try_into().ok()?, b.try_into().ok()?))
    }

    fn untold(&self, feature: &str) -> Option<(i64, i64)> {
        let Self::One(condition) = self else { return None };
        condition.unseen.filter(|_| condition.feature.feature().name == feature)
    }

    /// Whether it says the same as another, but for where a bound lies that runs leave open.
    pub fn alike(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::One(a), Self::One(b)) => a.alike(b),
            (Self::Both(a, b), Self::Both(c, d)) => a.alike(c) && b.alike(d),
            _ => self == other,
        }
    }

    /// Whether it is the one that something holds from this position on.
    pub(super) fn is_since(&self, position: usize) -> bool {
        let Self::One(since) = Self::since(position) else { return false };
        matches!(self, Self::One(c) if c.feature == since.feature && c.values == since.values)
    }

    /// With what another run shows of values that were not seen before: of all beyond a bound if it is `open`, as where nothing was right
    /// that a law would change.
    pub(super) fn with(&self, scene: &Scene<'_>, (wrong, spared): (&[At], &[At]), open: bool) -> Self {
        let beside = |other: &Condition| -> Vec<At> {
            let of = |at: At| (other.feature.feature().of)(scene, at);
            spared.iter().copied().filter(|&at| other.says(of(at)) == Some(true)).collect()
        };
        match self {
            Self::One(c) => Self::One(c.with(scene, (wrong, spared), open)),
            Self::Both(a, b) => {
                let of = |c: &Condition, other| c.with(scene, (wrong, &beside(other)), open);
                Self::Both(of(a, b), of(b, a))
            }
            Self::Size(size) => Self::Size(*size),
        }
    }

    /// Whether a kernel makes such a difference, wherever a run happens to begin and end.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self, Self::One(c) if c.is_plain())
    }

    /// Whether it is of the length of parts, or of decode steps alone, by which kernels are chosen.
    pub(super) fn is_of_paths(&self) -> bool {
        matches!(self, Self::One(c) if c.feature.feature().name == LENGTH && c.tells_parts() || c.is_of_steps() && c.is_plain())
    }

    /// Whether it may hold of a row of a pass of so many tokens, which is a decode step of this number, or 0.
    pub(super) fn may_hold_in(&self, step: usize, tokens: usize) -> bool {
        let of = |c: &Condition| match c.feature.feature().name {
            "decode step" | "step" => c.values.has(step as i64),
            LENGTH => c.values.has(tokens as i64),
            _ => true,
        };
        match self {
            Self::One(c) => of(c),
            Self::Both(a, b) => of(a) && of(b),
            Self::Size(_) => true,
        }
    }

    /// Whether it lists rows instead of giving a rule for them.
    pub(super) fn is_list(&self) -> bool {
        match self {
            Self::One(c) => c.is_list(),
            Self::Both(a, b) => a.is_list() || b.is_list(),
            Self::Size(_) => false,
        }
    }

    /// Whether it is that a row is of one token, and nothing more.
    pub(super) fn is_of_one_id(&self) -> bool {
        matches!(self, Self::One(c) if c.is_of_one_id())
    }

    /// Whether one wrong row is too little to try it on.
    pub(super) fn asks_several_rows(&self) -> bool {
        match self {
            Self::One(c) => c.asks_several_rows(),
            Self::Both(a, b) => a.asks_several_rows() || b.asks_several_rows(),
            Self::Size(_) => false,
        }
    }

    /// Whether it asks this feature.
    fn is_of(&self, feature: &str) -> bool {
        match self {
            Self::One(c) => c.feature.feature().name == feature,
            Self::Both(a, b) => [a, b].into_iter().any(|c| c.feature.feature().name == feature),
            Self::Size(_) => false,
        }
    }

    /// Whether it holds of all elements of a row or of none.
    fn is_of_rows(&self) -> bool {
        match self {
            Self::One(c) => c.feature.feature().by_row,
            Self::Both(a, b) => a.feature.feature().by_row && b.feature.feature().by_row,
            Self::Size(_) => false,
        }
    }

    /// Whether a bound of it may be where the rows of this run happened to end.
    fn may_be_chance(&self) -> bool {
        match self {
            Self::One(c) => c.may_be_chance(),
            Self::Both(a, b) => a.may_be_chance() || b.may_be_chance(),
            Self::Size(_) => false,
        }
    }

    /// How much there is to it.
    pub(in crate::diagnose) fn weight(&self) -> usize {
        match self {
            Self::One(c) => c.weight(),
            Self::Both(a, b) => [a, b].into_iter().map(|c| c.weight() + usize::from(c.may_be_chance())).sum(),
            Self::Size(_) => 0,
        }
    }

    /// Whether it holds of an element; of one without such a feature it does not. Nothing where that is not known.
    pub(super) fn says(&self, scene: &Scene<'_>, at: At) -> Option<bool> {
        let of = |c: &Condition| c.says((c.feature.feature().of)(scene, at));
        match self {
            Self::One(c) => of(c),
            Self::Both(a, b) => match (of(a), of(b)) {
                (Some(false), _) | (_, Some(false)) => Some(false),
                (Some(true), Some(true)) => Some(true),
                _ => None,
            },
            Self::Size(size) => Some(size.has(scene.element(at).1)),
        }
    }

    /// Whether it holds of any element of the run, as far as rows tell: of a row of which it may hold, it holds of some element.
    pub(super) fn somewhere(&self, scene: &Scene<'_>) -> bool {
        let of = |c: &Condition, at: At| {
            let feature = c.feature.feature();
            !feature.by_row || (feature.of)(scene, at).is_some_and(|v| c.values.has(v))
        };
        (0..scene.e.rows.len()).map(|row| (row, 0)).any(|at| match self {
            Self::One(c) => of(c, at),
            Self::Both(a, b) => of(a, at) && of(b, at),
            Self::Size(_) => true,
        })
    }
}

/// Where a law holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Holds {
    /// Wherever it makes a difference.
    Everywhere,
    /// Under each of these conditions, the simplest first: no run that it was tried on tells them apart.
    Under {
        /// The conditions.
        conditions: Vec<When>,
        /// Whether another run allows them too.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        tried: bool,
    },
    /// In some of the elements that it would change; nothing says which.
    Some {
        /// So many.
        elements: usize,
        /// Of so many.
        of: usize,
        /// The same of rows, where rows are wrong as a whole or not at all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rows: Option<SomeRows>,
        /// Whether that is of another run: in this one it holds wherever it makes a difference.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        elsewhere: bool,
    },
}

/// Rows of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SomeRows {
    /// Their positions, from the first to the last of each run of them.
    positions: Vec<(usize, usize)>,
    /// Of so many.
    of: usize,
}

impl SomeRows {
    /// Those of wrong elements; nothing where one of them has others as well.
    pub(super) fn of(scene: &Scene<'_>, wrong: &[At], others: &[At]) -> Option<Self> {
        let positions =
            |of: &[At]| -> BTreeSet<usize> { of.iter().map(|at| scene.e.rows[at.0].place.position).collect() };
        let (wrong, others) = (positions(wrong), positions(others));
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for &p in &wrong {
            match runs.last_mut() {
                Some(run) if run.1 + 1 == p => run.1 = p,
                _ => runs.push((p, p)),
            }
        }
        let of = wrong.len() + others.len();
        (wrong.is_disjoint(&others) && !others.is_empty()).then_some(Self { positions: runs, of })
    }
}

/// Runs of positions that are listed at most.
const LISTED: usize = 6;

impl fmt::Display for SomeRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = |&(a, b): &(usize, usize)| if a == b { a.to_string() } else { format!("{a}–{b}") };
        let list: Vec<String> = self.positions.iter().take(LISTED).map(one).collect();
        let more = if self.positions.len() > LISTED { ", …" } else { "" };
        let rows: usize = self.positions.iter().map(|(a, b)| b + 1 - a).sum();
        let s = if rows == 1 { "" } else { "s" };
        write!(f, "{rows} of the {} rows that it would change, position{s} {}{more}", self.of, list.join(", "))
    }
}

/// How a sentence ends that gives the wrong elements and does not say why others are right.
const UNEXPLAINED: &str = "no rule is known that says which";

impl Holds {
    /// How much its simplest condition asks: 0 is what kernels make a difference of, 2 is two features.
    pub(in crate::diagnose) fn simplicity(&self) -> usize {
        match self {
            Self::Under { conditions, .. } => match conditions.first() {
                Some(when) if when.is_plain() => 0,
                Some(When::Both(..)) => 2,
                _ => 1,
            },
            _ => 0,
        }
    }

    /// Whether its simplest condition is that it holds from this position on.
    pub(in crate::diagnose) fn is_since(&self, position: usize) -> bool {
        matches!(self, Self::Under { conditions, .. } if conditions.first().is_some_and(|when| when.is_since(position)))
    }

    /// Whether its simplest condition asks this feature.
    pub(super) fn is_of(&self, feature: &str) -> bool {
        matches!(self, Self::Under { conditions, .. } if conditions.first().is_some_and(|when| when.is_of(feature)))
    }

    /// Whether its simplest condition, if it has one, is on rows alone.
    pub(super) fn is_of_rows(&self) -> bool {
        !matches!(self, Self::Under { conditions, .. } if conditions.first().is_some_and(|when| !when.is_of_rows()))
    }

    /// Whether the simplest condition asks two features.
    pub(in crate::diagnose) fn on_two_features(&self) -> bool {
        matches!(self, Self::Under { conditions, .. } if matches!(conditions.first(), Some(When::Both(..))))
    }

    /// Whether it lists rows of its run instead of giving a rule for them.
    pub(in crate::diagnose) fn is_list(&self) -> bool {
        match self {
            Self::Everywhere => false,
            Self::Under { conditions, .. } => conditions.first().is_none_or(When::is_list),
            Self::Some { .. } => true,
        }
    }

    /// The same with a rule as its simplest condition; nothing where that lists rows, and no condition as simple is a rule.
    pub(super) fn by_rule(&self) -> Option<Self> {
        let Self::Under { conditions, tried } = self else { return Some(self.clone()) };
        if !conditions.first()?.is_list() {
            return Some(self.clone());
        }
        let rule = self.told().into_iter().find(|when| when.is_plain() && !when.is_list())?.clone();
        let others = conditions.iter().filter(|when| **when != rule).cloned();
        Some(Self::Under { conditions: std::iter::once(rule.clone()).chain(others).collect(), tried: *tried })
    }

    /// The same of a law of a weight: what is a column of a product and a token's id of an embedding is a row of the weight.
    pub(super) fn of_weight_rows(self) -> Self {
        let row = FEATURES.iter().position(|feature| feature.name == WEIGHT_ROW).map_or(Asked(0), Asked);
        let of = |c: Condition| match c.feature.feature().name {
            "column" | "token id" => Condition { feature: row, ..c },
            _ => c,
        };
        let each = |when: When| match when {
            When::One(c) => When::One(of(c)),
            When::Both(a, b) => When::Both(of(a), of(b)),
            size => size,
        };
        match self {
            Self::Under { conditions, tried } => {
                Self::Under { conditions: conditions.into_iter().map(each).collect(), tried }
            }
            other => other,
        }
    }

    /// Whether this condition is among those that it may be, but for where a bound lies that runs leave open.
    pub fn allows(&self, when: &When) -> bool {
        matches!(self, Self::Under { conditions, .. } if conditions.iter().any(|known| known.alike(when)))
    }

    /// The reported conditions: the simplest, and those that are about as simple and as true.
    pub fn told(&self) -> Vec<&When> {
        let Self::Under { conditions, .. } = self else { return Vec::new() };
        let Some((first, rest)) = conditions.split_first() else { return Vec::new() };
        let mut told = vec![first];
        for when in rest {
            // The simplest of each feature.
            let another = match (first, when) {
                (When::One(simplest), When::One(c)) => {
                    let least = |known: &&When| match known {
                        When::One(known) => known.feature != c.feature || known.weight() == c.weight(),
                        _ => true,
                    };
                    // Where rows end that a tile has left over, other conditions may end as well.
                    let as_simple = c.weight() <= simplest.weight().max(1);
                    (as_simple || simplest.weight() == 1 && c.is_left_over()) && told.iter().all(least)
                }
                (When::Both(..), When::Both(a, b)) => told.iter().all(|known| match known {
                    // The step that wrote a row is the one that left the cache so.
                    When::Both(c, d) if d.is_of_newest() && b.is_of_newest() => {
                        !(c.is_of_cache_steps() && a.is_of_cache_steps())
                    }
                    When::Both(c, d) => (c.feature, d.feature) != (a.feature, b.feature),
                    _ => true,
                }),
                _ => false,
            };
            let ends_with_a_part =
                matches!((first, when), (When::One(a), When::One(b)) if a.is_of_steps() && b.is_bound());
            if another && told.len() < 3 && !when.may_be_chance() && !ends_with_a_part {
                told.push(when);
            }
        }
        told
    }
}

impl fmt::Display for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everywhere => Ok(()),
            Self::Some { elements, of, rows, elsewhere } => {
                f.write_str(if *elsewhere {
                    "wherever it makes a difference in this run, and in another one "
                } else {
                    ""
                })?;
                match rows {
                    Some(rows) => write!(f, "in {rows}: {UNEXPLAINED}"),
                    None if *of == 0 => write!(f, "in some of the elements that it would change: {UNEXPLAINED}"),
                    None => write!(f, "in {elements} of the {of} elements that it would change: {UNEXPLAINED}"),
                }
            }
            Self::Under { tried, .. } => {
                let mut told: Vec<String> = self.told().iter().map(ToString::to_string).collect();
                told.dedup();
                match (told.as_slice(), tried) {
                    ([], _) => Ok(()),
                    ([one], _) => f.write_str(one),
                    ([first, others @ ..], true) => {
                        write!(
                            f,
                            "{first} (or {}: the values of both runs fit each of these rules)",
                            others.join(", or ")
                        )
                    }
                    ([first, others @ ..], false) => {
                        write!(
                            f,
                            "{first} (or {}: the values of this run fit each of these rules)",
                            others.join(", or ")
                        )
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_by_chance_comes_after_a_tile() {
        let condition = |values, unseen| Condition { feature: Asked(0), values, unseen };
        let by_chance = [condition(Values::From(33), None), condition(Values::UpTo(12), Some((13, 14)))];
        let cut = [
            condition(Values::From(33), Some((30, 32))),
            condition(Values::UpTo(12), Some((13, 15))),
            condition(Values::UpTo(15), None),
            condition(Values::From(1), None),
            condition(Values::Is(13), None),
        ];
        for c in by_chance {
            assert!(c.may_be_chance(), "{c:?}");
            let both = |other: &Condition| When::Both(c.clone(), other.clone()).weight();
            assert!(cut.iter().all(|other| both(other) > c.weight() + other.weight()), "{c:?}");
        }
        assert!(cut.iter().all(|c| !c.may_be_chance()));
    }
}
