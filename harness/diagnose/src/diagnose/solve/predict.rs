//! A law that was found in one run, held against another run of other tokens: it must give the wrong elements there with the
//! numbers, and under the condition, that the first run gave it.
//!
//! A solver's proposal depends on one run. So the solver is given the other run, and must propose a law in the same
//! words, which hold the law's numbers; conditions are data, and are tested on the elements of the other run as they
//! are.

use super::held::{Held, held};
use super::when::{self, Holds, Seen, When};
use super::{At, BITS, Form, Law, Reading, Row, Scene, Solution, fields, proposed};
use crate::diagnose::work::Meter;
use crate::verdict::{Evidence, Expected, RowAt};
use std::collections::BTreeSet;

/// Numbers of four digits as near as this are one.
const NEAR: f64 = 5e-4;

/// A stage in the run that a law was found in, and in another one.
#[derive(Clone, Copy)]
pub(in crate::diagnose) struct Pair<'a> {
    pub(in crate::diagnose) first: &'a Evidence<'a>,
    pub(in crate::diagnose) other: &'a Evidence<'a>,
    pub(in crate::diagnose) meter: &'a Meter,
}

/// What a law says of another run.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::diagnose) enum Predicted {
    /// It gives every wrong element, under the condition that it has; with it those that both runs allow.
    Holds { elements: usize, both: Option<Vec<When>> },
    /// It gives every wrong element, under other conditions, which both runs allow.
    Under { elements: usize, both: Vec<When> },
    /// It gives every wrong element, and would change right ones; no condition tells them apart. With which ones, in the
    /// first run if it would change right ones there, else in the other one.
    Open { elements: usize, of: Holds },
    /// It does not hold.
    Fails(&'static str),
    /// The other run does not tell.
    Silent(&'static str),
}

/// The reported condition of a law.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::diagnose) enum Condition {
    /// It holds everywhere.
    None,
    /// The simplest of those that the first run allows.
    Simplest,
    /// It holds from this position on.
    Since(usize),
    /// It holds for some elements, without a condition.
    Unsaid,
}

/// Nothing there is wrong, and nothing of it would be changed.
const INERT: &str = "it changes nothing there";
/// There are a few wrong elements, or they are wrong by little.
const LITTLE: &str = "too little is wrong there to tell";
/// Rows can be distinguished, and one is wrong there.
const ONE_ROW: &str = "one row is wrong there to try it on";
/// Nothing is wrong there, and rows are listed here.
const NONE_WRONG: &str = "nothing is wrong there, and no rule is known for where it holds here";
/// Right rows of the other run that bear a list of rows out.
const SEVERAL: usize = 3;
/// The condition holds of no element of the other run.
const NOWHERE: &str = "its condition holds nowhere there";
/// Why another run does not tell that may hold too little of what is wrong.
pub(in crate::diagnose) const TOO_LITTLE: [&str; 5] = [INERT, LITTLE, ONE_ROW, NONE_WRONG, NOWHERE];
/// The work is used up.
pub(in crate::diagnose) const WORK: &str = "its budget of work was used up; --why-budget 4 allows more";
/// Numbers are read off each part.
const OF_PARTS: &str = "its numbers, one for each row or column, are read off each run anew";
/// Right elements.
pub(in crate::diagnose) const RIGHT: &str = "elements are right that qdiff expects to be wrong by it: the cause is another one, or this one under a condition that was not found";
/// Wrong elements.
pub(in crate::diagnose) const OTHERWISE: &str = "elements have other values than qdiff expects by it";

/// The prediction of a solver's law for the other run, and its words if fewer of them hold than were reported.
pub(in crate::diagnose) fn of_law(pair: Pair<'_>, solution: &Solution) -> (Predicted, Option<String>) {
    let (solver, what) = &solution.words;
    let law = of_words(solution);
    let one = one_law(pair, law, solution);
    if !matches!(law, Of::Words(..)) || solution.what == *what {
        return (one, None);
    }
    // Two laws that came to the same in the first run.
    let scene = Scene::of(pair.first, pair.meter);
    let both = proposed(&scene, *solver).into_iter().find(|law| law.what == *what).and_then(|law| law.twin);
    let Some((twin, _)) = both else { return (one, None) };
    let other = one_law(pair, Of::Words(*solver, &twin.what), solution);
    match (&one, &other) {
        (Predicted::Fails(_), Predicted::Fails(_)) => (one, None),
        (_, Predicted::Fails(_)) => (one, Some(what.clone())),
        (Predicted::Fails(_), _) => (other, Some(twin.what)),
        _ => (one, None),
    }
}

