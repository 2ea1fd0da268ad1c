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

use anyhow::{Context as _, Result};
use std::path::Path;

/// A way to lay out what is told in a file.
pub struct Format {
    /// What it is called, as an option of the command line: `--markdown`.
    pub name: &'static str,
    /// Extension of its files, without the dot.
    pub extension: &'static str,
    /// Whether one file can hold several documents.
    pub several: bool,
    /// The whole file. What should be among the documents and is not comes second, a sentence each: a format of
    /// several tells it, so that none of them passes for all.
    pub render: fn(&[&dyn Told], &[String]) -> Result<String>,
}

/// Every format that is a file.
pub static FORMATS: [Format; 4] = [
    Format { name: "json", extension: "json", several: false, render: json::render },
    Format { name: "markdown", extension: "md", several: true, render: markdown::render },
    Format { name: "html", extension: "html", several: true, render: page::render },
    Format { name: "junit", extension: "xml", several: true, render: junit::render },
];

/// The format that the extension of `path` stands for.
///
/// # Errors
/// An extension that stands for none.
pub fn format_of(path: &Path) -> Result<&'static Format> {
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("");
    FORMATS.iter().find(|f| f.extension == extension).with_context(|| {
        let known = FORMATS.each_ref().map(|f| format!(".{}", f.extension)).join(", ");
        format!("cannot tell the format of {} from its extension; it takes {known}", path.display())
    })
}

/// The format of this name.
pub fn format_named(name: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|f| f.name == name)
}
