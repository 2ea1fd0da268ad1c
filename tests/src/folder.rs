//! A folder in which `qdiff` is called, and what it says.

use crate::card::Card;
use crate::{binary, markdown, real_model};
use qdiff_synth::Synth;
use serde_json::Value;
use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// The program that proves qdiff.
const LAB: &str = "qdiff-lab";

/// A temporary folder, most often with a model in it, as `model.gguf`.
pub struct Folder(TempDir);

/// How a call of `qdiff` ended, and what it said.
#[derive(Debug)]
pub struct Said {
    /// Its exit code.
    pub code: i32,
    /// What it printed on standard output.
    pub stdout: String,
    /// What it printed on standard error.
    pub stderr: String,
}

/// A folder with nothing in it.
///
/// # Panics
/// As each of these four: if it cannot be written.
pub fn empty() -> Folder {
    Folder(tempfile::tempdir().unwrap())
}

/// A folder with the small model that most tests run.
pub fn folder() -> Folder {
    folder_with(&Synth::default())
}

/// A folder with a model of its own.
pub fn folder_with(model: &Synth) -> Folder {
    let folder = empty();
    model.write(&folder.join("model.gguf")).unwrap();
    folder
}

/// A folder with the real default model.
pub fn real_folder() -> Folder {
    let folder = empty();
    std::os::unix::fs::symlink(real_model(), folder.join("model.gguf")).unwrap();
    folder
}

impl Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        self.0.path()
    }
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let code = output.status.code().expect("it exits");
        Self { code, stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.stdout, self.stderr)
    }
}

impl Said {
    /// The same, which must have ended with `code`.
    ///
    /// # Panics
    /// If it did not.
    #[track_caller]
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self}");
        self
    }
}

/// Every method panics if it fails.
impl Folder {
    /// `qdiff` with the words of `line`, in this folder, with nothing of the caller's settings. A line that begins with
    /// `qdiff-lab` calls that program.
    pub fn command(&self, line: &str) -> Command {
        let (program, line) = line.strip_prefix(LAB).map_or(("qdiff", line), |rest| (LAB, rest));
        let mut command = Command::new(binary(program));
        for (name, _) in std::env::vars().filter(|(n, _)| n.starts_with("QDIFF_") || n.starts_with("GITHUB_")) {
            command.env_remove(name);
        }
        // Tests share the cores: threads of llama.cpp that wait must not spin on them.
        command
            .env("OMP_WAIT_POLICY", "passive")
            .env_remove("COLUMNS")
            .current_dir(&**self)
            .args(markdown::words(line));
        command
    }

    /// Runs it.
    pub fn qdiff(&self, line: &str) -> Said {
        self.qdiff_with(&[], line)
    }

    /// Runs it with `environment`.
    pub fn qdiff_with(&self, environment: &[(&str, &str)], line: &str) -> Said {
        self.command(line).envs(environment.iter().copied()).output().expect("qdiff starts").into()
    }

    /// Runs it on an emulated card.
    pub fn qdiff_on(&self, card: &Card, line: &str) -> Said {
        self.command(line).envs(card.environment()).output().expect("qdiff starts").into()
    }

    /// Runs a command that reaches a verdict: exit code, JSON, screen.
    #[track_caller]
    pub fn told(&self, line: &str) -> (i32, Value, String) {
        let said = self.qdiff(&format!("{line} --json told.json"));
        assert_ne!(said.code, 2, "{line}: {said}");
        (said.code, self.json("told.json"), said.stdout)
    }

    /// `qdiff run` of the model, as [`Folder::told`].
    #[track_caller]
    pub fn judged(&self, extra: &str) -> (i32, Value, String) {
        self.told(&format!("run -m model.gguf {extra}"))
    }

    /// `qdiff generate` of the CPU engine, as [`Folder::told`].
    #[track_caller]
    pub fn generated(&self, extra: &str) -> (i32, Value, String) {
        self.told(&format!("generate -m model.gguf --subject cpu {extra}"))
    }

