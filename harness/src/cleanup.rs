//! What must not outlive the process: folders and files that are half written, engines that it started.
//!
//! Destructors remove them when a command fails; an interrupt runs none, so it is caught, these are removed, and
//! the process ends as the signal says. What a crash leaves, the supervisor removes.

use crate::supervisor::{self, Posted, TOLD_TO_END};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

static LEFT: Mutex<Vec<Left>> = Mutex::new(Vec::new());

/// What must not outlive the process.
#[derive(Clone, Debug, PartialEq)]
enum Left {
    Path(PathBuf),
    /// The processes of this group.
    Group(u32),
}

impl Left {
    fn remove(&self) {
        match self {
            Self::Path(path) => supervisor::remove(path),
            Self::Group(group) => supervisor::kill_group(*group),
        }
    }
}

/// What is removed if the process is interrupted before this is dropped.
#[derive(Debug)]
pub struct Guard {
    left: Left,
    _posted: Option<Posted>,
}

/// Guards `path`.
pub fn guard(path: &Path) -> Guard {
    guarded(Left::Path(path.to_path_buf()), supervisor::path(path))
}

/// Guards the processes of a group, which are killed.
pub fn guard_group(group: u32) -> Guard {
    guarded(Left::Group(group), supervisor::group(group))
}

fn guarded(left: Left, posted: Option<Posted>) -> Guard {
    all(|all| all.push(left.clone()));
    Guard { left, _posted: posted }
}

impl Drop for Guard {
    fn drop(&mut self) {
        all(|all| all.retain(|left| *left != self.left));
    }
}

fn all(change: impl FnOnce(&mut Vec<Left>)) {
    change(&mut LEFT.lock().unwrap_or_else(PoisonError::into_inner));
}

/// Removes what is guarded once the process is interrupted or told to end.
pub fn on_interrupt() {
    let Ok(mut signals) = signal_hook::iterator::Signals::new(TOLD_TO_END) else {
        // Then an interrupt ends the process at once, as if nobody listened.
        return;
    };
    std::thread::spawn(move || {
        for signal in signals.forever() {
            // The last first: an engine is killed before its folder is removed.
            all(|all| all.drain(..).rev().for_each(|left| left.remove()));
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    });
}
