//! Two captures: judged where there is a model, else only held apart.

use super::Console;
use super::request::{FilterRequest, MemoryRequest, ThreadsRequest, ToleranceRequest};
use super::run::{RunRequest, run};
use super::sides::{MapRequest, WhyRequest};
use crate::capture::manifest::Manifest;
use crate::capture::{Names, container};
use crate::compare::{Comparison, compare as apart, fed_otherwise};
use crate::loaded::LoadedModel;
use crate::pair::{Pair, Settings};
use crate::report::{Report, SweepReport};
use crate::runners::Source;
use crate::sweep::agree;
use anyhow::{Context as _, Result};
use clap::Args;
use std::path::PathBuf;

/// Which captures to compare.
#[derive(Clone, Debug, Args)]
pub struct CompareRequest {
    /// Folder of the capture under suspicion
    #[arg(value_name = "SUBJECT")]
    pub a: PathBuf,
    /// Folder of the capture to compare with
    #[arg(value_name = "REFERENCE")]
    pub b: PathBuf,
    /// The model of both captures: a GGUF file or a folder of safetensors. Without -m, qdiff judges no stage, measures
    /// only the distance of the captures, and ignores QDIFF_MODEL and qdiff.toml
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
    /// They have other steps: each was judged alone.
    Agreed(SweepReport),
    /// Without a model: how far they are apart.
    Apart(Comparison),
}

/// Judges the one against the other; without a model only their distance.
///
/// # Errors
/// Captures that cannot be read or compared.
pub fn compare(request: &CompareRequest, console: Console<'_>) -> Result<Compared> {
    if request.model.is_some() {
        let manifests = [container::manifest(&request.a)?, container::manifest(&request.b)?];
        if fed_otherwise(&manifests[0], &manifests[1]) {
            return Ok(Compared::Agreed(agreed(request, &manifests, console)?));
        }
        let mut reports = run(&of_captures(request), console)?.reports;
        return Ok(Compared::Judged(Box::new(reports.pop().context("nothing was judged")?)));
    }
    Ok(Compared::Apart(apart(&request.a, &request.b, &request.memory.store())?))
}

/// Judges each alone: what one engine computes of the same tokens, fed otherwise.
fn agreed(request: &CompareRequest, manifests: &[Manifest; 2], console: Console<'_>) -> Result<SweepReport> {
    let opened = LoadedModel::new(request.model.as_deref().context("a model")?)?;
    let settings = Settings { threads: request.threads.apply()?, store: request.memory.store(), ..Settings::default() };
    let mut pair = Pair::new(&opened, settings, console.progress)?;
    pair.filter = request.filter.filter(&pair.oracle.graph)?;
    pair.policy = request.tolerance.policy(&pair.oracle.graph, false)?;
    let names = match &request.map.map {
        Some(path) => Names::read(&pair.oracle.graph, path)?,
        None => Names::of(&pair.oracle.graph),
    };
    let mut recordings = Vec::new();
    for (folder, manifest) in [&request.a, &request.b].into_iter().zip(manifests) {
        if manifest.model_sha256.is_some() {
            manifest.check_model(folder, &opened.sha256())?;
        }
        opened.check(&[manifest.tokens.as_slice(), &manifest.decoded].concat(), 0)?;
        recordings.push((manifest, pair.read(folder, manifest, &names, &manifest.how())?));
    }
    let engines = recordings.iter().map(|(_, r)| r.manifest.name.clone()).collect::<Vec<_>>().join(" and ");
    let tokens = manifests[0].tokens.len() + manifests[0].decoded.len();
    let passes = agree(&pair, recordings)?;
    let sides = [engines, "nobody: each is compared with f64 on its own operands".to_owned()];
    let given = (Vec::new(), Vec::new(), request.tolerance.words());
    Ok(SweepReport::new(("captures".to_owned(), tokens), sides, given, passes))
}

/// The run that judges them: everything about tokens and steps is the captures'.
pub(super) fn of_captures(request: &CompareRequest) -> RunRequest {
    let mut run = RunRequest::default();
    run.filter.clone_from(&request.filter);
    run.tolerance.clone_from(&request.tolerance);
    run.sides.subject = Source::Recorded(request.a.clone());
    run.sides.reference = Some(Source::Recorded(request.b.clone()));
    run.sides.map.clone_from(&request.map);
    run.sides.why.clone_from(&request.why);
    run.sides.tokens.prompt.model.model.clone_from(&request.model);
    run.sides.capture.runner.threads.clone_from(&request.threads);
    run.sides.capture.runner.memory.clone_from(&request.memory);
    run
}
