//! When: the simplest condition that holds of every wrong element and of none that is right although a law would change
//! it: on position, step, row of the part, token, head, column, key, or the size of the value.

use super::scene::Scene;
use super::{At, UNEXPLAINED};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

/// What a condition may ask of an element, and how it is called.
struct Feature {
    name: &'static str,
    /// Whether all elements of a row have the same.
    by_row: bool,
    of: fn(&Scene<'_>, At) -> Option<i64>,
}

fn row<'a>(scene: &'a Scene<'_>, at: At) -> &'a crate::verdict::RowAt {
    &scene.e.rows[at.0]
}

/// The step that ran the element's token: of a row of a cache, the one that wrote it.
fn step<'a>(scene: &'a Scene<'_>, at: At) -> &'a crate::capture::Step {
    let (row, steps) = (row(scene, at), &scene.e.side.capture.steps);
    let wrote = |s: &&crate::capture::Step| (s.first..s.keys()).contains(&row.place.position);
    steps[..row.step].iter().find(wrote).unwrap_or(&steps[row.step])
}

/// The element's place in its token's vector.
fn column(scene: &Scene<'_>, at: At) -> i64 {
    (scene.token(row(scene, at)).1 + at.1) as i64
}

/// The step that left the cache as it is: a row is seen again after every later step.
const LOOKED: &str = "step that left the cache so";

/// Simple ones first: of equally simple conditions, the first is reported.
const FEATURES: &[Feature] = &[
    Feature {
        name: "head",
        by_row: false,
        of: |s, at| row(s, at).place.head.map(|h| h as i64).or_else(|| Some(column(s, at) / s.head()? as i64)),
    },
    Feature {
        name: "column",
        by_row: false,
        of: |s, at| (!s.of_pairs() && row(s, at).place.head.is_none()).then(|| column(s, at)),
    },
    Feature {
        name: "column of the head",
        by_row: false,
        of: |s, at| match row(s, at).place.head {
            Some(_) => (!s.of_pairs()).then_some(at.1 as i64),
            None => Some(column(s, at) % s.head()? as i64),
        },
    },
    Feature { name: "key", by_row: false, of: |s, at| s.of_pairs().then_some(at.1 as i64) },
    Feature {
        name: DISTANCE,
        by_row: false,
        of: |s, at| s.of_pairs().then(|| row(s, at).place.position as i64 - at.1 as i64),
    },
    Feature { name: "position", by_row: true, of: |s, at| Some(row(s, at).place.position as i64) },
    Feature { name: "decode step", by_row: true, of: |s, at| (!longer(s)).then(|| step(s, at).index as i64) },
    // Where some have several tokens.
    Feature { name: "step", by_row: true, of: |s, at| longer(s).then(|| step(s, at).index as i64) },
    Feature {
        // A cache is looked at after every step, whoever wrote its rows.
        name: LOOKED,
        by_row: true,
        of: |s, at| s.node().has_state().then(|| s.e.side.capture.steps[row(s, at).step].index as i64),
    },
    Feature {
        name: "row of the part",
        by_row: true,
        of: |s, at| Some(row(s, at).place.position as i64 - step(s, at).first as i64),
    },
    Feature {
        name: FROM_LAST,
        by_row: true,
        of: |s, at| Some((step(s, at).keys() - 1) as i64 - row(s, at).place.position as i64),
    },
    Feature { name: LENGTH, by_row: true, of: |s, at| Some(step(s, at).tokens.len() as i64) },
    Feature {
        name: "token id",
        by_row: true,
        of: |s, at| {
            let step = step(s, at);
            let token = row(s, at).place.position.checked_sub(step.first)?;
            step.tokens.get(token).map(|t| i64::from(*t))
        },
    },
    Feature { name: "rows left over after whole tiles of 4", by_row: true, of: left_over::<4> },
    Feature { name: "rows left over after whole tiles of 8", by_row: true, of: left_over::<8> },
    Feature { name: "rows left over after whole tiles of 16", by_row: true, of: left_over::<16> },
    Feature { name: "rows left over after whole tiles of 32", by_row: true, of: left_over::<32> },
    Feature { name: "rows left over after whole tiles of 64", by_row: true, of: left_over::<64> },
];

/// Whether steps after the prefill have several tokens.
fn longer(scene: &Scene<'_>) -> bool {
    scene.e.side.capture.steps.iter().any(|step| step.index > 0 && step.tokens.len() > 1)
}

/// Whether the row is among those that are left over when whole tiles of M rows of the part are taken.
fn left_over<const M: usize>(scene: &Scene<'_>, at: At) -> Option<i64> {
    let (position, step) = (row(scene, at).place.position, step(scene, at));
    let first = step.first + step.tokens.len() / M * M;
    Some(i64::from(position >= first))
}

/// One of the features, in JSON by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked(usize);

impl Asked {
    fn feature(self) -> &'static Feature {
        &FEATURES[self.0]
    }
}

