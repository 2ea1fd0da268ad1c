//! A program that somebody else wrote, while qdiff waits for it: its output is read, its time is bounded, and nothing of it
//! outlives qdiff.

use crate::capture::dump::RUN;
use crate::{cleanup, supervisor};
use anyhow::{Context as _, Result, bail};
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes that are kept of what it says last.
const TAIL: usize = 4096;

/// Lines of these that an error repeats.
const LINES: usize = 3;

/// Longest line of its standard output that is understood.
const LINE: u64 = 1 << 16;

/// How long its output is waited for once it has ended.
const DRAIN: Duration = Duration::from_millis(200);

/// A running program and all that it started.
pub(super) struct Process {
    /// As errors call it.
    line: String,
    child: Child,
    stdin: Option<ChildStdin>,
    said: Arc<Mutex<Vec<u8>>>,
    lines: Receiver<String>,
    /// How it ended, once that was asked; before that its number is its own.
    status: Option<ExitStatus>,
    _group: cleanup::Guard,
}

impl Process {
    /// Starts `line` in a shell and a process group of its own, with QDIFF_DUMP naming `folder` and QDIFF_RUN the `run`.
    ///
    /// # Errors
    /// If there is no shell.
    pub(super) fn start(line: &str, folder: &Path, run: &str) -> Result<Self> {
        let mut command = Command::new("sh");
        command.arg("-c").arg(line).env("QDIFF_DUMP", folder).env(RUN, run).process_group(0);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start `{line}`"))?;
        let group = cleanup::guard_group(child.id());
        let said = Arc::new(Mutex::new(Vec::new()));
        let (sender, lines) = sync_channel(64);
        if let Some(out) = child.stdout.take() {
            std::thread::spawn(move || hear(out, &sender));
        }
        if let Some(err) = child.stderr.take() {
            let said = said.clone();
            std::thread::spawn(move || keep_tail(err, &said));
        }
        Ok(Self { line: line.to_owned(), stdin: child.stdin.take(), child, said, lines, status: None, _group: group })
    }

    /// Waits until it ends by itself, for `most` at the longest.
    ///
    /// # Errors
    /// If it takes longer, or ends otherwise than with exit code 0; with the last of what it said.
    pub(super) fn finish(mut self, most: Duration) -> Result<()> {
        self.stdin = None;
        let start = Instant::now();
        loop {
            // What it prints is nobody's: a full pipe must not keep it from ending.
            while self.lines.try_recv().is_ok() {}
            if let Some(status) = self.ending() {
                return if status.success() { Ok(()) } else { Err(self.ended(status)) };
            }
            if start.elapsed() > most {
                bail!("{}", self.late(most));
            }
            std::thread::sleep(Duration::from_millis(5).min(start.elapsed() / 8 + Duration::from_micros(200)));
        }
    }

    /// Says a line to it, and gives the first line of its answer that `is_answer` takes for one; what else it prints is
    /// passed over.
    ///
    /// # Errors
    /// If it ends, or does not answer within `most`.
    pub(super) fn ask<T>(&mut self, line: &str, most: Duration, is_answer: impl Fn(&str) -> Option<T>) -> Result<T> {
        // That it reads no more is told by how it ended, below.
        let _ = self.stdin.as_mut().map(|stdin| stdin.write_all(line.as_bytes()).and_then(|()| stdin.flush()));
        let start = Instant::now();
        loop {
            match self.lines.recv_timeout(most.saturating_sub(start.elapsed())) {
                Ok(line) => {
                    if let Some(answer) = is_answer(&line) {
                        return Ok(answer);
                    }
                }
                Err(RecvTimeoutError::Timeout) => bail!("{}", self.late(most)),
                Err(RecvTimeoutError::Disconnected) => {
                    std::thread::sleep(DRAIN);
                    match self.ending() {
                        Some(status) => return Err(self.ended(status)),
                        None => bail!("`{}` closed its standard output{}", self.line, self.last_words()),
                    }
                }
            }
        }
    }

    /// How it ended, if it did; what it started is killed then.
    fn ending(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() && supervisor::has_ended(self.child.id()) {
            supervisor::kill_group(self.child.id());
            self.status = self.child.wait().ok();
        }
        self.status
    }

    fn late(&self, most: Duration) -> String {
        let seconds = most.as_secs_f64();
        format!("`{}` took longer than {seconds} s (see --timeout){}", self.line, self.last_words())
    }

    fn ended(&self, status: ExitStatus) -> anyhow::Error {
        anyhow::anyhow!("`{}` ended with {status}{}", self.line, self.last_words())
    }

    /// The last lines of its standard error, as one.
    fn last_words(&self) -> String {
        let start = Instant::now();
        let mut words = String::new();
        // It may have ended before the last of it was read.
        while start.elapsed() < DRAIN {
            let said = self.said.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let text = String::from_utf8_lossy(&said).into_owned();
            let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
            let now = lines[lines.len().saturating_sub(LINES)..].join(" / ");
            if !now.is_empty() && now == words {
                break;
            }
            words = now;
            std::thread::sleep(DRAIN / 10);
        }
        if words.is_empty() { "; it said nothing on stderr".to_owned() } else { format!(": {words}") }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Told first by the end of its input; whatever it started goes with it.
        self.stdin = None;
        if self.status.is_none() {
            supervisor::kill_group(self.child.id());
            let _ = self.child.wait();
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

/// Keeps the end of `from`.
fn keep_tail(mut from: impl Read, said: &Mutex<Vec<u8>>) {
    let mut piece = [0; TAIL];
    while let Ok(read @ 1..) = from.read(&mut piece) {
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        said.extend_from_slice(&piece[..read]);
        let beyond = said.len().saturating_sub(TAIL);
        said.drain(..beyond);
    }
}
