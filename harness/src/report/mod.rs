//! Reports: one model of what is told, one file per format.
//!
//! A [`Report`] is data: it is written as JSON, read back, and told by any
//! [`Format`]. `summary` and `table` are what all formats say alike; a format
//! decides nothing and computes no metric of its own.

mod batch;
pub mod book;
pub mod file;
pub mod generation;
pub mod github;
mod html;
pub mod json;
mod junit;
pub mod logits;
mod markdown;
mod model;
mod overview;
pub mod schema;
mod summary;
mod table;
pub mod terminal;
pub mod weights;

pub use batch::{Failure, Place, gaps};
pub use model::{Doubt, Kind, ModelInfo, Outcome, Report, RunInfo, SCHEMA_VERSION, Seconds, Suspect};
pub use overview::render as overview;
pub use summary::Summary;

use anyhow::{Result, bail};
use std::path::Path;

/// A way to tell what was found.
pub trait Format: Sync {
    /// Extension of its files, without the dot.
    fn extension(&self) -> &'static str;

    /// Whether one file can hold several reports.
    fn several(&self) -> bool;

    /// The whole file. `absent` is what should be among the reports and is not,
    /// a sentence each: a format of several reports tells it, so that none of
    /// them passes for all.
    ///
    /// # Errors
    /// If the report cannot be put in this format.
    fn render(&self, reports: &[Report], absent: &[String]) -> Result<String>;
}

/// Every format that is a file.
pub const FORMATS: &[&dyn Format] = &[&markdown::Markdown, &html::Html, &json::Json, &junit::JUnit];

/// The format that the extension of `path` stands for.
///
/// # Errors
/// An extension that stands for none.
pub fn format_of(path: &Path) -> Result<&'static dyn Format> {
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("");
    match FORMATS.iter().find(|f| f.extension() == extension) {
        Some(format) => Ok(*format),
        None => {
            let known: Vec<String> = FORMATS.iter().map(|f| format!(".{}", f.extension())).collect();
            bail!("cannot tell the format of {} from its extension; it takes {}", path.display(), known.join(", "))
        }
    }
}
