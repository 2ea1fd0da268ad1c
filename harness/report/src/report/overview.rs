//! Several reports on one screen: how many of each outcome, and a row per run, the worst first.

use super::origin::UNKNOWN;
use super::origin::grouped;
use super::terminal::Terminal;
use super::{Report, RunInfo, Table};
use crate::decoded::DecodedCheck;
use crate::ends::EndCheck;
use crate::metrics::largest;
use crate::number::{counted, percent};
use crate::slots::SlotsCheck;
use crate::verdict::Verdict;
use serde::Serialize;
use std::fmt::Write as _;

/// The reports, each with its index among those given: the worst outcome first, then the run that used most of what is
/// allowed.
pub(super) fn sorted<'a>(reports: &[&'a Report]) -> Vec<(usize, &'a Report)> {
    let mut sorted: Vec<_> = reports.iter().copied().enumerate().collect();
    sorted.sort_by(|(_, a), (_, b)| {
        let used = used(&b.diagnosis.verdict).total_cmp(&used(&a.diagnosis.verdict));
        a.outcome.rank().cmp(&b.outcome.rank()).then(used)
    });
    sorted
}

/// The reports as text.
pub fn render(reports: &[&Report], terminal: Terminal) -> String {
    let sorted = sorted(reports);
    let common: String = common(&sorted).iter().map(|c| terminal.line("cause", &c.text)).collect();
    format!("{}\n{common}\n{}\n", counts(&sorted), terminal.draw(&table(&sorted)))
}

/// A cause that several runs have.
#[derive(Serialize)]
pub(super) struct Common {
    /// In how many, its name, and where it is seen first.
    text: String,
    /// Their indices among the reports given.
    runs: Vec<usize>,
}

/// The causes that more than one run has: what is wrong first in time of positions, slots and block tables; of the other runs, the
/// causes of the first origins.
pub(super) fn common(sorted: &[(usize, &Report)]) -> Vec<Common> {
    let wrong = |report: &Report| report.slots.as_ref().filter(|check| check.diverged())?.wrong.first().cloned();
    let at_slots: Vec<_> = sorted.iter().filter_map(|(i, report)| Some((*i, wrong(report)?))).collect();
    let slots =
        at_slots.iter().min_by_key(|(_, row)| row.pass).filter(|_| at_slots.len() > 1).map(|(_, first)| Common {
            text: format!(
                "positions, slots or block tables are wrong in {} of {}, first of all: {}",
                at_slots.len(),
                counted(sorted.len(), "run"),
                first.words()
            ),
            runs: at_slots.iter().map(|(i, _)| *i).collect(),
        });
    let known = sorted.iter().filter(|(_, report)| wrong(report).is_none()).filter_map(|(i, report)| {
        let first = report.diagnosis.findings.first().filter(|first| first.says_why())?;
        Some((first.told()?, *i, first.id))
    });
    let groups = grouped(known, |(cause, ..)| cause.clone()).into_iter().filter(|(_, runs)| runs.len() > 1);
    let told = groups.map(|(cause, of)| {
        // In the order of the model.
        let first = of.iter().map(|(.., id)| *id).min_by_key(|id| (id.layer, id.name));
        let at = first.map_or_else(String::new, |id| format!(", first at {id}"));
        let text = format!("the same in {} of {}: {cause}{at}", of.len(), counted(sorted.len(), "run"));
        Common { text, runs: of.iter().map(|(_, i, _)| *i).collect() }
    });
    slots.into_iter().chain(told).collect()
}

/// A row for each report.
pub(super) fn table(sorted: &[(usize, &Report)]) -> Table {
    let columns = ["prompt", "outcome", "tokens", "used", "flips", "first origin"];
    Table::new(&columns, &[2, 3, 4], sorted.iter().map(|(_, report)| cells(report)))
}

/// How many there are of each outcome, and how many of all are less than their outcome says.
pub(super) fn counts(sorted: &[(usize, &Report)]) -> String {
    let mut text = format!("{}:", counted(sorted.len(), "run"));
    for group in sorted.chunk_by(|(_, a), (_, b)| a.outcome == b.outcome) {
        let comma = if text.ends_with(':') { "" } else { "," };
        let _ = write!(text, "{comma} {} {}", group.len(), group[0].1.outcome.word());
    }
    let mut reserve = |of: fn(&RunInfo) -> &[String], what: &str| {
        let with = sorted.iter().filter(|(_, report)| !of(&report.run).is_empty()).count();
        if with > 0 {
            let _ = write!(text, "; {with} {what}");
        }
    };
    reserve(|run| &run.tolerance, "with tolerances set by hand");
    reserve(|run| &run.inert, "with injected faults that are inert");
    text
}

/// Largest share of what is allowed that a stage used.
fn used(verdict: &Verdict) -> f64 {
    let locals = verdict.stages.iter().filter_map(|s| s.subject.as_ref());
    largest(locals.map(|l| l.used))
}

fn cells(report: &Report) -> Vec<String> {
    let verdict = &report.diagnosis.verdict;
    let flips = verdict.tokens.iter().filter(|t| t.subject != t.reference);
    let origin = match (report.weights.mismatches.first(), &report.tokens, report.diagnosis.findings.first()) {
        (Some(m), ..) => format!("weights {}", m.tensor),
        (None, Some(check), _) if check.diverged() => "tokens".to_owned(),
        (None, ..) if report.slots.as_ref().is_some_and(SlotsCheck::diverged) => {
            report.slots.as_ref().map_or("slots", SlotsCheck::what).to_owned()
        }
        (None, _, Some(f)) => {
            let solved = f.solution.as_ref().map(|s| s.told());
            let named = || f.cause.as_ref().filter(|_| f.says_why()).map(|c| c.name.to_string());
            let cause = solved.or_else(named).or_else(|| f.plain().map(str::to_owned));
            let cause = cause.unwrap_or_else(|| UNKNOWN.to_owned());
            format!("{} {cause}", f.id)
        }
        (None, _, None) if report.decoded.as_ref().is_some_and(DecodedCheck::diverged) => "decoded tokens".to_owned(),
        (None, _, None) if report.end.as_ref().is_some_and(EndCheck::diverged) => "end of generation".to_owned(),
        (None, _, None) => String::new(),
    };
    vec![
        report.run.prompt.clone(),
        report.outcome.word().to_owned(),
        format!("{}+{}", report.run.tokens.len(), report.run.decoded.len()),
        percent(used(verdict)),
        flips.count().to_string(),
        origin,
    ]
}
