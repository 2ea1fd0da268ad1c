//! What ends a run early leaves no half-written file under a name that someone
//! reads, and never looks like a pass.

use qdiff_tests::synth::Synth;
use qdiff_tests::{binary, folder, qdiff, stderr};
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn command(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(binary());
    for (name, _) in std::env::vars().filter(|(n, _)| n.starts_with("QDIFF_")) {
        command.env_remove(name);
    }
    command.current_dir(folder).args(args).env("TMPDIR", folder);
    command
}

/// A recording that takes a while.
const RECORD: &[&str] = &[
    "record",
    "-m",
    "model.gguf",
    "--prompt",
    "long",
    "--raw",
    "--length",
    "2000",
    "-n",
    "0",
    "--ubatch",
    "50",
    "--out",
    "out",
];

/// What is in the folder besides the model.
fn left(folder: &Path) -> Vec<PathBuf> {
    let all = std::fs::read_dir(folder).unwrap();
    let mut left: Vec<PathBuf> =
        all.map(|e| PathBuf::from(e.unwrap().file_name())).filter(|p| p != Path::new("model.gguf")).collect();
    left.sort();
    left
}

/// Starts a recording and waits until it writes.
fn start_writing(folder: &Path) -> Child {
    let mut child = command(folder, RECORD).stdout(Stdio::null()).spawn().unwrap();
    let start = Instant::now();
    loop {
        let part = left(folder).into_iter().map(|p| folder.join(p).join("capture.npz"));
        let size = part.filter_map(|p| p.metadata().ok()).map(|m| m.len()).max();
        if size.unwrap_or(0) > 1 << 20 {
            return child;
        }
        assert!(child.try_wait().unwrap().is_none(), "it ended before it could be interrupted");
        assert!(start.elapsed() < Duration::from_secs(120), "it never wrote");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn send(child: &Child, signal: i32) {
    // SAFETY: our own child, not waited for yet.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

#[test]
fn an_interrupt_leaves_nothing() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let folder = folder();
        let mut child = start_writing(folder.path());
        send(&child, signal);
        // Ended by the signal, so that a shell stops its loop as well.
        assert_eq!(child.wait().unwrap().signal(), Some(signal));
        assert_eq!(left(folder.path()), Vec::<PathBuf>::new());
    }
}

/// A copy in plain floats is large, and leaves nothing, nor does it touch a
/// file that is called as a part of it might be.
#[test]
fn an_interrupted_copy_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let large = Synth { n_layers: 400, ..Synth::default() };
    large.write(&folder.join("model.gguf")).unwrap();
    std::fs::write(folder.join("out.part"), "mine").unwrap();
    let args = ["dequantise", "-m", "model.gguf", "--out", "out.gguf"];
    let mut child = command(folder, &args).stdout(Stdio::null()).spawn().unwrap();
    let start = Instant::now();
    // The one file that is new and has begun to grow.
    while left(folder)
        .iter()
        .filter(|p| *p != Path::new("out.part"))
        .filter_map(|p| folder.join(p).metadata().ok())
        .all(|m| m.len() == 0)
    {
        let ended = child.try_wait().unwrap();
        assert!(ended.is_none(), "it ended before it could be interrupted");
        assert!(start.elapsed() < Duration::from_secs(60), "it never wrote");
        std::thread::sleep(Duration::from_millis(1));
    }
    send(&child, libc::SIGTERM);
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
    assert_eq!(left(folder), [PathBuf::from("out.part")]);
    assert_eq!(std::fs::read(folder.join("out.part")).unwrap(), b"mine");
}

#[test]
fn an_interrupted_run_is_no_pass() {
    let folder = folder();
    let args = [
        "run",
        "-m",
        "model.gguf",
        "--prompt",
        "long",
        "--raw",
        "--length",
        "2000",
        "-n",
        "0",
        "--report",
        "report.json",
        "-v",
    ];
    let mut child = command(folder.path(), &args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // Kept open to the end: who speaks to nobody ends otherwise.
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    let running = said.by_ref().map(|line| line.unwrap()).any(|line| line.contains("] running "));
    assert!(running, "it never said that it runs");
    send(&child, libc::SIGINT);
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGINT), "{status}");
    assert_eq!(left(folder.path()), Vec::<PathBuf>::new());
}

/// Nothing can be cleaned up then; but nothing has the name that was asked for,
/// and what is left is no capture.
#[test]
fn a_killed_recording_is_no_capture() {
    let folder = folder();
    let mut child = start_writing(folder.path());
    send(&child, libc::SIGKILL);
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    let left = left(folder.path());
    assert!(!left.contains(&PathBuf::from("out")), "{left:?}");
    let [part] = left.as_slice() else {
        panic!("{left:?}");
    };
    let subject = format!("capture:{}", part.display());
    let output = qdiff(folder.path(), &["run", "-m", "model.gguf", "--subject", &subject]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

/// Files may grow to `bytes` and no further, as on a disk that is full.
fn with_full_disk(mut command: Command, bytes: u64) -> std::process::Output {
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
    command.output().unwrap()
}

#[test]
fn a_full_disk_is_told_and_leaves_nothing() {
    let folder = folder();
    let folder = folder.path();
    let run = ["run", "-m", "model.gguf", "-n", "1", "--report", "report.json"];
    for (args, bytes, expected) in [
        (RECORD, 1 << 20, "writing the capture out"),
        (&run, 1 << 10, "report.json"),
        (&[&run[..], &["--memory", "0"]].concat(), 1 << 20, "--tmp"),
    ] {
        let output = with_full_disk(command(folder, args), bytes);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
        assert!(message.contains(expected), "{args:?}: {message}");
        assert_eq!(left(folder), Vec::<PathBuf>::new(), "{args:?}");
    }
}

/// The verdict does not depend on whether somebody reads it.
#[test]
fn a_closed_pipe_changes_no_verdict() {
    let folder = folder();
    for (fault, code) in [(None, 0), (Some("rope-base@L00"), 1)] {
        let mut args = vec!["run", "-m", "model.gguf", "-n", "1", "--report", "report.json"];
        args.extend(fault.map_or([].as_slice(), |_| ["--inject"].as_slice()));
        args.extend(fault);
        let mut child = command(folder.path(), &args).stdout(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        assert_eq!(child.wait().unwrap().code(), Some(code));
        let report = std::fs::read(folder.path().join("report.json")).unwrap();
        assert!(serde_json::from_slice::<serde_json::Value>(&report).is_ok());
    }
}

/// What does not fit the memory set aside goes to a file, and the verdict stays.
#[test]
fn memory_changes_no_verdict() {
    let folder = folder();
    let verdict = |memory: &str| {
        let args = ["run", "-m", "model.gguf", "-n", "2", "--memory", memory, "--report", "report.json"];
        let output = qdiff(folder.path(), &args);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let report = std::fs::read(folder.path().join("report.json")).unwrap();
        let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
        report["verdict"]["stages"].clone()
    };
    assert_eq!(verdict("0"), verdict("1000"));
}
