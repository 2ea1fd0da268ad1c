//! Two laws in one stage, the second upon what the first gives: a stale row in every second token, and a tail that is
//! scaled. Neither gives all wrong elements, so a search that requires all finds neither.
//!
//! What the two do shows in which share of a column's, or of a row's, elements is wrong: where both laws act it is larger
//! than where one does. So the wrong elements are cut in two there, or between prefill and decoding; one part is solved
//! alone, what it says is assumed of the whole stage, and the rest is solved again.

use super::form::Form;
use super::held::EACH;
use super::scene::{Part, Scene};
use super::when::When;
use super::{Alternative, Confidence, Law, Row, Solver, given, lanes, moved, slots, sum, weigh};
use crate::verdict::{Evidence, Expected, RowAt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Elements of a stage that is cut in parts.
const ELEMENTS: usize = 1 << 21;

/// How far apart two shares of wrong elements are at least.
const APART: f64 = 0.2;

/// Solvers whose laws are data.
const SOLVERS: &[Solver] =
    &[given::laws, moved::rows, sum::laws, moved::places, slots::laws, moved::columns, lanes::laws];

/// A law, and the condition under which it holds; without one it holds everywhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Conditional {
    law: Box<Form>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    when: Option<When>,
}

/// One law upon another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Twice {
    /// What is done to the right values.
    first: Conditional,
    /// What is done to the result.
    then: Conditional,
}

impl Conditional {
    /// The first law that holds of every wrong element of the scene that is looked at, under each of the conditions that
    /// are about as simple: another run decides between them.
    fn of(scene: &Scene<'_>) -> Vec<Self> {
        for law in SOLVERS.iter().flat_map(|solver| solver(scene)) {
            if scene.over() {
                break;
            }
            let proved = weigh(scene, (0, &law), &[]).filter(|found| found.confidence == Confidence::Proved);
            if let (Some(found), Some(form)) = (proved, law.form) {
                let under = |when| Self { law: Box::new(form.clone()), when };
                return match found.holds.told().as_slice() {
                    [] => vec![under(None)],
                    some => some.iter().map(|when| under(Some((*when).clone()))).collect(),
                };
            }
        }
        Vec::new()
    }

    /// What the whole stage would be.
    fn assumed(&self, scene: &Scene<'_>) -> Option<Expected> {
        let (e, law) = (scene.e, self.law.on(scene)?);
        let mut all = e.expected.clone();
        for (r, row) in e.rows.iter().enumerate() {
            scene.count(EACH * row.range.len());
            let (Some(other), Some((value, bound))) = (law(row), all[row.step].as_mut()) else { continue };
            for i in 0..row.range.len() {
                let holds = self.when.as_ref().is_none_or(|when| when.says(scene, (r, i)) == Some(true));
                if holds && !other.value[i].is_nan() {
                    let at = row.range.start + i;
                    (value.data[at], bound[at]) = (other.value[i], other.bound[i].max(bound[at]));
                }
            }
        }
        Some(all)
    }
}

impl Twice {
    /// The same with both laws changed.
    pub(super) fn each(&self, f: impl Fn(&Form) -> Option<Form>) -> Option<Self> {
        let of = |one: &Conditional| Some(Conditional { law: Box::new(f(&one.law)?), when: one.when.clone() });
        Some(Self { first: of(&self.first)?, then: of(&self.then)? })
    }

    /// Numbers that were read off the wrong elements.
    pub(super) fn parameters(&self) -> usize {
        self.first.law.parameters() + self.then.law.parameters() + 2
    }

    /// What rows would be.
    pub(super) fn on<'a>(&self, scene: &'a Scene<'a>) -> Option<Alternative<'a>> {
        let e = scene.e.assuming(self.first.assumed(scene)?);
        let all = self.then.assumed(&Scene::of(&e, scene.meter()))?;
        Some(Box::new(move |row: &RowAt| {
            let (value, bound) = all[row.step].as_ref()?;
            let value = value.data.get(row.range.clone())?.to_vec();
            Some(Row { value, bound: bound.get(row.range.clone())?.to_vec() })
        }))
    }
}

impl fmt::Display for Conditional {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.when {
            Some(when) => write!(f, "{}, {when}", self.law),
            None => self.law.fmt(f),
        }
    }
}

