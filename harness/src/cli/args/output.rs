//! Where a report goes, and what a command that makes one takes beside it.

use crate::runners::Source;
use crate::tasks::values;
use clap::{Args, ValueEnum};
use std::path::{Path, PathBuf};

/// Where a report goes, beside the screen, and how long it is.
#[derive(Clone, Debug, Args)]
pub struct OutputArgs {
    /// Show a row per stage and layer
    #[arg(long, help_heading = "Output")]
    pub full: bool,
    #[command(flatten)]
    pub files: FileArgs,
}

/// Where a report goes, beside the screen.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct FileArgs {
    /// Also write the report to a file; its extension chooses the format: .md, .html, .json, .xml (JUnit) or .svg (badge);
    /// repeatable
    #[arg(long, value_name = "FILE", env = "QDIFF_REPORT")]
    pub report: Vec<PathBuf>,
    /// Also write the report as JSON; `-` writes it to standard output, and the screen to stderr
    #[arg(long, value_name = "FILE", env = "QDIFF_JSON")]
    pub json: Option<PathBuf>,
    /// Also write the report as markdown; `-` is standard output
    #[arg(long, value_name = "FILE", env = "QDIFF_MARKDOWN")]
    pub markdown: Option<PathBuf>,
    /// Also write the report as an HTML page; `-` is standard output
    #[arg(long, value_name = "FILE", env = "QDIFF_HTML")]
    pub html: Option<PathBuf>,
    /// Also write the report as JUnit XML; `-` is standard output
    #[arg(long, value_name = "FILE", env = "QDIFF_JUNIT")]
    pub junit: Option<PathBuf>,
    /// Also write a badge for a README (SVG), with the hashes of model, tokens and report; `-` is standard output
    #[arg(long, value_name = "FILE", env = "QDIFF_BADGE")]
    pub badge: Option<PathBuf>,
    /// Also report to a CI system
    #[arg(long, value_enum, value_name = "SYSTEM", env = "QDIFF_CI")]
    pub ci: Option<Ci>,
}

impl FileArgs {
    /// The files by the names of their formats.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let Self { report: _, json, markdown, html, junit, badge, ci: _ } = self;
        let all = [("json", json), ("markdown", markdown), ("html", html), ("junit", junit), ("badge", badge)];
        all.into_iter().filter_map(|(name, path)| Some((name, path.as_deref()?)))
    }
}

/// Where the report of a command goes.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// What the command is called.
    pub command: &'static str,
    /// The places.
    pub files: &'a FileArgs,
    /// How many reports there will be; more than one counts as two.
    pub reports: usize,
}

/// What a list holds, as JSON.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct JsonArgs {
    /// Also write the list as JSON; `-` writes it to standard output, and the text to stderr
    #[arg(long, value_name = "FILE", env = "QDIFF_JSON")]
    pub json: Option<PathBuf>,
}

/// A CI system that takes annotations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Ci {
    /// GitHub Actions: the job summary, and an annotation for the first origin
    Github,
}

/// A request to a task, and the places of its report.
#[derive(Clone, Debug, Args)]
pub struct Reported<R: Args, O: Args = FileArgs> {
    /// The request.
    #[command(flatten)]
    pub request: R,
    /// Where the report goes.
    #[command(flatten)]
    pub output: O,
}

/// The same of a task that `git bisect run` may ask.
#[derive(Clone, Debug, Args)]
pub struct Bisected<R: Args> {
    #[command(flatten)]
    pub request: R,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Exit with the codes of `git bisect run`: 125 skips a commit whose engine fails or cannot be judged whole; 128, for
    /// all other trouble, such as a missing program, ends the bisect
    #[arg(long, help_heading = "Output")]
    pub bisect: bool,
}

/// `qdiff report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Reports that qdiff wrote as JSON, or all parts that `judge` wrote
    #[arg(value_name = "FILE", required = true)]
    pub inputs: Vec<PathBuf>,
    /// Run each report again instead, and compare model, tokens, tolerances, outcome, origins and coverage
    #[arg(long)]
    pub verify: bool,
    /// The model for --verify, if it is not where the report says
    #[arg(short, long, value_name = "MODEL", requires = "verify")]
    pub model: Option<PathBuf>,
    /// The subject for --verify. qdiff starts no command that a report names: give it here
    #[arg(long, value_name = "ENGINE", requires = "verify", value_parser = values::SUBJECT, hide_possible_values = true)]
    pub subject: Option<Source>,
    #[command(flatten)]
    pub output: OutputArgs,
}
