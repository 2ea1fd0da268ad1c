//! The stages: as the table that every format shows, and as checks one by one.

use super::origin::{grouped, positions, story};
use super::screen::{Check, Fate, Line, Table};
use super::{Outcome, Report};
use crate::number::{counted, number, percent};
use crate::verdict::{Local, StageResult, Status, Verdict};
use qdiff_engine::model::StageId;

const COLUMNS: &[&str] = &["stage", "local", "worst at", "allowed", "used", "ref.", "ref. %", "global", "status"];
const NUMBERS: &[usize] = &[1, 3, 4, 5, 6, 7];

/// Columns that decide nothing: `global` first, then those of the reference.
const SPARE: &[usize] = &[7, 6, 5];

/// Why a row is inconclusive.
pub(super) const OPEN: &str = "their allowed error is as large as a fault may be";

/// What an inherited status means.
const INHERITED: &str =
    "right on its own inputs, which an earlier wrong stage changed: mend the stages marked DIVERGED, then run again";

/// What stands where nothing was measured.
pub const NONE: &str = "-";

/// A row for the stages of one name over all layers; `full` gives a row per stage and layer.
pub(super) fn table(verdict: &Verdict, full: bool) -> Table {
    let key = |s: &&StageResult| if full { s.name() } else { s.id.name.to_owned() };
    let rows = grouped(&verdict.stages, key).into_iter().map(|(name, group)| row(name, &group, !full));
    Table::new(COLUMNS, NUMBERS, rows).spare(SPARE).status(COLUMNS.len() - 1)
}

/// The one with the largest error / bound ratio.
pub(super) fn worst<'a>(locals: impl Iterator<Item = (StageId, &'a Local)>) -> Option<(StageId, &'a Local)> {
    locals.max_by(|a, b| a.1.used.total_cmp(&b.1.used))
}

fn row(name: String, group: &[&StageResult], layers: bool) -> Vec<String> {
    // A stage without a judged row has no figures.
    let told = |local: &&Local| local.rows > 0 || local.extent.is_some();
    // If the stage is an origin in some layers, the figures are of one of these: later layers may overflow.
    let begins = group.iter().any(|s| s.origin);
    let of_subject = group.iter().filter(|s| s.origin == begins);
    let subject = worst(of_subject.filter_map(|s| Some((s.id, s.subject.as_ref().filter(told)?))));
    let reference = worst(group.iter().filter_map(|s| Some((s.id, s.reference.as_ref().filter(told)?))));
    let place = |id: StageId, at: String| match where_of(id) {
        Some(of) if layers => format!("{of} {at}"),
        _ => at,
    };
    let global = group.iter().filter_map(|s| Some((s.id, s.global?))).max_by(|a, b| a.1.error.total_cmp(&b.1.error));
    let figure = |side: Option<(StageId, &Local)>, figure: fn(&Local) -> String| {
        side.map_or_else(|| NONE.to_owned(), |(_, l)| figure(l))
    };
    let at = subject.and_then(|(id, l)| Some(place(id, l.at.or(l.first_bad)?.to_string())));
    vec![
        name,
        figure(subject, |l| number(l.residual)),
        at.unwrap_or_default(),
        figure(subject, |l| number(l.allowed)),
        figure(subject, |l| percent(l.used)),
        figure(reference, |l| number(l.residual)),
        figure(reference, |l| percent(l.used)),
        global.map_or_else(
            || NONE.to_owned(),
            |(id, g)| format!("{} {}", number(g.error), place(id, format!("p{}", g.at.position))),
        ),
        status(group),
    ]
}

/// Statuses, the worst first, and what a table calls them: in capitals where they are alarming.
const BY_WEIGHT: [(Status, &str); 9] = [
    (Status::Poisoned, "POISONED"),
    (Status::Diverged, "DIVERGED"),
    (Status::Disputed, "DISPUTED"),
    (Status::Missing, "missing"),
    (Status::Inconclusive, "inconclusive"),
    (Status::Inherited, "inherited"),
    (Status::Covered, "covered"),
    (Status::Alone, "correct"),
    (Status::Match, "match"),
];

/// The worst status of a group, with its layers where other layers have another one: `DIVERGED L02`, `inherited L02..L23`.
fn status(group: &[&StageResult]) -> String {
    let of = |status: Status| -> Vec<usize> { (0..group.len()).filter(|&i| group[i].status == status).collect() };
    let Some((worst, word, at)) =
        BY_WEIGHT.into_iter().map(|(status, word)| (status, word, of(status))).find(|(.., at)| !at.is_empty())
    else {
        return NONE.to_owned();
    };
    if at.len() == group.len() || matches!(worst, Status::Match | Status::Alone) {
        return word.to_owned();
    }
    let named = |i: usize| where_of(group[i].id).unwrap_or_default();
    let (first, last) = (at[0], at[at.len() - 1]);
    let layers = match at.len() {
        1 => named(first),
        n if last - first + 1 == n => format!("{}..{}", named(first), named(last)),
        2 => format!("{}, {}", named(first), named(last)),
        _ => format!("{}, {}, …", named(first), named(at[1])),
    };
    format!("{word} {layers}").trim_end().to_owned()
}