impl Serialize for Asked {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.feature().name)
    }
}

impl<'de> Deserialize<'de> for Asked {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = String::deserialize(from)?;
        let found = FEATURES.iter().position(|feature| feature.name == name);
        found.map(Self).ok_or_else(|| D::Error::custom(format!("`{name}` is no feature of an element")))
    }
}

impl JsonSchema for Asked {
    fn schema_name() -> Cow<'static, str> {
        "Feature".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        String::json_schema(generator)
    }
}

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
            Self::Rest(m, low, high) => (*low..=*high).contains(&v.rem_euclid(*m)),
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

    /// With what another run shows of values that were not seen before.
    fn with(&self, scene: &Scene<'_>, wrong: &[At], spared: &[At]) -> Self {
        let Some((mut a, mut b)) = self.unseen else { return self.clone() };
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
        Self { feature: self.feature, values: bound, unseen: Some((a, b)).filter(|(a, b)| a <= b) }
    }

    /// For a condition on the length of parts: whether it differs for parts of several tokens.
    fn tells_parts(&self) -> bool {
        match self.values {
            Values::From(low) => self.unseen.map_or(low, |(first, _)| first) > 2,
            Values::UpTo(high) => high > 1,
            _ => false,
        }
    }

    /// How much there is to it.
    fn weight(&self) -> usize {
        let name = self.feature.feature().name;
        match &self.values {
            Values::Is(_) if name.starts_with(LEFT_OVER) => 2,
            // Parts of several lengths that differ by nothing else tell a kernel's choice between two paths. Where all are of one
            // length, it says no more than prefill and decode.
            Values::Is(_) | Values::From(_) | Values::UpTo(_) if name == LENGTH => {
                if self.tells_parts() {
                    0
                } else {
                    2
                }
            }
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
            Values::Rest(..) | Values::Between(..) => 3,
            Values::Among(_) => 4,
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.feature.feature().name;
        match &self.values {
            Values::Is(1) if name.starts_with(LEFT_OVER) => write!(f, "in the {name} of each part"),
            Values::Is(_) if name.starts_with(LEFT_OVER) => {
                write!(f, "in the {} of each part", name.replace("rows left over after", "rows of"))
            }
            Values::Is(value) => f.write_str(&at(name, *value)),
            Values::From(low) => f.write_str(&from(name, *low)),
            Values::UpTo(high) => f.write_str(&up_to(name, *high)),
            Values::Rest(m, a, b) => f.write_str(&rest(name, *m, (*a, *b))),
            Values::Between(low, high) => f.write_str(&among(name, &format!("{low} to {high}"))),
            Values::Among(some) => {
                let list: Vec<String> = some.iter().map(ToString::to_string).collect();
                f.write_str(&among(name, &list.join(", ")))
            }
        }?;
        match self.unseen {
            Some((a, b)) if a == b => write!(f, " ({a} was not seen)"),
            Some((a, b)) => write!(f, " ({a} to {b} were not seen)"),
            None => Ok(()),
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

    /// With what another run shows of values that were not seen before.
    pub(super) fn with(&self, scene: &Scene<'_>, wrong: &[At], spared: &[At]) -> Self {
        match self {
            Self::One(c) => Self::One(c.with(scene, wrong, spared)),
            other => other.clone(),
        }
    }

    /// How much there is to it.
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::One(c) => c.weight(),
            Self::Both(a, b) => a.weight() + b.weight(),
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
    },
}

impl Holds {
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
                    c.weight() <= simplest.weight().max(1) && told.iter().all(least)
                }
                (When::Both(..), When::Both(a, b)) => told.iter().all(|known| match known {
                    When::Both(c, d) => (c.feature, d.feature) != (a.feature, b.feature),
                    _ => true,
                }),
                _ => false,
            };
            if another && told.len() < 3 {
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
            Self::Some { elements, of } => write!(f, "in {elements} of the {of} {UNEXPLAINED}"),
            Self::Under { tried, .. } => {
                let told: Vec<String> = self.told().iter().map(ToString::to_string).collect();
                match (told.as_slice(), tried) {
                    ([], _) => Ok(()),
                    ([one], _) => f.write_str(one),
                    ([first, others @ ..], true) => {
                        write!(f, "{first} (or {}: both runs allow it)", others.join(", or "))
                    }
                    ([first, others @ ..], false) => {
                        write!(
                            f,
                            "{first} (or {}: a run of other tokens and another length tells)",
                            others.join(", or ")
                        )
                    }
                }
            }
        }
    }
}

