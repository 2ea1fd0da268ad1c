//! The terminal: the verdict, what to do next, then section by section. It fits the columns that there are.

use super::Outcome;
use super::screen::{Next, Screen, Section, Table};
use crate::shown::{shown, shown_lines};
use anstyle::{AnsiColor, Style};
use comfy_table::{Cell, CellAlignment, ContentArrangement, presets};
use std::fmt::Write as _;
use textwrap::core::{Word, display_width};
use textwrap::{Options, WordSeparator, WordSplitter, WrapAlgorithm};

/// Columns where no terminal says how many it has.
pub const WIDTH: usize = 100;

/// Columns below which nothing is laid out: labels and figures would be cut to pieces.
const NARROWEST: usize = 40;

/// Columns of a label and the gap after it.
const LABEL: usize = 11;

const RED: Style = AnsiColor::Red.on_default().bold();
const GREEN: Style = AnsiColor::Green.on_default().bold();
const YELLOW: Style = AnsiColor::Yellow.on_default().bold();

/// A terminal, or a stream of its width.
#[derive(Clone, Copy, Debug)]
pub struct Terminal {
    /// Columns that everything fits in, [`NARROWEST`] at least.
    width: usize,
}

impl Terminal {
    /// A terminal of so many columns.
    pub fn of(columns: usize) -> Self {
        // The widest table that the crate draws.
        Self { width: columns.clamp(NARROWEST, u16::MAX.into()) }
    }

    /// The screen as text with colours; the stream it is printed to strips them.
    pub fn render(self, screen: &Screen) -> String {
        let mut out = self.verdict(screen.outcome, screen.word, &screen.line());
        let shown: Vec<_> = screen.sections.iter().filter(|s| !s.at_length && !s.is_empty()).collect();
        let tables = shown.iter().filter(|s| s.table.is_some()).count();
        // What to do comes before what was run.
        let next = || screen.next.as_ref().map(|next| self.next(next));
        if !shown.first().is_some_and(|first| belongs(first)) {
            out.extend(next());
        }
        for (i, section) in shown.iter().enumerate() {
            // Lines that begin without a heading belong to the verdict.
            if i > 0 || !section.title.is_empty() {
                out.push('\n');
            }
            if tables > 1 && section.table.is_some() && !section.title.is_empty() {
                out.push_str(&self.first_line(&section.title));
            }
            out.extend(section.lines.iter().map(|(label, text)| self.line(label, text)));
            if let Some(table) = &section.table {
                let _ = writeln!(out, "{}", self.draw(table));
            }
            if i == 0 && belongs(section) {
                out.extend(next());
            }
        }
        out
    }

    fn next(self, next: &Next) -> String {
        format!("{}{}\n", self.line("next", &format!("{}:", next.why)), self.shell("", &next.command))
    }

    /// A first line: `text`, which begins with `word`, in the colour of the outcome.
    pub fn verdict(self, outcome: Outcome, word: &str, text: &str) -> String {
        let style = color(outcome);
        // Wrapped without the escapes, which take no room.
        let whole = self.first_line(text);
        let rest = whole.strip_prefix(word).unwrap_or(&whole);
        format!("{style}{word}{style:#}{rest}")
    }

    /// `label      text`, the text wrapped beside its label.
    pub fn line(self, label: &str, text: &str) -> String {
        let first = format!("{label:<LABEL$}");
        self.wrap(&shown(text), &first, &" ".repeat(LABEL)) + "\n"
    }

    /// A line of its own, wrapped as a verdict is.
    fn first_line(self, text: &str) -> String {
        self.wrap(&shown(text), "", "  ") + "\n"
    }

    fn wrap(self, text: &str, first: &str, rest: &str) -> String {
        let options = Options::new(self.width)
            .initial_indent(first)
            .subsequent_indent(rest)
            .word_splitter(WordSplitter::NoHyphenation)
            .word_separator(WordSeparator::AsciiSpace);
        textwrap::fill(text, options)
    }

    /// Lines that are laid out already, such as `label  text`: what is too long goes on below the text. Lines of a block of code and
    /// of a Markdown table stay as they are.
    pub fn fit(self, text: &str) -> String {
        let mut code = false;
        let each = |line: &str| {
            code ^= line.starts_with("```");
            let fits = display_width(line) <= self.width;
            if fits || code || line.starts_with('|') {
                line.to_owned()
            } else {
                self.wrap(line, "", &" ".repeat(self.hang(line)))
            }
        };
        let lines: Vec<String> = text.split('\n').map(each).collect();
        lines.join("\n")
    }

