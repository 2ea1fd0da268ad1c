//! What `qdiff compare` tells without a model: how far two captures are apart.

use super::Outcome;
use super::origin::grouped;
use super::screen::{Check, Document, Fate, Next, Screen, Section, Table};
use super::stages::{NONE, class};
use crate::compare::{Comparison, Row};
use crate::number::{counted, number};

impl Document for Comparison {
    const KIND: &'static str = "comparison";

    fn screen(&self, full: bool) -> Screen {
        let rows = &self.rows;
        // Without a model nothing can be a match.
        let (outcome, headline) = match rows.iter().find_map(|r| Some((r.id, r.wrong.as_ref()?))) {
            Some((id, wrong)) => (Outcome::Diverged, format!("at {id}: {wrong}")),
            None => {
                let text = "without the model (-m) no stage can be checked; \
                            this only measures the distance";
                (Outcome::Incomplete, text.to_owned())
            }
        };
        let [a, b] = &self.engines;
        let both = rows.iter().filter(|r| r.global.is_some()).count();
        let facts = vec![
            ("run", format!("{}; subject {a}, reference {b} (both recorded)", counted(self.tokens, "token"))),
            ("mode", "without a model: the distance; only NaN, infinity and another width count as wrong".to_owned()),
            ("coverage", format!("0 % judged; {both} of {} are in both captures", counted(rows.len(), "stage"))),
        ];
        let key = |r: &&Row| if full { r.id.to_string() } else { r.id.name.to_owned() };
        let table = Table::new(
            &["stage", "layers", "global, worst", "identical"],
            &[1, 3],
            grouped(rows, key).into_iter().map(|(name, group)| row(name, &group)),
        );
        let check = |r: &Row| {
            let fate = match (&r.wrong, r.global) {
                (Some(wrong), _) => Fate::of(Some(wrong.clone())),
                (None, Some(g)) => Fate::Skipped(format!("not judged without the model; {} apart", number(g.error))),
                (None, None) => Fate::Skipped("in one capture alone".to_owned()),
            };
            Check::new(class(r.id), r.id.to_string(), fate)
        };
        Screen {
            sections: vec![Section::lines("Captures", facts), Section::table("Stages", table)],
            checks: rows.iter().map(check).collect(),
            next: Some(Next {
                command: "qdiff compare -m MODEL.gguf … (the same folders)".to_owned(),
                why: "every stage judged",
            }),
            ..Screen::new(format!("{a} against {b}"), outcome, headline)
        }
    }
}

/// The stages of one name, with the worst of its layers.
fn row(name: String, group: &[&Row]) -> Vec<String> {
    let errors = group.iter().filter_map(|r| Some((r.id, r.global?)));
    let same = errors.clone().filter(|(_, g)| g.identical).count();
    let worst = errors.max_by(|a, b| a.1.error.total_cmp(&b.1.error));
    let worst = worst.map_or_else(|| NONE.to_owned(), |(id, g)| format!("{} {id} {}", number(g.error), g.at));
    vec![name, group.len().to_string(), worst, same.to_string()]
}