const MODULI: [i64; 12] = [2, 3, 4, 5, 7, 8, 16, 32, 64, 128, 256, 512];

/// The rows of a part, counted from its end.
const FROM_LAST: &str = "row counted from the part's last";

/// How far before the query a key is.
const DISTANCE: &str = "distance of the key from the query";

/// The features that separate parts.
const LENGTH: &str = "number of tokens in the part";

/// How features begin that tell whether a row is left over.
const LEFT_OVER: &str = "rows left over";

/// Conditions on a feature that hold of all of `yes`.
fn conditions(feature: usize, yes: &BTreeSet<i64>) -> Vec<Condition> {
    let (Some(&low), Some(&high)) = (yes.first(), yes.last()) else { return Vec::new() };
    let name = FEATURES[feature].name;
    let mut all = Vec::new();
    let mut add = |values| all.push(Condition { feature: Asked(feature), values, unseen: None });
    if name.starts_with(LEFT_OVER) {
        if low == high {
            add(Values::Is(low));
        }
        return all;
    }
    if low == high {
        add(Values::Is(low));
    }
    if matches!(name, "decode step" | "step") && low > 1 {
        add(Values::From(1));
    }
    add(Values::From(low));
    add(Values::UpTo(high));
    for m in MODULI.into_iter().filter(|m| yes.len() > 1 && high - low >= *m) {
        let residues: BTreeSet<i64> = yes.iter().map(|v| v.rem_euclid(m)).collect();
        let (Some(&a), Some(&b)) = (residues.first(), residues.last()) else { continue };
        if residues.len() as i64 != m && b - a + 1 == residues.len() as i64 {
            add(Values::Rest(m, a, b));
        }
    }
    add(Values::Between(low, high));
    if (2..=6).contains(&yes.len()) {
        add(Values::Among(yes.clone()));
    }
    all
}

