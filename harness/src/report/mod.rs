//! Reports: whatever a command makes is data ([`Document`]) and says what it has
//! to tell as a [`Screen`]; one file per format lays any screen out.
//!
//! `run`, `generation`, `logits`, `weights`, `sweep`, `comparison`, `oracle`,
//! `score` and `bench` make the screens; `stages` and `origin` are what several of
//! them say. A [`Format`] decides nothing and computes no metric of its own.

mod batch;
pub mod bench;
pub mod book;
mod comparison;
pub mod file;
pub mod generation;
pub mod github;
mod html;
pub mod json;
mod junit;
pub mod logits;
mod markdown;
mod model;
mod oracle;
mod origin;
mod overview;
mod page;
mod run;
pub mod schema;
mod score;
mod screen;
mod stages;
mod sweep;
pub mod terminal;
pub mod weights;

pub use batch::{Failure, Place, gaps};
pub use generation::GenerationReport;
pub use logits::LogitsReport;
pub use model::{Doubt, Kind, ModelInfo, Outcome, Report, RunInfo, SCHEMA_VERSION, Seconds, Suspect};
pub use oracle::{OracleReport, OracleStage};
pub use overview::render as overview;
pub use screen::{Check, Document, Fate, Next, Screen, Section, Table, Told};
pub use sweep::SweepReport;
pub use weights::WeightsReport;

use anyhow::{Result, bail};
use std::path::Path;

/// A way to lay out what is told.
pub trait Format: Sync {
    /// What it is called, as an option of the command line: `--markdown`.
    fn name(&self) -> &'static str;

    /// Extension of its files, without the dot.
    fn extension(&self) -> &'static str;

    /// Whether one file can hold several documents.
    fn several(&self) -> bool;

    /// The whole file. `absent` is what should be among the documents and is not,
    /// a sentence each: a format of several tells it, so that none of them passes
    /// for all.
    ///
    /// # Errors
    /// If the documents cannot be put in this format.
    fn render(&self, told: &[&dyn Told], absent: &[String]) -> Result<String>;
}

/// Every format that is a file.
pub const FORMATS: &[&dyn Format] = &[&json::Json, &markdown::Markdown, &page::Html, &junit::JUnit];

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

/// The format of this name.
pub fn format_named(name: &str) -> Option<&'static dyn Format> {
    FORMATS.iter().find(|f| f.name() == name).copied()
}
