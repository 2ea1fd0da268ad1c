//! The terminal: the verdict, then section by section, then what to do next. It fits 100 columns.

use super::Outcome;
use super::screen::{Screen, Table};
use crate::shown::{shown, shown_lines};
use anstyle::{AnsiColor, Style};
use comfy_table::{Cell, CellAlignment, ContentArrangement, presets};
use std::fmt::Write as _;
use textwrap::core::{Word, display_width};
use textwrap::{Options, WordSeparator, WordSplitter, WrapAlgorithm};

/// Columns that everything fits in.
const WIDTH: usize = 100;

/// Columns of a label and the gap after it.
const LABEL: usize = 11;

const RED: Style = AnsiColor::Red.on_default().bold();
const GREEN: Style = AnsiColor::Green.on_default().bold();
const YELLOW: Style = AnsiColor::Yellow.on_default().bold();

/// The screen as text with colours; the stream it is printed to strips them.
pub fn render(screen: &Screen) -> String {
    let mut out = verdict(screen.outcome, screen.word, &screen.line());
    let shown: Vec<_> = screen.sections.iter().filter(|s| !s.at_length && !s.is_empty()).collect();
    let tables = shown.iter().filter(|s| s.table.is_some()).count();
    for (i, section) in shown.iter().enumerate() {
        // Lines that begin without a heading belong to the verdict.
        if i > 0 || !section.title.is_empty() {
            out.push('\n');
        }
        if tables > 1 && section.table.is_some() && !section.title.is_empty() {
            out.push_str(&first_line(&section.title));
        }
        out.extend(section.lines.iter().map(|(label, text)| line(label, text)));
        if let Some(table) = &section.table {
            let _ = writeln!(out, "{}", draw(table));
        }
    }
    if let Some(next) = &screen.next {
        let _ = write!(out, "\n{}", line("next", &format!("{}:", next.why)));
        let _ = writeln!(out, "{}", shell(&next.command));
    }
    out
}

fn color(outcome: Outcome) -> Style {
    match outcome {
        Outcome::Match => GREEN,
        Outcome::Diverged => RED,
        Outcome::ReferenceSuspect | Outcome::OracleSuspect | Outcome::Incomplete => YELLOW,
    }
}

/// A first line: `text`, which begins with `word`, in the colour of the outcome.
pub(crate) fn verdict(outcome: Outcome, word: &str, text: &str) -> String {
    let style = color(outcome);
    // Wrapped without the escapes, which take no room.
    let whole = first_line(text);
    let rest = whole.strip_prefix(word).unwrap_or(&whole);
    format!("{style}{word}{style:#}{rest}")
}

/// `label      text`, the text wrapped beside its label.
pub(crate) fn line(label: &str, text: &str) -> String {
    let first = format!("{label:<LABEL$}");
    wrap(&shown(text), &first, &" ".repeat(LABEL)) + "\n"
}

/// A line of its own, wrapped as a verdict is.
fn first_line(text: &str) -> String {
    wrap(&shown(text), "", "  ") + "\n"
}

fn wrap(text: &str, first: &str, rest: &str) -> String {
    let options = Options::new(WIDTH)
        .initial_indent(first)
        .subsequent_indent(rest)
        .word_splitter(WordSplitter::NoHyphenation)
        .word_separator(WordSeparator::AsciiSpace);
    textwrap::fill(text, options)
}

/// A whole screen, which keeps its line ends, tabs, and the colours of a verdict. These are all that is drawn with,
/// and can hide nothing.
pub(crate) fn harmless(text: &str) -> String {
    let own = [RED, GREEN, YELLOW].iter().flat_map(|style| [format!("{style}"), format!("{style:#}")]);
    let own: Vec<String> = own.collect();
    let mut out = String::with_capacity(text.len());
    let (mut from, mut at) = (0, 0);
    while let Some(found) = text[at..].find('\u{1b}') {
        at += found;
        match own.iter().find(|escape| text[at..].starts_with(escape.as_str())) {
            Some(escape) => {
                out += &shown_lines(&text[from..at]);
                out += escape;
                at += escape.len();
                from = at;
            }
            None => at += 1,
        }
    }
    out + &shown_lines(&text[from..])
}

