//! Rules of the keys that are seen which fit every run so far as well as the reported one.

use super::attended::{Attended, Keys, Parts, Seat, Seats};
use super::scene::Scene;
use super::unmade::Unmade;
use super::{Form, Holds, Solution, When};
use crate::verdict::Evidence;
use std::collections::BTreeSet;

/// Keys of single tokens, and rows of parts with so many before them, by which rules differ that are never the same.
const KEYS: usize = 640;
const ROWS: usize = 96;
const BEFORE: [usize; 4] = [0, 24, 37, 112];

impl Form {
    /// The keys that it says are seen.
    fn keys(&self) -> Option<Keys> {
        match self {
            Self::Unmade(Unmade { keys, .. }) | Self::Attended(Attended::Over(keys)) => Some(*keys),
            _ => None,
        }
    }

    /// The parts of the keys that it names.
    fn parts(&self) -> Option<Parts> {
        match self {
            Self::Attended(Attended::Joined(_, parts) | Attended::Split(_, parts)) => Some(*parts),
            _ => None,
        }
    }

    /// The same with other keys.
    fn of_keys(&self, keys: Keys) -> Self {
        match self {
            Self::Unmade(unmade) => Self::Unmade(Unmade { keys, ..unmade.clone() }),
            Self::Attended(Attended::Over(_)) => Self::Attended(Attended::Over(keys)),
            other => other.clone(),
        }
    }
}

/// The rule of a law in words.
pub(super) fn told(form: &Form) -> String {
    form.keys().map_or_else(|| form.to_string(), |keys| keys.to_string())
}

impl Solution {
    /// The rule of the keys that are seen, which scores that are not made and a softmax over other keys have in common, with the
    /// condition; nothing of other laws.
    pub fn keys_seen(&self) -> Option<String> {
        let keys = self.law.as_ref()?.keys()?;
        let holds = if self.holds == Holds::Everywhere { String::new() } else { format!(", {}", self.holds) };
        Some(format!("another rule says which keys are seen: {keys}{holds}{}", self.or_others()))
    }

    /// Whether it says by no number of a kernel's own which keys are seen.
    pub(in super::super) fn sees_plainly(&self) -> bool {
        self.law.as_ref().and_then(Form::keys).is_some_and(Keys::are_plain)
    }

    /// Whether it says by no number which keys are seen, under a condition that tells a kernel's choice between two paths, and another
    /// one says it by tiles and holds everywhere: the parts of a run may be so short that the tiles say the same.
    pub(super) fn is_plainer(&self, other: &Self) -> bool {
        let keys = |solution: &Self| solution.law.as_ref().and_then(Form::keys);
        let chooses =
            matches!(&self.holds, Holds::Under { conditions, .. } if conditions.first().is_some_and(When::is_of_paths));
        chooses && keys(self).is_some_and(Keys::are_plain) && keys(other).is_some_and(|keys| !keys.are_plain())
    }

    /// Whether it is a law of some number, input or weight, which under two conditions is one cause all the same; zeros, or the values of
    /// another place, may have two.
    pub fn is_of_one_cause(&self) -> bool {
        !matches!(
            self.law,
            Some(Form::Given(_) | Form::Moved(_) | Form::Written(_) | Form::Twice(_) | Form::Rank(_) | Form::Fault(_))
        ) && self.of_model.is_none()
            && !self.has_own_factors()
    }
}

/// Whether rules say the same of all keys of these queries.
fn are_same(a: Keys, b: Keys, mut seats: impl Iterator<Item = Seat>) -> bool {
    seats.all(|seat| (0..seat.keys).all(|k| a.has(k, seat) == b.has(k, seat)))
}

/// The queries of a run for which a law is reported.
fn seats(e: &Evidence<'_>, scene: &Scene<'_>, when: Option<&When>) -> Vec<Seat> {
    let all = Seats::of(e.side.capture);
    let told = |row: &usize| when.is_none_or(|when| when.says(scene, (*row, 0)) == Some(true));
    let key = |row: usize| (e.rows[row].place.position, e.side.capture.steps[e.rows[row].step].keys());
    let known: BTreeSet<(usize, usize)> = (0..e.rows.len()).filter(told).map(key).collect();
    known.into_iter().map(|(position, keys)| all.at(position, keys)).collect()
}

