//! What `qdiff logits` tells, on one screen: the products first, then what only
//! looks suspicious.

use super::summary::{explained, positions};
use super::terminal::{self, line};
use super::{Doubt, ModelInfo, Outcome};
use crate::diagnose::Diagnosis;
use crate::logits::{Pick, Study, Suspect, Why};
use crate::number::number;
use crate::runners::Manifest;
use comfy_table::{Table, presets};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt::Write as _;

/// Version of the JSON layout.
pub const SCHEMA_VERSION: u32 = 1;

/// Characters of a token's text that are shown.
const TEXT: usize = 16;

/// What the file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Logits, looked into.
    Logits,
}

/// All that is told of the logits of a run.
#[derive(Debug, Serialize, JsonSchema)]
pub struct LogitsReport {
    /// Version of this layout; raised when a field changes its meaning.
    pub schema_version: u32,
    /// What this file is.
    pub kind: Kind,
    /// What it comes to.
    pub outcome: Outcome,
    /// The model.
    pub model: ModelInfo,
    /// Name of the prompt.
    pub prompt: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// The token fed at each decode step.
    pub decoded: Vec<u32>,
    /// Who was under suspicion.
    pub subject: Manifest,
    /// What it was held against.
    pub reference: Manifest,
    /// What was found of the ids.
    pub study: Study,
    /// The verdict on the stage, with the cause.
    #[serde(rename = "verdict")]
    pub diagnosis: Diagnosis,
    /// Where only the reference is wrong: who is.
    pub doubt: Option<Doubt>,
}

/// The screen: at most one, of 100 columns. `text` gives the text of a token.
pub fn render(report: &LogitsReport, text: &dyn Fn(usize) -> String) -> String {
    let mut out = terminal::verdict(report.outcome, &headline(report));
    out.push_str(&labelled(&causes(report)));
    out.push('\n');
    out.push_str(&labelled(&facts(report, text)));
    let (next, command) = next(report);
    let next = line("next", &format!("{next}: {command}"));
    let _ = write!(out, "\n{}\n\n{next}", table(report));
    out
}

fn labelled(lines: &[(&str, String)]) -> String {
    lines.iter().map(|(label, text)| line(label, text)).collect()
}

/// Why, as far as it is known.
fn causes(report: &LogitsReport) -> Vec<(&'static str, String)> {
    let (diagnosis, mut lines) = (&report.diagnosis, Vec::new());
    if let Some(cause) = diagnosis.findings.first().and_then(|f| f.cause.as_ref()) {
        lines.push(("why", explained(cause)));
        lines.push(("remedy", cause.remedy.clone()));
        if !cause.ties.is_empty() {
            lines.push(("fits too", cause.ties.join(", ")));
        }
    }
    if diagnosis.search.unfinished > 0 {
        let text = "the search for a cause ran out of time; --why-budget gives it more";
        lines.push(("search", text.to_owned()));
    }
    if let Some(doubt) = &report.doubt {
        lines.push(("doubt", doubt.reason.clone()));
    }
    // Where every logit is right, the theories about ids are the question.
    if diagnosis.findings.is_empty() {
        lines.extend(theories(report));
    }
    lines
}