/// A command over several lines, as a shell takes it.
fn shell(command: &str) -> String {
    let (first, rest) = (" ".repeat(LABEL), " ".repeat(LABEL + 2));
    // Room for a space and the backslash.
    let options = Options::new(WIDTH - 3)
        .initial_indent(&first)
        .subsequent_indent(&rest)
        .break_words(false)
        .word_splitter(WordSplitter::NoHyphenation)
        .word_separator(WordSeparator::Custom(words))
        .wrap_algorithm(WrapAlgorithm::FirstFit);
    textwrap::wrap(&shown(command), options).join(" \\\n")
}

/// Splits at blanks outside single quotes: inside them a shell would keep the backslash of a continued line.
fn words(command: &str) -> Box<dyn Iterator<Item = Word<'_>> + '_> {
    let (mut quoted, mut escaped) = (false, false);
    let blank = move |c| {
        let plain = !std::mem::take(&mut escaped);
        match c {
            '\\' if plain && !quoted => escaped = true,
            '\'' if plain => quoted = !quoted,
            _ => {}
        }
        c == ' ' && plain && !quoted
    };
    Box::new(command.split_inclusive(blank).map(Word::from))
}

pub(super) fn draw(table: &Table) -> String {
    // Two blanks between columns where they fit, else one.
    let roomy = layout(table, 2).to_string();
    let fits = |text: &str| text.lines().all(|l| display_width(l) <= WIDTH);
    let text = if fits(&roomy) {
        roomy
    } else {
        let mut tight = layout(table, 1);
        tight.set_content_arrangement(ContentArrangement::Dynamic);
        tight.set_width(WIDTH as u16);
        tight.to_string()
    };
    let trimmed: Vec<&str> = text.lines().map(str::trim_end).collect();
    trimmed.join("\n")
}

fn layout(table: &Table, gap: u16) -> comfy_table::Table {
    let mut drawn = comfy_table::Table::new();
    drawn.load_style(presets::NOTHING);
    drawn.set_header(table.columns.iter().map(|heading| shown(heading)));
    for row in &table.rows {
        drawn.add_row(row.iter().map(|cell| Cell::new(shown(cell))));
    }
    for &i in &table.numbers {
        if let Some(column) = drawn.column_mut(i) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for column in drawn.column_iter_mut() {
        column.set_padding((0, gap));
    }
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_commands_continue_as_a_shell_takes_them() {
        let command = format!("qdiff run --inject {} --full", ["a-long-fault@L07"; 12].join(","));
        let long = format!("{command} {command} --layers 0");
        let text = shell(&long);
        assert!(text.lines().count() > 1);
        let joined = text.replace("\\\n", " ");
        let words: Vec<&str> = joined.split_whitespace().collect();
        assert_eq!(words.join(" "), long);
    }

    #[test]
    fn quoted_text_stays_whole() {
        let told: Vec<_> = words(r"qdiff run --prompt 'it'\''s a b' -n 3").map(|w| w.word).collect();
        assert_eq!(told, ["qdiff", "run", "--prompt", r"'it'\''s a b'", "-n", "3"]);
    }

    #[test]
    fn a_screen_keeps_its_own_colours_and_no_others() {
        let own = verdict(Outcome::Diverged, "DIVERGED", "DIVERGED at \u{1b}]0;title\u{7}");
        assert!(own.starts_with(&format!("{RED}DIVERGED{RED:#}")));
        assert_eq!(harmless(&own), own);
        assert_eq!(harmless("a\tb\n\u{1b}[8mhidden\u{9b}2J\u{1b}"), "a\tb\n\\u{1b}[8mhidden\\u{9b}2J\\u{1b}");
    }
}
