//! Causes that something else in the run speaks against: they are taken back, and the report says why.

use super::searcher::Searcher;
use super::work::Meter;
use super::{Diagnosis, Finding, Trial, anywhere};
use crate::capture::Filter;
use crate::oracle::Oracle;
use crate::verdict::{Policy, Side, StageResult};
use qdiff_engine::model::StageId;
use std::collections::BTreeSet;

/// A cause that explains at most one in so many layers of a stage that is wrong in all of them is of none.
const ONE_IN: usize = 4;

/// Why a cause is taken back that varies.
const UNSTEADY: &str = "another run on the same tokens gave other values";

/// Takes causes back at stages that gave other values in another run on the same tokens: at the first of them, and at the
/// others where other tokens did not bear the cause out.
pub fn unsteady(
    oracle: &Oracle<'_>, subject: &Side<'_>, (filter, policy): (&Filter, &Policy), diagnosis: &mut Diagnosis,
    differing: &[StageId],
) {
    let meter = Meter::new(0);
    let searcher = Searcher { oracle, subject: *subject, filter, policy, known: &[], meter: &meter, examples: false };
    let origins = diagnosis.verdict.origins();
    for finding in diagnosis.findings.iter_mut().filter(|f| differing.contains(&f.id)) {
        let confirmed = matches!(finding.trial, Some(Trial::Confirmed { .. }));
        if finding.says_why() && (!confirmed || differing.first() == Some(&finding.id)) {
            take_back(&searcher, &origins, finding, (0, UNSTEADY.to_owned()));
        }
    }
}

/// Takes back rules for the keys that are seen, where the runs allow several others.
pub fn undecided(
    oracle: &Oracle<'_>, subject: &Side<'_>, (filter, policy): (&Filter, &Policy), diagnosis: &mut Diagnosis,
) {
    let meter = Meter::new(0);
    let searcher = Searcher { oracle, subject: *subject, filter, policy, known: &[], meter: &meter, examples: false };
    let origins = diagnosis.verdict.origins();
    for finding in &mut diagnosis.findings {
        let origin = origins.iter().find(|origin| origin.id == finding.id);
        let of_one_row = !matches!(finding.trial, Some(Trial::Confirmed { .. }))
            && origin.and_then(|o| o.subject.as_ref()).is_some_and(|local| local.bad_positions.len() == 1);
        if let Some(rules) = finding.solution.as_mut().and_then(|solution| solution.undecided(of_one_row)) {
            let because = match rules {
                1 => "one other rule for which keys are seen fits as well".to_owned(),
                _ => format!("{rules} other rules for which keys are seen fit as well"),
            };
            take_back(&searcher, &origins, finding, (0, because));
        }
    }
}

/// Takes back causes of the same stage in several layers: those in the words of one that other tokens spoke against, unless
/// other tokens bear them out, and those that explain few of the layers. An engine runs the same code in each.
pub(super) fn among_layers(searcher: &Searcher<'_>, origins: &[&StageResult], findings: &mut [Finding]) {
    of_wrong_caches(searcher, origins, findings);
    let mut names: Vec<&str> = findings.iter().filter(|f| f.id.layer.is_some()).map(|f| f.id.name).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let of_stage: Vec<usize> = (0..findings.len()).filter(|&i| counts(&findings[i], name)).collect();
        let spoken_against: Vec<(String, (usize, String))> = of_stage
            .iter()
            .filter_map(|&i| match &findings[i].trial {
                Some(Trial::Withdrawn { tokens, told, because }) => {
                    Some((anywhere(told, findings[i].id.layer), (*tokens, because.clone())))
                }
                _ => None,
            })
            .collect();
        for &i in &of_stage {
            if matches!(findings[i].trial, Some(Trial::Confirmed { .. })) {
                continue;
            }
            let told = findings[i].told().map(|told| anywhere(&told, findings[i].id.layer));
            if let Some((_, why)) = spoken_against.iter().find(|(known, _)| Some(known) == told.as_ref()) {
                take_back(searcher, origins, &mut findings[i], why.clone());
            }
        }
        let told: Vec<usize> = of_stage.iter().copied().filter(|&i| findings[i].says_why()).collect();
        if told.len() * ONE_IN <= of_stage.len() {
            let others = format!(
                "in {} other layers the same stage is wrong, and no cause is known",
                of_stage.len() - told.len()
            );
            for i in told {
                take_back(searcher, origins, &mut findings[i], (0, others.clone()));
            }
        }
    }
}

