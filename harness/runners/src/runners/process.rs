//! A program that somebody else wrote, while qdiff waits for it: its output is read, its time is bounded, and nothing of it
//! outlives qdiff.

use super::NoProgram;
use crate::capture::dump::RUN;
use crate::cleanup;
use crate::supervisor::keeper::{self, Line, State};
use anyhow::{Context as _, Result, bail};
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes that are kept of what it says last.
const TAIL: usize = 16384;

/// Lines of these that an error repeats.
const LINES: usize = 3;

/// Longest line of its standard output that is understood.
const LINE: u64 = 1 << 16;

/// How long its output is waited for once it has ended.
const DRAIN: Duration = Duration::from_millis(200);

/// A running program and all that it started. Threads feed and empty its pipes, so that nothing here waits for a program that
/// does not read, or stops one that says much.
pub(super) struct Process {
    /// As errors call it.
    line: String,
    /// The process above it, which ends it.
    keeper: Child,
    link: Line,
    _guard: cleanup::Guard,
    /// How it ended, once that is known.
    status: Option<ExitStatus>,
    said: Arc<Mutex<Vec<u8>>>,
    /// Closed when its standard error is.
    silent: Receiver<()>,
    talk: Option<Talk>,
}

/// The requests to a program that stays up, and its answers.
struct Talk {
    tell: Sender<String>,
    lines: Receiver<String>,
}

impl Process {
    /// Starts `line` in a shell and a process group of its own, with QDIFF_DUMP naming `folder` and QDIFF_RUN the
    /// `run`. One that is not `asked` anything has an empty standard input, and nobody hears its standard output.
    ///
    /// # Errors
    /// If the system gives no process.
    pub(super) fn start(line: &str, folder: &Path, run: &str, asked: bool) -> Result<Self> {
        let stream = || if asked { Stdio::piped() } else { Stdio::null() };
        let started = keeper::start(line, |keeper| {
            keeper.env("QDIFF_DUMP", folder).env(RUN, run);
            keeper.stdin(stream()).stdout(stream()).stderr(Stdio::piped());
        });
        let (mut keeper, link) = started.with_context(|| format!("cannot start `{line}`"))?;
        let guard = cleanup::guard_command(link.clone());
        let said = Arc::new(Mutex::new(Vec::new()));
        let (silence, silent) = sync_channel(0);
        if let Some(err) = keeper.stderr.take() {
            let said = said.clone();
            thread::spawn(move || keep_tail(err, &said, silence));
        }
        let talk = keeper.stdin.take().zip(keeper.stdout.take()).map(|(stdin, stdout)| {
            let (tell, told) = channel();
            thread::spawn(move || feed(stdin, &told));
            let (sender, lines) = sync_channel(64);
            thread::spawn(move || hear(stdout, &sender));
            Talk { tell, lines }
        });
        Ok(Self { line: line.to_owned(), keeper, link, _guard: guard, status: None, said, silent, talk })
    }