/// What the ids are, and whether any could win by mistake.
fn theories(report: &LogitsReport) -> [(&'static str, String); 2] {
    [("ids", ids(&report.study)), ("padding", padding(report))]
}

/// The products first, then what looks suspicious, then what is chosen.
fn facts(report: &LogitsReport, text: &dyn Fn(usize) -> String) -> Vec<(&'static str, String)> {
    let study = &report.study;
    let mut lines = vec![("products", products(report))];
    if study.wrong > 0 {
        lines.push(("wrong", wrong(study)));
    }
    if study.non_finite > 0 {
        let text = format!("{} logits are NaN or infinite", study.non_finite);
        lines.push(("not finite", text));
    }
    lines.push(("outliers", outliers(report)));
    if let Some(hidden) = study.hidden {
        lines.push(("hidden", hidden_state(report, hidden.0)));
    }
    if !report.diagnosis.findings.is_empty() {
        lines.extend(theories(report));
    }
    lines.push(("choice", choice(report, text)));
    lines
}

fn headline(report: &LogitsReport) -> String {
    let (study, verdict) = (&report.study, &report.diagnosis.verdict);
    let Some(finding) = report.diagnosis.findings.first() else {
        return match report.outcome {
            Outcome::Match => format!(
                "all {} logits at {} positions are the product of their row with the hidden state",
                study.ids.rows, study.rows
            ),
            _ => "the subject's logits are what they should be; see below".to_owned(),
        };
    };
    let at = format!("at {}, {}", finding.id, positions(verdict, finding));
    match &finding.cause {
        Some(cause) => format!("{at}: {} ({})", cause.story, cause.name),
        None => format!("{at}: no known cause: {}", finding.shape),
    }
}

fn products(report: &LogitsReport) -> String {
    let study = &report.study;
    let local = report.diagnosis.verdict.stages.first().and_then(|s| s.subject.as_ref());
    let residual = local
        .map_or_else(String::new, |l| format!("; residual {} of {} allowed", number(l.residual), number(l.allowed)));
    let other = match report.has_reference() {
        true => format!("; of {}: {}", report.reference.name, study.reference_wrong),
        false => String::new(),
    };
    format!(
        "{} of {} logits ({} ids at {} positions) are not Σ w·h in f64{residual}{other}",
        study.wrong, study.logits, study.ids.rows, study.rows
    )
}

fn wrong(study: &Study) -> String {
    let who = if study.everywhere() {
        format!("{} ids of {}: none is special, whichever stand out", study.wrong_ids, study.ids.rows)
    } else {
        let shown: Vec<String> = study.listed.iter().take(6).map(ToString::to_string).collect();
        let dots = if study.wrong_ids > 6 { " …" } else { "" };
        let s = if study.wrong_ids == 1 { "" } else { "s" };
        format!("{} id{s}: {}{dots}", study.wrong_ids, shown.join(" "))
    };
    let positions: Vec<String> = study.places.positions.iter().take(6).map(ToString::to_string).collect();
    let at = match study.places.rows {
        n if n == study.rows => "at every position".to_owned(),
        1 => format!("at position {} alone", positions.join(" ")),
        n => format!("at {n} positions: {}{}", positions.join(" "), if n > 6 { " …" } else { "" }),
    };
    let mut text = format!("{who}; {at}; pattern: {}", study.pattern);
    for (n, what) in [
        (study.zero, "are exactly zero: never written"),
        (study.stale, "are what the step before left at their address"),
        (study.repeated, "are those of the position before"),
    ] {
        if n > 0 {
            let _ = write!(text, "; {n} {what}");
        }
    }
    text
}

fn outliers(report: &LogitsReport) -> String {
    let study = &report.study;
    let from = match report.has_reference() {
        true => format!("{}'s", report.reference.name),
        false => "their products".to_owned(),
    };
    match (study.outliers, study.everywhere()) {
        (0, true) => {
            format!("none: no logit is further from {from} than the others are, and all the same they are wrong")
        }
        (0, false) => format!("none: no logit is further from {from} than the others are"),
        (n, _) => format!(
            "{n} logits are further from {from} than the others are; {} of them are wrong products",
            study.outliers_wrong
        ),
    }
}

fn hidden_state(report: &LogitsReport, apart: f64) -> String {
    let upstream = apart.is_nan() || apart > 0.1;
    let note = match (upstream, report.study.wrong) {
        (false, _) => "",
        (true, 0) => ": the logits are right products of a hidden state that is not; look upstream",
        (true, _) => ": something upstream is wrong as well",
    };
    format!("the states before the projection are {} apart (relative L2, worst){note}", number(apart))
}

fn ids(study: &Study) -> String {
    let ids = &study.ids;
    let listed = match ids.listed {
        n if n >= ids.rows => "all listed by the tokenizer".to_owned(),
        n => format!("{n} listed by the tokenizer, {} beyond it", ids.rows - n),
    };
    let padding = match ids.first_padding {
        Some(first) => format!("{} padding, from {first} on", ids.padding),
        None => "no padding".to_owned(),
    };
    let scanned = match ids.scanned {
        n if n == ids.rows => "llama.cpp scans them all as well".to_owned(),
        n => format!("llama.cpp scans {n}"),
    };
    format!("{} rows in the projection, {listed}; {padding}; {scanned}", ids.rows)
}

fn padding(report: &LogitsReport) -> String {
    let (study, padding) = (&report.study, &report.study.padding);
    let Some(largest) = padding.largest else {
        return "none: there is nothing that a scan could take by mistake".to_owned();
    };
    let wins = format!(
        "wins at {} of {} positions{}; its largest logit is {:.3}",
        padding.wins,
        study.rows,
        padding.reference_wins.map_or_else(String::new, |n| format!(" (reference: {n})")),
        largest.0
    );
    let lead = padding.lead.map_or_else(String::new, |l| format!(", at least {:.3} below the choice", l.0));
    let theory = match (padding.wins, padding.reference_wins) {
        (0, _) => "leaving it out changes no choice: that the argmax falls for padding is wrong here",
        (_, Some(0)) => "its values are wrong, not the scan: the reference scans them too, and they do not win",
        (ours, Some(theirs)) if ours == theirs => "as often as with the reference: the scan is not what is wrong",
        _ => "compare its logits with their products below",
    };
    format!("{wins}{lead}; {theory}")
}

fn choice(report: &LogitsReport, text: &dyn Fn(usize) -> String) -> String {
    let (study, choices) = (&report.study, &report.study.choices);
    let Some(row) = choices.telling() else {
        return "none".to_owned();
    };
    let told = |p: &Pick| format!("{} {} (margin {:.3})", p.id, shown(&text(p.id)), p.margin);
    let mut words = match row.reference {
        Some(_) => format!("alike at {} of {} positions", choices.alike, study.rows),
        None => format!("as computed in f64 at {} of {} positions", choices.as_computed, study.rows),
    };
    let _ = write!(words, "; at position {}: {}", row.position, told(&row.subject));
    match &row.reference {
        Some(r) if r.id != row.subject.id => {
            let _ = write!(words, ", reference {}", told(r));
        }
        _ => {}
    }
    if row.rightly != row.subject.id {
        let _ = write!(words, ", the products choose {} {}", row.rightly, shown(&text(row.rightly)));
    }
    if choices.left_out > 0 {
        let changed = match row.without.id == row.subject.id {
            true => format!("the same (margin {:.3})", row.without.margin),
            false => told(&row.without),
        };
        let _ = write!(words, "; without the wrong ids {changed}");
        if row.reference.is_some() {
            let _ = write!(words, ", alike at {}", choices.alike_without);
        }
    }
    words
}

/// A token's text as one word of few characters.
fn shown(text: &str) -> String {
    let quoted = format!("{text:?}");
    match quoted.char_indices().nth(TEXT) {
        Some((end, _)) => format!("{}…", &quoted[..end]),
        None => quoted,
    }
}

fn table(report: &LogitsReport) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["id", "text", "position", "why", "subject", "Σ w·h in f64", "reference"]);
    for s in &report.study.suspects {
        table.add_row(row(s));
    }
    let lines = table.to_string();
    let lines: Vec<&str> = lines.lines().map(str::trim_end).collect();
    lines.join("\n")
}

