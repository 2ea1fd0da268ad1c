//! Conditions of causes that other sequences refute: each sequence of a batch, and of a second batch, is the same engine's work. A
//! condition that one of them does not allow is no condition of the engine.

use super::confirm::{as_law, held_there};
use super::searcher::{PREFIX, Searcher};
use super::siblings::{Sibling, origin, put, under_no_rule};
use super::solve::{Holds, Pair, Predicted, When, allowed, jointly};
use super::work::Meter;
use super::{Cause, Finding, Solution, Trial};
use crate::capture::{Capture, Filter};
use crate::oracle::Oracle;
use crate::verdict::{Evidence, Policy, Side, work_of};

/// The work that this may take: about 3 seconds of a core.
const WORK_OF_ALL: u64 = 3_000_000_000;

/// Leaves of the conditions of each cause those that all sequences of the run allow, and all of `others`, the sequences of a run of
/// other tokens. A cause without a condition gets the one of another sequence, if the values of its own allow that.
pub fn agree_among_sequences(
    oracle: &Oracle<'_>, runs: &mut [Sibling<'_>], others: &[Side<'_>], (filter, policy): (&Filter, &Policy),
) {
    let meter = Meter::new(WORK_OF_ALL);
    let of = |side| Searcher { oracle, subject: side, filter, policy, known: &[], meter: &meter, examples: false };
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
        for finding in &sibling.diagnosis.findings {
            let first = of(sibling.side);
            let Some(origin) = origin(sibling.diagnosis, finding.id).filter(|_| finding.inside.is_empty()) else {
                continue;
            };
            let (mut finding, is_cause) = (finding.clone(), finding.solution.is_none());
            let is_law_of =
                |cause: &Cause, solution: &Solution| solution.fault().is_some_and(|name| cause.name.is_near(name));
            let same = |other: &&Finding| {
                let of_cause = finding.cause.as_ref().zip(other.solution.as_ref());
                other.id == finding.id && of_cause.is_some_and(|(cause, solution)| is_law_of(cause, solution))
            };
            let elsewhere = runs.iter().flat_map(|other| other.diagnosis.findings.iter().filter(same));
            let under = elsewhere.filter_map(|other| other.solution.as_ref().map(|solution| solution.holds.clone()));
            if is_cause && let Some(holds) = under.into_iter().find(|holds| matches!(holds, Holds::Under { .. })) {
                as_law(&first, origin, &mut finding);
                finding.solution.iter_mut().for_each(|solution| solution.holds = holds.clone());
            }
            let Some(solution) = finding.solution.as_ref() else { continue };
            let Holds::Under { conditions, tried } = &solution.holds else { continue };
            let left = sides.iter().filter(|(of, _)| *of != Some(run)).map(|(_, side)| of(*side));
            // Its own values, where the condition is that of another sequence.
            let own = std::iter::once(of(sibling.side));
            let left = left.chain(own).try_fold(conditions.clone(), |left, other| {
                let under =
                    Solution { holds: Holds::Under { conditions: left.clone(), tried: *tried }, ..solution.clone() };
                match allowed_there(&first, &other, &finding, &under) {
                    Some(allowed) if allowed.is_empty() => None,
                    Some(allowed) => Some(distinct(allowed)),
                    None => Some(left),
                }
            });
            if meter.over() {
                continue;
            }
            let Some(mut left) = left else {
                // One that all of them allow, if there is any.
                if !is_cause {
                    let all = std::iter::once(&sibling.side);
                    let others = sides.iter().filter(|(of, _)| *of != Some(run)).map(|(_, side)| side);
                    let all: Vec<Searcher<'_>> = all.chain(others).map(|side| of(*side)).collect();
                    let found = jointly_in(&all, &finding, solution, &meter);
                    let holds = found.unwrap_or(Holds::Some { elements: 0, of: 0, rows: None, elsewhere: false });
                    changed.push((run, under_no_rule(finding, &holds, (&first, Some(origin)))));
                }
                continue;
            };
            left.sort_by_key(When::weight);
            if let Some(Trial::Narrowed { holds, .. }) = &mut finding.trial {
                *holds = Holds::Under { conditions: left.clone(), tried: *tried };
            }
            if is_cause || left != *conditions {
                let holds = Holds::Under { conditions: left, tried: *tried };
                finding.solution = Some(Solution { holds, ..solution.clone() });
                changed.push((run, finding));
            }
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

/// The conditions that all these sequences together allow.
fn jointly_in(all: &[Searcher<'_>], finding: &Finding, law: &Solution, meter: &Meter) -> Option<Holds> {
    let first = all.first()?;
    let graph = &first.oracle.graph;
    let node = &graph.nodes[graph.index(finding.id)?];
    let work = all.iter().map(|searcher| work_of(node, searcher.oracle, searcher.subject.capture)).sum();
    if work > meter.left() {
        return None;
    }
    meter.count(work);
    let each: Vec<_> = all.iter().map(|searcher| searcher.evidence(node, searcher.subject.capture)).collect();
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
