//! When: the simplest condition that holds of every wrong element and of none that is right although a law would change
//! it: on position, step, row of the part, token, head, column, key, or the size of the value.

use super::At;
use super::scene::Scene;
use std::collections::BTreeSet;

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

/// Where the element stands in its token's vector.
fn column(scene: &Scene<'_>, at: At) -> i64 {
    (scene.token(row(scene, at)).1 + at.1) as i64
}

/// Simple ones first: of conditions that are as simple, the first is told.
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
        name: "distance of the key from the query",
        by_row: false,
        of: |s, at| s.of_pairs().then(|| row(s, at).place.position as i64 - at.1 as i64),
    },
    Feature { name: "position", by_row: true, of: |s, at| Some(row(s, at).place.position as i64) },
    Feature { name: "decode step", by_row: true, of: |s, at| (!longer(s)).then(|| step(s, at).index as i64) },
    // Where some have several tokens.
    Feature { name: "step", by_row: true, of: |s, at| longer(s).then(|| step(s, at).index as i64) },
    Feature {
        // A cache is looked at after every step, whoever wrote its rows.
        name: "step after which the cache was looked at",
        by_row: true,
        of: |s, at| s.node().has_state().then(|| s.e.side.capture.steps[row(s, at).step].index as i64),
    },
    Feature {
        name: "row of the part",
        by_row: true,
        of: |s, at| Some(row(s, at).place.position as i64 - step(s, at).first as i64),
    },
    Feature {
        name: "row counted from the part's last",
        by_row: true,
        of: |s, at| Some((step(s, at).keys() - 1) as i64 - row(s, at).place.position as i64),
    },
    Feature {
        name: "number of tokens in the part",
        by_row: true,
        // Where parts are of one length alone, it says no more than prefill and decode.
        of: |s, at| {
            let lengths = s.e.side.capture.steps.iter().map(|s| s.tokens.len());
            (longer(s) || lengths.collect::<BTreeSet<_>>().len() > 2).then(|| step(s, at).tokens.len() as i64)
        },
    },
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

/// Values of a feature.
#[derive(Clone, Debug)]
enum Values {
    Is(i64),
    From(i64),
    UpTo(i64),
    Between(i64, i64),
    /// Those whose rest modulo the first number is between the others.
    Rest(i64, i64, i64),
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
#[derive(Clone, Copy, Debug)]
enum Size {
    Negative,
    Positive,
    Above(f64),
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

/// A condition on one feature, with how much there is to it.
#[derive(Clone, Debug)]
struct Condition {
    /// Index of the feature.
    feature: usize,
    weight: usize,
    words: String,
    values: Values,
}

/// A condition that can be asked of elements of any run.
#[derive(Clone, Debug)]
pub(super) struct When {
    clauses: Clauses,
}

#[derive(Clone, Debug)]
enum Clauses {
    One(Condition),
    Both(Condition, Condition),
    Size(Size),
}

impl When {
    /// In words.
    pub(super) fn words(&self) -> String {
        match &self.clauses {
            Clauses::One(c) => c.words.clone(),
            Clauses::Both(a, b) => format!("{} and {}", a.words, b.words),
            Clauses::Size(size) => size.words(),
        }
    }

    /// Whether it holds of an element; of one without such a feature it does not.
    pub(super) fn holds(&self, scene: &Scene<'_>, at: At) -> bool {
        let of = |c: &Condition| (FEATURES[c.feature].of)(scene, at).is_some_and(|v| c.values.has(v));
        match &self.clauses {
            Clauses::One(c) => of(c),
            Clauses::Both(a, b) => of(a) && of(b),
            Clauses::Size(size) => size.has(scene.element(at).1),
        }
    }

