//! The JSON schemas of what qdiff writes and reads (draft 2020-12), derived from the types themselves.

use super::json::Written;
use super::{Document, SCHEMA_VERSION};
use crate::capture::npz;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};

/// The schema of a document as it is written.
pub fn document<T: Document>() -> Schema {
    let mut schema = of::<Written<'static, T>>(SCHEMA_VERSION);
    schema.insert("title".to_owned(), serde_json::json!(T::KIND));
    if let Some(field) = schema.pointer_mut("/properties/kind") {
        *field = serde_json::json!({ "const": T::KIND, "description": "What this file is." });
    }
    schema
}

/// The schema of the `manifest.json` of a capture.
pub fn capture() -> Schema {
    of::<npz::Manifest>(npz::SCHEMA_VERSION)
}

fn of<T: JsonSchema>(version: u32) -> Schema {
    let mut schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>();
    // The version is not any number, but the one that this layout has.
    if let Some(field) = schema.pointer_mut("/properties/schema_version") {
        *field = serde_json::json!({ "const": version, "description": "Version of this layout." });
    }
    schema
}