/// A law as it is found again.
#[derive(Clone, Copy)]
enum Of<'l> {
    /// As data.
    Form(&'l Form),
    /// A way to read weights, in words.
    Reading(&'l str, &'l Reading),
    /// By its solver, in its words.
    Words(usize, &'l str),
}

impl Of<'_> {
    fn laws<'a>(self, scene: &'a Scene<'a>) -> Vec<Law<'a>> {
        match self {
            Self::Form(form) => Law::of(form.in_run(scene), scene).into_iter().collect(),
            Self::Reading(what, reading) => fields::by_reading(scene, what, reading).into_iter().collect(),
            Self::Words(solver, what) => laws_of(scene, (solver, what)),
        }
    }
}

fn one_law(pair: Pair<'_>, law: Of<'_>, solution: &Solution) -> Predicted {
    let condition = match &solution.holds {
        Holds::Everywhere => Condition::None,
        Holds::Under { .. } => Condition::Simplest,
        Holds::Some { .. } => Condition::Unsaid,
    };
    let first = Scene::of(pair.first, pair.meter);
    let at_first = || law.laws(&first).iter().find_map(|law| held(&first, law));
    let options = |at_first: Option<&Held>| match &solution.holds {
        Holds::Under { conditions, .. } => conditions.clone(),
        _ => at_first.map(|held| held.conditions(&first)).unwrap_or_default(),
    };
    let wrong = pair.other.bad_rows().next().is_some();
    let of_nan = matches!(law, Of::Form(form) if form.is_never_written());
    let scene = match wrong && !of_nan {
        true => Scene::new(pair.other, pair.meter),
        false => Some(Scene::of(pair.other, pair.meter)),
    };
    let Some(scene) = scene else { return Predicted::Fails(OTHERWISE) };
    let all = if wrong || matches!(law, Of::Form(_) | Of::Reading(..)) { law.laws(&scene) } else { Vec::new() };
    if all.iter().any(|law| law.parts) {
        return Predicted::Silent(OF_PARTS);
    }
    if !wrong && all.is_empty() {
        // A law that nothing is wrong of cannot be proposed: where its condition holds, something should be wrong.
        let options = options(at_first().as_ref());
        let known = |when: &&When| condition != Condition::None || when.is_plain();
        let nowhere: Vec<When> = options.iter().filter(|when| !when.somewhere(&scene)).filter(known).cloned().collect();
        return without_wrong(&options, nowhere, condition);
    }
    match all.iter().find_map(|law| held(&scene, law)) {
        Some(held) => {
            let at_first = || {
                let held = at_first();
                (options(held.as_ref()), held)
            };
            judged((&first, &scene), &held, condition, at_first)
        }
        None if pair.meter.over() => Predicted::Silent(WORK),
        None => Predicted::Fails(OTHERWISE),
    }
}

/// Which conditions of a law another run allows, with what it shows of values that were not seen before. `None` where it says nothing
/// of them: the law does not give what is wrong there, or would change nothing there.
pub(in crate::diagnose) fn allowed(pair: Pair<'_>, solution: &Solution) -> Option<Vec<When>> {
    let Holds::Under { conditions, .. } = &solution.holds else { return None };
    let law = of_words(solution);
    let wrong = pair.other.bad_rows().next().is_some();
    let of_nan = matches!(law, Of::Form(form) if form.is_never_written());
    let scene = match wrong && !of_nan {
        true => Scene::new(pair.other, pair.meter)?,
        false => Scene::of(pair.other, pair.meter),
    };
    let laws = if wrong || matches!(law, Of::Form(_) | Of::Reading(..)) { law.laws(&scene) } else { Vec::new() };
    if !wrong && laws.is_empty() {
        return Some(conditions.iter().filter(|when| !when.somewhere(&scene)).cloned().collect());
    }
    let held = laws.iter().filter(|law| !law.parts).find_map(|law| held(&scene, law))?;
    let all_wrong = held.all_wrong();
    if all_wrong.is_empty() && held.spared.is_empty() {
        return None;
    }
    let allows = |when: &When| {
        all_wrong.iter().all(|&at| when.says(&scene, at) != Some(false))
            && !held.spared.iter().any(|&at| when.says(&scene, at) == Some(true))
    };
    let some =
        conditions.iter().filter(|when| allows(when)).map(|when| when.with(&scene, (&all_wrong, &held.spared), false));
    Some(some.filter(allows).collect())
}