fn row(s: &Suspect) -> Vec<String> {
    let value = |v: Option<f64>| v.map_or_else(|| "-".to_owned(), |v| format!("{v:.4}"));
    let why = match s.why {
        Why::NonFinite => "not finite",
        Why::Wrong => "wrong",
        Why::Outlier => "outlier",
        Why::Chosen => "chosen",
        Why::Padding => "largest padding",
    };
    let place = match s.step {
        0 => format!("{}", s.position),
        n => format!("{} (step {n})", s.position),
    };
    vec![
        s.id.to_string(),
        shown(&s.text),
        place,
        why.to_owned(),
        value(Some(f64::from(s.subject))),
        value(s.product.map(|p| p.0)),
        value(s.reference.map(|r| r.0)),
    ]
}

fn next(report: &LogitsReport) -> (&'static str, &'static str) {
    let apart = report.study.hidden.is_some_and(|h| h.0.is_nan() || h.0 > 0.1);
    match (report.study.wrong, apart) {
        (0, true) => ("which stage made the hidden state wrong", "qdiff run"),
        (0, false) => ("every other stage", "qdiff run"),
        _ => ("that the projection is stored and read as it should be", "qdiff weights"),
    }
}

impl LogitsReport {
    fn has_reference(&self) -> bool {
        !self.diagnosis.verdict.coverage.alone
    }
}
