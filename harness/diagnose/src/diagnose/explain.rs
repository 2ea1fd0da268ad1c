//! Which origin is searched when, and with how much work.
//!
//! The first origin is searched alone, then the first of every other stage name, then the rest, some of them at once.
//! What explains one is tried on the next ones before anything else is. All of a group start from the findings before
//! it and have the same work, so that what is found depends on no clock and on no number of threads.

use super::doubt::{among_layers, among_rows};
use super::searcher::{Known, Searcher};
use super::shared::{of_exchanged_norms, of_one_format, of_one_kernel, of_one_model, of_rows};
use super::work::{Meter, USUAL};
use super::{Diagnosis, EXPORTER, Finding, Search};
use crate::capture::Filter;
use crate::oracle::Oracle;
use crate::progress::Progress;
use crate::verdict::{Policy, Side, StageResult, Verdict};
use rayon::prelude::*;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Origins that are searched at once.
const AT_ONCE: usize = 16;

/// Findings that have a wrong element worked out.
const EXAMPLES: usize = 3;

/// Looks for a cause of every origin. `budget` is the work that may take, as a multiple of the usual; 0 searches nothing.
/// `progress` takes the number of origins done.
pub fn explain(
    oracle: &Oracle<'_>, subject: &Side<'_>, verdict: Verdict, (filter, policy): (&Filter, &Policy), budget: f64,
    progress: Progress<'_>,
) -> Diagnosis {
    let start = Instant::now();
    let origins = verdict.origins();
    let done = AtomicUsize::new(0);
    let mut left = (USUAL as f64 * budget) as u64;
    let mut known: Vec<Known> = Vec::new();
    let mut all: Vec<(usize, Finding)> = Vec::new();
    let mut search = Search { budget, ..Search::default() };
    let mut unfinished: BTreeSet<usize> = BTreeSet::new();
    let mut examples = EXAMPLES;
    let waves = waves(&origins);
    for (number, wave) in waves.iter().enumerate() {
        progress("looking for causes", done.load(Ordering::Relaxed), origins.len());
        // Half of what is left, so that something is left for those that follow.
        let whole = number + 1 == waves.len();
        let each = (if whole { left } else { left.div_ceil(2) }) / wave.len() as u64;
        let find = |&i: &usize| {
            let meter = Meter::new(each);
            let searcher = Searcher {
                oracle,
                subject: *subject,
                filter,
                policy,
                known: &known,
                meter: &meter,
                examples: examples > 0,
            };
            let (finding, new) = searcher.finding(origins[i]);
            progress("looking for causes", done.fetch_add(1, Ordering::Relaxed) + 1, origins.len());
            (i, finding, new, meter)
        };
        let found: Vec<_> = wave.par_iter().map(find).collect();
        for (i, finding, new, meter) in found {
            left -= meter.done().min(left);
            examples = examples.saturating_sub(finding.example.iter().count());
            search.tried += meter.tried();
            // What was left out may explain it.
            let explained = finding.solution.is_some() || finding.cause.as_ref().is_some_and(|c| c.whole);
            unfinished.extend((meter.was_short() && !explained).then_some(i));
            for new in new {
                if !known.contains(&new) {
                    known.push(new);
                }
            }
            all.push((i, finding));
        }
    }
    // What explains a later origin may be what is behind an earlier one, whose stages were not captured.
    let meter = Meter::new(left);
    let searcher =
        Searcher { oracle, subject: *subject, filter, policy, known: &known, meter: &meter, examples: false };
    for (i, finding) in all.iter_mut().filter(|(_, finding)| !finding.says_why() && !finding.evident && left > 0) {
        if let Some(found) = searcher.by_reading(origins[*i]) {
            *finding = Finding { example: finding.example.take(), ..found };
            unfinished.remove(i);
        } else if let Some(solution) = searcher.by_known(origins[*i]) {
            // If few elements are no evidence, the same stage of other layers may be.
            finding.leave_place(String::new());
            finding.solution = Some(solution);
            unfinished.remove(i);
        }
    }
    all.sort_by_key(|(i, _)| *i);
    let mut findings: Vec<Finding> = all.into_iter().map(|(_, finding)| finding).collect();
    of_one_kernel(&searcher, &origins, &mut findings);
    of_exchanged_norms(&searcher, &mut findings);
    let meter = Meter::new(0);
    let searcher = Searcher { oracle, subject: *subject, filter, policy, known: &[], meter: &meter, examples: false };
    of_one_model(&searcher, &origins, &mut findings);
    of_rows(&searcher, &origins, &mut findings);
    of_one_format(&searcher, &verdict.stages, &mut findings);
    among_layers(&searcher, &origins, &mut findings);
    among_rows(&searcher, &origins, (&mut findings, &unfinished));
    let with_example = findings.iter_mut().filter(|finding| finding.example.is_some());
    with_example.skip(EXAMPLES).for_each(|finding| finding.example = None);
    for finding in findings.iter_mut().filter(|finding| finding.unread) {
        finding.cause.iter_mut().for_each(|cause| EXPORTER.clone_into(&mut cause.remedy));
    }
    let search = Search { unfinished: unfinished.len(), seconds: start.elapsed().as_secs_f64(), ..search };
    Diagnosis { verdict, findings, search, others: Vec::new() }
}

/// The origins in the order in which they are searched, those of a group at once.
fn waves(origins: &[&StageResult]) -> Vec<Vec<usize>> {
    let is_first = |i: &usize| (0..*i).all(|j| origins[j].id.name != origins[*i].id.name);
    let (first, rest): (Vec<usize>, Vec<usize>) = (1..origins.len()).partition(is_first);
    let groups = first.chunks(AT_ONCE).chain(rest.chunks(AT_ONCE)).map(<[usize]>::to_vec);
    origins.first().map(|_| vec![0]).into_iter().chain(groups).collect()
}
