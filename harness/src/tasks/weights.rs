//! The stage before all others: every weight against ggml's reading, or against another file.

use super::request::{ModelRequest, ThreadsRequest};
use super::{Console, faults, values};
use crate::llama::gguf::GgmlWeights;
use crate::loaded::LoadedModel;
use crate::mutations::Injection;
use crate::progress::Progress;
use crate::report::weights::WeightsReport;
use crate::runners::Source;
use crate::weights;
use anyhow::{Result, bail};
use clap::Args;
use qdiff_engine::cuda::{CudaEngine, Options};
use qdiff_engine::gguf::Gguf;
use qdiff_engine::model::Model;
use qdiff_engine::model::fault::FaultyWeights;
use std::path::{Path, PathBuf};

/// Whose weights to compare with whose.
#[derive(Clone, Debug, Args)]
pub struct WeightsRequest {
    #[command(flatten)]
    pub model: ModelRequest,
    /// Reader to compare with ggml's: cpu (qdiff's own reader), or cuda (bytes and values read back from the device)
    #[arg(long, value_name = "ENGINE", default_value = "cpu", env = "QDIFF_WEIGHTS_SUBJECT",
          value_parser = values::LIVE, hide_possible_values = true)]
    pub subject: Source,
    /// Compare with another file instead: metadata, and tensors byte by byte and value by value
    #[arg(long, value_name = "FILE.gguf", conflicts_with_all = ["subject", "inject"])]
    pub against: Option<PathBuf>,
    /// Faults, as `--inject` writes them.
    #[arg(help = "Read weights wrongly: NAME[:PARAM=VALUE,…][@L07, @L07.q_proj or @TENSOR]; repeatable (see `qdiff mutations`)", long, value_name = "MUTATION", value_parser = values::FAULT, hide_possible_values = true)]
    pub inject: Vec<String>,
}

/// Compares.
///
/// # Errors
/// Files that cannot be read, or a runner that keeps no weights of its own.
pub fn weights(request: &WeightsRequest, console: Console<'_>) -> Result<WeightsReport> {
    let injections = faults::read(&request.inject)?;
    let (kind, _) = match &request.subject {
        Source::Live(kind) if !kind.llama => {
            if kind.device && !injections.is_empty() {
                request.subject.check_faults()?;
            }
            request.subject.runner(false)?
        }
        other => bail!(
            "--subject {other} keeps no weights that can be compared; name cpu or cuda, or another file with --against"
        ),
    };
    ThreadsRequest { threads: None }.apply()?;
    let path = request.model.path()?;
    match &request.against {
        Some(other) => against(path, other, console.progress),
        None => against_ggml(path, &injections, kind.device, console.progress),
    }
}

/// What the engine reads, or holds on the device, against ggml.
fn against_ggml(path: &Path, injections: &[Injection], device: bool, progress: Progress<'_>) -> Result<WeightsReport> {
    let opened = LoadedModel::new(path)?;
    if !opened.is_folder() {
        opened.llama()?;
    }
    let oracle = opened.oracle()?;
    let (read, injected) = weights::misread(&opened.model, injections)?;
    let (subject, check) = if device {
        // Room for one token: only the weights are looked at.
        let options = Options { step: 1, context: 1, ..Options::default() };
        let engine = CudaEngine::new(&opened.model, options)?;
        let check = weights::check_device(&opened.model, &engine, &oracle, progress)?;
        (format!("cuda ({})", engine.device()), check)
    } else {
        let reader = FaultyWeights { source: &opened.model, fault: read.as_ref() };
        ("engine".to_owned(), weights::check(&opened.model, &reader, &oracle, progress))
    };
    let reference = if opened.is_folder() { "the safetensors crate" } else { "ggml" }.to_owned();
    Ok(WeightsReport { model: path.display().to_string(), subject, reference, injected, check })
}

/// One file against another. Neither need be a model that can be run; where
/// the first is, decoding errors are looked for as well.
fn against(path: &Path, other: &Path, progress: Progress<'_>) -> Result<WeightsReport> {
    let (ours, theirs) = (Gguf::open(path)?, Gguf::open(other)?);
    let (subject, reference) = (GgmlWeights::open(&ours)?, GgmlWeights::open(&theirs)?);
    let model = Model::open(path).ok();
    Ok(WeightsReport {
        model: path.display().to_string(),
        subject: path.display().to_string(),
        reference: other.display().to_string(),
        injected: Vec::new(),
        check: weights::check_files(
            (&ours, &subject),
            (&theirs, &reference),
            model.as_ref().map(Model::graph),
            progress,
        ),
    })
}
