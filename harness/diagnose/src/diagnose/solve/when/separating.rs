//! The search for conditions.

use super::super::At;
use super::super::scene::Scene;
use super::features::{
    AGAIN, Asked, BEGINS, BEHIND, BESIDE, BEYOND, DECODED, FEATURES, FED, FILLS, Feature, IN_PAGE, LAST_OF_SEVERAL,
    LATER, LEFT_OVER, LENGTH, MOST as MOST_OF_ONE, SIGN, WEIGHT_ROW, step,
};
use super::{CUT, Condition, Size, Values, When};
use qdiff_engine::ops::Anatomy;
use std::collections::BTreeSet;

const MODULI: [i64; 12] = [2, 3, 4, 5, 7, 8, 16, 32, 64, 128, 256, 512];

/// Conditions on a feature that hold of all of `yes`.
fn conditions(feature: usize, yes: &BTreeSet<i64>) -> Vec<Condition> {
    let (Some(&low), Some(&high)) = (yes.first(), yes.last()) else { return Vec::new() };
    let name = FEATURES[feature].name;
    let mut all = Vec::new();
    let mut add = |values| all.push(Condition { feature: Asked(feature), values, unseen: None });
    if name.contains(LEFT_OVER)
        || name.contains(IN_PAGE)
        || name.contains(BEYOND)
        || name.contains(SIGN)
        || name.contains(AGAIN)
        || name.contains(FILLS)
        || [LATER, BEHIND, FED, BEGINS, BESIDE, LAST_OF_SEVERAL].contains(&name)
    {
        if low == high && (low == 1 || name != LAST_OF_SEVERAL) {
            add(Values::Is(low));
        }
        return all;
    }
    // Its own conditions are remainders alone; the others are those of positions.
    if name == DECODED {
        for m in MODULI.into_iter().filter(|m| low >= 0 && high - low >= *m) {
            if yes.iter().all(|v| v % m == low % m) {
                add(Values::Rest(m, low % m, low % m));
            }
        }
        return all;
    }
    if low == high {
        add(Values::Is(low));
    }
    if matches!(name, "decode step" | "step") && low > 1 {
        add(Values::From(1));
    }
    // A kernel for single tokens, and one for all others.
    if [MOST_OF_ONE, LENGTH].contains(&name) && low > 2 {
        add(Values::From(2));
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
    if low < high {
        add(Values::Between(low, high));
    }
    if (2..=6).contains(&yes.len()) {
        add(Values::Among(yes.clone()));
    }
    all
}

/// Elements of a run that a law gives, and right ones that it would change.
#[derive(Clone, Copy)]
pub(in super::super) struct Seen<'a, 's> {
    pub(in super::super) scene: &'a Scene<'s>,
    pub(in super::super) wrong: &'a [At],
    pub(in super::super) spared: &'a [At],
}

impl Seen<'_, '_> {
    fn elements(&self, are_wrong: bool) -> &[At] {
        if are_wrong { self.wrong } else { self.spared }
    }
}

/// The conditions that hold of all wrong elements of these runs and of none that is spared, the simpler first: on one
/// feature; where there is none, on the size of the value; where there is none either, the simplest on two features.
pub(in super::super) fn separating(runs: &[Seen<'_, '_>]) -> Vec<When> {
    telling(runs, runs.len() > 1)
}

/// The same, each of them telling more rows apart than chance does, if it must.
pub(in super::super) fn telling(runs: &[Seen<'_, '_>], beyond_chance: bool) -> Vec<When> {
    let of = |f: &Feature, are_wrong: bool| -> Option<Vec<i64>> {
        let values = |run: &Seen<'_, '_>| -> Option<Vec<i64>> {
            run.elements(are_wrong).iter().map(|&at| (f.of)(run.scene, at)).collect()
        };
        Some(runs.iter().map(values).collect::<Option<Vec<_>>>()?.concat())
    };
    let spared = runs.iter().map(|run| run.spared.len()).sum::<usize>();
    // Past the embedding no kernel knows the ids: a list of them, or a range, stands for what the tokens have in common.
    let picked = runs.iter().all(|run| matches!(run.scene.node().op.anatomy(), Anatomy::Gather(_)));
    let rows = [true, false].map(|are_wrong| rows_of(runs, are_wrong, |run, at| run.scene.e.rows[at.0].place.position));
    // All rows of a part have its numbers.
    let parts = [true, false].map(|are_wrong| rows_of(runs, are_wrong, |run, at| step(run.scene, at).first));
    // In one part alone a count of its rows says no more than positions do, but for a few that are left over.
    let few = rows[0].iter().collect::<BTreeSet<_>>().len() as i64 <= CUT;
    let counts = few || parts_of(runs) > 1;
    let known = |(i, f): (usize, &Feature)| {
        let (yes, no) = (of(f, true)?, of(f, false)?);
        let mut conditions = conditions(i, &yes.iter().copied().collect());
        conditions.retain(|c| picked || f.name != "token id" || matches!(c.values, Values::Is(_) | Values::Rest(..)));
        conditions.retain(|c| counts || !c.counts_in_part());
        Some((conditions, no, yes))
    };
    let features = FEATURES.iter().enumerate().filter(|(_, f)| f.name != WEIGHT_ROW);
    let known: Vec<(Vec<Condition>, Vec<i64>, Vec<i64>)> = features.filter_map(known).collect();
    let none = |c: &Condition, no: &[i64]| no.iter().all(|v| !c.values.has(*v));
    // A condition that is read off two runs is tested on none: it must tell more rows apart than chance does.
    let tells = |c: &Condition, yes: &[i64], no: &[i64], rest: &[usize]| {
        let rows = if c.is_rest_of_parts() { &parts } else { &rows };
        let others = rest.iter().map(|&s| (rows[1][s], no[s]));
        !beyond_chance || c.tells(rows[0].iter().copied().zip(yes.iter().copied()), others)
    };
    let everything: Vec<usize> = (0..spared).collect();
    let one = known.iter().flat_map(|(options, no, yes)| {
        let fitting = options.iter().filter(|c| none(c, no) && tells(c, yes, no, &everything));
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
    for (i, (options, no, yes)) in known.iter().enumerate() {
        for a in options {
            let rest: Vec<usize> = (0..spared).filter(|&s| a.values.has(no[s])).collect();
            if rest.len() == spared {
                continue;
            }
            // Few of them refute most conditions; a reported condition is tested on all.
            let few: Vec<usize> = rest.iter().copied().step_by(rest.len().div_ceil(512).max(1)).collect();
            for (second, other, yes_of_other) in &known[i + 1..] {
                let none = |b: &&Condition, of: &[usize]| of.iter().all(|&s| !b.values.has(other[s]));
                for b in second.iter().filter(|b| none(b, &few) && none(b, &rest)) {
                    let least = both.iter().map(|(w, _)| *w).min().unwrap_or(usize::MAX - 1);
                    let too_much = |weight: usize| weight > least + 1 || weight >= least && both.len() == MOST;
                    // With what was not seen beside it, a condition says no more.
                    if too_much(a.weight() + b.weight()) {
                        continue;
                    }
                    let of_b: Vec<usize> = (0..spared).filter(|&s| b.values.has(other[s])).collect();
                    if !tells(b, yes_of_other, other, &rest) || !tells(a, yes, no, &of_b) {
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

impl When {
    /// Whether it tells the wrong elements of these runs from the others by more than chance does: of two conditions, one of them from
    /// others that the second one holds of.
    pub(in super::super) fn tells(&self, runs: &[Seen<'_, '_>]) -> bool {
        let tells = |c: &Condition, within: Option<&Condition>| {
            let values = |are_wrong: bool| {
                let of = |c: &Condition, scene: &Scene<'_>, at: At| (c.feature.feature().of)(scene, at);
                let is_within = |scene: &Scene<'_>, at: At| {
                    within.is_none_or(|within| of(within, scene, at).is_some_and(|v| within.values.has(v)))
                };
                let in_run = |(i, run): (usize, &Seen<'_, '_>)| -> Vec<InRow> {
                    let some = run.elements(are_wrong).iter().filter(|at| is_within(run.scene, **at));
                    let place = |at: &At| match c.is_rest_of_parts() {
                        true => step(run.scene, *at).first,
                        false => run.scene.e.rows[at.0].place.position,
                    };
                    let row = |at: &At| (i, place(at));
                    some.filter_map(|at| Some((row(at), of(c, run.scene, *at)?))).collect()
                };
                runs.iter().enumerate().flat_map(in_run).collect::<Vec<_>>()
            };
            c.tells(values(true).into_iter(), values(false).into_iter())
        };
        match self {
            Self::One(c) => tells(c, None),
            Self::Both(a, b) => tells(a, Some(b)) || tells(b, Some(a)),
            Self::Size(_) => false,
        }
    }
}

/// The run and the position of a row, and the value that an element of it has.
type InRow = ((usize, usize), i64);

impl Condition {
    fn tells(&self, wrong: impl Iterator<Item = InRow>, others: impl Iterator<Item = InRow>) -> bool {
        let by_row = self.feature.feature().by_row;
        self.values.by_chance(things(by_row, wrong), things(by_row, others)) <= CHANCE
    }
}

/// Conditions on two features that are looked at.
const MOST: usize = 64;

/// The chance, as a power of two, with which a condition may tell wrong rows from right ones.
const CHANCE: f64 = -10.0;

/// The parts of several tokens, by their run and lengths, that have wrong rows.
fn parts_of(runs: &[Seen<'_, '_>]) -> usize {
    let of = |(i, run): (usize, &Seen<'_, '_>)| -> BTreeSet<(usize, usize)> {
        let parts = run.wrong.iter().map(|at| step(run.scene, *at)).filter(|step| step.tokens.len() > 1);
        parts.map(|step| (i, step.first)).collect()
    };
    runs.iter().enumerate().map(|run| of(run).len()).sum()
}

/// The run and the place of each wrong element, or of each that is spared.
fn rows_of(runs: &[Seen<'_, '_>], are_wrong: bool, place: impl Fn(&Seen<'_, '_>, At) -> usize) -> Vec<(usize, usize)> {
    let of = |(i, run): (usize, &Seen<'_, '_>)| -> Vec<(usize, usize)> {
        run.elements(are_wrong).iter().map(|at| (i, place(run, *at))).collect()
    };
    runs.iter().enumerate().flat_map(of).collect()
}

/// How many rows these are; of a feature that elements of a row have, how many values in rows.
fn things(by_row: bool, all: impl Iterator<Item = ((usize, usize), i64)>) -> usize {
    all.map(|(row, v)| (row, if by_row { 0 } else { v })).collect::<BTreeSet<_>>().len()
}

impl Values {
    /// The logarithm, to base 2, of the chance with which some condition of this kind holds of `yes` things and of none of `no` others,
    /// if these are in any order.
    fn by_chance(&self, yes: usize, no: usize) -> f64 {
        let ways = match self {
            Self::Is(_) | Self::From(_) | Self::UpTo(_) => 2.0,
            Self::Between(..) => no as f64 + 1.0,
            Self::Rest(..) => (MODULI.len() * 8) as f64,
            // A list holds for all that it lists.
            Self::Among(_) => return 0.0,
        };
        let orders: f64 = (1..=yes.min(no)).map(|i| ((yes.max(no) + i) as f64 / i as f64).log2()).sum();
        ways.log2() - orders
    }
}

/// A condition on the sign or the size of the right value.
fn by_size(runs: &[Seen<'_, '_>]) -> Option<Size> {
    let range = |are_wrong: bool, f: fn(f64) -> f64| {
        let all = runs.iter().flat_map(|run| run.elements(are_wrong).iter().map(move |&at| (run.scene, at)));
        all.map(|(scene, at)| f(scene.element(at).1))
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)))
    };
    let [wrong, others] = [true, false].map(|w| runs.iter().map(|run| run.elements(w).len()).sum());
    if Values::From(0).by_chance(wrong, others) > CHANCE {
        return None;
    }
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

#[cfg(test)]
mod tests {
    use super::{CHANCE, Values};
    use std::collections::BTreeSet;

    /// Some range separates two rows of seven in any order of them, and not thirteen of four hundred.
    #[test]
    fn a_few_rows_are_told_apart_by_chance() {
        assert!(Values::Between(92, 225).by_chance(5, 2) > CHANCE);
        assert!(Values::UpTo(6).by_chance(13, 460) < CHANCE);
        assert!(Values::Is(0).by_chance(150, 6) < CHANCE);
        assert!(Values::Among(BTreeSet::from([6, 148])).by_chance(150, 400) > CHANCE);
    }
}