/// The conditions of a law that all of these runs allow. None where it does not give what is wrong in one of them.
pub(in crate::diagnose) fn of_all(runs: &[&Evidence<'_>], solution: &Solution, meter: &Meter) -> Vec<When> {
    match jointly(runs, solution, (true, meter)) {
        Some((Holds::Under { conditions, .. }, _)) => conditions,
        _ => Vec::new(),
    }
}

/// Where a law holds, as all of these runs together tell, and the wrong elements of each that it gives. `None` where it does not give
/// what is wrong in one of them, or where no rule says which elements it is about. A rule that predicts no other run
/// must separate more rows than chance does.
pub(in crate::diagnose) fn jointly(
    runs: &[&Evidence<'_>], solution: &Solution, (beyond_chance, meter): (bool, &Meter),
) -> Option<(Holds, Vec<usize>)> {
    let law = of_words(solution);
    let scenes: Vec<Scene<'_>> =
        runs.iter().map(|e| Scene::new(e, meter).unwrap_or_else(|| Scene::of(e, meter))).collect();
    let of = |scene| law.laws(scene).iter().find_map(|law| held(scene, law));
    let all: Option<Vec<(Vec<At>, Vec<At>)>> =
        scenes.iter().map(|scene| of(scene).map(|held| (held.all_wrong(), held.spared))).collect();
    let all = all?;
    let given = all.iter().map(|(wrong, _)| wrong.len()).collect();
    if all.iter().all(|(_, spared)| spared.is_empty()) {
        return Some((Holds::Everywhere, given));
    }
    let seen: Vec<Seen<'_, '_>> =
        scenes.iter().zip(&all).map(|(scene, (wrong, spared))| Seen { scene, wrong, spared }).collect();
    let of_one = |when: &When| !matches!(when, When::Both(..));
    let mut conditions = when::telling(&seen, beyond_chance);
    if !conditions.iter().any(of_one) {
        conditions = when::telling(&seen, true);
    }
    // Two features together must say more than chance.
    conditions.retain(|when| !when.is_list());
    (!conditions.is_empty()).then_some((Holds::Under { conditions, tried: false }, given))
}

/// Where a law without a reported condition holds in a run; `None` where it would change nothing else.
pub(in crate::diagnose) fn unexplained(e: &Evidence<'_>, solution: &Solution, meter: &Meter) -> Option<Holds> {
    let scene = Scene::of(e, meter);
    let held = of_words(solution).laws(&scene).iter().find_map(|law| held(&scene, law))?;
    (!held.spared.is_empty()).then(|| held.unexplained(&scene))
}

/// A law as it is found again in its own words.
fn of_words(solution: &Solution) -> Of<'_> {
    let (solver, what) = &solution.words;
    match (&solution.law, &solution.reads) {
        (Some(form), _) => Of::Form(form),
        (None, Some(reading)) if solution.what == *what => Of::Reading(what, reading),
        (None, _) => Of::Words(*solver, what),
    }
}

/// The same of values that are known of both runs, of every element.
pub(in crate::diagnose) fn of_values(
    pair: Pair<'_>, (first, other): (&Expected, &Expected), condition: Condition,
) -> Predicted {
    let scenes = (&Scene::of(pair.first, pair.meter), &Scene::of(pair.other, pair.meter));
    let at_first = || {
        let held = held(scenes.0, &law_of(first));
        (held.as_ref().map(|held| held.conditions(scenes.0)).unwrap_or_default(), held)
    };
    match held(scenes.1, &law_of(other)) {
        Some(held) => judged(scenes, &held, condition, at_first),
        None => Predicted::Fails(OTHERWISE),
    }
}

fn law_of(assumed: &Expected) -> Law<'_> {
    Law::new("", 0, |row: &RowAt| row_of(assumed, row))
}

