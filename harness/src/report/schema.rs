//! The JSON schemas of what qdiff writes and reads (draft 2020-12), derived
//! from the types themselves.

use super::generation::{self, GenerationReport};
use super::logits::{self, LogitsReport};
use super::weights::{self, WeightsReport};
use super::{Failure, Report, SCHEMA_VERSION};
use crate::capture::npz;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};

/// The schema of a report.
pub fn report() -> Schema {
    of::<Report>("A run of qdiff, judged", SCHEMA_VERSION)
}

/// The schema of what a batch writes for a prompt that failed.
pub fn failure() -> Schema {
    of::<Failure>("A run of a batch that failed", SCHEMA_VERSION)
}

/// The schema of the `manifest.json` of a capture.
pub fn capture() -> Schema {
    of::<npz::Manifest>("The manifest of a capture", npz::SCHEMA_VERSION)
}

/// The schema of what `generate --json` writes.
pub fn generation() -> Schema {
    of::<GenerationReport>("Two texts, compared", generation::SCHEMA_VERSION)
}

/// The schema of what `weights --json` writes.
pub fn weights() -> Schema {
    of::<WeightsReport>("Weights, compared", weights::SCHEMA_VERSION)
}

/// The schema of what `logits --json` writes.
pub fn logits() -> Schema {
    of::<LogitsReport>("Logits, looked into", logits::SCHEMA_VERSION)
}

fn of<T: JsonSchema>(title: &str, version: u32) -> Schema {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<T>();
    schema.insert("title".to_owned(), title.into());
    // The version is not any number, but the one that this layout has.
    if let Some(field) = schema.pointer_mut("/properties/schema_version") {
        *field = serde_json::json!({ "const": version, "description": "Version of this layout." });
    }
    schema
}
