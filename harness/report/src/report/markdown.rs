//! Markdown, for pull requests, job summaries and notes.

use super::{Screen, Section, Told};
use crate::shown::shown;
use anyhow::Result;
use std::fmt::Write as _;

/// What is absent, and a section for each document.
pub(super) fn render(told: &[&dyn Told], absent: &[String]) -> Result<String> {
    let absent = absent.iter().map(|what| format!("**INCOMPLETE:** {}\n", escape(what)));
    let parts: Vec<String> = absent.chain(told.iter().map(|t| screen(&t.screen(false), 1))).collect();
    Ok(parts.join("\n"))
}

/// A screen as a section of its own, its heading of this level.
pub fn screen(screen: &Screen, level: usize) -> String {
    // The word in bold, with the colon that may follow it.
    let line = screen.line();
    let (word, headline) = line.split_at(line.len() - screen.headline.len());
    let (marks, program) = ("#".repeat(level), if level == 1 { "qdiff: " } else { "" });
    let (title, headline) = (escape(&screen.title), escape(headline));
    let mut out = format!("{marks} {program}{title}\n\n**{}** {headline}\n", word.trim_end());
    for part in screen.sections.iter().filter(|s| !s.is_empty()) {
        section(part, level + 1, &mut out);
    }
    if !screen.repeat.is_empty() {
        let _ = writeln!(out, "\n{marks}# To repeat\n\n{}", code(&screen.repeat));
    }
    if let Some(next) = &screen.next {
        let _ = writeln!(out, "\nNext, {}:\n\n{}", escape(next.why), code(&next.command));
    }
    out
}

/// Lines and table under a heading of this level.
pub fn section(section: &Section, level: usize, out: &mut String) {
    if !section.title.is_empty() {
        let _ = writeln!(out, "\n{} {}", "#".repeat(level), escape(&section.title));
    }
    if !section.lines.is_empty() {
        out.push('\n');
        for (label, text) in &section.lines {
            let _ = writeln!(out, "- {label}: {}", escape(text));
        }
    }
    let Some(table) = section.table.as_ref().filter(|t| !t.rows.is_empty()) else { return };
    out.push('\n');
    let rule = (0..table.columns.len()).map(|i| if table.numbers.contains(&i) { "---:" } else { "---" });
    let escaped = |cells: &[String]| cells.iter().map(|cell| escape(cell)).collect::<Vec<_>>();
    let head = [escaped(&table.columns), rule.map(str::to_owned).collect()];
    for cells in head.into_iter().chain(table.rows.iter().map(|row| escaped(row))) {
        let _ = writeln!(out, "| {} |", cells.join(" | "));
    }
}

/// Text that markdown takes literally, on one line.
pub fn escape(text: &str) -> String {
    let text = shown(text);
    let mut out = String::with_capacity(text.len());
    let mut before = ' ';
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        // `q_proj` has no emphasis in it.
        let inside = c == '_' && before.is_alphanumeric() && rest.peek().is_some_and(|n| n.is_alphanumeric());
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '~' | '#' | '$' if !inside => out.extend(['\\', c]),
            c => out.push(c),
        }
        before = c;
    }
    out
}

/// A block of code that its content cannot end.
pub fn code(text: &str) -> String {
    let text = text.split('\n').map(shown).collect::<Vec<_>>().join("\n");
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(3.max(longest + 1));
    format!("{fence}\n{text}\n{fence}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_stay_text() {
        assert_eq!(
            escape("<img src=x>|[a](b)\n# `q_proj` _x_"),
            "&lt;img src=x>\\|\\[a\\](b)\\\\n\\# \\`q_proj\\` \\_x\\_"
        );
        assert_eq!(code("a ``` b"), "````\na ``` b\n````");
    }
}