/// A row of a stage as it would be.
pub(super) fn row_of(assumed: &Expected, row: &RowAt) -> Option<Row> {
    let (value, bound) = assumed[row.step].as_ref()?;
    let value = value.data.get(row.range.clone())?.to_vec();
    Some(Row { value, bound: bound.get(row.range.clone())?.to_vec() })
}

/// What a law that gives every wrong element of the other run says of it. `at_first` gives the conditions that the first
/// run allows, and the elements of that run.
fn judged<'s>(
    (first, scene): (&Scene<'s>, &Scene<'s>), held: &Held, condition: Condition,
    at_first: impl FnOnce() -> (Vec<When>, Option<Held>),
) -> Predicted {
    let elements = held.wrong.len();
    match (elements, held.spared.len()) {
        (0, 0) => return Predicted::Silent(INERT),
        (1.., _) if held.bits < BITS || held.changes_nothing() => return Predicted::Silent(LITTLE),
        (1.., 0) if condition == Condition::None => return Predicted::Holds { elements, both: None },
        _ => {}
    }
    let (options, at_first) = at_first();
    let allowed = |when: &&When| {
        held.wrong.iter().chain(&held.unsaid).all(|&at| when.says(scene, at) != Some(false))
            && !held.spared.iter().any(|&at| when.says(scene, at) == Some(true))
    };
    let all_wrong = held.all_wrong();
    let first_wrong = at_first.as_ref().map(Held::all_wrong).unwrap_or_default();
    let first_spared = at_first.as_ref().map_or(&[][..], |held| &held.spared);
    let runs = [
        Seen { scene: first, wrong: &first_wrong, spared: first_spared },
        Seen { scene, wrong: &all_wrong, spared: &held.spared },
    ];
    // Some elements at a value that the first run did not have may be wrong, and others right.
    let open = at_first.as_ref().is_some_and(|held| held.spared.is_empty());
    let both = options.iter().filter(allowed).map(|when| when.with(scene, (&all_wrong, &held.spared), open));
    let both = both.filter(|when| allowed(&when));
    // If the law would change nothing else in the first run, a condition is only what its wrong elements have in common.
    let extent = at_first.as_ref().map_or(condition == Condition::None, |held| held.spared.is_empty());
    let mut both: Vec<When> =
        both.filter(|when| !extent || when.is_plain() || matches!(when, When::One(_)) && when.tells(&runs)).collect();
    // The other run may show what a condition is about.
    both.sort_by_key(When::weight);
    if elements == 0 {
        return without_wrong(&options, both, condition);
    }
    let (wrong_rows, right_rows) = rows(scene, &all_wrong, &held.spared);
    let borne_out = |when: &When| !when.is_list() || wrong_rows > 1 && right_rows >= SEVERAL;
    let listed = options.first().is_some_and(When::is_list);
    both.retain(borne_out);
    if wrong_rows < 2 && both.first().map_or(listed, When::asks_several_rows) {
        return Predicted::Silent(ONE_ROW);
    }
    if is_same(&options, &both, condition) {
        return Predicted::Holds { elements, both: Some(both) };
    }
    // Conditions on two features were not tried on a run that one feature separates.
    if both.is_empty() && at_first.is_some() {
        both = when::separating(&runs);
        both.retain(borne_out);
    }
    match both.is_empty() {
        true => {
            let here = at_first.filter(|held| !held.spared.is_empty()).map(|held| held.unexplained(first));
            let there = || match held.unexplained(scene) {
                Holds::Some { elements, of, rows, .. } => Holds::Some { elements, of, rows, elsewhere: true },
                holds => holds,
            };
            Predicted::Open { elements, of: here.unwrap_or_else(there) }
        }
        false => Predicted::Under { elements, both },
    }
}