/// Takes back causes of rows that are wrong in many stages, where they explain few of these: one fault in one place is behind
/// them, and what fits a few of the stages fits by chance. Stages whose search ended early do not count.
pub(super) fn among_rows(
    searcher: &Searcher<'_>, origins: &[&StageResult], (findings, unfinished): (&mut [Finding], &BTreeSet<usize>),
) {
    let rows = |i: usize| origins[i].subject.as_ref().map(|local| &local.bad_positions);
    let of_engine = |f: &Finding| !f.unread && !f.kept && !f.unwritten && !f.evident;
    let counted: Vec<usize> =
        (0..findings.len()).filter(|i| of_engine(&findings[*i]) && !unfinished.contains(i)).collect();
    let mut taken: Vec<(usize, Vec<usize>)> = Vec::new();
    for &i in counted.iter().filter(|&&i| findings[i].is_of_some_rows() && some_rows(origins[i])) {
        let Some(own) = rows(i) else { continue };
        let shares = |j: &usize| rows(*j).is_some_and(|rows| rows.is_superset(own));
        let group: Vec<usize> = counted.iter().copied().filter(shares).collect();
        let told = group.iter().filter(|&&j| findings[j].says_why()).count();
        if group.len() >= ONE_IN && told * ONE_IN <= group.len() {
            taken.push((i, group));
        }
    }
    for (i, group) in taken {
        let s = if rows(i).is_some_and(|rows| rows.len() == 1) { "" } else { "s" };
        let unknown = group.iter().filter(|&&j| !findings[j].says_why()).count();
        let why = format!("{unknown} other stages are wrong at the same position{s}, and no cause of theirs is known");
        take_back(searcher, origins, &mut findings[i], (0, why));
        let finding = &mut findings[i];
        finding.shape = format!("wrong at the same position{s} in {} stages; {}", group.len(), finding.shape);
    }
}

/// Whether some rows of a stage are wrong, and not all, all of the prefill, or all of the decode steps.
fn some_rows(origin: &StageResult) -> bool {
    origin.subject.as_ref().is_some_and(|local| {
        let (later, bad_later) = (local.rows - local.prefill_rows, local.bad_rows - local.bad_prefill_rows);
        let whole = |bad: usize, of: usize| bad == 0 || bad >= of;
        !(whole(local.bad_prefill_rows, local.prefill_rows) && whole(bad_later, later))
    })
}

/// Takes back that a cache holds rows of the one in another layer where that one is wrong itself: rows that were never
/// written, or that all layers share, are the same in both.
fn of_wrong_caches(searcher: &Searcher<'_>, origins: &[&StageResult], findings: &mut [Finding]) {
    let graph = &searcher.oracle.graph;
    let has_state = |id: StageId| graph.index(id).is_some_and(|i| graph.nodes[i].has_state());
    for finding in findings.iter_mut().filter(|finding| has_state(finding.id)) {
        let is_wrong = |source: &StageId| *source != finding.id && origins.iter().any(|origin| origin.id == *source);
        let of_law = finding.solution.as_ref().and_then(|solution| solution.law.as_ref()?.source()).filter(is_wrong);
        let of_cause = finding.source_of_cause(graph).filter(is_wrong);
        if finding.solution.is_some() && of_law.is_none() {
            // A law of other words stands without it.
            finding.cause.take_if(|_| of_cause.is_some());
        } else if let Some(source) = of_law.or(of_cause) {
            take_back(searcher, origins, finding, (0, format!("{source} is wrong itself")));
        }
    }
}

/// Whether a finding is one of the stage `name` that the engine computed wrongly.
fn counts(finding: &Finding, name: &str) -> bool {
    finding.id.name == name && finding.id.layer.is_some() && !finding.unread && !finding.kept && !finding.unwritten
}

/// Leaves of a finding where it is, and what it looks like.
fn take_back(
    searcher: &Searcher<'_>, origins: &[&StageResult], finding: &mut Finding, (tokens, because): (usize, String),
) {
    let Some(origin) = origins.iter().find(|origin| origin.id == finding.id) else { return };
    let told = finding.told().unwrap_or_default();
    finding.leave_place(searcher.shape(origin));
    finding.trial = Some(Trial::Withdrawn { tokens, told, because });
}
