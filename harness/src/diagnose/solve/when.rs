//! When: the simplest condition that holds of every wrong element and of none that is right although a law would change
//! it: on position, step, row of the part, token, head, column, key, or the size of the value.

use super::At;
use super::scene::Scene;
use std::collections::BTreeSet;

/// What a condition may ask of an element, and how it is called.
struct Feature {
    name: &'static str,
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
        of: |s, at| row(s, at).place.head.map(|h| h as i64).or_else(|| Some(column(s, at) / s.head()? as i64)),
    },
    Feature { name: "column", of: |s, at| (!s.of_pairs() && row(s, at).place.head.is_none()).then(|| column(s, at)) },
    Feature {
        name: "column of the head",
        of: |s, at| match row(s, at).place.head {
            Some(_) => (!s.of_pairs()).then_some(at.1 as i64),
            None => Some(column(s, at) % s.head()? as i64),
        },
    },
    Feature { name: "key", of: |s, at| s.of_pairs().then_some(at.1 as i64) },
    Feature {
        name: "distance of the key from the query",
        of: |s, at| s.of_pairs().then(|| row(s, at).place.position as i64 - at.1 as i64),
    },
    Feature { name: "position", of: |s, at| Some(row(s, at).place.position as i64) },
    Feature { name: "decode step", of: |s, at| (!longer(s)).then(|| step(s, at).index as i64) },
    // Where some have several tokens.
    Feature { name: "step", of: |s, at| longer(s).then(|| step(s, at).index as i64) },
    Feature {
        // A cache is looked at after every step, whoever wrote its rows.
        name: "step after which the cache was looked at",
        of: |s, at| s.node().has_state().then(|| s.e.side.capture.steps[row(s, at).step].index as i64),
    },
    Feature { name: "row of the part", of: |s, at| Some(row(s, at).place.position as i64 - step(s, at).first as i64) },
    Feature {
        name: "row counted from the part's last",
        of: |s, at| Some((step(s, at).keys() - 1) as i64 - row(s, at).place.position as i64),
    },
    Feature {
        name: "number of tokens in the part",
        // Where parts are of one length alone, it says no more than prefill and decode.
        of: |s, at| {
            let lengths = s.e.side.capture.steps.iter().map(|s| s.tokens.len());
            (longer(s) || lengths.collect::<BTreeSet<_>>().len() > 2).then(|| step(s, at).tokens.len() as i64)
        },
    },
    Feature {
        name: "token id",
        of: |s, at| {
            let step = step(s, at);
            let token = row(s, at).place.position.checked_sub(step.first)?;
            step.tokens.get(token).map(|t| i64::from(*t))
        },
    },
    Feature { name: "rows left over after whole tiles of 4", of: left_over::<4> },
    Feature { name: "rows left over after whole tiles of 8", of: left_over::<8> },
    Feature { name: "rows left over after whole tiles of 16", of: left_over::<16> },
    Feature { name: "rows left over after whole tiles of 32", of: left_over::<32> },
    Feature { name: "rows left over after whole tiles of 64", of: left_over::<64> },
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

/// A condition on one feature, with how much there is to it.
struct Condition {
    weight: usize,
    words: String,
    holds: Box<dyn Fn(i64) -> bool>,
}

impl Condition {
    fn new(weight: usize, words: String, holds: impl Fn(i64) -> bool + 'static) -> Self {
        Self { weight, words, holds: Box::new(holds) }
    }
}

const MODULI: [i64; 12] = [2, 3, 4, 5, 7, 8, 16, 32, 64, 128, 256, 512];

