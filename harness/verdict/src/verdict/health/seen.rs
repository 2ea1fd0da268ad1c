//! What a look finds.

use crate::capture::{Capture, Step};
use qdiff_engine::model::StageId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Something suspicious that is seen without a reference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Symptom {
    /// Where it shows.
    pub stage: StageId,
    /// The step, as sentences name it.
    pub step: String,
    /// What is seen.
    pub what: String,
    /// The stage that most likely makes it.
    pub likely: StageId,
    /// Whether no correct model does it; else it is merely odd.
    pub broken: bool,
}

impl std::fmt::Display for Symptom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: {}", self.stage, self.step, self.what)?;
        if self.likely == self.stage {
            return Ok(());
        }
        write!(f, "; look at {}", self.likely)
    }
}

/// A finding of one of the looks: what is seen, and which input of the stage
/// (by its place among them) makes it, if not the stage itself.
pub(super) type Seen = (String, Option<usize>);

/// Unit roundoff of the formats in which a row may well round to one value, or to nothing.
pub(super) const COARSE: f64 = 0.01;

/// A pass, as sentences name it. The first part of a prompt in parts is `prefill@0`: `prefill` would say all of them.
pub(super) fn named(capture: &Capture, step: &Step) -> String {
    let later = |other: &Step| other.index == 0 && other.first > 0 && other.run == step.run;
    let first_of_several = step.index == 0 && step.first == 0 && capture.steps.iter().any(later);
    let told = step.told();
    if first_of_several { told.replacen("prefill", "prefill@0", 1) } else { told }
}
