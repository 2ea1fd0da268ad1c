//! qdiff does its work in a process of its own, below one that only waits for it. llama.cpp aborts on files it does not
//! expect, a C++ exception cannot pass through Rust, a file that is cut while it is mapped ends whoever reads it, and
//! memory runs out: none of that can be caught inside. The process that waits says what happened, removes what was left
//! half written, and ends as the command promises.
//!
//! The two share a board of memory, to which the worker posts its task before it calls into C, and the
//! paths it is writing. A pipe beside it shows when the last keeper of a command has ended (see [`keeper`]). Nothing
//! else passes between them, so supervision costs one `fork` at the start.

mod board;
pub mod keeper;

use board::Board;
pub use board::Posted;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use std::ffi::OsStr;
use std::io::PipeReader;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::OnceLock;

/// The signals by which a person or a system tells a process to end.
pub(crate) const TOLD_TO_END: [i32; 4] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT];

static BOARD: OnceLock<&'static Board> = OnceLock::new();

/// How the work ended.
pub enum Ended {
    /// With this exit code.
    Code(u8),
    /// It received this signal, and ended.
    Told(i32),
    /// It died: what to say of it.
    Died(String),
}

/// Splits the process in two: `None` in the one that is to do the work, how that ended in the one that waited. Must be
/// called before any thread is started. Where the system gives no second process, the first does the work unsupervised.
pub fn split() -> Option<Ended> {
    let board = Board::new()?;
    let (keepers, alive) = std::io::pipe().ok()?;
    // SAFETY: no thread has been started, so the child has the whole state of its parent. SIGCHLD is
    // reset: a process may inherit that it is ignored, and waiting would then not return the status of the child.
    let (parent, child) = unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        (libc::getpid(), libc::fork())
    };
    match child {
        -1 => None,
        0 => {
            let _ = BOARD.set(board);
            let _ = keeper::ALIVE.set(alive);
            // SAFETY: plain calls; there is one thread, so nothing reads the environment meanwhile.
            unsafe {
                // Told to end with its supervisor, however that ends.
                libc::prctl(libc::PR_SET_PDEATHSIG, SIGTERM);
                if libc::getppid() != parent {
                    libc::raise(SIGTERM);
                }
                // Else ggml starts a debugger on a process that aborts.
                std::env::set_var("GGML_NO_BACKTRACE", "1");
            }
            None
        }
        child => {
            drop(alive);
            Some(ended(board, wait(child, &keepers)))
        }
    }
}

/// Waits for the child and its keepers, and passes on what tells this process to end.
fn wait(child: libc::pid_t, keepers: &PipeReader) -> ExitStatus {
    if let Ok(mut signals) = signal_hook::iterator::Signals::new(TOLD_TO_END) {
        std::thread::spawn(move || {
            for signal in signals.forever() {
                // SAFETY: a plain call; the child is not reaped before this process ends.
                unsafe { libc::kill(child, signal) };
            }
        });
    }
    let mut information = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    let mut status = 0;
    // SAFETY: plain calls that fill what they are given. The first call does not reap the child (WNOWAIT), so its number
    // belongs to no other process while the thread above may still send signals to it.
    unsafe {
        let wait = || libc::waitid(libc::P_PID, child as u32, information.as_mut_ptr(), libc::WEXITED | libc::WNOWAIT);
        again(wait);
        keeper::wait_for_all(keepers);
        again(|| libc::waitpid(child, &raw mut status, 0));
    }
    ExitStatus::from_raw(status)
}

/// Makes a system call until no signal comes between.
fn again(mut call: impl FnMut() -> libc::c_int) {
    while call() == -1 && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted {}
}

fn ended(board: &Board, status: ExitStatus) -> Ended {
    // A library that ends the process, as libgomp does without a thread, gives no verdict of qdiff.
    if let Some(code) = board.code().filter(|code| status.code() == Some((*code).into())) {
        return Ended::Code(code);
    }
    for path in board.left() {
        remove(Path::new(OsStr::from_bytes(&path)));
    }
    match status.signal() {
        Some(signal) if TOLD_TO_END.contains(&signal) => Ended::Told(signal),
        _ => Ended::Died(epitaph(status, &board.was_doing(), board.last_words())),
    }
}

/// One sentence on a death.
fn epitaph(status: ExitStatus, doing: &[String], words: Option<String>) -> String {
    let name = match (status.signal(), status.code()) {
        (Some(signal), _) => {
            signal_hook::low_level::signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
        }
        (None, code) => format!("exit code {}", code.unwrap_or_default()),
    };
    let how = match status.signal() {
        Some(libc::SIGBUS) => "a read failed, most often because a file got shorter while it was read",
        Some(libc::SIGKILL) => "something ended it, most often the system because memory ran out",
        Some(libc::SIGABRT) => "qdiff, or a library in it, gave up",
        Some(_) => "qdiff, or a library in it, crashed",
        None => "a library in qdiff ended it, most often because memory or threads ran out",
    };
    let during = if doing.is_empty() { String::new() } else { format!(", while {}", doing.join(" and ")) };
    let words = words.map_or_else(String::new, |words| format!(": {}", words.trim()));
    format!("{how} ({name}){during}{words}")
}

/// Removes a file or folder that is half written.
pub(crate) fn remove(path: &Path) {
    let _ = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
}

/// Says what this process is about to do, until the result is dropped: for the supervisor, which reports its death.
pub fn doing(text: impl FnOnce() -> String) -> Option<Posted> {
    BOARD.get().map(|board| board.doing(&text()))
}

/// Names a path that must not outlive this process, until the result is dropped.
pub(crate) fn path(path: &Path) -> Option<Posted> {
    BOARD.get().map(|board| board.path(path.as_os_str().as_bytes()))
}

/// Says with which exit code this process is about to end: no other is believed.
pub fn ends(code: u8) {
    if let Some(board) = BOARD.get() {
        board.ends(code);
    }
}

/// Last words of this process.
pub fn words(text: &[u8]) {
    if let Some(board) = BOARD.get() {
        board.words(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_death_is_told_with_what_was_being_done() {
        let doing = ["llama.cpp loads a.gguf".to_owned()];
        assert_eq!(
            epitaph(
                ExitStatus::from_raw(libc::SIGABRT),
                &doing,
                Some("ggml.c:12: GGML_ASSERT(n > 0) failed\n".to_owned())
            ),
            "qdiff, or a library in it, gave up (SIGABRT), while llama.cpp loads a.gguf: \
             ggml.c:12: GGML_ASSERT(n > 0) failed"
        );
        assert!(epitaph(ExitStatus::from_raw(libc::SIGSEGV), &[], None).ends_with("crashed (SIGSEGV)"));
    }

    #[test]
    fn an_exit_code_counts_where_it_was_said() {
        let board = Board::new().expect("memory for a page");
        let exits = |code: i32| ExitStatus::from_raw(code << 8);
        let died = |ended: Ended, word: &str| matches!(ended, Ended::Died(how) if how.contains(word));
        assert!(died(ended(board, exits(1)), "ended it, most often because memory or threads ran out (exit code 1)"));
        board.ends(0);
        assert!(matches!(ended(board, exits(0)), Ended::Code(0)));
        assert!(died(ended(board, exits(1)), "(exit code 1)"));
        assert!(died(ended(board, ExitStatus::from_raw(libc::SIGSEGV)), "crashed"));
        assert!(matches!(ended(board, ExitStatus::from_raw(libc::SIGTERM)), Ended::Told(libc::SIGTERM)));
    }
}
