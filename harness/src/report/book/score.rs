//! The score as a section of `REPORT.md`.

use super::tables::{Cell, Table, Tables};
use crate::number::{Real, number};
use crate::score::{Case, Group, PairCase, Score, median};
use std::collections::BTreeMap;

/// Totals, a line for each independent fault, everything that was missed with the
/// reason, what is inert, false alarms, smallest magnitudes.
pub(in crate::report) fn tables(score: &Score) -> Tables {
    let word = if score.reached() { "Reached" } else { "Missed" };
    let mut tables = vec![totals(score)];
    for group in &score.groups {
        if group.independent {
            tables.push(by_mutation(group));
            tables.push(missed(group));
        } else {
            tables.push(named_otherwise(group));
        }
        tables.push(missed_pairs(group));
        tables.push(inert(group));
    }
    tables.push(alarms(score));
    tables.push(magnitudes(score));
    tables.retain(|t| !t.rows.is_empty());
    Tables {
        title: format!("Faults planted in the {} engine, {}", score.subject, score.on),
        about: format!(
            "{word}: every independent fault that is not inert detected, each at its stage and nowhere else, \
                 95 of 100 with the right cause named first, no false alarm. Models: {}. False alarms: {} in {} \
                 clean runs. All of it took {:.0} s.",
            score.models.join("; "),
            score.clean.alarms.len(),
            score.clean.runs,
            score.seconds
        ),
        command: score.command.clone(),
        machine: score.machine.clone(),
        tables,
    }
}

fn totals(score: &Score) -> Table {
    let rows = score.groups.iter().map(|g| {
        let counted: Vec<&Case> = g.counted().collect();
        let count = |f: fn(&Case) -> bool| n(counted.iter().filter(|c| f(c)).count());
        let pairs = |f: fn(&PairCase) -> bool| n(g.pairs.iter().filter(|p| f(p)).count());
        vec![
            Cell::Text(g.source.clone()),
            n(counted.len()),
            count(|c| c.detected),
            count(|c| c.stage_right),
            count(|c| c.cause_right),
            n(g.cases.len() - counted.len()),
            pairs(|_| true),
            pairs(|p| p.stages_right),
            pairs(|p| p.causes_right),
        ]
    });
    let head = ["faults", "cases", "detected", "stage", "cause", "inert", "pairs", "both stages", "both causes"];
    table("", &head, rows.collect())
}

fn alarms(score: &Score) -> Table {
    let rows = score.clean.alarms.iter();
    let rows = rows.map(|(what, stage)| vec![text(what), text(stage)]);
    table("False alarms:", &["clean run", "stage"], rows.collect())
}

fn magnitudes(score: &Score) -> Table {
    let size = |x: Option<Real>| text(&x.map_or("-".to_owned(), |r| number(r.0)));
    let rows = score.graded.iter().map(|g| {
        let stage = text(&g.stage.to_string());
        vec![text(&g.fault), stage, size(g.found), size(g.named)]
    });
    table(
        "The smallest relative magnitude, in powers of ten, at which a graded fault is still found, and named:",
        &["fault", "stage", "found", "named"],
        rows.collect(),
    )
}

fn by_mutation(group: &Group) -> Table {
    let mut names: BTreeMap<&str, Vec<&Case>> = BTreeMap::new();
    for case in group.counted() {
        names.entry(case.name()).or_default().push(case);
    }
    let rows = names.into_iter().map(|(name, cases)| {
        let count = |f: fn(&Case) -> bool| n(cases.iter().filter(|c| f(c)).count());
        vec![
            text(name),
            n(cases.len()),
            count(|c| c.detected),
            count(|c| c.stage_right),
            count(|c| c.cause_right),
            text(&format!("{:.2}", median(&cases))),
        ]
    });
    let head = ["fault", "cases", "detected", "stage", "cause", "median s"];
    table(&format!("By fault, {}:", group.source), &head, rows.collect())
}

fn missed(group: &Group) -> Table {
    let rows = group.counted().filter(|c| !(c.stage_right && c.cause_right)).map(|c| {
        let found = match (c.found, c.others) {
            (None, _) => "nothing".to_owned(),
            (Some(id), 0) => id.to_string(),
            (Some(id), more) => format!("{id} and {more} more"),
        };
        vec![
            text(&format!("{}@{}", c.fault, c.stage)),
            text(&c.model),
            text(&found),
            text(&c.cause.as_ref().map_or_else(|| "no known cause".to_owned(), ToString::to_string)),
            text(&c.reason()),
        ]
    });
    let head = ["planted", "model", "found", "named", "why"];
    let caption = format!("Missed or named otherwise, {}:", group.source);
    table(&caption, &head, rows.collect())
}

/// The same, folded over stages: of round trips there are many.
fn named_otherwise(group: &Group) -> Table {
    let mut of: BTreeMap<[String; 3], usize> = BTreeMap::new();
    for c in group.counted().filter(|c| !(c.stage_right && c.cause_right)) {
        let named = c.cause.as_ref().map_or("no known cause", |c| c.mutation.as_str());
        *of.entry([c.name().to_owned(), named.to_owned(), c.reason()]).or_default() += 1;
    }
    let rows =
        of.into_iter().map(|([planted, named, why], count)| vec![text(&planted), n(count), text(&named), text(&why)]);
    let caption = format!("Missed or named otherwise, {}:", group.source);
    let head = ["planted", "cases", "named", "why"];
    table(&caption, &head, rows.collect())
}

fn missed_pairs(group: &Group) -> Table {
    let list = |pairs: &[(String, String)]| {
        let all: Vec<String> = pairs.iter().map(|(a, b)| format!("{a} {b}")).collect();
        text(&all.join(", "))
    };
    let bad = group.pairs.iter().filter(|p| !(p.stages_right && p.causes_right));
    let rows = bad.map(|p| vec![list(&p.faults), text(&p.model), list(&p.found), text(&p.reason())]);
    let caption = format!("Pairs missed or named otherwise, {}:", group.source);
    let head = ["planted", "model", "found", "why"];
    table(&caption, &head, rows.collect())
}

fn inert(group: &Group) -> Table {
    let mut of: BTreeMap<String, (usize, f64)> = BTreeMap::new();
    for case in group.cases.iter().filter(|c| c.inert()) {
        let (count, largest) = of.entry(case.fault.to_string()).or_default();
        *count += 1;
        *largest = case.effect.map_or(*largest, |e| largest.max(e.0));
    }
    let rows = of.into_iter().map(|(fault, (count, largest))| vec![text(&fault), n(count), text(&number(largest))]);
    let caption = format!(
        "Inert, so that no verdict could find them, {}; largest effect as a share of what is allowed:",
        group.source
    );
    table(&caption, &["fault", "cases", "effect"], rows.collect())
}

fn n(count: usize) -> Cell {
    Cell::Count(count)
}

fn text(text: &str) -> Cell {
    Cell::Text(text.to_owned())
}

fn table(caption: &str, head: &[&str], rows: Vec<Vec<Cell>>) -> Table {
    Table { caption: caption.to_owned(), head: head.iter().map(|&h| h.to_owned()).collect(), rows }
}
