//! Progress and remarks of a task.

use super::say::{BAR, CI, QUIET, complain, remark};
use crate::log::{self, Level};
use crate::memory;
use crate::tasks::Console;
use anyhow::{Result, bail};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often the time on it is drawn.
const TICK: Duration = Duration::from_millis(200);

/// How often a line reports long work without a bar.
const SILENCE: Duration = Duration::from_secs(20);

/// The end of a phase that took as long is reported if there was no bar, and so is the end of all work.
const LONG: Duration = Duration::from_secs(10);

/// The same of the whole where a bar was seen.
const SEEN: Duration = Duration::from_secs(1);

/// What is being done.
struct Phase {
    what: String,
    since: Instant,
    /// When its progress was last reported.
    told: Instant,
}

/// The phase that lasts, where no bar is seen.
static PHASE: Mutex<Option<Phase>> = Mutex::new(None);

/// `done` of `total` of `what`; the line goes once all is done, or something is printed.
fn progress(what: &str, done: usize, total: usize) {
    let bar = &*BAR;
    if bar.message() != what {
        bar.set_message(what.to_owned());
        log::line(Level::Notable, what);
        bar.reset();
    } else if done == 0 {
        // The same again, as with the next prompt: a bar that ended is not drawn any more.
        bar.reset();
    }
    bar.set_length(total as u64);
    bar.set_position(done as u64);
    if bar.is_hidden() {
        if !QUIET.load(Ordering::Relaxed) {
            unseen(what, done, total);
        }
    } else if done < total {
        bar.enable_steady_tick(TICK);
    }
    if done == total {
        bar.finish_and_clear();
    }
}

/// Tells how far long work is, and what it took, in lines.
fn unseen(what: &str, done: usize, total: usize) {
    let mut phase = PHASE.lock().unwrap_or_else(PoisonError::into_inner);
    if phase.as_ref().is_none_or(|phase| phase.what != what) {
        let now = Instant::now();
        *phase = Some(Phase { what: what.to_owned(), since: now, told: now });
    }
    match phase.as_mut() {
        Some(Phase { since, .. }) if done == total => {
            if since.elapsed() >= LONG {
                complain(&format!("{what}: done in {:.0} s", since.elapsed().as_secs_f64()));
            }
            *phase = None;
        }
        Some(Phase { told, .. }) if told.elapsed() >= SILENCE => {
            *told = Instant::now();
            complain(&format!("{what}: {} %", 100 * done / total.max(1)));
        }
        _ => {}
    }
}

/// Tells what all of it took, if it was long.
pub(super) fn took(time: Duration) {
    let long = if BAR.is_hidden() { LONG } else { SEEN };
    if time >= long && !QUIET.load(Ordering::Relaxed) {
        let memory = memory::peak()
            .map_or_else(String::new, |peak| format!(", {peak} of memory at its peak (mapped files not counted)"));
        complain(&format!("took {:.1} s{memory}", time.as_secs_f64()));
    }
}

/// Why the CPU engine runs in the place of a GPU, until the work begins.
static INSTEAD: Mutex<Option<String>> = Mutex::new(None);

/// A CI system that asked for one engine must not be green for another.
fn instead(why: &str) -> Result<()> {
    if CI.load(Ordering::Relaxed) {
        bail!("{why}: with --ci, name the CPU engine if it is meant (--subject cpu)");
    }
    *INSTEAD.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.to_owned());
    Ok(())
}

/// Says on standard error which engine runs, now that nothing is refused any more: before an error it would read as the
/// error's cause.
fn begin() {
    let held_back = INSTEAD.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(why) = held_back.filter(|_| !QUIET.load(Ordering::Relaxed)) {
        complain(&format!("{why}: using the CPU engine"));
    }
}

/// A line on standard error, unless only the verdict is requested.
fn found(text: &str) {
    if !QUIET.load(Ordering::Relaxed) {
        complain(text);
    }
}

/// The terminal.
pub(super) fn console() -> Console<'static> {
    Console { progress: &progress, instead: &instead, begin: &begin, note: &complain, found: &found, say: &remark }
}
