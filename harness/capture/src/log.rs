//! Messages beside the outcome: on standard error at the chosen verbosity, and whole in a log file.

use crate::shown::shown_lines;
use anyhow::{Context as _, Result};
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// How much a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What is being done, and what may be wrong: `-v`.
    Notable,
    /// Everything that llama.cpp says: `-vv`.
    Chatter,
}

struct Log {
    /// What goes to standard error.
    shown: Option<Level>,
    file: Option<Mutex<File>>,
    start: Instant,
}

static LOG: OnceLock<Log> = OnceLock::new();

/// Opens the log, once: `verbosity` is how often `-v` was given.
///
/// # Errors
/// A file that cannot be written.
pub fn start(verbosity: u8, file: Option<&Path>) -> Result<()> {
    let shown = match verbosity {
        0 => None,
        1 => Some(Level::Notable),
        _ => Some(Level::Chatter),
    };
    let file = file.map(|path| {
        // A FIFO without a reader is an error, and not waited for.
        let mut options = File::options();
        let file = options.write(true).create(true).truncate(true).custom_flags(libc::O_NONBLOCK).open(path);
        file.with_context(|| format!("--log: cannot write {}; choose a folder you can write to", path.display()))
    });
    let log = Log { shown, file: file.transpose()?.map(Mutex::new), start: Instant::now() };
    let _ = LOG.set(log);
    Ok(())
}

/// Adds text, which need not be whole lines; names from a file in it can steer nothing.
pub fn text(level: Level, text: &str) {
    let Some(log) = LOG.get() else { return };
    let text = &shown_lines(text);
    if log.shown.is_some_and(|shown| level <= shown) {
        eprint!("{text}");
    }
    log.keep(text);
}

/// Adds a line with the seconds since the start.
pub fn line(level: Level, text: &str) {
    let Some(log) = LOG.get() else { return };
    let line = format!("[{:9.3} s] {text}\n", log.start.elapsed().as_secs_f64());
    self::text(level, &line);
}

/// Adds a line that is on standard error already.
pub fn said(text: &str) {
    if let Some(log) = LOG.get() {
        log.keep(&format!("{text}\n"));
    }
}

impl Log {
    fn keep(&self, text: &str) {
        if let Some(file) = &self.file {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            // A full disk is no reason to end a run that does not need the log.
            let _ = file.write_all(text.as_bytes());
        }
    }
}