impl fmt::Display for Twice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "two things at once: {}; and, applied to the result: {}", self.first, self.then)
    }
}

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let elements: usize = scene.e.rows.iter().map(|row| row.range.len()).sum();
    if elements > ELEMENTS {
        return Vec::new();
    }
    let twice = |part: Part| {
        let some = Scene::within(scene.e, scene.meter(), part).map(|some| Conditional::of(&some));
        let both = some.unwrap_or_default().into_iter().filter_map(|first| {
            let e = scene.e.assuming(first.assumed(scene)?);
            let then = Conditional::of(&Scene::new(&e, scene.meter())?);
            // The same law twice is one law that is not known; a second one that gives the right values back is an exception to the
            // first, whose rule is not known.
            let undoes = |then: &Conditional| {
                then.assumed(&Scene::of(&e, scene.meter())).is_none_or(|all| restores(scene, &e, &all))
            };
            let other = |then: Conditional| {
                (then.law != first.law && !undoes(&then)).then(|| Twice { first: first.clone(), then })
            };
            Some(then.into_iter().filter_map(other).collect::<Vec<_>>())
        });
        both.flatten().collect::<Vec<_>>()
    };
    let all = parts(scene).into_iter().flat_map(twice);
    all.filter_map(|both| Law::of(Form::Twice(both), scene)).collect()
}

/// Whether all that a second law does to what a first one gives, which `e` assumes, is to give right values back.
fn restores(scene: &Scene<'_>, e: &Evidence<'_>, all: &Expected) -> bool {
    let mut rows = scene.e.rows.iter();
    rows.all(|row| {
        let (Some((own, bound)), Some((first, _)), Some((then, _))) =
            (&scene.e.expected[row.step], &e.expected[row.step], &all[row.step])
        else {
            return true;
        };
        let mut range = row.range.clone();
        range.all(|i| {
            let (right, first, then) = (own.data[i], first.data[i], then.data[i]);
            let near = |a: f64, b: f64| (a - b).abs() <= 2.0 * f64::from(bound[i]);
            near(then, first) || near(then, right)
        })
    })
}

/// Parts of the stage in which other shares of the elements are wrong.
fn parts(scene: &Scene<'_>) -> Vec<Part> {
    let (mut columns, mut positions) = (BTreeMap::new(), BTreeMap::new());
    for row in &scene.e.rows {
        let (from, wrong) = (scene.token(row).1, scene.wrong_of(row));
        let add = |shares: &mut BTreeMap<usize, (usize, usize)>, key: usize, wrong: bool| {
            let (some, of) = shares.entry(key).or_default();
            (*some, *of) = (*some + usize::from(wrong), *of + 1);
        };
        let mut next = wrong.iter().peekable();
        for i in 0..row.range.len() {
            let is = next.next_if(|w| **w == i).is_some();
            add(&mut columns, from + i, is);
            add(&mut positions, row.place.position, is);
        }
    }
    let mut all = Vec::new();
    if let Some((low, high)) = apart(&positions) {
        all.extend([Part::Positions(low), Part::Positions(high)]);
    }
    if let Some((low, high)) = apart(&columns).filter(|_| !scene.of_pairs()) {
        all.extend([Part::Columns(low), Part::Columns(high)]);
    }
    let steps = &scene.e.side.capture.steps;
    let of = |decoded: bool| -> BTreeSet<usize> {
        let some = steps.iter().filter(|step| (step.index > 0) == decoded);
        some.flat_map(|step| step.first..step.keys()).collect()
    };
    all.extend([false, true].map(|decoded| Part::Positions(of(decoded))));
    all
}

/// The keys below and above the widest gap between the shares of their elements that are wrong.
fn apart(shares: &BTreeMap<usize, (usize, usize)>) -> Option<(BTreeSet<usize>, BTreeSet<usize>)> {
    let share = |(wrong, of): &(usize, usize)| *wrong as f64 / (*of).max(1) as f64;
    let mut wrong: Vec<f64> = shares.values().map(share).filter(|s| *s > 0.0).collect();
    wrong.sort_by(f64::total_cmp);
    let gap = wrong.windows(2).max_by(|a, b| (a[1] - a[0]).total_cmp(&(b[1] - b[0])))?;
    if gap[1] - gap[0] < APART {
        return None;
    }
    let middle = f64::midpoint(gap[0], gap[1]);
    let (low, high): (Vec<_>, Vec<_>) = shares.iter().partition(|(_, s)| share(s) < middle);
    let keys = |some: Vec<(&usize, &(usize, usize))>| some.into_iter().map(|(key, _)| *key).collect();
    Some((keys(low), keys(high)))
}
