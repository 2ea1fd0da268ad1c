//! What ends a run early leaves no half-written file under a name that someone
//! reads, and never looks like a pass.

use qdiff_tests::synth::Synth;
use qdiff_tests::{Folder, Said, files, folder, folder_with};
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Tokens that take a while.
const LONG: &str = "-m model.gguf --prompt long --raw --length 2000 -n 0";

fn command(folder: &Folder, line: &str) -> Command {
    let mut command = folder.command(line);
    command.env("TMPDIR", &**folder).stdout(Stdio::null());
    command
}

fn recording(folder: &Folder) -> Command {
    command(folder, &format!("record {LONG} --ubatch 50 --out out"))
}

/// What is in the folder besides the model.
fn left(folder: &Folder) -> Vec<String> {
    files(folder).into_iter().filter(|name| name != "model.gguf").collect()
}

/// Starts it and waits until a file of it, new or in a new folder, has more than `least` bytes.
fn start_writing(folder: &Folder, mut command: Command, least: u64) -> Child {
    let before = left(folder);
    let mut child = command.spawn().unwrap();
    let start = Instant::now();
    loop {
        let new = left(folder).into_iter().filter(|name| !before.contains(name)).map(|name| folder.join(name));
        let file = |path: PathBuf| if path.is_dir() { path.join("capture.npz") } else { path };
        if new.map(file).filter_map(|p| p.metadata().ok()).any(|m| m.len() > least) {
            return child;
        }
        assert!(child.try_wait().unwrap().is_none(), "it ended before it could be interrupted");
        assert!(start.elapsed() < Duration::from_secs(120), "it never wrote");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn send(child: &Child, signal: i32) {
    send_to(child.id() as i32, signal);
}

fn send_to(process: i32, signal: i32) {
    // SAFETY: our own child, not waited for yet, or its child.
    assert_eq!(unsafe { libc::kill(process, signal) }, 0);
}

/// The process that does the work, below the one that was started.
fn worker(child: &Child) -> i32 {
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap();
    children.trim().parse().unwrap()
}

#[test]
fn an_interrupt_leaves_nothing() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
        let folder = folder();
        let mut child = start_writing(&folder, recording(&folder), 1 << 20);
        send(&child, signal);
        // Ended by the signal, so that a shell stops its loop as well.
        assert_eq!(child.wait().unwrap().signal(), Some(signal));
        assert_eq!(left(&folder), Vec::<String>::new());
    }
}

/// A copy in plain floats is large, and leaves nothing, nor does it touch a
/// file that is called as a part of it might be.
#[test]
fn an_interrupted_copy_leaves_nothing() {
    let folder = folder_with(&Synth { n_layers: 400, ..Synth::default() });
    folder.write("out.part", "mine");
    let mut child = start_writing(&folder, command(&folder, "dequantise -m model.gguf --out out.gguf"), 0);
    send(&child, libc::SIGTERM);
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
    assert_eq!(left(&folder), ["out.part"]);
    assert_eq!(folder.text("out.part"), "mine");
}

#[test]
fn an_interrupted_run_is_no_pass() {
    let folder = folder();
    let mut run = command(&folder, &format!("run {LONG} --report report.json -v"));
    let mut child = run.stderr(Stdio::piped()).spawn().unwrap();
    // Kept open to the end: who speaks to nobody ends otherwise.
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    let running = said.by_ref().map(|line| line.unwrap()).any(|line| line.contains("] running "));
    assert!(running, "it never said that it runs");
    send(&child, libc::SIGINT);
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGINT), "{status}");
    assert_eq!(left(&folder), Vec::<String>::new());
}

/// The working process may die of anything: one line reports that, nothing is left, and there is no verdict.
#[test]
fn a_crash_is_one_line_and_leaves_nothing() {
    let deaths = [
        (libc::SIGABRT, "gave up (SIGABRT)"),
        (libc::SIGSEGV, "crashed (SIGSEGV)"),
        (libc::SIGKILL, "memory ran out (SIGKILL)"),
        (libc::SIGBUS, "a file got shorter while it was read"),
    ];
    for (signal, words) in deaths {
        let folder = folder();
        let mut record = recording(&folder);
        record.stderr(Stdio::piped());
        let child = start_writing(&folder, record, 1 << 20);
        // Until nobody is there: Rust takes one SIGSEGV or SIGBUS for the overflow of a stack, and waits for the next.
        let worker = worker(&child);
        // SAFETY: the worker of our own child, which waits for it.
        while unsafe { libc::kill(worker, signal) } == 0 {
            std::thread::yield_now();
        }
        let said = child.wait_with_output().unwrap();
        let line = String::from_utf8(said.stderr).unwrap();
        assert_eq!(said.status.code(), Some(2), "{line}");
        assert!(line.contains(words), "{line}");
        assert_eq!(left(&folder), Vec::<String>::new());
    }
}