fn at(name: &str, value: i64) -> String {
    match (name, value) {
        ("decode step" | "step", 0) => "in the prefill only".to_owned(),
        (FROM_LAST, 0) => "in the last row of each part".to_owned(),
        (FROM_LAST, n) => format!("in the row {n} before the last of each part"),
        ("row of the part", n) => format!("in row {n} of the part"),
        (LOOKED, 0) => "in the cache as the prefill left it".to_owned(),
        (LOOKED, n) => format!("in the cache as step {n} left it"),
        (DISTANCE, 0) => "at the query's own key".to_owned(),
        (DISTANCE, n) => format!("at the key {n} before the query"),
        (LENGTH, n) => format!("in parts of {n} token{}", if n == 1 { "" } else { "s" }),
        _ => format!("at {name} {value}"),
    }
}

fn from(name: &str, low: i64) -> String {
    match (name, low) {
        ("decode step", 1) => "in decode steps only".to_owned(),
        ("step", 1) => "in the steps after the prefill only".to_owned(),
        (FROM_LAST, 1) => "in all rows of each part but the last".to_owned(),
        (FROM_LAST, n) => format!("in all rows of each part but the last {n}"),
        (LENGTH, n) => format!("in parts of {n} tokens and more"),
        (DISTANCE, n) => format!("at keys {n} and more before the query"),
        ("row of the part", n) => format!("from row {n} of the part on"),
        (LOOKED, n) => format!("in the cache as step {n} and later steps left it"),
        _ => format!("from {name} {low} on"),
    }
}

fn up_to(name: &str, high: i64) -> String {
    match (name, high) {
        (FROM_LAST, n) => format!("in the last {} rows of each part", n + 1),
        (LENGTH, n) => format!("in parts of up to {n} tokens"),
        (DISTANCE, n) => format!("at keys up to {n} before the query"),
        ("row of the part", n) => format!("up to row {n} of the part"),
        (LOOKED, 0) => "in the cache as the prefill left it".to_owned(),
        (LOOKED, n) => format!("in the cache as the steps up to {n} left it"),
        _ => format!("up to {name} {high}"),
    }
}

/// Values in a list, or from one to another.
fn among(name: &str, list: &str) -> String {
    match name {
        FROM_LAST => format!("in the rows {list} before the last of each part"),
        "row of the part" => format!("in rows {list} of the part"),
        LENGTH => format!("in parts of {list} tokens"),
        DISTANCE => format!("at the keys {list} before the query"),
        LOOKED => format!("in the cache as steps {list} left it"),
        "column of the head" => format!("at columns {list} of the head"),
        _ => format!("at {name}s {list}"),
    }
}

/// Values whose rest modulo m lies between two numbers.
fn rest(name: &str, m: i64, (a, b): (i64, i64)) -> String {
    let what = match name {
        FROM_LAST => "number of later rows in the part",
        LOOKED => "number of the step that left the cache so",
        name => name,
    };
    match (m, a, b) {
        (2, 0, 0) => format!("where the {what} is even"),
        (2, 1, 1) => format!("where the {what} is odd"),
        _ if a == b => format!("where {what} mod {m} = {a}"),
        _ => format!("where {what} mod {m} is {a} to {b}"),
    }
}

/// Elements of a run that a law gives, and right ones that it would change.
#[derive(Clone, Copy)]
pub(super) struct Seen<'a, 's> {
    pub(super) scene: &'a Scene<'s>,
    pub(super) wrong: &'a [At],
    pub(super) spared: &'a [At],
}

impl Seen<'_, '_> {
    fn elements(&self, are_wrong: bool) -> &[At] {
        if are_wrong { self.wrong } else { self.spared }
    }
}

