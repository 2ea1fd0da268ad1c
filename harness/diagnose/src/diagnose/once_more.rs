//! Causes of which another run did not tell, since little or nothing is wrong there: the subject runs once more, in the passes of
//! the first run, on other tokens.

use super::confirm::{held_there, in_all, narrowed, run, settled_by};
use super::searcher::Searcher;
use super::solve::{Holds, Predicted, Solution, TOO_LITTLE};
use super::work::Meter;
use super::{Diagnosis, Finding, Trial};
use crate::capture::Filter;
use crate::oracle::Oracle;
use crate::verdict::{Policy, Side};

/// The work that it may take: about 8 seconds of a core.
const WORK_OF_ALL: u64 = 8_000_000_000;

/// Whether too little is wrong in the other run to tell.
fn is_open(finding: &Finding) -> bool {
    match &finding.trial {
        Some(Trial::Silent { because, .. }) => TOO_LITTLE.contains(&because.as_str()),
        Some(Trial::Narrowed { elements, .. }) => *elements == 0,
        _ => false,
    }
}

impl Diagnosis {
    /// Whether too little is wrong in another run to name a cause.
    pub fn is_left_open(&self) -> bool {
        self.findings.iter().any(is_open)
    }
}

/// Whether two runs left a condition of several, which no run has been predicted by.
fn is_narrowed(finding: &Finding) -> bool {
    let under = |holds: &Holds| matches!(holds, Holds::Under { .. });
    finding.solution.is_some()
        && matches!(&finding.trial, Some(Trial::Narrowed { elements: 1.., holds, .. }) if under(holds))
}

impl Diagnosis {
    /// Whether the condition of a cause was read off two runs, and tried on none.
    pub fn is_narrowed(&self) -> bool {
        self.findings.iter().any(is_narrowed)
    }
}

/// Holds the causes whose conditions were read off two runs against a `third` one.
pub fn bear_out(
    oracle: &Oracle<'_>, subject: &Side<'_>, third: Side<'_>, (filter, policy): (&Filter, &Policy),
    diagnosis: &mut Diagnosis,
) {
    let meter = Meter::new(WORK_OF_ALL);
    let of = |side| Searcher { oracle, subject: side, filter, policy, known: &[], meter: &meter, examples: false };
    let [first, third] = [of(*subject), of(third)];
    let more = run(third.subject.capture);
    let tokens = more.prompt.len() + more.decoded.len();
    diagnosis.others.push(more);
    let Diagnosis { verdict, findings, .. } = diagnosis;
    let origins = verdict.origins();
    for finding in findings.iter_mut().filter(|finding| is_narrowed(finding)) {
        let Some(origin) = origins.iter().find(|origin| origin.id == finding.id) else { continue };
        let mut again = finding.clone();
        settled_by(&first, &third, origin, &mut again, tokens);
        if matches!(
            again.trial,
            Some(Trial::Confirmed { .. } | Trial::Narrowed { elements: 1.., .. } | Trial::Withdrawn { .. })
        ) {
            *finding = again;
        }
    }
}

/// Holds the causes of which the run `other` does not tell, as they were `before` it, against `alike`. What `alike` bears out must
/// make nothing wrong in `other`.
pub fn once_more(
    oracle: &Oracle<'_>, subject: &Side<'_>, [other, alike]: [Side<'_>; 2], (filter, policy): (&Filter, &Policy),
    before: &Diagnosis, diagnosis: &mut Diagnosis,
) {
    let meter = Meter::new(WORK_OF_ALL);
    let of = |side| Searcher { oracle, subject: side, filter, policy, known: &[], meter: &meter, examples: false };
    let [first, other, alike] = [of(*subject), of(other), of(alike)];
    let more = run(alike.subject.capture);
    let tokens = more.prompt.len() + more.decoded.len();
    diagnosis.others.push(more);
    let Diagnosis { verdict, findings, .. } = diagnosis;
    let origins = verdict.origins();
    for finding in findings.iter_mut().filter(|finding| is_open(finding)) {
        let Some(origin) = origins.iter().find(|origin| origin.id == finding.id) else { continue };
        let Some(was) = before.findings.iter().find(|was| was.id == finding.id) else { continue };
        let mut again = was.clone();
        settled_by(&first, &alike, origin, &mut again, tokens);
        if matches!(again.trial, Some(Trial::Withdrawn { .. })) {
            *finding = again;
            continue;
        }
        let Some(Trial::Confirmed { elements, .. } | Trial::Narrowed { elements: elements @ 1.., .. }) = again.trial
        else {
            continue;
        };
        // What all three runs allow.
        let both = match held_there(&first, &other, origin, &again) {
            Predicted::Fails(_) | Predicted::Open { .. } => in_all(&first, [&alike, &other], origin, was),
            Predicted::Under { both, .. } => both,
            Predicted::Holds { .. } | Predicted::Silent(_) => {
                *finding = again;
                continue;
            }
        };
        let holds = match (&was.solution, both.is_empty()) {
            (_, false) => Holds::Under { conditions: both, tried: true },
            // The law gives what is wrong in both runs, and no rule says why it does not hold in the other one.
            (Some(Solution { holds: holds @ Holds::Some { .. }, .. }), true) => holds.clone(),
            _ => continue,
        };
        let mut again = was.clone();
        again.trial = Some(narrowed(&mut again, (elements, tokens), holds));
        *finding = again;
    }
}