    /// Records a run of the model, two decode steps where `extra` says nothing else.
    #[track_caller]
    pub fn record(&self, out: &str, extra: &str) {
        let steps = if extra.contains("-n ") { "" } else { "-n 2" };
        self.qdiff(&format!("record -m model.gguf --out {out} {steps} {extra}")).exits(0);
    }

    /// Runs what must be refused: exit code 2, one line that has all of `words`, and nothing written.
    #[track_caller]
    pub fn refuses(&self, line: &str, words: &[&str]) {
        let said = self.refused(line, words);
        // qdiff prints the choice of the engine before the work begins, so it may come before an error.
        let lines = said.trim_end().lines().filter(|line| *line != "qdiff: no GPU: using the CPU engine").count();
        assert!(!said.contains("panicked") && lines == 1, "{line}: {said}");
    }

    /// The same of options that do not fit each other or the command, which are refused with its usage.
    #[track_caller]
    pub fn refuses_options(&self, line: &str, words: &[&str]) {
        let said = self.refused(line, words);
        assert!(said.starts_with("error: ") && said.ends_with("try '--help'.\n"), "{line}: {said}");
    }

    #[track_caller]
    fn refused(&self, line: &str, words: &[&str]) -> String {
        let before = files(self);
        let said = self.qdiff(line).exits(2);
        assert_eq!(said.stdout, "", "{line}");
        for word in words {
            assert!(said.stderr.contains(word), "{line}: `{word}` is not in: {}", said.stderr);
        }
        assert_eq!(files(self), before, "{line} left something behind");
        said.stderr
    }

    /// The text of a file.
    #[track_caller]
    pub fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// A file of JSON.
    #[track_caller]
    pub fn json(&self, name: &str) -> Value {
        serde_json::from_str(&self.text(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// Writes a file.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.join(name), content).unwrap();
    }

    /// Changes the bytes of a file.
    pub fn edit(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = std::fs::read(self.join(name)).unwrap();
        change(&mut bytes);
        self.write(name, bytes);
    }

    /// Copies a recorded capture; gives the path of its values.
    pub fn copied(&self, from: &str, to: &str) -> PathBuf {
        self.create(to);
        for file in ["manifest.json", "capture.npz"] {
            std::fs::copy(self.join(from).join(file), self.join(to).join(file)).unwrap();
        }
        self.join(to).join("capture.npz")
    }

    /// Makes a folder in it, those above included.
    pub fn create(&self, name: &str) {
        std::fs::create_dir_all(self.join(name)).unwrap();
    }

    /// Uses the HTML reports of these names in Chromium as a reader would (`tests/html/drive.py`); gives what was seen of
    /// each. Without Chromium it fails: a test that did not run must not pass.
    pub fn browse<const N: usize>(&self, names: [&str; N]) -> [Value; N] {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("html/drive.py");
        // Screenshots are removed with the folder unless QDIFF_SCREENSHOTS is set.
        let shots = std::env::var_os("QDIFF_SCREENSHOTS").map_or_else(|| self.join("shots"), PathBuf::from);
        let pages = names.map(|name| self.join(format!("{name}.html")));
        let output = Command::new("python3").arg(script).arg(&shots).args(pages).output();
        let seen = Said::from(output.expect("python3 starts")).exits(0);
        for name in names {
            for shot in ["light-1400.png", "light-768.png", "light-390.png", "dark.png", "phone.png"] {
                let bytes = std::fs::read(shots.join(name).join(shot)).expect("a screenshot was taken");
                assert!(bytes.starts_with(b"\x89PNG") && bytes.len() > 10_000, "{name}: {shot} is empty");
            }
        }
        let seen: Vec<Value> = serde_json::from_str(&seen.stdout).expect("what was seen is JSON");
        seen.try_into().expect("each was seen")
    }
}

/// The names in a folder, sorted.
///
/// # Panics
/// If it cannot be read.
pub fn files(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}
