//! Several reports on one screen: how many of each outcome, and a row per run,
//! the worst first.

use super::origin::UNKNOWN;
use super::{Outcome, Report};
use crate::metrics::largest;
use crate::number::{counted, percent};
use crate::verdict::Verdict;
use std::fmt::Write as _;

/// Columns of the prompt's name at most, so that a row fits a screen.
const NAME: usize = 24;

/// Headings of the columns, in the order of [`Row::cells`].
pub(super) const COLUMNS: [&str; 6] = ["prompt", "outcome", "tokens", "used", "flips", "first origin"];

/// Columns that hold numbers.
pub(super) const NUMBERS: [usize; 3] = [2, 3, 4];

/// A report in one row.
pub(super) struct Row<'a> {
    pub(super) report: &'a Report,
    /// Index among the reports given.
    pub(super) index: usize,
    pub(super) cells: [String; 6],
}

/// A row for each report: the worst outcome first, then the run that used most
/// of what is allowed.
pub(super) fn rows<'a>(reports: &[&'a Report]) -> Vec<Row<'a>> {
    let row = |(index, report): (usize, &&'a Report)| Row { report, index, cells: cells(report) };
    let mut rows: Vec<Row<'_>> = reports.iter().enumerate().map(row).collect();
    rows.sort_by(|a, b| {
        let used = used(&b.report.diagnosis.verdict).total_cmp(&used(&a.report.diagnosis.verdict));
        rank(a.report.outcome).cmp(&rank(b.report.outcome)).then(used)
    });
    rows
}

/// The reports as text.
pub fn render(reports: &[&Report]) -> String {
    let rows = rows(reports);
    let mut out = format!("{}\n\n", counts(&rows));
    for [name, outcome, tokens, used, flips, origin] in
        [&COLUMNS.map(str::to_owned)].into_iter().chain(rows.iter().map(|r| &r.cells))
    {
        let name = shorten(name);
        let line = format!("{name:<NAME$}  {outcome:<17}  {tokens:>9}  {used:>6}  {flips:>5}  {origin}");
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

/// The worst comes first.
fn rank(outcome: Outcome) -> usize {
    let order =
        [Outcome::Diverged, Outcome::OracleSuspect, Outcome::ReferenceSuspect, Outcome::Incomplete, Outcome::Match];
    order.iter().position(|o| *o == outcome).unwrap_or(0)
}

/// How many there are of each outcome.
pub(super) fn counts(rows: &[Row<'_>]) -> String {
    let mut text = format!("{}:", counted(rows.len(), "run"));
    for group in rows.chunk_by(|a, b| a.report.outcome == b.report.outcome) {
        let comma = if text.ends_with(':') { "" } else { "," };
        let _ = write!(text, "{comma} {} {}", group.len(), group[0].report.outcome.word());
    }
    text
}

/// Largest share of what is allowed that a stage used.
fn used(verdict: &Verdict) -> f64 {
    let locals = verdict.stages.iter().filter_map(|s| s.subject.as_ref());
    largest(locals.map(|l| l.used))
}

fn cells(report: &Report) -> [String; 6] {
    let verdict = &report.diagnosis.verdict;
    let used = used(verdict);
    let used = percent(used);
    let flips = verdict.tokens.iter().filter(|t| t.subject != t.reference);
    let origin = report.diagnosis.findings.first().map_or(String::new(), |f| {
        let cause = f.cause.as_ref().map_or_else(|| UNKNOWN.to_owned(), |c| c.name.to_string());
        format!("{} {cause}", f.id)
    });
    let weights = report.weights.mismatches.first();
    let origin = match (weights, &report.tokens) {
        (Some(m), _) => format!("weights {}", m.tensor),
        (None, Some(check)) if check.diverged() => "tokens".to_owned(),
        _ => origin,
    };
    [
        report.run.prompt.clone(),
        report.outcome.word().to_owned(),
        format!("{}+{}", report.run.tokens.len(), report.run.decoded.len()),
        used,
        flips.count().to_string(),
        origin,
    ]
}

/// The end of a long name: of a path it says most.
fn shorten(name: &str) -> String {
    let plain: Vec<char> = name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if plain.len() <= NAME {
        return plain.into_iter().collect();
    }
    let tail = plain[plain.len() - NAME + 1..].iter();
    std::iter::once(&'…').chain(tail).collect()
}
