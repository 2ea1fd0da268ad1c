//! Reports: one model of what is to be told, one file per format.

pub mod json;
pub mod terminal;

use crate::runners::Manifest;
use crate::verdict::Verdict;
use crate::weights::WeightCheck;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// All that a report tells, whatever its format.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// Version of this layout; raised when a field changes its meaning.
    pub schema_version: u32,
    /// The model.
    pub model: ModelInfo,
    /// The run.
    pub run: RunInfo,
    /// The runner under suspicion.
    pub subject: Manifest,
    /// The runner it is held against.
    pub reference: Manifest,
    /// The stage before all others.
    pub weights: WeightCheck,
    /// The outcome.
    pub verdict: Verdict,
    /// What `verify-oracle` said where the reference was doubted.
    pub doubt: Option<String>,
}

/// Version of the JSON layout.
pub const SCHEMA_VERSION: u32 = 2;

/// Identifies the model.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct ModelInfo {
    /// Path as given.
    pub path: String,
    /// `general.name`.
    pub name: String,
    /// Architecture.
    pub arch: String,
    /// Number of layers.
    pub layers: usize,
    /// Most frequent weight format by bytes.
    pub format: String,
    /// SHA-256 of the file, in hexadecimal.
    pub sha256: String,
}

/// Identifies the run.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct RunInfo {
    /// Name of the prompt.
    pub prompt: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Tokens fed at the decode steps, chosen by the reference.
    pub decoded: Vec<u32>,
    /// Text of the decoded tokens.
    pub decoded_text: Vec<String>,
    /// Command line that repeats the run.
    pub command: String,
    /// Filters in force, in words; empty if everything was asked for.
    pub filters: String,
}