/// What the less plain words of the table mean, as far as it has them, and what to do about them.
pub(super) fn legend(verdict: &Verdict) -> Vec<Line> {
    let has = |status| verdict.stages.iter().any(|s| s.status == status);
    let mut lines = Vec::new();
    if has(Status::Inherited) {
        lines.push(("inherited", INHERITED.to_owned()));
    }
    if has(Status::Poisoned) {
        let begins = verdict.stages.iter().find(|s| s.status == Status::Poisoned && s.origin);
        let begins = begins.map_or_else(String::new, |s| {
            format!("; the first such stage is {}, which is wrong on its own inputs", s.id)
        });
        lines.push(("POISONED", format!("some of its values are NaN or infinite{begins}")));
    }
    let covered = || verdict.stages.iter().filter(|s| s.status == Status::Covered);
    let meanings = [
        (
            covered().any(|s| s.subject.is_none()),
            "not captured, and judged as a part of the next stage that was captured",
        ),
        (
            covered().any(|s| s.subject.is_some()),
            "if the row has figures, the subject's stage is correct; the reference lacks this stage, and is checked at the next stage that it has",
        ),
    ];
    let meanings: Vec<&str> = meanings.iter().filter(|(has, _)| *has).map(|(_, meaning)| *meaning).collect();
    if !meanings.is_empty() {
        lines.push(("covered", meanings.join("; ")));
    }
    lines
}

/// Rank and layer of a stage, as far as it has them: `r1.L07`.
fn where_of(id: StageId) -> Option<String> {
    let (rank, layer) = (id.rank.map(|rank| format!("r{rank}")), id.layer.map(|layer| format!("L{layer:02}")));
    let parts: Vec<String> = rank.into_iter().chain(layer).collect();
    (!parts.is_empty()).then(|| parts.join("."))
}

/// The layer that a stage belongs to, as the class of a check.
pub(super) fn class(id: StageId) -> String {
    where_of(id).unwrap_or_else(|| "model".to_owned())
}

/// A check for each stage.
pub(super) fn checks(report: &Report) -> impl Iterator<Item = Check> {
    let stages = &report.diagnosis.verdict.stages;
    stages.iter().map(|stage| Check::new(class(stage.id), stage.id.to_string(), fate(report, stage)))
}

fn fate(report: &Report, stage: &StageResult) -> Fate {
    let why = || {
        let finding = report.diagnosis.findings.iter().find(|f| f.id == stage.id);
        let told = finding.map(|f| format!("{}: {}; ", positions(&report.diagnosis.verdict, f), story(f)));
        let local = stage.subject.as_ref();
        let figures = local.map(|l| format!("local residual {}, allowed {}", number(l.residual), number(l.allowed)));
        told.unwrap_or_default() + &figures.unwrap_or_default()
    };
    let passed = |words: &str| Fate::Passed(words.to_owned());
    match stage.status {
        Status::Match => passed(""),
        Status::Inherited => passed(&format!("inherited: {INHERITED}")),
        Status::Alone => passed("correct against f64; no reference gave it"),
        Status::Covered if stage.subject.is_some() => {
            passed("correct; the reference lacks it, and is checked at its next stage")
        }
        Status::Covered => passed("not dumped; checked as part of the next dumped stage"),
        Status::Diverged => Fate::Failed { kind: "diverged", message: why() },
        Status::Poisoned if stage.origin => {
            Fate::Failed { kind: "poisoned", message: format!("the first NaN or infinity; {}", why()) }
        }
        Status::Poisoned => Fate::Skipped("poisoned by a stage before it".to_owned()),
        Status::Disputed => {
            let reason = report.doubt.as_ref().map_or("", |d| d.reason.as_str());
            let message = format!("the subject agrees with f64, the reference does not: {reason}");
            match report.outcome {
                Outcome::OracleSuspect => Fate::Error(message),
                _ => Fate::Failed { kind: "disputed", message },
            }
        }
        Status::Inconclusive => {
            let locals = stage.subject.iter().chain(&stage.reference);
            let (open, judged) = locals.fold((0, 0), |(o, j), l| (o.max(l.inconclusive), j.max(l.rows)));
            Fate::Skipped(format!("{} inconclusive, {judged} judged: {OPEN}", counted(open, "row")))
        }
        Status::Missing => Fate::Skipped("not judged: not captured, or its operands are not".to_owned()),
    }
}
