//! What `qdiff logits` tells, on one screen: the products first, then what only looks suspicious.

use super::origin::{self, few};
use super::screen::{Check, Document, Fate, Line, Next, Screen, Section, Table};
use super::stages::NONE;
use super::{Doubt, ModelInfo, Outcome};
use crate::diagnose::Diagnosis;
use crate::logits::{Pick, Study, Suspect, Why};
use crate::number::{counted, number};
use crate::runners::Manifest;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Distance between the hidden states from which on rounding has not made it.
const UPSTREAM: f64 = 0.1;

/// Characters of a token's text that are shown.
const TEXT: usize = 16;

/// The report of the logits of a run.
#[derive(Debug, Serialize, JsonSchema)]
pub struct LogitsReport {
    /// What it comes to.
    pub outcome: Outcome,
    /// The model.
    pub model: ModelInfo,
    /// The model as the command line named it, unless `QDIFF_MODEL` did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub named: Option<String>,
    /// Name of the prompt.
    pub prompt: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// The token fed at each decode step.
    pub decoded: Vec<u32>,
    /// Who was under suspicion.
    pub subject: Manifest,
    /// Faults injected into it that change no stage by more than rounding may on these tokens.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inert: Vec<String>,
    /// What it was held against.
    pub reference: Manifest,
    /// What was found of the ids.
    pub study: Study,
    /// The verdict on the stage, with the cause.
    #[serde(rename = "verdict")]
    pub diagnosis: Diagnosis,
    /// Where only the reference is wrong: who is.
    pub doubt: Option<Doubt>,
    /// Text of every id that is listed as a choice.
    pub text: BTreeMap<usize, String>,
}

impl Document for LogitsReport {
    const KIND: &'static str = "logits";

    fn screen(&self, _: bool) -> Screen {
        let wrong = (self.study.seen.wrong > 0).then(|| wrong(&self.study));
        let ended = origin::ended(self.outcome, headline(self));
        Screen {
            sections: vec![
                Section::lines("", causes(self)),
                Section::lines("Logits", facts(self)),
                Section::table("Ids", table(self)),
            ],
            checks: vec![Check::new("model", "logits", ended), Check::new("model", "products", Fate::of(wrong))],
            next: Some(next(self)),
            ..Screen::new(format!("{}, logits of {}", self.model.name, self.prompt), self.outcome, headline(self))
        }
    }
}

/// Why, as far as it is known.
fn causes(report: &LogitsReport) -> Vec<Line> {
    let mut lines = origin::why(&report.diagnosis);
    // Where every logit is right, the theories about ids are the question.
    if report.diagnosis.findings.is_empty() {
        lines.extend(theories(report));
    }
    lines
}

/// What the ids are, and whether any could win by mistake.
fn theories(report: &LogitsReport) -> [Line; 2] {
    [("ids", ids(report)), ("padding", padding(report))]
}

/// The products first, then what looks suspicious, then what is chosen.
fn facts(report: &LogitsReport) -> Vec<Line> {
    let study = &report.study;
    let mut lines: Vec<Line> = origin::injected(&report.subject.injected, &report.inert).collect();
    lines.push(("products", products(report)));
    if study.seen.wrong > 0 {
        lines.push(("wrong", wrong(study)));
    }
    if study.seen.non_finite > 0 {
        let text = format!("{} logits are NaN or infinite", study.seen.non_finite);
        lines.push(("not finite", text));
    }
    lines.push(("outliers", outliers(report)));
    if let Some(hidden) = study.hidden {
        lines.push(("hidden", hidden_state(report, hidden.0)));
    }
    if !report.diagnosis.findings.is_empty() {
        lines.extend(theories(report));
    }
    lines.push(("choice", choice(report)));
    lines
}