    /// Where the text of a line begins that has a label or a bullet before it; where that leaves no room, two columns on from where
    /// the line begins.
    fn hang(self, line: &str) -> usize {
        let indent = line.len() - line.trim_start().len();
        let label =
            line[indent..].find("  ").map_or(indent, |end| line.len() - line[indent + end..].trim_start().len());
        let text = display_width(&line[..label]);
        if text > indent && text <= self.width / 2 { text } else { indent + 2 }
    }

    /// `label      command`, over several lines as a shell takes it.
    pub fn shell(self, label: &str, command: &str) -> String {
        let (first, rest) = (format!("{label:<LABEL$}"), " ".repeat(LABEL + 2));
        // Room for a space and the backslash.
        let options = Options::new(self.width - 3)
            .initial_indent(&first)
            .subsequent_indent(&rest)
            .break_words(false)
            .word_splitter(WordSplitter::NoHyphenation)
            .word_separator(WordSeparator::Custom(words))
            .wrap_algorithm(WrapAlgorithm::FirstFit);
        textwrap::wrap(&shown(command), options).join(" \\\n")
    }

    /// A table: two blanks between columns where they fit, else one, else without the columns that it can spare.
    pub(super) fn draw(self, table: &Table) -> String {
        let drawn = |gap, gone| layout(table, gap, gone).to_string();
        let fits = |text: &String| text.lines().all(|l| display_width(l) <= self.width);
        let ways = (0..=table.spare.len()).flat_map(|n| [2, 1].map(|gap| (gap, &table.spare[..n])));
        let found = ways.map(|(gap, gone)| (drawn(gap, gone), gone)).find(|(text, _)| fits(text));
        let (text, gone) = found.unwrap_or_else(|| {
            let mut tight = layout(table, 1, &table.spare);
            tight.set_content_arrangement(ContentArrangement::Dynamic);
            tight.set_width(self.width as u16);
            (tight.to_string(), &table.spare)
        });
        let mut lines: Vec<String> = text.lines().map(|l| l.trim_end().to_owned()).collect();
        // Where cells are wrapped, a line is not a row.
        if let Some(status) = table.status.filter(|_| lines.len() == table.rows.len() + 1) {
            lines.iter_mut().skip(1).zip(&table.rows).for_each(|(line, row)| paint(line, &shown(&row[status])));
        }
        if !gone.is_empty() {
            let names: Vec<&str> = kept(table, |i| gone.contains(&i)).map(|i| table.columns[i].as_str()).collect();
            let told = format!("not shown in {} columns: {}", self.width, names.join(", "));
            lines.push(self.first_line(&told).trim_end().to_owned());
        }
        lines.join("\n")
    }
}

/// Whether the section is lines without a heading: at the beginning, they belong to the verdict.
fn belongs(section: &Section) -> bool {
    section.title.is_empty() && section.table.is_none()
}

fn color(outcome: Outcome) -> Style {
    match outcome {
        Outcome::Match => GREEN,
        Outcome::Diverged => RED,
        Outcome::ReferenceSuspect | Outcome::OracleSuspect | Outcome::Incomplete => YELLOW,
    }
}

/// The colour of a word that says what became of a row, as the headline's word has one.
fn color_of(word: &str) -> Option<Style> {
    match word {
        "match" | "correct" | "MATCH" => Some(GREEN),
        "DIVERGED" | "POISONED" | "REFERENCE-SUSPECT" => Some(RED),
        "DISPUTED" | "ORACLE-SUSPECT" | "INCOMPLETE" | "missing" | "inconclusive" | "inherited" => Some(YELLOW),
        _ => None,
    }
}

/// Colours the first word of the cell `status` in the line of its row.
fn paint(line: &mut String, status: &str) {
    let word = status.split(' ').next().unwrap_or_default();
    if let (Some(style), Some(at)) = (color_of(word), line.rfind(status)) {
        line.replace_range(at..at + word.len(), &format!("{style}{word}{style:#}"));
    }
}

