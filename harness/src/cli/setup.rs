//! How a task tells of itself.

use super::{CI, complain, remark};
use crate::log::{self, Level};
use crate::tasks::Console;
use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use std::sync::LazyLock;
use std::sync::atomic::Ordering;

/// The progress line on stderr, shown on a terminal only.
static BAR: LazyLock<ProgressBar> = LazyLock::new(|| {
    let style = ProgressStyle::with_template("{msg:<34} {wide_bar} {pos}/{len} {elapsed}");
    ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
});

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
