//! What must not outlive the process: folders and files that are half written.
//!
//! Destructors remove them when a command fails; an interrupt runs none, so it is caught, the paths are removed, and
//! the process ends as the signal says. What a crash leaves, the supervisor removes.

use crate::supervisor::{self, Posted, TOLD_TO_END};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

static PATHS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A path that is removed if the process is interrupted before this is dropped.
#[derive(Debug)]
pub struct Guard {
    path: PathBuf,
    _posted: Option<Posted>,
}

/// Guards `path`.
pub fn guard(path: &Path) -> Guard {
    paths(|all| all.push(path.to_path_buf()));
    Guard { path: path.to_path_buf(), _posted: supervisor::path(path) }
}

impl Drop for Guard {
    fn drop(&mut self) {
        paths(|all| all.retain(|p| *p != self.path));
    }
}

fn paths(change: impl FnOnce(&mut Vec<PathBuf>)) {
    change(&mut PATHS.lock().unwrap_or_else(PoisonError::into_inner));
}

/// Removes what is guarded once the process is interrupted or told to end.
pub fn on_interrupt() {
    let Ok(mut signals) = signal_hook::iterator::Signals::new(TOLD_TO_END) else {
        // Then an interrupt ends the process at once, as if nobody listened.
        return;
    };
    std::thread::spawn(move || {
        for signal in signals.forever() {
            paths(|all| {
                all.drain(..).for_each(|path| supervisor::remove(&path));
            });
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    });
}