/// A whole screen, which keeps its line ends, tabs, and the colours of a verdict. These are all that is drawn with,
/// and can hide nothing.
pub fn harmless(text: &str) -> String {
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

/// The numbers of the columns that are `wanted`.
fn kept(table: &Table, wanted: impl Fn(usize) -> bool) -> impl Iterator<Item = usize> {
    (0..table.columns.len()).filter(move |i| wanted(*i))
}

/// A table with `gap` blanks between columns, without the columns `gone`.
fn layout(table: &Table, gap: u16, gone: &[usize]) -> comfy_table::Table {
    let columns = || kept(table, |i| !gone.contains(&i));
    let mut drawn = comfy_table::Table::new();
    drawn.load_style(presets::NOTHING);
    drawn.set_header(columns().map(|i| shown(&table.columns[i])));
    for row in &table.rows {
        drawn.add_row(columns().map(|i| Cell::new(shown(&row[i]))));
    }
    for (at, _) in columns().enumerate().filter(|(_, i)| table.numbers.contains(i)) {
        if let Some(column) = drawn.column_mut(at) {
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

    const WIDE: Terminal = Terminal { width: WIDTH };

    /// A screen of 100 columns was printed on every terminal: in a narrower one every row of a table broke.
    #[test]
    fn a_screen_fits_its_terminal_and_spares_columns_first() {
        let row = |i: usize| {
            vec![format!("stage_of_a_long_name_{i}"), "1.2e-8".into(), "L17 p12".into(), format!("3.4e-1 L{i:02} p0")]
        };
        let table = Table::new(&["stage", "local", "worst at", "global"], &[1, 3], (0..3).map(row)).spare(&[3, 2]);
        let mut screen =
            Screen::new("t", Outcome::Match, "all is well, and there are words enough to be wrapped. ".repeat(4));
        screen.sections.push(crate::report::Section::table("Stages", table));
        let mut seen = Vec::new();
        for width in 10..=120 {
            let text = Terminal::of(width).render(&screen);
            let text = anstream::adapter::strip_str(&text).to_string();
            assert!(text.lines().all(|l| display_width(l) <= width.max(NARROWEST)), "{width}: {text}");
            let columns = ["stage", "local", "worst at", "global"]
                .map(|c| text.lines().any(|l| l.starts_with("stage") && l.contains(c)));
            let left_out = text.lines().find(|l| l.starts_with("not shown in")).map(str::to_owned);
            assert_eq!(columns[3], left_out.is_none(), "{width}: {text}");
            assert!(columns[0] && columns[1], "{width}: {text}");
            seen.push((columns, left_out));
        }
        // The wider, the more columns; and the lines of text are as long as there is room for.
        assert!(seen.is_sorted_by_key(|(columns, _)| columns.iter().filter(|c| **c).count()));
        assert_eq!(seen[0].1.as_deref(), Some("not shown in 40 columns: global"));
        let longest = |width| Terminal::of(width).render(&screen).lines().map(display_width).max();
        assert!(longest(200) > Some(150));
    }

    #[test]
    fn long_commands_continue_as_a_shell_takes_them() {
        let command = format!("qdiff run --inject {} --full", ["a-long-fault@L07"; 12].join(","));
        let long = format!("{command} {command} --layers 0");
        let text = WIDE.shell("", &long);
        assert!(text.lines().count() > 1);
        let joined = text.replace("\\\n", " ");
        let words: Vec<&str> = joined.split_whitespace().collect();
        assert_eq!(words.join(" "), long);
    }

    /// `mutations list` had lines of 1,322 characters on every terminal.
    #[test]
    fn a_list_goes_on_below_its_text() {
        let narrow = Terminal::of(40);
        let list = "name    what it is, in more words than fit\n- a bullet of more words than a line can hold\n\nshort";
        let fitted = "name    what it is, in more words than\n        fit\n- a bullet of more words than a line can\n  hold\n\nshort";
        assert_eq!(narrow.fit(list), fitted);
        let kept = format!("| {} |\n```\n{}\n```", "a row ".repeat(9), "code ".repeat(9));
        assert_eq!(narrow.fit(&kept), kept);
        assert_eq!(Terminal::of(200).fit(list), list);
    }

    #[test]
    fn quoted_text_stays_whole() {
        let told: Vec<_> = words(r"qdiff run --prompt 'it'\''s a b' -n 3").map(|w| w.word).collect();
        assert_eq!(told, ["qdiff", "run", "--prompt", r"'it'\''s a b'", "-n", "3"]);
    }

    #[test]
    fn a_screen_keeps_its_own_colours_and_no_others() {
        let own = WIDE.verdict(Outcome::Diverged, "DIVERGED", "DIVERGED at \u{1b}]0;title\u{7}");
        assert!(own.starts_with(&format!("{RED}DIVERGED{RED:#}")));
        assert_eq!(harmless(&own), own);
        assert_eq!(harmless("a\tb\n\u{1b}[8mhidden\u{9b}2J\u{1b}"), "a\tb\n\\u{1b}[8mhidden\\u{9b}2J\\u{1b}");
    }
}
