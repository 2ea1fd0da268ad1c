//! `qdiff explain`.

use super::args::ExplainRequest;
use super::exit;
use super::say::say;
use crate::report::json::{self, Saved};
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
        let cause = finding.told().unwrap_or_else(|| "no known cause".to_owned());
        let _ = writeln!(text, "## {}: {cause}\n\n{}", finding.id, example.markdown(request.patch));
        if let Some(cause) = finding.cause.as_ref().filter(|cause| !cause.remedy.is_empty()) {
            let _ = writeln!(text, "Remedy: {}\n", cause.remedy);
        }
    }
    if text.is_empty() {
        let _ = writeln!(text, "No wrong element of this report is a number that can be worked out.");
    }
    say(&text)?;
    Ok(exit::of(report.outcome))
}
