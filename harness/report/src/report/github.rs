//! GitHub Actions: the job summary, and an annotation for the first origin.

use super::{Fate, Outcome, Screen, Told, markdown};
use crate::shown::shown;
use anyhow::{Context as _, Result};
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;

/// GitHub drops the whole summary of a step above this many bytes.
const LIMIT: usize = 1024 * 1024;

/// Variable that names the file of the job summary.
const VARIABLE: &str = "GITHUB_STEP_SUMMARY";

/// The job summary.
pub struct GitHub(File);

impl GitHub {
    /// Opens the summary, before anything runs.
    ///
    /// # Errors
    /// Outside of GitHub Actions, or where the file cannot be written.
    pub fn new() -> Result<Self> {
        let summary = std::env::var_os(VARIABLE).filter(|v| !v.is_empty());
        let path = summary
            .with_context(|| format!("--ci github: {VARIABLE} is not set; use it in a job of GitHub Actions"))?;
        // A FIFO without a reader is an error: qdiff does not wait.
        let file = File::options().append(true).create(true).custom_flags(libc::O_NONBLOCK).open(&path);
        Ok(Self(file.with_context(|| format!("cannot write {VARIABLE} {}", path.display()))?))
    }

    /// Appends the reports to the job summary, and gives the workflow commands to print.
    ///
    /// # Errors
    /// If the summary cannot be written.
    pub fn publish(&self, told: &[&dyn Told], absent: &[String]) -> Result<String> {
        let used = self.0.metadata().map_or(0, |m| m.len() as usize);
        let text = cut(&markdown::render(told, absent)?, LIMIT.saturating_sub(used));
        (&self.0).write_all(text.as_bytes()).with_context(|| format!("cannot write {VARIABLE}"))?;
        Ok(annotations(told, absent))
    }
}

/// The longest part of `text` in whole lines that stays below `limit` bytes.
fn cut(text: &str, limit: usize) -> String {
    const REST: &str = "\n\n*Cut here: GitHub shows 1 MiB of a step.*\n";
    if text.len() < limit {
        return text.to_owned();
    }
    let mut end = limit.saturating_sub(REST.len() + 1).min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    match text[..end].rfind('\n') {
        Some(line) => format!("{}{REST}", &text[..line]),
        None => String::new(),
    }
}

/// The workflow commands that mark the job.
pub(super) fn annotations(told: &[&dyn Told], absent: &[String]) -> String {
    let absent = absent.iter().map(|what| format!("::error title=qdiff: incomplete::{}\n", data(what)));
    absent.chain(told.iter().map(|t| annotation(&t.screen(false)))).collect()
}

/// That of one document, nothing for a match.
fn annotation(screen: &Screen) -> String {
    let level = match screen.outcome {
        Outcome::Match => return String::new(),
        // A run that failed leaves more unknown than a run that was judged in part.
        Outcome::Incomplete if !screen.checks.iter().any(|check| matches!(check.fate, Fate::Error(_))) => "warning",
        _ => "error",
    };
    format!("::{level} title={}::{}\n", property(&format!("qdiff: {}", screen.title)), data(&screen.line()))
}

/// The value of a workflow command, on one line and escaped as the runner unescapes it.
fn data(text: &str) -> String {
    shown(text).replace('%', "%25")
}

/// A property of a workflow command, escaped likewise.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_escaped() {
        assert_eq!(data("50 %\r\n::error::x"), "50 %25\\r\\n::error::x");
        assert_eq!(property("a: b, c"), "a%3A b%2C c");
    }

    #[test]
    fn a_summary_is_cut_at_a_line_below_the_limit() {
        let text = "zeile mit ü\n".repeat(1000);
        assert_eq!(cut(&text, text.len() + 1), text);
        for limit in [0, 1, 50, 60, 61, 62, 63, 64, 1000, text.len()] {
            let cut = cut(&text, limit);
            assert!(cut.len() < limit.max(1), "{limit}: {}", cut.len());
            assert!(cut.is_empty() || cut.ends_with("*\n"), "{cut}");
        }
    }
}
