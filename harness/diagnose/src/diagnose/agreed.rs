//! Conditions of causes that other sequences refute: each sequence of a batch, and of a second batch, is the same engine's work. A
//! condition that one of them does not allow is no condition of the engine.

use super::confirm::{as_law, held_there};
use super::searcher::{PREFIX, Searcher};
use super::siblings::{Opinions, Sibling, origin, put, under_no_rule};
use super::solve::{Holds, Pair, Predicted, When, allowed, jointly};
use super::work::Meter;
use super::{Finding, Solution, Trial};
use crate::capture::{Capture, Filter};
use crate::verdict::{Evidence, Policy, Side, StageResult, work_of};

/// The work that this may take: about 3 seconds of a core.
const WORK_OF_ALL: u64 = 3_000_000_000;

/// Leaves of the conditions of each cause those that all sequences of the run allow, and all of `others`, the sequences of a run of
/// other tokens. A cause without a condition gets the one of another sequence, if the values of its own allow that.
pub fn agree_among_sequences(
    opinions: Opinions<'_>, runs: &mut [Sibling<'_>], others: &[Side<'_>], (filter, policy): (&Filter, &Policy),
) {
    let meter = Meter::new(WORK_OF_ALL);
    let of = |side| opinions.searcher(side, (filter, policy), &meter);
    // Rows that a sequence has from another one are in the passes of that one.
    let whole = |capture: &Capture| (0..capture.steps.len()).all(|step| capture.is_own(step));
    let sides: Vec<(Option<usize>, Side<'_>)> = runs
        .iter()
        .enumerate()
        .map(|(run, sibling)| (Some(run), sibling.side))
        .chain(others.iter().map(|side| (None, *side)))
        .filter(|(_, side)| whole(side.capture))
        .collect();
    let mut changed: Vec<(usize, Finding)> = Vec::new();
    for (run, sibling) in runs.iter().enumerate() {
        let own = of(sibling.side);
        let others: Vec<Searcher<'_>> =
            sides.iter().filter(|(other, _)| *other != Some(run)).map(|(_, side)| of(*side)).collect();
        for finding in &sibling.diagnosis.findings {
            let origin = origin(sibling.diagnosis, finding.id).filter(|_| finding.inside.is_empty());
            let elsewhere = runs.iter().flat_map(|run| &run.diagnosis.findings);
            let agreed = origin.and_then(|origin| agreed((&own, &others), origin, (finding, elsewhere)));
            changed.extend(agreed.filter(|_| !meter.over()).map(|finding| (run, finding)));
        }
    }
    put(runs, changed);
    let mut changed = Vec::new();
    for (run, sibling) in runs.iter().enumerate() {
        for own in sibling.diagnosis.findings.iter().filter(|own| is_bare(own)) {
            let others = runs.iter().enumerate().filter(|(other, _)| *other != run);
            let adopted = others.flat_map(|(_, other)| {
                let found = other.diagnosis.findings.iter().find(|found| found.id == own.id && has_rule(found))?;
                let predicted = held_there(&of(other.side), &of(sibling.side), origin(other.diagnosis, own.id)?, found);
                let Predicted::Holds { elements: elements @ 1.., both: Some(conditions) } = predicted else {
                    return None;
                };
                let holds = Holds::Under { conditions, tried: true };
                let solution = Solution { elements, held_out: elements, unsaid: 0, holds, ..found.solution.clone()? };
                let mut finding = own.clone();
                finding.leave_place(String::new());
                finding.evident = false;
                (finding.solution, finding.remedy) = (Some(solution), found.remedy.clone());
                finding.trial.clone_from(&found.trial);
                Some(finding)
            });
            changed.extend(adopted.take(1).map(|finding| (run, finding)));
        }
    }
    put(runs, changed);
}

/// A finding under the conditions that all sequences allow, if these are not those that it has.
fn agreed<'f>(
    (own, others): (&Searcher<'_>, &[Searcher<'_>]), origin: &StageResult,
    (finding, elsewhere): (&Finding, impl Iterator<Item = &'f Finding>),
) -> Option<Finding> {
    let (mut finding, is_cause) = (finding.clone(), finding.solution.is_none());
    let mut same = elsewhere.filter(|other| other.id == finding.id);
    // It has no condition, and another sequence has one.
    let adopts = is_cause || finding.solution.as_ref().is_some_and(|solution| solution.holds == Holds::Everywhere);
    if is_cause {
        let holds = same.find_map(|other| condition_of(&finding, other))?;
        as_law(own, origin, &mut finding);
        finding.solution.iter_mut().for_each(|solution| solution.holds = holds.clone());
    } else if adopts {
        let holds = same.find_map(|other| condition_of_law(&finding, other))?;
        finding.solution.iter_mut().for_each(|solution| solution.holds = holds.clone());
    }
    let solution = finding.solution.clone()?;
    let Holds::Under { conditions, tried } = &solution.holds else { return None };
    // Its own values, where the condition is that of another sequence.
    let mut left = conditions.clone();
    for other in others.iter().chain([own]) {
        let holds = Holds::Under { conditions: left.clone(), tried: *tried };
        match allowed_there(own, other, &finding, &Solution { holds, ..solution.clone() }) {
            Some(allowed) if allowed.is_empty() => {
                // One that all of them allow, if there is any.
                let holds = jointly_in((own, others), &finding, &solution);
                let holds = holds.unwrap_or(Holds::Some { elements: 0, of: 0, rows: None, elsewhere: false });
                return (!adopts).then(|| under_no_rule(finding, &holds, (own, Some(origin))));
            }
            Some(allowed) => left = distinct(allowed),
            None => {}
        }
    }
    left.sort_by_key(When::weight);
    if !adopts && left == *conditions {
        return None;
    }
    let holds = Holds::Under { conditions: left, tried: *tried };
    if let Some(Trial::Narrowed { holds: told, .. }) = &mut finding.trial {
        told.clone_from(&holds);
    }
    Some(Finding { solution: Some(Solution { holds, ..solution }), ..finding })
}

