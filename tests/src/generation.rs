//! `qdiff generate` on a model of one's own.

use crate::synth::{Synth, WeightType};
use crate::told;
use serde_json::Value;
use std::path::Path;

/// Weights that both sides take as they are, so that rounding alone differs.
pub fn exact() -> Synth {
    Synth { weight_type: WeightType::F32, ..Synth::default() }
}

/// `qdiff generate` of the CPU engine in `folder`: exit code, JSON, screen.
///
/// # Panics
/// If it does not get as far as a verdict.
pub fn generate(folder: &Path, extra: &[&str]) -> (i32, Value, String) {
    told(folder, &[&["generate", "-m", "model.gguf", "--subject", "cpu"], extra].concat())
}
