//! Standard output and standard error: whether a terminal reads them, and what is printed.

use super::exit;
use crate::report::terminal::{self, Terminal};
use crate::shown::shown;
use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal as _, Write as _};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use terminal_size::terminal_size_of as size_of;

/// Whether a CI system takes the report.
pub(super) static CI: AtomicBool = AtomicBool::new(false);

/// Whether only the verdict is printed.
pub(super) static QUIET: AtomicBool = AtomicBool::new(false);

/// Whether standard output is one report and nothing else: the screen goes to standard error.
pub(super) static PIPED: AtomicBool = AtomicBool::new(false);

/// The progress line on stderr, shown on a terminal only. Whatever is printed takes it away first: no line is written behind it.
pub(super) static BAR: LazyLock<ProgressBar> = LazyLock::new(|| {
    let style = ProgressStyle::with_template("{msg:<34} {wide_bar} {percent:>3} % {elapsed}, about {eta} left");
    ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
});

/// Where screens are printed, as wide as whoever reads says, or as it is.
pub(super) fn terminal() -> Terminal {
    static TERMINAL: LazyLock<Terminal> = LazyLock::new(|| {
        let set = std::env::var("COLUMNS").ok().and_then(|n| n.parse().ok()).filter(|n| *n > 0);
        let size = if PIPED.load(Ordering::Relaxed) { size_of(std::io::stderr()) } else { size_of(std::io::stdout()) };
        Terminal::of(set.or(size.map(|(columns, _)| columns.0.into())).unwrap_or(terminal::WIDTH))
    });
    *TERMINAL
}

/// Prints a list or a page: on a terminal as wide as that is, elsewhere one line for each entry, as other programs read it.
///
/// # Errors
/// As [`say`].
pub(super) fn page(text: &str) -> anyhow::Result<()> {
    let read = std::io::stdout().is_terminal() && !PIPED.load(Ordering::Relaxed);
    if read { say(&terminal().fit(text)) } else { say(text) }
}

/// Prints a line to standard error.
pub(super) fn complain(text: &str) {
    let line = format!("qdiff: {}", shown(text));
    clear();
    anstream::eprintln!("{line}");
    crate::log::said(&line);
}

/// Prints a screen whose first paragraph is the verdict; where only that is
/// asked for, its first line, unwrapped lines included.
pub(super) fn tell(screen: &str) -> anyhow::Result<()> {
    if !QUIET.load(Ordering::Relaxed) {
        return say(screen);
    }
    let mut lines = screen.trim_start_matches('\n').split_inclusive('\n');
    let first = lines.next().unwrap_or_default();
    say(&lines.take_while(|l| l.starts_with("  ")).fold(first.to_owned(), |all, l| all + l))
}

/// Prints a line beside a verdict.
pub(super) fn remark(text: &str) -> anyhow::Result<()> {
    if QUIET.load(Ordering::Relaxed) { Ok(()) } else { say(text) }
}

/// Prints to standard output. What steers a terminal or a workflow is shown, but for line ends and our own colours.
///
/// # Errors
/// Standard output that fails for another reason than a closed pipe.
pub fn say(text: &str) -> anyhow::Result<()> {
    put(&terminal::harmless(text))
}

/// Takes the progress line away, however far its work is. What is reported next draws it again, as that of other work.
fn clear() {
    BAR.finish_and_clear();
    BAR.set_message("");
}

/// Prints as it is.
pub(super) fn put(text: &str) -> anyhow::Result<()> {
    clear();
    if PIPED.load(Ordering::Relaxed) {
        return unless_closed(anstream::stderr().write_all(text.as_bytes())).context("cannot write to standard error");
    }
    unless_closed(anstream::stdout().write_all(text.as_bytes())).context("cannot write to standard output")
}

/// Prints what was written in the place of a file.
pub(super) fn pipe(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    unless_closed(out.write_all(text.as_bytes()).and_then(|()| out.flush())).context("cannot write to standard output")
}

/// A reader that went away is not an error.
pub(super) fn unless_closed(written: std::io::Result<()>) -> std::io::Result<()> {
    written.or_else(|e| if e.kind() == std::io::ErrorKind::BrokenPipe { Ok(()) } else { Err(e) })
}

/// Prints what was done; gives the exit code.
pub(super) fn said(text: &str) -> anyhow::Result<u8> {
    say(text).map(|()| exit::MATCH)
}
