//! Markdown, for pull requests, job summaries and notes.

use super::table::{self, COLUMNS, NUMBERS};
use super::{Format, Report, Summary};
use crate::diagnose::Finding;
use crate::number::number;
use crate::verdict::Element;
use anyhow::Result;
use std::fmt::Write as _;

/// Findings listed; what follows is counted.
const FINDINGS: usize = 20;

/// The markdown format.
pub struct Markdown;

impl Format for Markdown {
    fn extension(&self) -> &'static str {
        "md"
    }

    fn several(&self) -> bool {
        true
    }

    fn render(&self, reports: &[Report], absent: &[String]) -> Result<String> {
        Ok(several(reports, absent))
    }
}

/// What is absent, and a section for each report.
pub(super) fn several(reports: &[Report], absent: &[String]) -> String {
    let absent = absent.iter().map(|what| {
        let what = escape(what);
        format!("**INCOMPLETE:** {what}\n")
    });
    let parts: Vec<String> = absent.chain(reports.iter().map(render)).collect();
    parts.join("\n")
}

/// One report as a section of its own.
pub fn render(report: &Report) -> String {
    let summary = Summary::new(report);
    let mut out = String::new();
    let _ = writeln!(
        out,
        "# qdiff: {}, {}\n\n**{}** {}\n",
        escape(&report.model.name),
        escape(&report.run.prompt),
        summary.word,
        escape(&summary.headline)
    );
    list(&summary.more, &mut out);
    list(&summary.facts, &mut out);
    stages(report, &mut out);
    findings(report, &mut out);
    elements(report, &mut out);
    out.push_str("\n## Evidence\n\n");
    list(&summary.evidence, &mut out);
    let (next, why) = &summary.next;
    let _ = writeln!(out, "\n## To repeat\n\n{}\n\nNext, {why}:\n\n{}", code(&report.run.repeat()), code(next));
    out
}

fn list(lines: &[(&str, String)], out: &mut String) {
    for (label, text) in lines {
        let _ = writeln!(out, "- {label}: {}", escape(text));
    }
}

/// A table with the columns `numbers` set to the right. The cells are markdown.
pub fn table<'a>(
    head: &[&str],
    numbers: &[usize],
    rows: impl Iterator<Item = Vec<std::borrow::Cow<'a, str>>>,
    out: &mut String,
) {
    let _ = writeln!(out, "| {} |", head.join(" | "));
    let rule: Vec<&str> = (0..head.len()).map(|i| if numbers.contains(&i) { "---:" } else { "---" }).collect();
    let _ = writeln!(out, "| {} |", rule.join(" | "));
    for row in rows {
        let _ = writeln!(out, "| {} |", row.join(" | "));
    }
}

fn stages(report: &Report, out: &mut String) {
    out.push_str("\n## Stages\n\n");
    let rows = table::rows(&report.diagnosis.verdict, false);
    let rows = rows.iter().map(|row| row.cells().map(|cell| escape(cell).into()).collect());
    table(&COLUMNS, &NUMBERS, rows, out);
}

fn findings(report: &Report, out: &mut String) {
    let all = &report.diagnosis.findings;
    if all.is_empty() {
        return;
    }
    out.push_str("\n## Origins\n\n");
    let rows = all.iter().take(FINDINGS).map(|f| finding(report, f));
    let head = ["stage", "where", "cause", "residual", "explained to", "remedy"];
    table(&head, &[3, 4], rows, out);
    if all.len() > FINDINGS {
        let _ = writeln!(out, "\nand {} more.", all.len() - FINDINGS);
    }
}

fn finding<'a>(report: &Report, f: &Finding) -> Vec<std::borrow::Cow<'a, str>> {
    let place = super::summary::positions(&report.diagnosis.verdict, f);
    let (cause, before, after, remedy) = match &f.cause {
        Some(c) => (format!("{}: {}", c.name, c.story), number(c.before), number(c.after), c.remedy.clone()),
        None => (format!("no known cause. {}", f.shape), String::new(), String::new(), String::new()),
    };
    [report.diagnosis.verdict.name(f.id), place, cause, before, after, remedy]
        .iter()
        .map(|cell| escape(cell).into())
        .collect()
}

fn elements(report: &Report, out: &mut String) {
    let verdict = &report.diagnosis.verdict;
    let Some(first) = report.diagnosis.findings.first() else {
        return;
    };
    let stage = verdict.stages.iter().find(|s| s.id == first.id);
    let Some(local) = stage.and_then(|s| s.subject.as_ref()) else {
        return;
    };
    if local.spread.worst.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n## Worst elements of {}\n", first.id);
    let row = |e: &Element| {
        let other = e.other.map_or_else(|| "-".to_owned(), |v| format!("{:.6}", v.0));
        [
            e.place.to_string(),
            e.index.to_string(),
            format!("{:.6}", e.got),
            format!("{:.6}", e.want),
            other,
            number(e.allowed),
        ]
        .map(Into::into)
        .to_vec()
    };
    let head = ["row", "index", "subject", "f64", "reference", "allowed"];
    table(&head, &[1, 2, 3, 4, 5], local.spread.worst.iter().map(row), out);
}

/// Text that markdown takes literally, on one line.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut before = ' ';
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let inside = before.is_alphanumeric() && rest.peek().is_some_and(|n| n.is_alphanumeric());
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            // `q_proj` has no emphasis in it.
            '_' if inside => out.push(c),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '~' | '#' | '$' => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
        before = c;
    }
    out
}

/// A block of code that its content cannot end.
pub fn code(text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(3.max(longest + 1));
    format!("{fence}\n{text}\n{fence}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_stay_text() {
        assert_eq!(
            escape("<img src=x>|[a](b)\n# `q_proj` _x_"),
            "&lt;img src=x>\\|\\[a\\](b) \\# \\`q_proj\\` \\_x\\_"
        );
        assert_eq!(code("a ``` b"), "````\na ``` b\n````");
    }
}
