//! Several reports on one screen: how many of each outcome, and a row per run,
//! the worst first.

use super::origin::UNKNOWN;
use super::{Outcome, Report};
use crate::metrics::largest;
use crate::number::percent;
use crate::verdict::Verdict;
use std::fmt::Write as _;

/// Columns of the prompt's name at most, so that a row fits a screen.
const NAME: usize = 24;

/// The reports as text; the worst outcome first, then the run that used most
/// of what is allowed.
pub fn render(reports: &[&Report]) -> String {
    let mut order = reports.to_vec();
    order.sort_by(|a, b| {
        let used = used(&b.diagnosis.verdict).total_cmp(&used(&a.diagnosis.verdict));
        rank(a.outcome).cmp(&rank(b.outcome)).then(used)
    });
    let mut out = format!("{}\n\n", counts(&order));
    let _ = writeln!(
        out,
        "{:<NAME$}  {:<17}  {:>9}  {:>6}  {:>5}  first origin",
        "prompt", "outcome", "tokens", "used", "flips"
    );
    for report in order {
        let _ = writeln!(out, "{}", row(report).trim_end());
    }
    out
}

/// The worst comes first.
fn rank(outcome: Outcome) -> usize {
    let order =
        [Outcome::Diverged, Outcome::OracleSuspect, Outcome::ReferenceSuspect, Outcome::Incomplete, Outcome::Match];
    order.iter().position(|o| *o == outcome).unwrap_or(0)
}

fn counts(order: &[&Report]) -> String {
    let mut text = format!("{} runs:", order.len());
    for group in order.chunk_by(|a, b| a.outcome == b.outcome) {
        let comma = if text.ends_with(':') { "" } else { "," };
        let _ = write!(text, "{comma} {} {}", group.len(), group[0].outcome.word());
    }
    text
}

/// Largest share of what is allowed that a stage used.
fn used(verdict: &Verdict) -> f64 {
    let locals = verdict.stages.iter().filter_map(|s| s.subject.as_ref());
    largest(locals.map(|l| l.used))
}

fn row(report: &Report) -> String {
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
    format!(
        "{:<NAME$}  {:<17}  {:>9}  {used:>6}  {:>5}  {origin}",
        shorten(&report.run.prompt),
        report.outcome.word(),
        format!("{}+{}", report.run.tokens.len(), report.run.decoded.len()),
        flips.count(),
    )
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
