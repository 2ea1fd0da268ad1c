//! What `qdiff-lab score` tells: how often the diagnosis is right. Totals, a line for each independent fault,
//! everything that was missed with the reason, what is inert, false alarms, smallest magnitudes.

use crate::score::{Case, Grading, Group, PairCase, Score, Worth, median};
use qdiff::number::{Real, counted, number};
use qdiff::report::NONE;
use qdiff::report::Outcome;
use qdiff::report::UNKNOWN;
use qdiff::report::{Check, Document, Fate, Screen, Section, Table};
use std::collections::BTreeMap;

impl Document for Score {
    const KIND: &'static str = "score";

    fn screen(&self, _: bool) -> Screen {
        let (word, outcome) = if self.reached() { ("REACHED", Outcome::Match) } else { ("MISSED", Outcome::Diverged) };
        let independent: Vec<&Case> = self.independent().collect();
        let count = |right: fn(&Case) -> bool| independent.iter().filter(|c| right(c)).count();
        let cause = match self.grading {
            Grading::Prediction => "a cause that predicts other tokens",
            Grading::Words => "a cause in the right words",
        };
        let headline = format!(
            "{} of {} that are not inert are found at their stage (goal: all); {} have {cause} (goal: 90 of 100), {} a false \
             one (goal: none); {} (goal: none)",
            count(|c| c.detected && c.stage_right),
            counted(independent.len(), "independent fault"),
            count(Case::cause_right),
            count(|c| c.worth == Some(Worth::False)),
            counted(self.clean.alarms.len(), "false alarm")
        );
        let facts = vec![
            ("models", self.models.join("; ")),
            ("clean", format!("{} without a fault", counted(self.clean.runs, "run"))),
            ("measured", format!("in {:.0} s on {}", self.seconds, self.machine)),
        ];
        let mut sections = vec![Section::lines("", facts), totals(self)];
        for group in &self.groups {
            sections.extend(worths(group, self.grading));
            if group.independent && !group.unlisted {
                sections.push(by_fault(group));
            }
            sections.push(if group.independent { missed(group) } else { folded(group) });
            sections.extend([missed_pairs(group), inert(group)]);
        }
        sections.extend([alarms(self), magnitudes(self)]);
        let check = |(i, c): (usize, &&Case)| {
            let wrong = (!c.stage_right || !c.cause_right()).then(|| c.reason());
            Check::new(c.model.as_str(), format!("{i} {}@{}", c.fault, c.stage), Fate::of(wrong))
        };
        Screen {
            word,
            sections,
            checks: independent.iter().enumerate().map(check).collect(),
            repeat: self.command.clone(),
            ..Screen::new(format!("Faults planted in the {} engine, {}", self.subject, self.on), outcome, headline)
        }
    }
}

/// How many of `cases` are detected, at their stage, and have a right cause.
fn shares(cases: &[&Case]) -> [String; 3] {
    let right: [fn(&Case) -> bool; 3] = [|c| c.detected, |c| c.stage_right, Case::cause_right];
    right.map(|right| cases.iter().filter(|c| right(c)).count().to_string())
}

fn totals(score: &Score) -> Section {
    let rows = score.groups.iter().map(|g| {
        let cases: Vec<&Case> = g.counted().collect();
        let pairs = |right: fn(&PairCase) -> bool| g.pairs.iter().filter(|p| right(p)).count();
        let rest = [g.cases.len() - cases.len(), g.pairs.len(), pairs(|p| p.stages_right), pairs(|p| p.causes_right)];
        let first = [g.source.clone(), cases.len().to_string()];
        first.into_iter().chain(shares(&cases)).chain(rest.map(|n| n.to_string())).collect()
    });
    let head = ["faults", "cases", "detected", "stage", "cause", "inert", "pairs", "both stages", "both causes"];
    Section::table("All faults", Table::new(&head, &[1, 2, 3, 4, 5, 6, 7, 8], rows))
}

fn by_fault(group: &Group) -> Section {
    let mut names: BTreeMap<&str, Vec<&Case>> = BTreeMap::new();
    for case in group.counted() {
        names.entry(&case.fault.mutation).or_default().push(case);
    }
    let rows = names.into_iter().map(|(name, cases)| {
        let first = [name.to_owned(), cases.len().to_string()];
        first.into_iter().chain(shares(&cases)).chain([format!("{:.2}", median(&cases))]).collect()
    });
    let head = ["fault", "cases", "detected", "stage", "cause", "median s"];
    Section::table(&format!("By fault, {}", group.source), Table::new(&head, &[1, 2, 3, 4, 5], rows))
}