fn headline(report: &LogitsReport) -> String {
    let (study, verdict) = (&report.study, &report.diagnosis.verdict);
    if let Some(finding) = report.diagnosis.findings.first() {
        return origin::headline(verdict, finding);
    }
    if let Some(symptom) = verdict.ailment() {
        return format!("at {symptom} (a health check fails; no reference ran)");
    }
    let right = match study.seen.wrong {
        0 => format!(
            "all {} logits at {} are the product of their row with the hidden state",
            study.ids.rows,
            counted(study.seen.rows, "position")
        ),
        n => {
            format!("{n} of {} logits are not their product, within what the stage as a whole is allowed", study.logits)
        }
    };
    if let Some(doubt) = &report.doubt {
        return format!("the subject agrees with f64, the reference does not: {}", doubt.reason);
    }
    let alone = if verdict.coverage.alone { "; no reference ran" } else { "" };
    let lacking = match report.outcome {
        Outcome::Incomplete if verdict.coverage.cut && verdict.unjudged.is_empty() => {
            "; the run was cut short, and later steps may be missing"
        }
        Outcome::Incomplete if !verdict.coverage.complete_alone() => "; not every one could be judged",
        _ => "",
    };
    format!("{}{right}{alone}{lacking}", origin::inert(&report.inert))
}

fn products(report: &LogitsReport) -> String {
    let study = &report.study;
    let local = report.diagnosis.verdict.stages.first().and_then(|s| s.subject.as_ref());
    let residual = local
        .map_or_else(String::new, |l| format!("; residual {} of {} allowed", number(l.residual), number(l.allowed)));
    let other = match report.has_reference() {
        true => format!("; {} has {} wrong", report.reference.name, study.seen.reference_wrong),
        false => String::new(),
    };
    format!(
        "{} of {} logits ({} ids at {}) differ from Σ w·h in f64 beyond rounding{residual}{other}",
        study.seen.wrong,
        study.logits,
        study.ids.rows,
        counted(study.seen.rows, "position")
    )
}

