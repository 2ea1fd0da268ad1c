//! A badge for a README: the outcome as a small picture (SVG), with the hashes of model and report. `qdiff report --verify` runs
//! the report again.

use super::{Outcome, Report, Told};
use crate::hash::sha256;
use crate::number::counted;
use crate::shown::shown;
use anyhow::{Result, bail};
use quick_xml::escape::escape;
use std::fmt::Write as _;

/// Width of a character, in pixels.
const CHARACTER: usize = 7;

/// Space on both sides of a text, in pixels.
const SPACE: usize = 12;

/// Height of the badge, in pixels.
const HEIGHT: usize = 20;

/// The text on the left.
const LABEL: &str = "qdiff";

/// The one document as a badge.
pub(super) fn render(told: &[&dyn Told], _: &[String]) -> Result<String> {
    let [one] = told else { bail!("a badge holds one report") };
    let screen = one.screen(false);
    let mut title = screen.line();
    let mut text = screen.word.to_owned();
    if let Some(report) = one.run() {
        text += &match report.diagnosis.findings.first() {
            Some(first) => format!(" at {}", first.id),
            None => format!(", {}", counted(report.diagnosis.verdict.coverage.stages, "stage")),
        };
        title += &hashes(report);
    }
    let _ = write!(
        title,
        "\nreport sha256 {}\nrun again with: qdiff report --verify REPORT.json",
        sha256(one.json()?.as_bytes())
    );
    Ok(drawn(&title, &text, screen.outcome))
}

/// The hashes of the model and of the tokens that were run, as ids of 4 bytes, the low one first.
fn hashes(report: &Report) -> String {
    let fed = report.run.tokens.iter().chain(&report.run.decoded);
    let tokens: Vec<u8> = fed.flat_map(|id| id.to_le_bytes()).collect();
    format!(
        "\nsubject {}\nmodel sha256 {}\ntokens sha256 {}",
        report.subject.name,
        report.model.sha256,
        sha256(&tokens)
    )
}

fn drawn(title: &str, text: &str, outcome: Outcome) -> String {
    let colour = match outcome {
        Outcome::Match => "#1a7f37",
        Outcome::Diverged => "#cf222e",
        Outcome::ReferenceSuspect | Outcome::OracleSuspect | Outcome::Incomplete => "#9a6700",
    };
    let wide = |text: &str| text.chars().count() * CHARACTER;
    let (left, right) = (wide(LABEL) + SPACE, wide(text) + SPACE);
    let width = left + right;
    let lines: Vec<String> = title.lines().map(|line| escape(shown(line)).into_owned()).collect();
    let said = |x: usize, text: &str| {
        let (middle, base, length) = (x, HEIGHT - 6, wide(text));
        format!("  <text x=\"{middle}\" y=\"{base}\" textLength=\"{length}\">{}</text>\n", escape(shown(text)))
    };
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{HEIGHT}\" role=\"img\">\n  <title>{}</title>\n  \
         <rect width=\"{left}\" height=\"{HEIGHT}\" fill=\"#444c56\"/>\n  \
         <rect x=\"{left}\" width=\"{right}\" height=\"{HEIGHT}\" fill=\"{colour}\"/>\n  \
         <g fill=\"#fff\" font-family=\"Verdana,DejaVu Sans,sans-serif\" font-size=\"11\">\n{}{}  </g>\n</svg>\n",
        lines.join("\n"),
        said(SPACE / 2, LABEL),
        said(left + SPACE / 2, text),
    )
}
