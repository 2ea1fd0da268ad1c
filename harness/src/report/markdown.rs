//! Markdown, for pull requests, job summaries and notes.

use super::{Format, Screen, Section, Told};
use anyhow::Result;
use std::borrow::Cow;
use std::fmt::Write as _;

/// The markdown format.
pub struct Markdown;

impl Format for Markdown {
    fn name(&self) -> &'static str {
        "markdown"
    }

    fn extension(&self) -> &'static str {
        "md"
    }

    fn several(&self) -> bool {
        true
    }

    fn render(&self, told: &[&dyn Told], absent: &[String]) -> Result<String> {
        let screens: Vec<Screen> = told.iter().map(|t| t.screen(false)).collect();
        Ok(several(&screens, absent))
    }
}

/// What is absent, and a section for each screen.
pub(super) fn several(screens: &[Screen], absent: &[String]) -> String {
    let absent = absent.iter().map(|what| {
        let what = escape(what);
        format!("**INCOMPLETE:** {what}\n")
    });
    let parts: Vec<String> = absent.chain(screens.iter().map(one)).collect();
    parts.join("\n")
}

/// One screen as a section of its own.
fn one(screen: &Screen) -> String {
    // The word in bold, with the colon that may follow it.
    let line = screen.line();
    let (word, headline) = line.split_at(line.len() - screen.headline.len());
    let mut out = format!("# qdiff: {}\n\n**{}** {}\n", escape(&screen.title), word.trim_end(), escape(headline));
    for part in screen.sections.iter().filter(|s| !s.is_empty()) {
        section(part, &mut out);
    }
    if !screen.repeat.is_empty() {
        let _ = writeln!(out, "\n## To repeat\n\n{}", code(&screen.repeat));
    }
    if let Some(next) = &screen.next {
        let _ = writeln!(out, "\nNext, {}:\n\n{}", escape(next.why), code(&next.command));
    }
    out
}

fn section(section: &Section, out: &mut String) {
    if !section.title.is_empty() {
        let _ = writeln!(out, "\n## {}", escape(&section.title));
    }
    if !section.lines.is_empty() {
        out.push('\n');
        for (label, text) in &section.lines {
            let _ = writeln!(out, "- {label}: {}", escape(text));
        }
    }
    if let Some(t) = section.table.as_ref().filter(|t| !t.rows.is_empty()) {
        out.push('\n');
        let rows = t.rows.iter().map(|row| row.iter().map(|cell| escape(cell).into()).collect());
        let head: Vec<&str> = t.columns.iter().map(String::as_str).collect();
        table(&head, &t.numbers, rows, out);
    }
}

/// A table with the columns `numbers` set to the right. The cells are markdown.
pub fn table<'a>(head: &[&str], numbers: &[usize], rows: impl Iterator<Item = Vec<Cow<'a, str>>>, out: &mut String) {
    let _ = writeln!(out, "| {} |", head.join(" | "));
    let rule: Vec<&str> = (0..head.len()).map(|i| if numbers.contains(&i) { "---:" } else { "---" }).collect();
    let _ = writeln!(out, "| {} |", rule.join(" | "));
    for row in rows {
        let _ = writeln!(out, "| {} |", row.join(" | "));
    }
}

/// Text that markdown takes literally, on one line.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut before = ' ';
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let inside = before.is_alphanumeric() && rest.peek().is_some_and(|n| n.is_alphanumeric());
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            // `q_proj` has no emphasis in it.
            '_' if inside => out.push(c),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '~' | '#' | '$' => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
        before = c;
    }
    out
}

/// A block of code that its content cannot end.
pub fn code(text: &str) -> String {
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
            "&lt;img src=x>\\|\\[a\\](b) \\# \\`q_proj\\` \\_x\\_"
        );
        assert_eq!(code("a ``` b"), "````\na ``` b\n````");
    }
}