/// The condition of another finding that has the same law, as several runs left it.
fn condition_of_law(finding: &Finding, other: &Finding) -> Option<Holds> {
    let (own, solution) = finding.solution.as_ref().zip(other.solution.as_ref())?;
    (own.words == solution.words && has_rule(other)).then(|| solution.holds.clone())
}

/// The condition of another finding, if its law is the fault that is the cause of this one.
fn condition_of(finding: &Finding, other: &Finding) -> Option<Holds> {
    let (cause, solution) = finding.cause.as_ref().zip(other.solution.as_ref())?;
    let is_same = solution.fault().is_some_and(|name| cause.name.is_near(name));
    (is_same && matches!(solution.holds, Holds::Under { .. })).then(|| solution.holds.clone())
}

/// Whether a finding has no rule that says where its cause holds.
fn is_bare(finding: &Finding) -> bool {
    let listed = finding.solution.as_ref().map(|solution| matches!(solution.holds, Holds::Some { .. }));
    listed.unwrap_or(finding.cause.is_none() && finding.shape != PREFIX && !finding.unread) && finding.inside.is_empty()
}

/// Whether it has one that another run allows.
fn has_rule(finding: &Finding) -> bool {
    let under = |solution: &Solution| matches!(solution.holds, Holds::Under { tried: true, .. });
    finding.solution.as_ref().is_some_and(under)
        && finding.inside.is_empty()
        && matches!(finding.trial, Some(Trial::Confirmed { .. } | Trial::Narrowed { .. }))
}

/// The conditions of a law that another sequence allows; nothing where it does not tell.
fn allowed_there(first: &Searcher<'_>, other: &Searcher<'_>, finding: &Finding, law: &Solution) -> Option<Vec<When>> {
    let graph = &first.oracle.graph;
    let node = &graph.nodes[graph.index(finding.id)?];
    let capture = other.subject.capture;
    if !capture.steps.iter().any(|step| step.stages.contains_key(&node.id)) {
        return None;
    }
    let work = work_of(node, first.oracle, capture) + work_of(node, first.oracle, first.subject.capture);
    if work > first.meter.left() {
        return None;
    }
    first.meter.count(work);
    let (here, there) = (first.evidence(node, first.subject.capture), other.evidence(node, capture));
    if !there.misshapen.is_empty() {
        return None;
    }
    allowed(Pair { first: &here, other: &there, meter: first.meter }, law)
}

/// The conditions that all sequences together allow.
fn jointly_in((own, others): (&Searcher<'_>, &[Searcher<'_>]), finding: &Finding, law: &Solution) -> Option<Holds> {
    let (graph, meter) = (&own.oracle.graph, own.meter);
    let node = &graph.nodes[graph.index(finding.id)?];
    let all = || [own].into_iter().chain(others);
    let work = all().map(|searcher| work_of(node, searcher.oracle, searcher.subject.capture)).sum();
    if work > meter.left() {
        return None;
    }
    meter.count(work);
    let each: Vec<_> = all().map(|searcher| searcher.evidence(node, searcher.subject.capture)).collect();
    // Where nothing is wrong, and the law would change nothing, no condition is tried.
    let tells = |other: &&Evidence<'_>| {
        let pair = Pair { first: &each[0], other, meter };
        other.bad_rows().next().is_some() || allowed(pair, law).is_some()
    };
    let (holds, _) = jointly(&each.iter().filter(tells).collect::<Vec<_>>(), law, (true, meter))?;
    match holds {
        Holds::Under { conditions, .. } => Some(Holds::Under { conditions, tried: true }),
        _ => None,
    }
}

/// Each of some conditions once.
fn distinct(conditions: Vec<When>) -> Vec<When> {
    let mut all: Vec<When> = Vec::new();
    for when in conditions {
        if !all.iter().any(|known| known.alike(&when)) {
            all.push(when);
        }
    }
    all
}
