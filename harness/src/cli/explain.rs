//! `qdiff explain`.

use super::args::ExplainRequest;
use super::exit;
use super::say::page;
use crate::diagnose::Finding;
use crate::number::counted;
use crate::report::json::{self, Saved};
use crate::report::{grouped, story};
use anyhow::{Result, bail};
use std::fmt::Write as _;

/// Prints, as Markdown, what is wrong, and one wrong element of each of the first findings worked out.
pub(super) fn run(request: &ExplainRequest) -> Result<u8> {
    let Saved::Report(report) = json::read(&request.report)? else {
        bail!("{} is no report of a run; save one with `qdiff run --json`", request.report.display());
    };
    let mut text = String::new();
    let findings = &report.diagnosis.findings;
    if findings.is_empty() {
        let _ = writeln!(text, "No stage is wrong in this report: there is nothing to explain.");
    }
    for finding in findings {
        let Some(example) = &finding.example else { continue };
        let _ = writeln!(text, "## {}: {}\n\n{}", finding.id, story(finding), example.markdown(request.patch));
        if let Some(remedy) = finding.mended() {
            let _ = writeln!(text, "Remedy: {remedy}\n");
        }
    }
    let without: Vec<&Finding> = findings.iter().filter(|finding| finding.example.is_none()).collect();
    if !without.is_empty() {
        let origins = counted(without.len(), if without.len() == findings.len() { "origin" } else { "more origin" });
        let _ = writeln!(
            text,
            "{origins} without a worked example (qdiff works out three origins at most, and not every kind of fault):\n"
        );
    }
    for (told, alike) in grouped(without, |finding| story(finding)) {
        let names: Vec<String> = alike.iter().map(|finding| finding.id.to_string()).collect();
        let (names, of) = (names.join(", "), if alike.len() > 1 { " of the first" } else { "" });
        let remedy = alike[0].mended().map_or_else(String::new, |remedy| format!(". Remedy{of}: {remedy}"));
        let _ = writeln!(text, "- {names}: {told}{remedy}");
    }
    page(&text)?;
    Ok(exit::of(report.outcome))
}
