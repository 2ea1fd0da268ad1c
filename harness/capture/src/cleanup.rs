//! What must not outlive the process: folders and files that are half written, engines that it started.
//!
//! Destructors remove them when a command fails; an interrupt runs none, so it is caught, these are removed, and
//! the process ends as the signal says. What a crash leaves, the supervisor removes.

use crate::supervisor::keeper::{self, Line};
use crate::supervisor::{self, Posted, TOLD_TO_END};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

static LEFT: Mutex<Vec<(u64, Left)>> = Mutex::new(Vec::new());

/// Whether the process is about to end by a signal.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// What must not outlive the process.
#[derive(Debug)]
enum Left {
    Path(PathBuf),
    /// A command and all that it started.
    Command(Line),
}

impl Left {
    fn remove(&self) {
        match self {
            Self::Path(path) => supervisor::remove(path),
            Self::Command(line) => keeper::end(line),
        }
    }
}

/// What is removed if the process is interrupted before this is dropped.
#[derive(Debug)]
pub struct Guard {
    number: u64,
    _posted: Option<Posted>,
}

/// Guards `path`.
pub fn guard(path: &Path) -> Guard {
    guarded(Left::Path(path.to_path_buf()), supervisor::path(path))
}

/// Guards a command, which is ended with all that it started. A keeper does that without help after a crash.
pub fn guard_command(line: Line) -> Guard {
    guarded(Left::Command(line), None)
}

fn guarded(left: Left, posted: Option<Posted>) -> Guard {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    all(|all| all.push((number, left)));
    Guard { number, _posted: posted }
}

impl Drop for Guard {
    fn drop(&mut self) {
        all(|all| all.retain(|(number, _)| *number != self.number));
    }
}

fn all(change: impl FnOnce(&mut Vec<(u64, Left)>)) {
    change(&mut LEFT.lock().unwrap_or_else(PoisonError::into_inner));
}

/// Where the process is about to end by a signal, whoever calls this waits for that: what fails then fails of it.
pub fn wait_if_interrupted() {
    while INTERRUPTED.load(Ordering::SeqCst) {
        std::thread::park();
    }
}

/// Removes what is guarded once the process is interrupted or told to end.
pub fn on_interrupt() {
    let Ok(mut signals) = signal_hook::iterator::Signals::new(TOLD_TO_END) else {
        // Then an interrupt ends the process at once, as if nobody listened.
        return;
    };
    std::thread::spawn(move || {
        for signal in signals.forever() {
            INTERRUPTED.store(true, Ordering::SeqCst);
            let mut left = Vec::new();
            all(|all| left.append(all));
            // The last first: an engine is killed before its folder is removed.
            left.iter().rev().for_each(|(_, left)| left.remove());
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    });
}
