//! Two captures: judged where there is a model, else only held apart.

use super::Console;
use super::request::{FilterRequest, MemoryRequest, ThreadsRequest, ToleranceRequest};
use super::run::{RunRequest, run};
use super::sides::{MapRequest, WhyRequest};
use crate::compare::{Comparison, compare as apart};
use crate::report::Report;
use crate::runners::Source;
use anyhow::{Context as _, Result};
use clap::Args;
use std::path::PathBuf;

/// Which captures to compare.
#[derive(Clone, Debug, Args)]
pub struct CompareRequest {
    /// Folder of the capture under suspicion
    #[arg(value_name = "SUBJECT")]
    pub a: PathBuf,
    /// Folder of the capture it is held against
    #[arg(value_name = "REFERENCE")]
    pub b: PathBuf,
    /// GGUF file that the captures are of: every stage is judged. Without it they are only held apart, whatever
    /// QDIFF_MODEL and qdiff.toml say
    #[arg(short, long, help_heading = "What to run")]
    pub model: Option<PathBuf>,
    #[command(flatten)]
    pub map: MapRequest,
    #[command(flatten)]
    pub filter: FilterRequest,
    #[command(flatten)]
    pub tolerance: ToleranceRequest,
    #[command(flatten)]
    pub why: WhyRequest,
    #[command(flatten)]
    pub threads: ThreadsRequest,
    #[command(flatten)]
    pub memory: MemoryRequest,
}

/// What two captures came to.
pub enum Compared {
    /// Every stage was judged.
    Judged(Box<Report>),
    /// Without a model: how far they are apart.
    Apart(Comparison),
}

/// Judges the one against the other; without a model only their distance.
///
/// # Errors
/// Captures that cannot be read or compared.
pub fn compare(request: &CompareRequest, console: Console<'_>) -> Result<Compared> {
    if request.model.is_some() {
        let mut reports = run(&of_captures(request), console)?.reports;
        return Ok(Compared::Judged(Box::new(reports.pop().context("nothing was judged")?)));
    }
    Ok(Compared::Apart(apart(&request.a, &request.b, &request.memory.store())?))
}

/// The run that judges them: everything about tokens and steps is the captures'.
fn of_captures(request: &CompareRequest) -> RunRequest {
    let mut run = RunRequest { repeat: 1, ..RunRequest::default() };
    run.filter.clone_from(&request.filter);
    run.tolerance.clone_from(&request.tolerance);
    run.sides.subject = Source::Recorded(request.a.clone());
    run.sides.reference = Source::Recorded(request.b.clone());
    run.sides.map.clone_from(&request.map);
    run.sides.why.clone_from(&request.why);
    run.sides.tokens.prompt.model.model.clone_from(&request.model);
    run.sides.capture.runner.threads.clone_from(&request.threads);
    run.sides.capture.runner.memory.clone_from(&request.memory);
    run
}