    /// Waits until it ends, for `most` at the longest.
    ///
    /// # Errors
    /// If it takes longer, or ends otherwise than with exit code 0; with the last of what it said.
    pub(super) fn finish(mut self, most: Duration) -> Result<()> {
        match self.ending(most)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(self.ended(status)),
            None => Err(self.late(most)),
        }
    }

    /// Says a line to it, and gives the first line of its answer that `is_answer` takes for one; what else it prints is
    /// passed over.
    ///
    /// # Errors
    /// If it ends, or does not answer within `most`.
    pub(super) fn ask<T>(&mut self, line: &str, most: Duration, is_answer: impl Fn(&str) -> Option<T>) -> Result<T> {
        let start = Instant::now();
        let talk = self.talk.as_ref().context("it was started without a connection for requests")?;
        // If it reads no more, the code below reports how it ended.
        let _ = talk.tell.send(line.to_owned());
        loop {
            // Asked here: of one that never stops talking there is always a line.
            let left = most.saturating_sub(start.elapsed());
            match if left.is_zero() { Err(RecvTimeoutError::Timeout) } else { talk.lines.recv_timeout(left) } {
                Ok(line) => {
                    if let Some(answer) = is_answer(&line) {
                        return Ok(answer);
                    }
                }
                Err(RecvTimeoutError::Timeout) => return Err(self.late(most)),
                Err(RecvTimeoutError::Disconnected) => match self.ending(DRAIN)? {
                    Some(status) => return Err(self.ended(status)),
                    None => bail!("`{}` closed its standard output{}", self.line.clone(), self.last_words()),
                },
            }
        }
    }

    /// How it ended, if it did within `most`; what it started is gone then.
    fn ending(&mut self, most: Duration) -> Result<Option<ExitStatus>> {
        if self.status.is_none() {
            let state = keeper::state(&self.link, most);
            // Else the error of a command that an interrupt ended is reported, and not the interrupt.
            cleanup::wait_if_interrupted();
            match state {
                State::Runs => {}
                State::Ended(status) => self.status = Some(status),
                State::Lost => bail!("`{}` was lost: something ended the process of qdiff that keeps it", self.line),
            }
        }
        Ok(self.status)
    }

    fn late(&mut self, most: Duration) -> anyhow::Error {
        let words = self.last_words();
        anyhow::anyhow!("`{}` took longer than {} s (see --timeout){words}", self.line, most.as_secs_f64())
    }

    fn ended(&mut self, status: ExitStatus) -> anyhow::Error {
        let words = self.last_words();
        let how = format!("`{}` ended with {status}{words}", self.line);
        // What a shell says of a program that is not there, or cannot be executed.
        if let Some(126 | 127) = status.code() { NoProgram(how).into() } else { anyhow::anyhow!(how) }
    }

    /// Ends it, and gives the last lines of its standard error, as one.
    fn last_words(&mut self) -> String {
        keeper::end(&self.link);
        // Whoever has it open still is nobody that could be ended.
        let _ = self.silent.recv_timeout(DRAIN);
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&said);
        let lines = before_backtrace(&text);
        let words = lines[lines.len().saturating_sub(LINES)..].join(" / ");
        if words.is_empty() { "; it said nothing on stderr".to_owned() } else { format!(": {words}") }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Whatever it started goes with it.
        keeper::end(&self.link);
        let _ = self.keeper.wait();
    }
}

/// The lines of what a program said, without the frames of Rust's backtraces, which come after the error.
fn before_backtrace(said: &str) -> Vec<&str> {
    let mut within = false;
    let is_frame = |line: &str| {
        let numbered = line.split_once(": ").is_some_and(|(number, _)| number.parse::<u32>().is_ok());
        numbered || line.starts_with("at ") || line.starts_with("note: ")
    };
    let keep = |line: &&str| {
        within = line.eq_ignore_ascii_case("stack backtrace:") || within && is_frame(line);
        !within && !line.is_empty()
    };
    said.lines().map(str::trim).filter(keep).collect()
}

/// Writes the requests to `stdin`.
fn feed(mut stdin: ChildStdin, told: &Receiver<String>) {
    for line in told {
        if stdin.write_all(line.as_bytes()).and_then(|()| stdin.flush()).is_err() {
            return;
        }
    }
}

/// Hands over the lines of `out`.
fn hear(out: impl Read, to: &SyncSender<String>) {
    let mut out = BufReader::new(out);
    loop {
        let mut line = Vec::new();
        match out.by_ref().take(LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                if to.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    return;
                }
            }
        }
    }
}

/// Keeps the end of `from`, and `until` the end of that.
fn keep_tail(mut from: impl Read, said: &Mutex<Vec<u8>>, until: SyncSender<()>) {
    let mut piece = [0; TAIL];
    while let Ok(read @ 1..) = from.read(&mut piece) {
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        said.extend_from_slice(&piece[..read]);
        let beyond = said.len().saturating_sub(TAIL);
        said.drain(..beyond);
    }
    drop(until);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_what_is_before_its_backtrace() {
        let said = "loading\nError: no tensor\n\nCaused by:\n    0: of layer 3\n\nStack backtrace:\n   0: anyhow::error\n             \
                    at src/error.rs:10:5\n   1: main\nnote: Some details are omitted.\nended\n";
        let kept = ["loading", "Error: no tensor", "Caused by:", "0: of layer 3", "ended"];
        assert_eq!(before_backtrace(said), kept);
    }
}