/// The conditions that hold of all wrong elements of these runs and of none that is spared, the simpler first: on one
/// feature; where there is none, on the size of the value; where there is none either, the simplest on two features.
pub(super) fn separating(runs: &[Seen<'_, '_>]) -> Vec<When> {
    let of = |f: &Feature, are_wrong: bool| -> Option<Vec<i64>> {
        let values = |run: &Seen<'_, '_>| -> Option<Vec<i64>> {
            run.elements(are_wrong).iter().map(|&at| (f.of)(run.scene, at)).collect()
        };
        Some(runs.iter().map(values).collect::<Option<Vec<_>>>()?.concat())
    };
    let spared = runs.iter().map(|run| run.spared.len()).sum::<usize>();
    let known = |(i, f): (usize, &Feature)| {
        let (yes, no) = (of(f, true)?, of(f, false)?);
        Some((conditions(i, &yes.into_iter().collect()), no))
    };
    let known: Vec<(Vec<Condition>, Vec<i64>)> = FEATURES.iter().enumerate().filter_map(known).collect();
    let none = |c: &Condition, no: &[i64]| no.iter().all(|v| !c.values.has(*v));
    let one = known.iter().flat_map(|(options, no)| {
        let fitting = options.iter().filter(|c| none(c, no));
        fitting.map(|c| c.beside(no.iter().copied())).collect::<Vec<_>>()
    });
    let mut found: Vec<Condition> = one.collect();
    if !found.is_empty() {
        found.sort_by_key(Condition::weight);
        return found.into_iter().map(When::One).collect();
    }
    if let Some(size) = by_size(runs) {
        return vec![When::Size(size)];
    }
    let mut both: Vec<(usize, When)> = Vec::new();
    for (i, (options, no)) in known.iter().enumerate() {
        for a in options {
            let rest: Vec<usize> = (0..spared).filter(|&s| a.values.has(no[s])).collect();
            if rest.len() == spared {
                continue;
            }
            // Few of them refute most conditions; a reported condition is tested on all.
            let few: Vec<usize> = rest.iter().copied().step_by(rest.len().div_ceil(512).max(1)).collect();
            for (second, other) in &known[i + 1..] {
                let none = |b: &&Condition, of: &[usize]| of.iter().all(|&s| !b.values.has(other[s]));
                for b in second.iter().filter(|b| none(b, &few) && none(b, &rest)) {
                    let least = both.iter().map(|(w, _)| *w).min().unwrap_or(usize::MAX - 1);
                    let too_much = |weight: usize| weight > least + 1 || weight >= least && both.len() == MOST;
                    // With what was not seen beside it, a condition says no more.
                    if too_much(a.weight() + b.weight()) {
                        continue;
                    }
                    let first = a.beside((0..spared).filter(|&s| b.values.has(other[s])).map(|s| no[s]));
                    let then = b.beside(rest.iter().map(|&s| other[s]));
                    let when = When::Both(first, then);
                    let weight = when.weight();
                    if too_much(weight) {
                        continue;
                    }
                    both.retain(|(known, _)| *known <= weight + 1);
                    both.push((weight, when));
                }
            }
        }
    }
    both.sort_by_key(|(weight, _)| *weight);
    let least = both.first().map_or(0, |(weight, _)| *weight);
    both.into_iter().filter(|(weight, _)| *weight <= least + 1).map(|(_, when)| when).collect()
}

/// Conditions on two features that are looked at.
const MOST: usize = 64;

/// A condition on the sign or the size of the right value.
fn by_size(runs: &[Seen<'_, '_>]) -> Option<Size> {
    let range = |are_wrong: bool, f: fn(f64) -> f64| {
        let all = runs.iter().flat_map(|run| run.elements(are_wrong).iter().map(move |&at| (run.scene, at)));
        all.map(|(scene, at)| f(scene.element(at).1))
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)))
    };
    let (yes, no) = (range(true, |v| v), range(false, |v| v));
    if yes.1 < 0.0 && no.0 >= 0.0 {
        return Some(Size::Negative);
    }
    if yes.0 > 0.0 && no.1 <= 0.0 {
        return Some(Size::Positive);
    }
    let (yes, no) = (range(true, f64::abs), range(false, f64::abs));
    if yes.0 > no.1 {
        return Some(Size::Above(f64::midpoint(yes.0, no.1)));
    }
    (yes.1 < no.0).then(|| Size::Below(f64::midpoint(yes.1, no.0)))
}
