//! What the end-to-end tests share: the binary, models, and reading reports.

pub mod generation;
pub mod markdown;
pub mod npz;
pub mod recording;
pub mod schema;

pub use qdiff_synth as synth;

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use synth::Synth;
use tempfile::TempDir;

/// The `qdiff` binary that belongs to this build.
///
/// # Panics
/// If it was not built: `cargo test` alone need not build it.
pub fn binary() -> PathBuf {
    let test = std::env::current_exe().expect("a test is a program");
    test.ancestors().map(|folder| folder.join("qdiff")).find(|p| p.is_file()).unwrap_or_else(|| {
        panic!("no qdiff beside the tests: run `cargo build --release -p qdiff` first, or ./scripts/test")
    })
}

/// Runs `qdiff` in `folder` with nothing of the caller's settings.
///
/// # Panics
/// If the program cannot be started.
pub fn qdiff(folder: &Path, args: &[&str]) -> Output {
    qdiff_with(folder, &[], args)
}

/// Runs `qdiff` in `folder` with `environment` and nothing of the caller's
/// settings.
///
/// # Panics
/// If the program cannot be started.
pub fn qdiff_with(folder: &Path, environment: &[(&str, &str)], args: &[&str]) -> Output {
    let mut command = Command::new(binary());
    for (name, _) in std::env::vars() {
        if name.starts_with("QDIFF_") || name.starts_with("GITHUB_") {
            command.env_remove(name);
        }
    }
    command.envs(environment.iter().copied()).current_dir(folder).args(args).output().expect("qdiff starts")
}

/// A folder with `model` in it, as `model.gguf`.
///
/// # Panics
/// If it cannot be written.
pub fn folder_with(model: &Synth) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    model.write(&folder.path().join("model.gguf")).unwrap();
    folder
}

/// A folder with the small model that most tests run.
///
/// # Panics
/// If it cannot be written.
pub fn folder() -> TempDir {
    folder_with(&Synth::default())
}

/// Runs a command of `qdiff` that reaches a verdict: exit code, JSON, screen.
///
/// # Panics
/// If it does not get as far as a verdict.
pub fn told(folder: &Path, args: &[&str]) -> (i32, Value, String) {
    let output = qdiff(folder, &[args, &["--json", "out.json"]].concat());
    let code = output.status.code().expect("qdiff exits");
    assert_ne!(code, 2, "{args:?}: {}", stderr(&output));
    let json = serde_json::from_slice(&std::fs::read(folder.join("out.json")).unwrap()).unwrap();
    (code, json, stdout(&output))
}

/// `qdiff run` of the model in `folder`, as [`told`].
///
/// # Panics
/// If it does not get as far as a verdict.
pub fn judged(folder: &Path, extra: &[&str]) -> (i32, Value, String) {
    told(folder, &[&["run", "-m", "model.gguf"], extra].concat())
}

/// The real default model, which `./scripts/test` fetches and names.
///
/// # Panics
/// If it is not named: a test that did not run must not pass.
pub fn real_model() -> String {
    std::env::var("QDIFF_MODEL").unwrap_or_else(|_| {
        panic!("QDIFF_MODEL names no model: run ./scripts/test, or set it to the output of ./scripts/fetch-model")
    })
}

/// What the process printed on standard output.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What the process printed on standard error.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The verdict of a screen: its first lines, unwrapped.
pub fn headline(screen: &str) -> String {
    let lines = screen.lines().take_while(|l| !l.is_empty());
    lines.map(str::trim).collect::<Vec<_>>().join(" ")
}

/// Strikes out of a screen what is not the same on every machine: figures,
/// hashes, and the places that depend on them.
pub fn screen() -> insta::Settings {
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"sha256 [0-9a-f]{4}…[0-9a-f]{4}", "sha256 HASH");
    // Numbers, then the column gaps and the places that depend on them.
    settings.add_filter(r"-?\d+(\.\d+)?e-?\d+|-?\d+\.\d+|\binf\b", "#");
    settings.add_filter(r"(L\d\d )?\bp\d+( h\d+)?( s(tep)?\d+)?", "@");
    settings.add_filter(r"\[\d+\]:", "[#]:");
    settings.add_filter(r"\d+ %", "# %");
    settings.add_filter(r"  +", "  ");
    settings.add_filter(r"(?m)^tokens .*\n( .*\n)*", "tokens …\n");
    settings.add_filter(r"(?m)^(element +worst of \S+) .*\n( .*\n)*", "$1 …\n");
    settings.add_filter(r"(?m)  0  ", "  #  ");
    settings.add_filter(r"(?m) +$", "");
    // Where the largest distance is depends on the rounding of the machine.
    settings.add_filter(r"# (L\d\d\.)?\w+ @", "# @");
    settings.add_filter(r"# L\d\d\.\w+", "# @");
    settings
}

/// Uses the HTML report `page` of `folder` in Chromium as a reader would
/// (`tests/html/drive.py`); gives what was seen, as JSON.
///
/// # Panics
/// If the page does not do as it should, or no Chromium is installed: a test
/// that did not run must not pass.
pub fn browse(folder: &Path, page: &str) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("html/drive.py");
    let shots = folder.join("shots");
    let mut command = Command::new("python3");
    let command = command.arg(script).arg(folder.join(page)).arg(&shots);
    let output = command.output().expect("python3 starts");
    assert!(output.status.success(), "{page}: {}", stderr(&output));
    for shot in ["light.png", "dark.png", "phone.png"] {
        let bytes = std::fs::read(shots.join(shot)).expect("a screenshot was taken");
        assert!(bytes.starts_with(b"\x89PNG") && bytes.len() > 10_000, "{page}: {shot} is empty");
    }
    stdout(&output)
}
