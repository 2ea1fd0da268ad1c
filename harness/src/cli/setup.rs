//! How a task tells of itself.

use super::{complain, remark};
use crate::log::{self, Level};
use crate::tasks::Console;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal as _;
use std::sync::LazyLock;

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

/// A line on standard error where someone reads it, else in the log.
pub(super) fn aside(text: &str) {
    match std::io::stderr().is_terminal() {
        true => complain(text),
        false => log::line(Level::Notable, text),
    }
}

/// The terminal.
pub(super) fn console() -> Console<'static> {
    Console { progress: &progress, aside: &aside, note: &complain, say: &remark }
}
