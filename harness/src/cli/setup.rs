//! How a task tells of itself.

use super::{CI, QUIET, complain, remark};
use crate::log::{self, Level};
use crate::tasks::Console;
use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use std::sync::atomic::Ordering;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The progress line on stderr, shown on a terminal only.
static BAR: LazyLock<ProgressBar> = LazyLock::new(|| {
    let style = ProgressStyle::with_template("{msg:<34} {wide_bar} {percent:>3} % {elapsed}, about {eta} left");
    ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
});

/// How often the time on it moves, whatever else does.
const TICK: Duration = Duration::from_millis(200);

/// How often a line tells of long work where no bar is seen.
const SILENCE: Duration = Duration::from_secs(20);

/// When something was last told where no bar is seen.
static TOLD: Mutex<Option<Instant>> = Mutex::new(None);

/// `done` of `total` of `what`; the line goes once all is done.
fn progress(what: &str, done: usize, total: usize) {
    let bar = &*BAR;
    if bar.message() != what {
        bar.reset();
        bar.set_message(what.to_owned());
        log::line(Level::Notable, what);
    }
    bar.set_length(total as u64);
    bar.set_position(done as u64);
    if done == total {
        bar.finish_and_clear();
    } else if bar.is_hidden() {
        let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
        let since = *told.get_or_insert_with(Instant::now);
        if since.elapsed() >= SILENCE && !QUIET.load(Ordering::Relaxed) {
            *told = Some(Instant::now());
            complain(&format!("{what}: {} %", 100 * done / total.max(1)));
        }
    } else {
        bar.enable_steady_tick(TICK);
    }
}

/// A line on standard error. A CI system that asked for one engine must not be green for another.
fn instead(text: &str) -> Result<()> {
    if CI.load(Ordering::Relaxed) {
        bail!("{text}; with --ci the runner is named (--subject cpu)");
    }
    complain(text);
    Ok(())
}

/// The terminal.
pub(super) fn console() -> Console<'static> {
    Console { progress: &progress, instead: &instead, note: &complain, say: &remark }
}