fn wrong(study: &Study) -> String {
    let who = if study.seen.everywhere() {
        format!("{} of {} ids: this is no fault of single ids", study.wrong_ids, study.ids.rows)
    } else {
        format!("{}: {}", counted(study.wrong_ids, "id"), few(&study.listed, study.wrong_ids, " "))
    };
    let positions = few(&study.seen.places.positions, study.seen.places.rows, " ");
    let at = match study.seen.places.rows {
        n if n == study.seen.rows => "at every position".to_owned(),
        1 => format!("at position {positions} alone"),
        n => format!("at {n} positions: {positions}"),
    };
    let mut text = format!("{who}; {at}; pattern: {}", study.pattern);
    for (n, what) in [
        (study.seen.zero, "are exactly zero: never written"),
        (study.seen.stale, "are what the step before left at their address"),
        (study.seen.repeated, "are those of the position before"),
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
    match (study.seen.outliers, study.seen.everywhere()) {
        (0, true) => {
            format!("none, although logits are wrong: no logit is much further from {from} than the others")
        }
        (0, false) => format!("none: no logit is much further from {from} than the others"),
        (n, _) => format!(
            "{n} logits are much further from {from} than the others; {} of them are wrong products",
            study.seen.outliers_wrong
        ),
    }
}

fn hidden_state(report: &LogitsReport, apart: f64) -> String {
    let upstream = apart > UPSTREAM;
    let note = match (upstream, report.study.seen.wrong) {
        (false, _) => "",
        (true, 0) => ": the logits are computed correctly from a wrong hidden state; look upstream",
        (true, _) => ": something upstream is wrong as well",
    };
    format!("the states before the projection differ by up to {} (relative L2){note}", number(apart))
}

fn ids(report: &LogitsReport) -> String {
    let ids = &report.study.ids;
    let listed = match ids.listed {
        n if n >= ids.rows => "all listed by the tokenizer".to_owned(),
        n => format!("{n} listed by the tokenizer, {} beyond it", ids.rows - n),
    };
    let padding = match ids.first_padding {
        Some(first) => format!("{} listed as padding, from {first} on", ids.padding),
        None => "no padding".to_owned(),
    };
    let scanned = match ids.scanned {
        None => String::new(),
        Some(n) if n == ids.rows => "; llama.cpp scans them all as well".to_owned(),
        Some(n) => format!("; llama.cpp scans {n}"),
    };
    format!("{} rows in the projection, {listed}; {padding}{scanned}", ids.rows)
}

fn padding(report: &LogitsReport) -> String {
    let (study, padding) = (&report.study, &report.study.padding);
    let Some(largest) = padding.largest else {
        return "none: no padded id can be chosen by mistake".to_owned();
    };
    let wins = format!(
        "wins at {} of {} positions{}; its largest logit is {:.3}",
        padding.wins,
        study.seen.rows,
        padding.reference_wins.map_or_else(String::new, |n| format!(" (reference: {n})")),
        largest.0
    );
    let lead = padding.lead.map_or_else(String::new, |l| format!(", at least {:.3} below the choice", l.0));
    let theory = match (padding.wins, padding.reference_wins) {
        (0, _) => "leaving it out changes no choice: padding is not what goes wrong here",
        (_, Some(0)) => "the reference scans it too, and there it does not win: its values are wrong, not the scan",
        (ours, Some(theirs)) if ours == theirs => "as often as with the reference: the scan is not what goes wrong",
        _ => "compare its logits with their products below",
    };
    format!("{wins}{lead}; {theory}")
}

fn choice(report: &LogitsReport) -> String {
    let (study, choices) = (&report.study, &report.study.choices);
    let Some(row) = choices.telling() else {
        return "none".to_owned();
    };
    let text = |id: usize| report.text.get(&id).map_or_else(String::new, |text| shown(text));
    let told = |p: &Pick| format!("{} {} (margin {:.3})", p.id, text(p.id), p.margin);
    let mut words = match row.reference {
        Some(_) => format!("the same at {} of {}", choices.alike, counted(study.seen.rows, "position")),
        None => format!("as computed in f64 at {} of {}", choices.as_computed, counted(study.seen.rows, "position")),
    };
    let _ = write!(words, "; at position {}: {}", row.position, told(&row.subject));
    if let Some(r) = row.reference.filter(|r| r.id != row.subject.id) {
        let _ = write!(words, ", reference {}", told(&r));
    }
    if row.rightly != row.subject.id {
        let _ = write!(words, ", the products choose {} {}", row.rightly, text(row.rightly));
    }
    if choices.left_out > 0 {
        let changed = match row.without.id == row.subject.id {
            true => format!("the same (margin {:.3})", row.without.margin),
            false => told(&row.without),
        };
        let _ = write!(words, "; without the wrong ids {changed}");
        if row.reference.is_some() {
            let _ = write!(words, ", the same at {}", choices.alike_without);
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

fn table(report: &LogitsReport) -> Table {
    Table::new(
        &["id", "text", "position", "looks", "subject", "Σ w·h in f64", "reference"],
        &[],
        report.study.suspects.iter().map(row),
    )
}

fn row(s: &Suspect) -> Vec<String> {
    let value = |v: Option<f64>| v.map_or_else(|| NONE.to_owned(), |v| format!("{v:.4}"));
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

fn next(report: &LogitsReport) -> Next {
    let apart = report.study.hidden.is_some_and(|h| h.0 > UPSTREAM);
    let (why, command, option) = match (report.study.seen.wrong, apart) {
        (0, true) => ("which stage made the hidden state wrong", "qdiff run", "-m "),
        (0, false) => ("every other stage", "qdiff run", "-m "),
        _ => ("whether the projection is stored and read as it should be", "qdiff weights", ""),
    };
    let model = report.named.as_ref().map_or_else(String::new, |named| format!(" {option}{named}"));
    Next { command: format!("{command}{model}"), why }
}

impl LogitsReport {
    /// Fills [`LogitsReport::text`]; `piece` gives the text of an id.
    pub fn spell(&mut self, piece: impl Fn(usize) -> String) {
        let rows = self.study.choices.telling().into_iter();
        let ids =
            rows.flat_map(|r| [r.subject.id, r.rightly, r.without.id].into_iter().chain(r.reference.map(|p| p.id)));
        self.text = ids.map(|id| (id, piece(id))).collect();
    }

    fn has_reference(&self) -> bool {
        !self.diagnosis.verdict.coverage.alone
    }
}
