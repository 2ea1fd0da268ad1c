//! Runs of a small model, recorded and judged.

use crate::synth::Synth;
use crate::{qdiff, stderr, stdout};
use serde_json::Value;
use std::path::Path;

/// A folder with a small model in it.
///
/// # Panics
/// If it cannot be written.
pub fn setup() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    Synth::default().write(&folder.path().join("model.gguf")).unwrap();
    folder
}

/// Records a run of it, two decode steps where `extra` says nothing else.
///
/// # Panics
/// If that fails.
pub fn record(folder: &Path, out: &str, extra: &[&str]) {
    let steps = if extra.contains(&"-n") { &[][..] } else { &["-n", "2"] };
    let args = [&["record", "-m", "model.gguf", "--out", out], steps, extra].concat();
    let output = qdiff(folder, &args);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

/// Runs and judges it: exit code, JSON, screen.
///
/// # Panics
/// If it does not get as far as a verdict.
pub fn judge(folder: &Path, extra: &[&str]) -> (i32, Value, String) {
    let mut args = vec!["run", "-m", "model.gguf", "--json", "report.json"];
    args.extend(extra);
    let output = qdiff(folder, &args);
    let code = output.status.code().unwrap();
    assert_ne!(code, 2, "{}", stderr(&output));
    let json = serde_json::from_slice(&std::fs::read(folder.join("report.json")).unwrap()).unwrap();
    (code, json, stdout(&output))
}
