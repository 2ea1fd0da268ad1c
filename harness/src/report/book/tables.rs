//! Results told as tables, such as the score of the mutations.

use super::super::markdown::{self, escape};
use crate::machine::Machine;
use std::fmt::Write as _;

/// Tables with what identifies the measurement.
#[derive(Clone, Debug)]
pub struct Tables {
    /// Heading.
    pub title: String,
    /// What was measured and how, in plain sentences.
    pub about: String,
    /// Command that measures it again.
    pub command: String,
    /// Where it was measured.
    pub machine: Machine,
    /// The figures.
    pub tables: Vec<Table>,
}

/// One table.
#[derive(Clone, Debug)]
pub struct Table {
    /// Sentence above it; may be empty.
    pub caption: String,
    /// Headings.
    pub head: Vec<String>,
    /// Rows, each with a cell per heading.
    pub rows: Vec<Vec<Cell>>,
}

/// A cell of a table.
#[derive(Clone, Debug)]
pub enum Cell {
    /// A count.
    Count(usize),
    /// Text.
    Text(String),
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Count(n) => write!(f, "{n}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl Tables {
    pub(super) fn render(&self, out: &mut String) {
        let _ = writeln!(
            out,
            "\n### {}\n\n{}\n\nMeasured on {} with\n\n{}",
            escape(&self.title),
            escape(&self.about),
            escape(&self.machine.to_string()),
            markdown::code(&self.command)
        );
        for table in &self.tables {
            if !table.caption.is_empty() {
                let _ = writeln!(out, "\n{}", escape(&table.caption));
            }
            out.push('\n');
            let head: Vec<String> = table.head.iter().map(|h| escape(h)).collect();
            let head: Vec<&str> = head.iter().map(String::as_str).collect();
            let numbers: Vec<usize> = (0..head.len())
                .filter(|&i| {
                    let mut cells = table.rows.iter().filter_map(|row| row.get(i));
                    cells.all(|c| !matches!(c, Cell::Text(_)))
                })
                .collect();
            let rows = table.rows.iter().map(|row| row.iter().map(|c| escape(&c.to_string()).into()).collect());
            markdown::table(&head, &numbers, rows, out);
        }
    }
}