    /// Whether it holds of any element of the run, as far as rows tell: of a row of which it may hold, it holds of some element.
    pub(super) fn somewhere(&self, scene: &Scene<'_>) -> bool {
        let of = |c: &Condition, at: At| {
            let feature = &FEATURES[c.feature];
            !feature.by_row || (feature.of)(scene, at).is_some_and(|v| c.values.has(v))
        };
        (0..scene.e.rows.len()).map(|row| (row, 0)).any(|at| match &self.clauses {
            Clauses::One(c) => of(c, at),
            Clauses::Both(a, b) => of(a, at) && of(b, at),
            Clauses::Size(_) => true,
        })
    }
}

const MODULI: [i64; 12] = [2, 3, 4, 5, 7, 8, 16, 32, 64, 128, 256, 512];

/// Conditions on a feature that hold of all of `yes`, the simpler first.
fn conditions(feature: usize, yes: &BTreeSet<i64>) -> Vec<Condition> {
    let (Some(&low), Some(&high)) = (yes.first(), yes.last()) else { return Vec::new() };
    let name = FEATURES[feature].name;
    let mut all = Vec::new();
    let mut add = |weight, words, values| all.push(Condition { feature, weight, words, values });
    if name.starts_with("rows left over") {
        if low == 1 {
            add(2, format!("in the {name} of each part"), Values::Is(1));
        }
        return all;
    }
    if low == high {
        add(0, at(name, low), Values::Is(low));
    }
    // What begins with decoding is said to be of that before it is of rows or lengths; what begins with an id, last.
    if matches!(name, "decode step" | "step") && low > 0 {
        add(0, from(name, 1), Values::From(1));
    }
    let bounds = if name == "token id" { 3 } else { 1 };
    add(bounds, from(name, low), Values::From(low));
    add(bounds, up_to(name, high), Values::UpTo(high));
    for m in MODULI.into_iter().filter(|m| yes.len() > 1 && high - low >= *m) {
        let residues: BTreeSet<i64> = yes.iter().map(|v| v.rem_euclid(m)).collect();
        let (Some(&a), Some(&b)) = (residues.first(), residues.last()) else { continue };
        if residues.len() as i64 == m || b - a + 1 != residues.len() as i64 {
            continue;
        }
        let words = match (a == b, m) {
            (true, 2) => format!("where the {name} is {}", if a == 0 { "even" } else { "odd" }),
            (true, _) => format!("where {name} mod {m} = {a}"),
            _ => format!("where {name} mod {m} is {a} to {b}"),
        };
        add(if a == b { 2 } else { 3 }, words, Values::Rest(m, a, b));
    }
    add(3, format!("at {name}s {low} to {high}"), Values::Between(low, high));
    if (2..=6).contains(&yes.len()) {
        let list = yes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        add(4, format!("at {name}s {list}"), Values::Among(yes.clone()));
    }
    all
}

fn at(name: &str, value: i64) -> String {
    match (name, value) {
        ("decode step" | "step", 0) => "in the prefill only".to_owned(),
        ("row counted from the part's last", 0) => "in the last row of each part".to_owned(),
        ("row of the part", n) => format!("in row {n} of the part"),
        ("distance of the key from the query", 0) => "at the query's own key".to_owned(),
        ("number of tokens in the part", n) => format!("in parts of {n} token{}", if n == 1 { "" } else { "s" }),
        _ => format!("at {name} {value}"),
    }
}

fn from(name: &str, low: i64) -> String {
    match (name, low) {
        ("decode step", 1) => "in decode steps only".to_owned(),
        ("step", 1) => "in the steps after the prefill only".to_owned(),
        ("number of tokens in the part", n) => format!("in parts of {n} tokens and more"),
        ("distance of the key from the query", n) => format!("at keys {n} and more before the query"),
        ("row of the part", n) => format!("from row {n} of the part on"),
        _ => format!("from {name} {low} on"),
    }
}

/// How it is said that something holds from a position on.
pub(super) fn since(position: usize) -> String {
    from("position", position as i64)
}

fn up_to(name: &str, high: i64) -> String {
    match (name, high) {
        ("row counted from the part's last", n) => format!("in the last {} rows of each part", n + 1),
        ("number of tokens in the part", n) => format!("in parts of up to {n} tokens"),
        ("distance of the key from the query", n) => format!("at keys up to {n} before the query"),
        ("row of the part", n) => format!("up to row {n} of the part"),
        _ => format!("up to {name} {high}"),
    }
}

/// The conditions that hold of all `wrong` and none of `spared`, the simpler first: on one feature; where there is none, on the
/// size of the value; where there is none either, the simplest on two features.
pub(super) fn separating(scene: &Scene<'_>, wrong: &[At], spared: &[At]) -> Vec<When> {
    let values = |f: &Feature, of: &[At]| -> Option<Vec<i64>> { of.iter().map(|&at| (f.of)(scene, at)).collect() };
    let known = |(i, f): (usize, &Feature)| {
        let (yes, no) = (values(f, wrong)?, values(f, spared)?);
        Some((conditions(i, &yes.into_iter().collect()), no))
    };
    let known: Vec<(Vec<Condition>, Vec<i64>)> = FEATURES.iter().enumerate().filter_map(known).collect();
    let none = |c: &&Condition, no: &[i64]| no.iter().all(|v| !c.values.has(*v));
    let one = known.iter().flat_map(|(options, no)| options.iter().filter(|c| none(c, no)));
    let mut found: Vec<&Condition> = one.collect();
    if !found.is_empty() {
        found.sort_by_key(|c| c.weight);
        return found.into_iter().map(|c| When { clauses: Clauses::One(c.clone()) }).collect();
    }
    if let Some(size) = by_size(scene, wrong, spared) {
        return vec![When { clauses: Clauses::Size(size) }];
    }
    let mut best: Option<(usize, &Condition, &Condition)> = None;
    for (i, (options, no)) in known.iter().enumerate() {
        for a in options {
            let rest: Vec<usize> = (0..spared.len()).filter(|&s| a.values.has(no[s])).collect();
            if rest.len() == spared.len() {
                continue;
            }
            // Few of them refute most conditions; one that is told is held against all.
            let few: Vec<usize> = rest.iter().copied().step_by(rest.len().div_ceil(512).max(1)).collect();
            for (second, no) in &known[i + 1..] {
                let none = |b: &&Condition, of: &[usize]| of.iter().all(|&s| !b.values.has(no[s]));
                for b in second.iter().filter(|b| none(b, &few) && none(b, &rest)) {
                    let weight = a.weight + b.weight;
                    if best.is_none_or(|(w, ..)| weight < w) {
                        best = Some((weight, a, b));
                    }
                }
            }
        }
    }
    best.map(|(_, a, b)| When { clauses: Clauses::Both(a.clone(), b.clone()) }).into_iter().collect()
}

/// The condition that is told of those that hold: the simplest, and those that are about as simple and as true. `tried` on
/// another run as well, it takes none more to tell.
pub(super) fn told(options: &[When], tried: bool) -> Option<String> {
    let (first, rest) = options.split_first()?;
    let Clauses::One(simplest) = &first.clauses else { return Some(first.words()) };
    let mut others: Vec<&Condition> = Vec::new();
    for when in rest {
        let Clauses::One(c) = &when.clauses else { continue };
        // Of each feature the simplest.
        let least = |known: &Condition| known.feature != c.feature || known.weight == c.weight;
        if c.weight <= simplest.weight.max(1) && others.iter().copied().chain([simplest]).all(least) {
            others.push(c);
        }
    }
    let others: Vec<&str> = others.iter().take(2).map(|c| c.words.as_str()).collect();
    let words = &simplest.words;
    Some(match (others.is_empty(), tried) {
        (true, _) => words.clone(),
        (_, true) => format!("{words} (or {}: both runs allow it)", others.join(", or ")),
        _ => format!("{words} (or {}: a run of other tokens and another length tells)", others.join(", or ")),
    })
}

/// A condition on the sign or the size of the right value.
fn by_size(scene: &Scene<'_>, wrong: &[At], spared: &[At]) -> Option<Size> {
    let want = |&at: &At| scene.element(at).1;
    let range = |of: &[At], f: fn(f64) -> f64| {
        let values = of.iter().map(|at| f(want(at)));
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)))
    };
    let (yes, no) = (range(wrong, |v| v), range(spared, |v| v));
    if yes.1 < 0.0 && no.0 >= 0.0 {
        return Some(Size::Negative);
    }
    if yes.0 > 0.0 && no.1 <= 0.0 {
        return Some(Size::Positive);
    }
    let (yes, no) = (range(wrong, f64::abs), range(spared, f64::abs));
    if yes.0 > no.1 {
        return Some(Size::Above(f64::midpoint(yes.0, no.1)));
    }
    (yes.1 < no.0).then(|| Size::Below(f64::midpoint(yes.1, no.0)))
}