/// What the causes of a group are worth on tokens that nothing was fitted on.
fn worths(group: &Group, grading: Grading) -> Option<Section> {
    let title = match grading {
        Grading::Prediction => "What causes predict of other tokens",
        Grading::Words => "What causes are in words",
    };
    // Of faults of the catalogue words gave no more than a name.
    group.counted().find(|c| c.worth.is_some())?;
    let cases: Vec<&Case> = group.counted().collect();
    let count = |worth| cases.iter().filter(|c| c.worth == Some(worth)).count().to_string();
    let [detected, stage, _] = shares(&cases);
    let worths = [Worth::Right, Worth::Consistent, Worth::Location, Worth::False].map(count);
    let withdrawn = cases.iter().filter(|c| c.withdrawn.is_some()).count().to_string();
    let row: Vec<String> =
        [cases.len().to_string(), detected, stage].into_iter().chain(worths).chain([withdrawn]).collect();
    let head = ["cases", "detected", "stage", "right", "consistent", "location only", "false", "withdrawn before"];
    Some(Section::table(
        &format!("{title}, {}", group.source),
        Table::new(&head, &[0, 1, 2, 3, 4, 5, 6, 7], std::iter::once(row)),
    ))
}

fn not_right(group: &Group) -> impl Iterator<Item = &Case> {
    group.counted().filter(|c| !(c.stage_right && c.cause_right()))
}

/// The faults that are not named right, with what was planted and what is reported.
fn missed(group: &Group) -> Section {
    let rows = not_right(group).map(|c| {
        let bug = match &c.planted {
            Some(planted) if !planted.is_empty() => format!("{}: {planted}", c.fault),
            _ => c.fault.to_string(),
        };
        vec![bug, format!("{}, {}", c.stage, c.model), c.reason(), c.told.clone().unwrap_or_else(|| UNKNOWN.to_owned())]
    });
    Section::table(&format!("Not right, {}", group.source), Table::new(&["planted", "where", "why", "told"], &[], rows))
}

/// The same, folded over stages: of round trips there are many.
fn folded(group: &Group) -> Section {
    let mut of: BTreeMap<[String; 3], usize> = BTreeMap::new();
    for c in not_right(group) {
        let named = c.cause.as_ref().map_or(UNKNOWN, |c| c.mutation.as_str());
        *of.entry([c.fault.mutation.clone(), named.to_owned(), c.reason()]).or_default() += 1;
    }
    let rows = of.into_iter().map(|([planted, named, why], count)| vec![planted, count.to_string(), named, why]);
    let table = Table::new(&["planted", "cases", "named", "why"], &[1], rows);
    Section::table(&format!("Not right, {}", group.source), table)
}

fn missed_pairs(group: &Group) -> Section {
    let list = |pairs: &[(String, String)]| {
        let all: Vec<String> = pairs.iter().map(|(a, b)| format!("{a} {b}")).collect();
        all.join(", ")
    };
    let bad = group.pairs.iter().filter(|p| !(p.stages_right && p.causes_right));
    let rows = bad.map(|p| vec![list(&p.faults), p.model.clone(), list(&p.found), p.reason()]);
    let table = Table::new(&["planted", "model", "found", "why"], &[], rows);
    Section::table(&format!("Pairs missed or named otherwise, {}", group.source), table)
}

fn inert(group: &Group) -> Section {
    let mut of: BTreeMap<String, (usize, f64)> = BTreeMap::new();
    for case in group.cases.iter().filter(|c| c.inert()) {
        let (count, largest) = of.entry(case.fault.to_string()).or_default();
        *count += 1;
        *largest = case.effect.map_or(*largest, |e| largest.max(e.0));
    }
    let rows = of.into_iter().map(|(fault, (count, largest))| vec![fault, count.to_string(), number(largest)]);
    let title = "Inert, so that no verdict could find them, {}; largest effect as a share of what is allowed";
    Section::table(&title.replace("{}", &group.source), Table::new(&["fault", "cases", "effect"], &[1, 2], rows))
}

fn alarms(score: &Score) -> Section {
    let rows = score.clean.alarms.iter().map(|(what, stage)| vec![what.clone(), stage.clone()]);
    Section::table("False alarms", Table::new(&["clean run", "stage"], &[], rows))
}

fn magnitudes(score: &Score) -> Section {
    let size = |x: Option<Real>| x.map_or_else(|| NONE.to_owned(), |r| number(r.0));
    let rows = score.graded.iter().map(|g| vec![g.fault.clone(), g.stage.to_string(), size(g.found), size(g.named)]);
    Section::table(
        "The smallest relative magnitude, in powers of ten, at which a graded fault is still found, and named",
        Table::new(&["fault", "stage", "found", "named"], &[2, 3], rows),
    )
}