/// Conditions that hold of all of `yes`, the simpler first.
fn conditions(name: &'static str, yes: &BTreeSet<i64>) -> Vec<Condition> {
    let (Some(&low), Some(&high)) = (yes.first(), yes.last()) else { return Vec::new() };
    let mut all = Vec::new();
    if name.starts_with("rows left over") {
        all.extend((low == 1).then(|| Condition::new(2, format!("in the {name} of each part"), |v| v == 1)));
        return all;
    }
    if low == high {
        all.push(Condition::new(0, at(name, low), move |v| v == low));
    }
    // What begins with decoding is said to be of that before it is of rows or lengths; what begins with an id, last.
    if matches!(name, "decode step" | "step") && low > 0 {
        all.push(Condition::new(0, from(name, 1), |v| v >= 1));
    }
    let bounds = if name == "token id" { 3 } else { 1 };
    all.push(Condition::new(bounds, from(name, low), move |v| v >= low));
    all.push(Condition::new(bounds, up_to(name, high), move |v| v <= high));
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
        all.push(Condition::new(if a == b { 2 } else { 3 }, words, move |v| (a..=b).contains(&v.rem_euclid(m))));
    }
    all.push(Condition::new(3, format!("at {name}s {low} to {high}"), move |v| (low..=high).contains(&v)));
    if (2..=6).contains(&yes.len()) {
        let (set, list) = (yes.clone(), yes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "));
        all.push(Condition::new(4, format!("at {name}s {list}"), move |v| set.contains(&v)));
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

fn up_to(name: &str, high: i64) -> String {
    match (name, high) {
        ("row counted from the part's last", n) => format!("in the last {} rows of each part", n + 1),
        ("number of tokens in the part", n) => format!("in parts of up to {n} tokens"),
        ("distance of the key from the query", n) => format!("at keys up to {n} before the query"),
        ("row of the part", n) => format!("up to row {n} of the part"),
        _ => format!("up to {name} {high}"),
    }
}

/// The condition that holds of all `wrong` and none of `spared`, in words.
pub(super) fn separates(scene: &Scene<'_>, wrong: &[At], spared: &[At]) -> Option<String> {
    let values = |f: &Feature, of: &[At]| -> Option<Vec<i64>> { of.iter().map(|&at| (f.of)(scene, at)).collect() };
    let known: Vec<(&Feature, Vec<i64>, Vec<i64>)> =
        FEATURES.iter().filter_map(|f| Some((f, values(f, wrong)?, values(f, spared)?))).collect();
    let options: Vec<Vec<Condition>> =
        known.iter().map(|(f, yes, _)| conditions(f.name, &yes.iter().copied().collect())).collect();
    // Of each feature the simplest.
    let one = known.iter().zip(&options).flat_map(|((.., no), options)| {
        let separating = || options.iter().filter(|c| no.iter().all(|v| !(c.holds)(*v)));
        let least = separating().map(|c| c.weight).min();
        separating().filter(move |c| Some(c.weight) == least).map(|c| (c.weight, c.words.as_str()))
    });
    let mut found: Vec<(usize, &str)> = one.collect();
    found.sort_by_key(|(weight, _)| *weight);
    if let Some((least, words)) = found.first() {
        // About as simple, and as true of this run: it takes another one to tell.
        let others = found[1..].iter().take_while(|(weight, _)| *weight <= *least.max(&1)).map(|(_, words)| *words);
        let others: Vec<&str> = others.take(2).collect();
        return Some(match others.is_empty() {
            true => (*words).to_owned(),
            false => format!("{words} (or {}: a run of other tokens and another length tells)", others.join(", or ")),
        });
    }
    by_size(scene, wrong, spared).or_else(|| {
        let mut best: Option<(usize, String)> = None;
        for (i, first) in options.iter().enumerate() {
            for a in first {
                let rest: Vec<usize> = (0..spared.len()).filter(|&s| (a.holds)(known[i].2[s])).collect();
                if rest.len() == spared.len() {
                    continue;
                }
                // Few of them refute most conditions; one that is told is held against all.
                let few: Vec<usize> = rest.iter().copied().step_by(rest.len().div_ceil(512).max(1)).collect();
                for (j, second) in options.iter().enumerate().skip(i + 1) {
                    let none = |b: &&Condition, of: &[usize]| of.iter().all(|&s| !(b.holds)(known[j].2[s]));
                    for b in second.iter().filter(|b| none(b, &few) && none(b, &rest)) {
                        let weight = a.weight + b.weight;
                        if best.as_ref().is_none_or(|(w, _)| weight < *w) {
                            best = Some((weight, format!("{} and {}", a.words, b.words)));
                        }
                    }
                }
            }
        }
        best.map(|(_, words)| words)
    })
}

/// A condition on the sign or the size of the right value.
fn by_size(scene: &Scene<'_>, wrong: &[At], spared: &[At]) -> Option<String> {
    let want = |&at: &At| scene.element(at).1;
    let range = |of: &[At], f: fn(f64) -> f64| {
        let values = of.iter().map(|at| f(want(at)));
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)))
    };
    let (yes, no) = (range(wrong, |v| v), range(spared, |v| v));
    if yes.1 < 0.0 && no.0 >= 0.0 {
        return Some("where the right value is negative".to_owned());
    }
    if yes.0 > 0.0 && no.1 <= 0.0 {
        return Some("where the right value is positive".to_owned());
    }
    let (yes, no) = (range(wrong, f64::abs), range(spared, f64::abs));
    let words = |v: f64| crate::number::number(v);
    if yes.0 > no.1 {
        return Some(format!("where the right value is larger than {} in size", words((yes.0 + no.1) / 2.0)));
    }
    (yes.1 < no.0).then(|| format!("where the right value is smaller than {} in size", words((yes.1 + no.0) / 2.0)))
}
