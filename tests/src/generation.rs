//! `qdiff generate` on a model of one's own.

use crate::synth::{Synth, WeightType};
use crate::{qdiff, stderr, stdout};
use serde_json::Value;
use std::path::Path;

/// A folder with `model.gguf` in it.
///
/// # Panics
/// If it cannot be written.
pub fn with(model: &Synth) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    model.write(&folder.path().join("model.gguf")).unwrap();
    folder
}

/// Weights that both sides take as they are, so that rounding alone differs.
pub fn exact() -> Synth {
    Synth { weight_type: WeightType::F32, ..Synth::default() }
}

/// `qdiff generate` of the CPU engine in `folder`: exit code, JSON, screen.
///
/// # Panics
/// If it does not get as far as a verdict.
pub fn generate(folder: &Path, extra: &[&str]) -> (i32, Value, String) {
    let mut args = vec!["generate", "-m", "model.gguf", "--subject", "cpu", "--json", "out.json"];
    args.extend(extra);
    let output = qdiff(folder, &args);
    let code = output.status.code().expect("qdiff exits");
    assert_ne!(code, 2, "{extra:?}: {}", stderr(&output));
    let json = serde_json::from_slice(&std::fs::read(folder.join("out.json")).unwrap()).unwrap();
    (code, json, stdout(&output))
}