/// Into how many kinds the rules that runs allow come apart, by what they say of a run in these passes, with so many decode steps after
/// them; 0 of laws without such rules.
pub(in super::super) fn apart(solution: &Solution, passes: &[usize], decode: usize) -> usize {
    let own = solution.law.as_ref().and_then(Form::keys).filter(|keys| !keys.are_of_lines());
    let (Some(own), false) = (own, solution.also.is_empty()) else { return 0 };
    let when = match &solution.holds {
        Holds::Under { conditions, .. } => conditions.first(),
        _ => None,
    };
    let prompt: usize = passes.iter().sum();
    let parts = passes.iter().map(|tokens| (0, *tokens)).chain((1..=decode).map(|step| (step, 1)));
    let seats: Vec<Seat> = parts
        .scan(0, |next, (step, tokens)| {
            let first = *next;
            *next += tokens;
            let holds = when.is_none_or(|when| when.may_hold_in(step, tokens));
            Some((0..if holds { tokens } else { 0 }).map(move |row| Seat::of_run(first, (row, tokens), prompt)))
        })
        .flatten()
        .collect();
    let mut kinds: Vec<Keys> = vec![own];
    for keys in solution.also.iter().filter_map(Form::keys) {
        if !kinds.iter().any(|known| are_same(keys, *known, seats.iter().copied())) {
            kinds.push(keys);
        }
    }
    kinds.len()
}

/// The most keys of a query in these runs, if some other rule makes the same parts of as many and others of more; nothing of laws
/// without parts.
pub(in super::super) fn known_up_to(solution: &Solution, runs: [&Evidence<'_>; 2]) -> Option<usize> {
    let own = solution.law.as_ref()?.parts().filter(|own| !own.are_by_origin())?;
    let when = match &solution.holds {
        Holds::Everywhere | Holds::Some { .. } => None,
        Holds::Under { conditions, .. } => conditions.first(),
    };
    let meter = crate::diagnose::work::Meter::new(0);
    let seats = runs.iter().flat_map(|e| seats(e, &Scene::of(e, &meter), when));
    let known: BTreeSet<usize> = seats.map(|seat| seat.position() + 1).collect();
    let most = *known.last()?;
    let same = |other: &Parts, keys: usize| other.owners(keys) == own.owners(keys);
    let mut others = Parts::all().into_iter().chain(Parts::in_turn()).filter(|other| *other != own);
    let differs = |other: &Parts| (most + 1..=KEYS.max(most + 1)).any(|keys| !same(other, keys));
    others.any(|other| known.iter().all(|keys| same(&other, *keys)) && differs(&other)).then_some(most)
}

/// Laws by other rules that both runs allow as well, the simpler first: where one of them is the engine's, the reported one is
/// wrong.
pub(in super::super) fn others(solution: &Solution, runs: [&Evidence<'_>; 2]) -> Vec<Form> {
    let keys = |form: &'_ Form| form.keys().filter(|keys| !keys.are_of_lines());
    let Some((form, own)) = solution.law.as_ref().and_then(|form| Some((form, keys(form)?))) else {
        return Vec::new();
    };
    let when = match &solution.holds {
        Holds::Everywhere => None,
        Holds::Under { conditions, .. } => conditions.first(),
        Holds::Some { .. } => return Vec::new(),
    };
    let meter = crate::diagnose::work::Meter::new(0);
    let told: Vec<Seat> = runs.iter().flat_map(|e| seats(e, &Scene::of(e, &meter), when)).collect();
    let single = told.iter().all(|seat| seat.is_alone());
    let prompt = told.iter().map(|seat| seat.prompt()).max().unwrap_or(0);
    let anywhere = || {
        let alone = (1..=KEYS).map(move |keys| Seat::alone(keys, prompt));
        let rows = BEFORE.into_iter().flat_map(move |first| (0..ROWS).map(move |row| Seat::of_part(first, row, ROWS)));
        alone.chain(rows.filter(move |_| !single))
    };
    let most = told.iter().map(|seat| seat.keys).max().unwrap_or(0);
    let mut all: Vec<Keys> = Vec::new();
    // Shares of a least length are tiles of that length, as long as there are no more keys than all shares have.
    let of_shares = |keys: &Keys| matches!(keys, Keys::WholeShares { .. });
    let all_keys = Keys::all(runs[0].side.capture, &[]).into_iter().filter(|keys| !keys.are_of_lines());
    for keys in all_keys.filter(|keys| of_shares(&own) || !of_shares(keys)) {
        // A number beyond all keys says the same as a rule without one.
        let beyond = own.are_plain() && keys.number().is_some_and(|number| number >= most);
        let may_be =
            keys != own && !beyond && !(single && keys.are_of_queries()) && are_same(keys, own, told.iter().copied());
        if may_be && [own].iter().chain(&all).all(|known| !are_same(keys, *known, anywhere())) {
            all.push(keys);
        }
    }
    all.into_iter().map(|keys| form.of_keys(keys)).collect()
}