/// Tokens with wrong elements, and others that a law would change.
fn rows(scene: &Scene<'_>, wrong: &[At], spared: &[At]) -> (usize, usize) {
    let of = |all: &[At]| -> BTreeSet<usize> { all.iter().map(|at| scene.e.rows[at.0].place.position).collect() };
    let wrong = of(wrong);
    (wrong.len(), of(spared).difference(&wrong).count())
}

/// For a run without an error: the conditions of the first run that `both` runs allow.
fn without_wrong(options: &[When], both: Vec<When>, condition: Condition) -> Predicted {
    let (lists, both): (Vec<When>, Vec<When>) = both.into_iter().partition(When::is_list);
    match both.is_empty() {
        true if lists.is_empty() => Predicted::Fails(RIGHT),
        true => Predicted::Silent(NONE_WRONG),
        false if is_same(options, &both, condition) => Predicted::Silent(NOWHERE),
        false => Predicted::Under { elements: 0, both },
    }
}

/// Whether the reported condition is among those that both runs allow.
fn is_same(options: &[When], both: &[When], condition: Condition) -> bool {
    match condition {
        Condition::None | Condition::Unsaid => false,
        Condition::Simplest => options.first().zip(both.first()).is_some_and(|(a, b)| a.alike(b)),
        Condition::Since(position) => both.iter().any(|when| when.is_since(position)),
    }
}

/// What a solver proposes in these words.
fn laws_of<'a>(scene: &'a Scene<'a>, (solver, what): (usize, &str)) -> Vec<Law<'a>> {
    let each = proposed(scene, solver).into_iter().flat_map(|mut law| {
        let twin = law.twin.take().map(|(twin, _)| *twin);
        [Some(law), twin].into_iter().flatten()
    });
    each.filter(|law| alike(&law.what, what)).collect()
}

/// Whether two sentences are the same, word for word, but for the error of numbers with a fraction, which are reported
/// in four digits.
pub(in crate::diagnose) fn alike(a: &str, b: &str) -> bool {
    let (a, b) = (numbers(a), numbers(b));
    let near = |(a, b): (&&str, &&str)| {
        let fraction = |text: &str| text.contains('.') || text.contains('e');
        let (Ok(x), Ok(y)) = (a.parse::<f64>(), b.parse::<f64>()) else { return a == b };
        a == b || (fraction(a) || fraction(b)) && (x - y).abs() <= NEAR * x.abs().max(y.abs())
    };
    a.len() == b.len() && a.iter().zip(&b).all(near)
}

/// A sentence cut into numbers and what stands between them.
fn numbers(text: &str) -> Vec<&str> {
    let bytes = text.as_bytes();
    let digit = |i: usize| bytes.get(i).is_some_and(u8::is_ascii_digit);
    let (mut parts, mut from, mut i) = (Vec::new(), 0, 0);
    while i < bytes.len() {
        if !digit(i) {
            i += 1;
            continue;
        }
        parts.push(&text[from..i]);
        from = i;
        while digit(i) || bytes[i..].first() == Some(&b'.') && digit(i + 1) {
            i += 1;
        }
        let sign = usize::from(bytes.get(i + 1) == Some(&b'-'));
        if bytes.get(i) == Some(&b'e') && digit(i + 1 + sign) {
            i += 1 + sign;
            while digit(i) {
                i += 1;
            }
        }
        parts.push(&text[from..i]);
        from = i;
    }
    parts.push(&text[from..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::alike;

    #[test]
    fn sentences_are_one_that_differ_in_what_four_digits_leave() {
        assert!(alike("scaled by 0.7071, and 3 added", "scaled by 0.7072, and 3 added"));
        assert!(alike("ε is 1e-5", "ε is 1e-5"));
        assert!(alike("c = 2", "c = 2.000"));
        for other in ["scaled by 0.7081, and 3 added", "scaled by 0.7071, and 4 added", "scaled by 0.7071, and 3", ""] {
            assert!(!alike("scaled by 0.7071, and 3 added", other), "{other}");
        }
        assert!(!alike("ε is 1e-5", "ε is 1e-6"));
        assert!(!alike("L01.ffn_up is there instead", "L02.ffn_up is there instead"));
    }
}
