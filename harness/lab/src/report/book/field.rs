//! What was found in engines and files as they were, with nothing planted.

use qdiff::report::markdown::escape;
use qdiff::shown::shown;
use serde::Deserialize;
use std::fmt::Write as _;

/// Findings on file, written by hand: each names what shows it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Field {
    /// Always `field`.
    pub kind: String,
    /// Version of this layout.
    pub schema_version: u32,
    /// What was found.
    pub findings: Vec<FieldFinding>,
}

/// One of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FieldFinding {
    /// What it turned out to be.
    pub judgement: Judgement,
    /// Engine or file it was found in.
    pub subject: String,
    /// What it is, in plain sentences.
    pub what: String,
    /// The command that shows it, or that found it.
    pub command: String,
    /// Files of this repository that hold the evidence.
    pub evidence: Vec<String>,
}

/// What a finding turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Judgement {
    /// Something computes what it should not.
    Defect,
    /// Two correct engines differ, and the difference is explained.
    Legitimate,
    /// What was taken for a bug is none.
    Refuted,
}

/// The findings, defects first.
pub(super) fn render(all: &[Field], out: &mut String) {
    out.push_str("\n## What qdiff found in the field\n\nIn engines and files as they were, with nothing planted. [FIELD.md](FIELD.md) has the defects of released engines.\n");
    super::missing::missing("field", all.is_empty(), out);
    for (judgement, heading, by) in [
        (Judgement::Defect, "Defects", "Found"),
        (Judgement::Legitimate, "Differences between correct engines, explained", "Shown"),
        (Judgement::Refuted, "Suspicions refuted", "Shown"),
    ] {
        let mut findings = all.iter().flat_map(|f| &f.findings).filter(|f| f.judgement == judgement).peekable();
        if findings.peek().is_some() {
            let _ = writeln!(out, "\n### {heading}\n");
        }
        for f in findings {
            let evidence: Vec<String> = f.evidence.iter().map(|path| format!("[{0}]({0})", escape(path))).collect();
            let _ = writeln!(
                out,
                "- **{}.** {} {by} by `{}`; evidence: {}.",
                escape(&f.subject),
                escape(&f.what),
                shown(&f.command).replace('`', "'"),
                evidence.join(", ")
            );
        }
    }
}
