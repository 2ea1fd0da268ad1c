//! Where a report goes: shared by the commands that make one.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Where a report goes, beside the screen.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Show a row per stage and layer
    #[arg(long)]
    pub full: bool,
    /// Also write the report; the extension says how: .md, .html, .json or .xml (JUnit); repeatable
    #[arg(long, value_name = "FILE", env = "QDIFF_REPORT")]
    pub report: Vec<PathBuf>,
    /// JSON
    #[command(flatten)]
    pub json: JsonArgs,
    /// Also tell a CI system
    #[arg(long, value_enum, value_name = "SYSTEM", env = "QDIFF_CI")]
    pub ci: Option<Ci>,
}

/// What was found, as JSON.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct JsonArgs {
    /// Also write what was found as JSON, whatever the name of the file
    #[arg(long, value_name = "FILE", env = "QDIFF_JSON")]
    pub json: Option<PathBuf>,
}

/// A CI system that can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Ci {
    /// GitHub Actions: the job summary, and an annotation for the first origin
    Github,
}
