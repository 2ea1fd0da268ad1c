//! What `qdiff mutations score` tells: how often the diagnosis is right.

use super::book::{Cell, score_tables};
use super::screen::{Check, Document, Fate, Screen, Section, Table};
use super::{Kind, Outcome};
use crate::number::counted;
use crate::score::{Case, Score};

impl Document for Score {
    const KIND: Kind = Kind::Score;

    fn screen(&self, _: bool) -> Screen {
        let tables = score_tables(self);
        let (word, outcome) = if self.reached() { ("REACHED", Outcome::Match) } else { ("MISSED", Outcome::Diverged) };
        let independent = || self.groups.iter().filter(|g| g.independent).flat_map(|g| g.counted());
        let count = |right: fn(&Case) -> bool| independent().filter(|c| right(c)).count();
        let headline = format!(
            "of {} that are not inert {} are found at their stage (all are asked for), {} named rightly (95 of 100), {} (none)",
            counted(count(|_| true), "independent fault"),
            count(|c| c.detected && c.stage_right),
            count(|c| c.cause_right),
            counted(self.clean.alarms.len(), "false alarm")
        );
        let facts = vec![
            ("subject", self.subject.clone()),
            ("models", self.models.join(", ")),
            ("clean", format!("{} runs without a fault", self.clean.runs)),
        ];
        let sections = tables.tables.iter().map(|t| {
            let number = |i: &usize| t.rows.iter().all(|row| matches!(row.get(*i), Some(Cell::Count(_))));
            let numbers = (0..t.head.len()).filter(number).collect();
            let rows = t.rows.iter().map(|row| row.iter().map(ToString::to_string).collect()).collect();
            Section::table(&t.caption, Table { columns: t.head.clone(), numbers, rows })
        });
        let check = |(i, c): (usize, &Case)| {
            let wrong = (!c.stage_right || !c.cause_right).then(|| c.reason());
            Check::new(c.model.as_str(), format!("{i} {}@{}", c.fault, c.stage), Fate::of(wrong))
        };
        Screen {
            word,
            sections: std::iter::once(Section::lines("Score", facts)).chain(sections).collect(),
            checks: independent().enumerate().map(check).collect(),
            repeat: self.command.clone(),
            ..Screen::new(tables.title.clone(), outcome, headline)
        }
    }
}
