//! The table of stages, as every format shows it.

use crate::number::{number, percent};
use crate::verdict::{Local, Place, StageResult, Status, Verdict};

/// Headings of the columns, in the order of [`Row::cells`].
pub const COLUMNS: [&str; 9] = ["stage", "local", "worst at", "allowed", "used", "ref.", "used", "global", "status"];

/// Columns that hold numbers.
pub const NUMBERS: [usize; 6] = [1, 3, 4, 5, 6, 7];

/// A row: the stages of one name over all layers, or one stage.
pub struct Row {
    /// Name of the stage, or stage id.
    pub stage: String,
    cells: [String; 8],
}

impl Row {
    /// The cells, one per column.
    pub fn cells(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.stage).chain(&self.cells).map(String::as_str)
    }
}

/// The rows of the table; `full` gives a row per stage and layer.
pub fn rows(verdict: &Verdict, full: bool) -> Vec<Row> {
    let key = |s: &StageResult| {
        if full { s.name() } else { s.id.name.to_owned() }
    };
    let mut names: Vec<String> = Vec::new();
    for s in &verdict.stages {
        if !names.contains(&key(s)) {
            names.push(key(s));
        }
    }
    names
        .into_iter()
        .map(|name| {
            let group: Vec<&StageResult> = verdict.stages.iter().filter(|s| key(s) == name).collect();
            row(name, &group, !full)
        })
        .collect()
}

fn row(name: String, group: &[&StageResult], layers: bool) -> Row {
    fn worst<'a>(
        group: &[&'a StageResult],
        pick: fn(&StageResult) -> Option<&Local>,
    ) -> Option<(&'a StageResult, &'a Local)> {
        group.iter().filter_map(|s| pick(s).map(|l| (*s, l))).max_by(|a, b| a.1.used.total_cmp(&b.1.used))
    }
    let subject = worst(group, |s| s.subject.as_ref());
    let reference = worst(group, |s| s.reference.as_ref());
    let place = |s: &StageResult, at: String| match s.id.layer {
        Some(l) if layers => format!("L{l:02} {at}"),
        _ => at,
    };
    let global = group.iter().filter_map(|s| s.global.map(|g| (*s, g))).max_by(|a, b| a.1.error.total_cmp(&b.1.error));
    let none = || "-".to_owned();
    Row {
        stage: name,
        cells: [
            subject.map_or_else(none, |(_, l)| number(l.residual)),
            subject.map_or_else(String::new, |(s, l)| {
                let at = l.at.or(l.first_bad);
                at.map_or_else(String::new, |p| place(s, short(p)))
            }),
            subject.map_or_else(none, |(_, l)| number(l.allowed)),
            subject.map_or_else(none, |(_, l)| percent(l.used)),
            reference.map_or_else(none, |(_, l)| number(l.residual)),
            reference.map_or_else(none, |(_, l)| percent(l.used)),
            global
                .map_or_else(none, |(s, g)| format!("{} {}", number(g.error), place(s, format!("p{}", g.at.position)))),
            status(group),
        ],
    }
}

/// A place as the table has room for it: `p12 h3 s1`.
fn short(at: Place) -> String {
    at.to_string().replace("step", "s")
}

/// Statuses, the worst first.
const BY_WEIGHT: [Status; 8] = [
    Status::Poisoned,
    Status::Diverged,
    Status::Disputed,
    Status::Missing,
    Status::Inherited,
    Status::Covered,
    Status::Alone,
    Status::Match,
];

/// What a status is called; in capitals where it is alarming.
pub fn word(status: Status) -> &'static str {
    match status {
        Status::Poisoned => "POISONED",
        Status::Diverged => "DIVERGED",
        Status::Disputed => "DISPUTED",
        Status::Missing => "missing",
        Status::Inherited => "inherited",
        Status::Covered => "covered",
        Status::Alone => "alone",
        Status::Match => "match",
    }
}

fn status(group: &[&StageResult]) -> String {
    let worst = BY_WEIGHT.into_iter().find(|status| group.iter().any(|s| s.status == *status));
    let status = worst.unwrap_or(Status::Missing);
    let first = group.iter().find(|s| s.status == status);
    match first.and_then(|s| s.id.layer) {
        Some(l) if group.len() > 1 && status != Status::Match => {
            format!("{} L{l:02}", word(status))
        }
        _ => word(status).to_owned(),
    }
}
