//! The result of a command, as plain data. Its words are decided here and
//! nowhere else; a [`super::Format`] lays it out.

use super::Outcome;
use schemars::JsonSchema;
use serde::Serialize;

/// A label with its text.
pub type Line = (&'static str, String);

/// What a command has to tell.
#[derive(Debug)]
pub struct Screen {
    /// What was looked at, such as the model and the prompt.
    pub title: String,
    /// What it comes to.
    pub outcome: Outcome,
    /// That in a word, in capitals.
    pub word: &'static str,
    /// Where, and what is wrong; or what is right.
    pub headline: String,
    /// The rest, in the order of its weight.
    pub sections: Vec<Section>,
    /// Whatever was checked, one by one.
    pub checks: Vec<Check>,
    /// The command to run next.
    pub next: Option<Next>,
    /// The command that makes this again; empty where it is not known.
    pub repeat: String,
    /// Seconds that it took; 0 where that was not measured.
    pub seconds: f64,
}

impl Screen {
    /// A screen that says what came out, and nothing more.
    pub fn new(title: impl Into<String>, outcome: Outcome, headline: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            outcome,
            word: outcome.word(),
            headline: headline.into(),
            sections: Vec::new(),
            checks: Vec::new(),
            next: None,
            repeat: String::new(),
            seconds: 0.0,
        }
    }

    /// The verdict as one line: `DIVERGED at L07.q_rope, …`, `MATCH: …`.
    pub fn line(&self) -> String {
        let joined = ["at ", "in ", "with ", "("].iter().any(|word| self.headline.starts_with(word));
        format!("{}{} {}", self.word, if joined { "" } else { ":" }, self.headline)
    }

    /// Every line of every section.
    pub fn lines(&self) -> impl Iterator<Item = &Line> {
        self.sections.iter().flat_map(|s| &s.lines)
    }
}

/// Some lines, then perhaps a table.
#[derive(Debug, Default)]
pub struct Section {
    /// Heading; the terminal leaves it out but above one of several tables.
    pub title: String,
    /// The lines.
    pub lines: Vec<Line>,
    /// The table.
    pub table: Option<Table>,
    /// Whether it is for files alone: too long for a first screen.
    pub at_length: bool,
}

impl Section {
    /// Lines under a heading, which may be empty.
    pub fn lines(title: &str, lines: Vec<Line>) -> Self {
        Self { title: title.to_owned(), lines, ..Self::default() }
    }

    /// A table under a heading.
    pub fn table(title: &str, table: Table) -> Self {
        Self { title: title.to_owned(), table: Some(table), ..Self::default() }
    }

    /// The same, for files alone.
    pub fn at_length(self) -> Self {
        Self { at_length: true, ..self }
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.table.as_ref().is_none_or(|t| t.rows.is_empty())
    }
}

/// A table.
#[derive(Debug)]
pub struct Table {
    /// Headings.
    pub columns: Vec<String>,
    /// Columns that hold numbers, which stand to the right.
    pub numbers: Vec<usize>,
    /// Columns that a narrow terminal leaves out, the first of them first.
    pub spare: Vec<usize>,
    /// The column whose first word says what became of the row; a terminal colours it.
    pub status: Option<usize>,
    /// A cell per column.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings; the columns `numbers` stand to the right.
    pub fn new(columns: &[&str], numbers: &[usize], rows: impl Iterator<Item = Vec<String>>) -> Self {
        let columns = columns.iter().map(|&c| c.to_owned()).collect();
        Self { columns, numbers: numbers.to_vec(), spare: Vec::new(), status: None, rows: rows.collect() }
    }

    /// The same; a terminal that is too narrow leaves out the columns `spare`, the first of them first.
    pub fn spare(self, spare: &[usize]) -> Self {
        Self { spare: spare.to_vec(), ..self }
    }

    /// The same, whose column `status` says what became of each row.
    pub fn status(self, status: usize) -> Self {
        Self { status: Some(status), ..self }
    }
}

/// A command to run next.
#[derive(Debug)]
pub struct Next {
    /// The command line.
    pub command: String,
    /// What it would show.
    pub why: &'static str,
}

/// One thing that was checked.
#[derive(Debug)]
pub struct Check {
    /// What it belongs to, such as a layer.
    pub class: String,
    /// Its name, one of a kind on a screen.
    pub name: String,
    /// What became of it.
    pub fate: Fate,
    /// Seconds that it took; 0 where that was not measured.
    pub seconds: f64,
}

impl Check {
    /// A check with what became of it.
    pub fn new(class: impl Into<String>, name: impl Into<String>, fate: Fate) -> Self {
        Self { class: class.into(), name: name.into(), fate, seconds: 0.0 }
    }

    /// The same, with the time that it took.
    pub fn took(self, seconds: f64) -> Self {
        Self { seconds, ..self }
    }
}

/// What became of a check.
#[derive(Debug)]
pub enum Fate {
    /// All is well; with a remark, or nothing.
    Passed(String),
    /// Something is wrong.
    Failed {
        /// What kind of wrong, in a word.
        kind: &'static str,
        /// What.
        message: String,
    },
    /// The check itself is in doubt.
    Error(String),
    /// It was not made.
    Skipped(String),
}

impl Fate {
    /// Passed where `wrong` is `None`.
    pub fn of(wrong: Option<String>) -> Self {
        match wrong {
            None => Self::Passed(String::new()),
            Some(message) => Self::Failed { kind: "diverged", message },
        }
    }
}

/// What a command makes: it can be shown, and written in every format.
pub trait Document: Serialize + JsonSchema + 'static {
    /// What its JSON is called.
    const KIND: &'static str;

    /// What it tells; `full` asks for a row per stage and layer.
    fn screen(&self, full: bool) -> Screen;
}
