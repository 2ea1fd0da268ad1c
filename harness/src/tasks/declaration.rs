//! Arithmetic read off the values: the declaration under which every stage is right of a subject that declares none.

use crate::arithmetic::{Arithmetic, Declared, Named};
use crate::capture::Rounding;
use crate::diagnose::Diagnosis;
use crate::formats::Formats;
use crate::pair::{Pair, Recording};
use crate::verdict::{Side, judge};
use std::collections::BTreeSet;

/// Stages, by name, that must be wrong: what a narrow format does it does in many.
const STAGES: usize = 4;

/// The relative error of a row beyond which no format explains it.
const LARGEST: f64 = 0.1;

/// Seconds that judging may have taken: it is done once more for each arithmetic.
const LONGEST: f64 = 2.0;

/// As a manifest has it. Nothing where the subject declares something, few stages are wrong or one is by much, or no arithmetic makes
/// all of them right.
pub(super) fn proposed(
    pair: &Pair<'_>, subject: &mut Recording, reference: Option<&Recording>, diagnosis: &Diagnosis, judging: f64,
) -> Option<String> {
    let origins = diagnosis.verdict.origins();
    let names: BTreeSet<&str> = origins.iter().map(|origin| origin.id.name).collect();
    let small = origins
        .iter()
        .all(|origin| origin.subject.as_ref().is_some_and(|local| local.extent.is_none() && local.residual <= LARGEST));
    let declared = subject.manifest.arithmetic != Arithmetic::default();
    if declared || names.len() < STAGES || !small || judging > LONGEST {
        return None;
    }
    let of_reference = reference.map(|reference| Declared::Explicit(reference.manifest.arithmetic.clone()));
    let all = Named::ALL.into_iter().map(Declared::Named).chain(of_reference);
    all.filter(|declared| declared.arithmetic() != Arithmetic::default()).find_map(|declared| {
        let arithmetic = declared.arithmetic();
        let rounding = Rounding::new(&pair.oracle.graph, &arithmetic.outputs, &Formats::default()).ok()?;
        let own = std::mem::replace(&mut subject.capture.rounding, rounding);
        let side = Side { capture: &subject.capture, arithmetic: &arithmetic };
        let other = reference.map(Recording::side);
        let verdict = judge(&pair.oracle, side, other, &pair.filter, &pair.policy, pair.progress);
        subject.capture.rounding = own;
        let verdict = verdict.ok()?;
        let all = verdict.coverage.judged >= diagnosis.verdict.coverage.judged;
        let right = all && !verdict.diverged();
        let declared = serde_json::to_string(&declared).ok().filter(|_| right)?;
        Some(format!("\"arithmetic\": {declared}"))
    })
}
