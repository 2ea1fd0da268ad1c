//! JSON: the report itself, with its schema (draft 2020-12), which follows from its type. Written with the lists of numbers on one line each, so that it can be read, and read back.

use super::written::Written;
pub use super::written::text;
use super::{Document, Failure, Part, Place, Report, SCHEMA_VERSION, Told, part};
use crate::capture::manifest;
use crate::input;
use anyhow::{Context as _, Result, bail};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use std::path::Path;

/// The one document as a file.
pub(super) fn render(told: &[&dyn Told], _: &[String]) -> Result<String> {
    match told {
        [one] => one.json(),
        _ => bail!("a JSON report holds one run"),
    }
}

/// The schema of a document as it is written.
pub fn schema<T: Document>() -> Schema {
    let mut schema = schema_of::<Written<'static, T>>(SCHEMA_VERSION);
    schema.insert("title".to_owned(), serde_json::json!(T::KIND));
    if let Some(field) = schema.pointer_mut("/properties/kind") {
        *field = serde_json::json!({ "const": T::KIND, "description": "What this file is." });
    }
    schema
}

/// The schema of the `manifest.json` of a capture.
pub fn capture_schema() -> Schema {
    let mut schema = schema_of::<manifest::Manifest>(manifest::SCHEMA_VERSION);
    // A capture of one sequence keeps the version before.
    if let Some(field) = schema.pointer_mut("/properties/schema_version") {
        let versions = [manifest::OF_ONE_SEQUENCE, manifest::SCHEMA_VERSION];
        *field = serde_json::json!({ "enum": versions, "description": "Version of this layout." });
    }
    schema
}

fn schema_of<T: JsonSchema>(version: u32) -> Schema {
    let mut schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>();
    // The version is not any number, but the one that this layout has.
    if let Some(field) = schema.pointer_mut("/properties/schema_version") {
        *field = serde_json::json!({ "const": version, "description": "Version of this layout." });
    }
    schema
}

/// What a saved file says of a run.
pub enum Saved {
    /// It was judged.
    Report(Box<Report>),
    /// It could not be made.
    Failure(Failure),
    /// It was judged in part.
    Part(Box<Part>),
}

impl Saved {
    /// Its place in a batch.
    pub fn place(&self) -> Option<&Place> {
        match self {
            Self::Report(report) => report.batch.as_ref(),
            Self::Failure(failure) => failure.batch.as_ref(),
            Self::Part(_) => None,
        }
    }
}

/// The oldest layout that is read as well: fields were renamed since, and read by either name.
const OLDEST: u32 = 2;

/// Reads a report, or what was written in its place.
///
/// # Errors
/// A file that is not there, is no report, or is of another version.
pub fn read(path: &Path) -> Result<Saved> {
    let shown = path.display();
    let bytes = input::bytes(path, input::REPORT).with_context(|| format!("cannot read {shown}"))?;
    parse(&bytes, &shown.to_string())
}

/// The same of the bytes of a file called `shown`. The outcome of a report is computed from its contents, not taken
/// from its word for it.
///
/// # Errors
/// As [`read`].
pub fn parse(bytes: &[u8], shown: &str) -> Result<Saved> {
    #[derive(Deserialize)]
    struct Head {
        schema_version: Option<u64>,
        kind: Option<String>,
    }
    let head: Head =
        serde_json::from_slice(bytes).with_context(|| format!("{shown} is no report that `qdiff run --json` wrote"))?;
    match head.schema_version {
        None => {
            bail!("{shown} has no schema_version: it is no report that `qdiff run --json` wrote")
        }
        Some(v) if !(OLDEST.into()..=SCHEMA_VERSION.into()).contains(&v) => {
            bail!("{shown} has schema_version {v}, this qdiff reads {OLDEST} to {SCHEMA_VERSION}; run it again")
        }
        Some(_) => {}
    }
    let whole = || format!("{shown} is no whole report");
    Ok(match head.kind.as_deref() {
        Some("run") | None => {
            let mut report: Box<Report> = serde_json::from_slice(bytes).with_context(whole)?;
            if let Some(what) = report.miscounts() {
                bail!("{}: {what} has more rows in a part than in the whole", whole());
            }
            report.outcome = report.comes_to();
            Saved::Report(report)
        }
        Some("failure") => Saved::Failure(serde_json::from_slice(bytes).with_context(whole)?),
        Some("part") => {
            let part: Box<Part> = serde_json::from_slice(bytes).with_context(whole)?;
            if part::checksum(bytes)? != part.checksum {
                bail!(
                    "{shown} is not what `qdiff judge` wrote: its checksum is of other content; judge that part again"
                );
            }
            Saved::Part(part)
        }
        Some(kind) => bail!("{shown} is of kind `{kind}`; a report of one run has kind `run`"),
    })
}
