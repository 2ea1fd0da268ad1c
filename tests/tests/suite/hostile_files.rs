//! Files that never end, or never begin: a FIFO, a device, a hole as large as a disk. And outputs that take nothing.

use qdiff_tests::{Folder, Said, folder};
use std::ffi::CString;
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;

/// A FIFO without a writer or a reader.
fn fifo(folder: &Folder, name: &str) {
    let path = CString::new(folder.join(name).to_str().unwrap()).unwrap();
    // SAFETY: a plain call with a path that ends with NUL.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
}

/// A folder with a model, a capture `good`, and one in which `broken` is not what it should be.
fn with_capture(broken: &str, breaks: impl Fn(&Folder, &str)) -> Folder {
    let folder = folder();
    folder.record("good", "-n 0 --stages logits");
    folder.create("bad");
    for name in ["manifest.json", "capture.npz"].into_iter().filter(|name| *name != broken) {
        std::fs::copy(folder.join("good").join(name), folder.join("bad").join(name)).unwrap();
    }
    breaks(&folder, &format!("bad/{broken}"));
    folder
}

#[test]
fn nothing_waits_for_a_fifo() {
    let folder = with_capture("manifest.json", fifo);
    fifo(&folder, "fifo");
    for line in [
        "inspect fifo",
        "weights model.gguf --against fifo",
        "run -m model.gguf --prompt @fifo",
        "run -m model.gguf --prompts fifo",
        "run -m model.gguf --subject capture:good --map fifo",
        "run -m model.gguf --subject capture:bad",
        "compare bad good",
        "record -m model.gguf --like bad --out out",
        "report fifo",
        "qdiff-lab bench -m model.gguf --measure cuda --baseline fifo",
        "run -m model.gguf --json fifo",
        "inspect model.gguf --log fifo",
    ] {
        folder.refuses(line, &["fifo"].map(|word| if line.contains(word) { word } else { "manifest.json" }));
    }
    let folder = with_capture("capture.npz", fifo);
    folder.refuses("run -m model.gguf --subject capture:bad", &["capture.npz", "no plain file"]);
    fifo(&folder, "summary");
    let said = folder.qdiff_with(&[("GITHUB_STEP_SUMMARY", "summary")], "run -m model.gguf -n 0 --ci github").exits(2);
    assert!(said.stderr.contains("cannot write GITHUB_STEP_SUMMARY"), "{said}");
}

/// A file that is too long is not read at all.
#[test]
fn what_is_read_whole_is_bounded() {
    let sparse = |folder: &Folder, name: &str| File::create(folder.join(name)).unwrap().set_len(1 << 40).unwrap();
    let folder = with_capture("manifest.json", sparse);
    sparse(&folder, "long");
    for line in [
        "run -m model.gguf --subject capture:bad",
        "run -m model.gguf --prompt @long",
        "run -m model.gguf --prompts long",
        "run -m model.gguf --subject capture:good --map long",
        "report long",
    ] {
        folder.refuses(line, &["it is longer than"]);
    }
    let mut run = folder.command("run -m model.gguf --prompt -");
    let said = Said::from(run.stdin(File::open("/dev/zero").unwrap()).output().unwrap()).exits(2);
    assert!(said.stderr.contains("it is longer than"), "{said}");
}

/// A verdict that nobody can read is none.
#[test]
fn a_full_standard_output_is_told() {
    let folder = folder();
    for line in ["--help", "--version", "inspect model.gguf", "mutations", "schema run", "run -m model.gguf -n 0"] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let said = Said::from(folder.command(line).stdout(full).stderr(Stdio::piped()).output().unwrap()).exits(2);
        assert!(said.stderr.contains("cannot write to standard output"), "{line}: {said}");
    }
}

/// With too little memory a run ends with a verdict or with an error, and with nothing else.
#[test]
fn memory_that_does_not_suffice_is_no_verdict() {
    let folder = folder();
    let before = qdiff_tests::files(&folder);
    let mut refused = 0;
    for mebibytes in [60, 140, 200, 230, 260] {
        let mut run = folder.command("run -m model.gguf -n 0 --json report.json");
        // SAFETY: only calls that are allowed between fork and exec.
        unsafe {
            run.pre_exec(move || {
                let limit = libc::rlimit { rlim_cur: mebibytes << 20, rlim_max: mebibytes << 20 };
                match libc::setrlimit(libc::RLIMIT_AS, &limit) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        let said = Said::from(run.output().unwrap());
        match said.code {
            0 => std::fs::remove_file(folder.join("report.json")).unwrap(),
            2 => {
                let last = said.stderr.lines().last().unwrap_or_default();
                assert!(last.starts_with("qdiff: ") && said.stdout.is_empty(), "{mebibytes} MiB: {said}");
                refused += 1;
            }
            _ => panic!("{mebibytes} MiB: {said}"),
        }
        assert_eq!(qdiff_tests::files(&folder), before, "{mebibytes} MiB");
    }
    assert!(refused > 0, "every limit was enough");
}
