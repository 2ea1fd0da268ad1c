//! Runs of a small model, recorded.

use crate::{qdiff, stderr};
use std::path::Path;

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