/// As a model is that someone writes again: the system ends whoever reads it.
#[test]
fn a_model_cut_short_while_it_is_read_is_told() {
    let folder = folder_with(&Synth { n_layers: 400, ..Synth::default() });
    let mut copy = command(&folder, "dequantise -m model.gguf --out out.gguf");
    copy.stderr(Stdio::piped());
    let child = start_writing(&folder, copy, 0);
    std::fs::File::options().write(true).open(folder.join("model.gguf")).unwrap().set_len(1 << 16).unwrap();
    let said = child.wait_with_output().unwrap();
    let line = String::from_utf8(said.stderr).unwrap();
    assert_eq!(said.status.code(), Some(2), "{line}");
    assert!(line.contains("a file got shorter while it was read"), "{line}");
    assert_eq!(left(&folder), Vec::<String>::new());
}

/// Without its supervisor a worker ends, and cleans up itself.
#[test]
fn a_worker_does_not_outlive_its_supervisor() {
    let folder = folder();
    let mut child = start_writing(&folder, recording(&folder), 1 << 20);
    send(&child, libc::SIGKILL);
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    let start = Instant::now();
    while !left(&folder).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?} is left", left(&folder));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Nothing can be cleaned up where both are killed; but nothing has the requested name, what is left is no capture,
/// and the next recording removes it.
#[test]
fn a_killed_recording_is_no_capture() {
    let folder = folder();
    let mut child = start_writing(&folder, recording(&folder), 1 << 20);
    send(&child, libc::SIGSTOP);
    send_to(worker(&child), libc::SIGKILL);
    send(&child, libc::SIGKILL);
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    let parts = left(&folder);
    let [part] = parts.as_slice() else {
        panic!("{parts:?}");
    };
    assert_ne!(part, "out");
    folder.refuses(&format!("run -m model.gguf --subject capture:{part}"), &[]);
    folder.record("next", "-n 0 --stages embed");
    assert_eq!(left(&folder), ["next"]);
}

/// Files may grow to `bytes` and no further, as on a disk that is full.
fn with_full_disk(mut command: Command, bytes: u64) -> Said {
    // SAFETY: only calls that are allowed between fork and exec.
    unsafe {
        command.pre_exec(move || {
            let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
            // Writing beyond then fails instead of killing the process.
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            match libc::setrlimit(libc::RLIMIT_FSIZE, &limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
    command.output().unwrap().into()
}

#[test]
fn a_full_disk_is_told_and_leaves_nothing() {
    let folder = folder();
    let run = "run -m model.gguf -n 1 --report report.json";
    for (command, bytes, expected) in [
        (recording(&folder), 1 << 20, "writing the capture out"),
        (command(&folder, run), 1 << 10, "report.json"),
        (command(&folder, &format!("{run} --memory 0")), 1 << 20, "--tmp"),
    ] {
        let said = with_full_disk(command, bytes).exits(2);
        assert!(said.stderr.contains(expected), "{expected}: {said}");
        assert_eq!(left(&folder), Vec::<String>::new(), "{expected}");
    }
}

/// The verdict does not depend on a reader of the output.
#[test]
fn a_closed_pipe_changes_no_verdict() {
    let folder = folder();
    for (inject, code) in [("", 0), ("--inject rope-base@L00", 1)] {
        let mut run = command(&folder, &format!("run -m model.gguf -n 1 --report report.json {inject}"));
        let mut child = run.stdout(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        assert_eq!(child.wait().unwrap().code(), Some(code));
        folder.json("report.json");
    }
}

/// What does not fit the memory set aside goes to a file, and the verdict stays.
#[test]
fn memory_changes_no_verdict() {
    let folder = folder();
    let [none, enough] = [0, 1000].map(|memory| {
        let (code, report, text) = folder.judged(&format!("-n 2 --memory {memory}"));
        assert_eq!(code, 0, "{text}");
        report["verdict"]["stages"].clone()
    });
    assert_eq!(none, enough);
}
