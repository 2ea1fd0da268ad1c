//! `qdiff weights`.

use super::args::WeightsArgs;
use super::output::Output;
use super::planted;
use super::setup::{self, Bar};
use crate::llama::gguf::GgmlWeights;
use crate::mutations::Injection;
use crate::oracle::Oracle;
use crate::report::weights::WeightsReport;
use crate::runners::Spec;
use crate::weights::{self, Misreading, WeightCheck};
use anyhow::{Result, bail};
use qdiff_engine::cuda::{CudaEngine, Options};
use qdiff_engine::gguf::Gguf;
use qdiff_engine::model::Model;
use std::path::Path;

/// Who was compared with whom, and what was found.
struct Outcome {
    subject: String,
    reference: String,
    injected: Vec<String>,
    check: WeightCheck,
}

/// Compares; gives the exit code.
pub(super) fn run(args: &WeightsArgs) -> Result<u8> {
    let injections = planted::read(&args.inject)?;
    let output = Output::files(&args.files, 1)?;
    let device = match &args.subject {
        Spec::Cpu => false,
        Spec::Cuda | Spec::CudaFast => true,
        other => bail!(
            "--subject {other} keeps no weights that can be compared; name cpu or cuda, or another file with --against"
        ),
    };
    if device {
        if !injections.is_empty() {
            args.subject.check_faults()?;
        }
        args.subject.resolve(false)?;
    }
    setup::threads(None)?;
    let path = setup::model_path(args.model.model.as_ref())?;
    let bar = Bar::new();
    let progress = |done, total| bar.show("comparing weights", done, total);
    let outcome = match &args.against {
        Some(other) => against(&path, other, &progress)?,
        None => against_ggml(&path, &injections, device, &progress)?,
    };
    let report = WeightsReport {
        model: setup::show(&path),
        subject: outcome.subject,
        reference: outcome.reference,
        injected: outcome.injected,
        check: outcome.check,
    };
    output.tell(&report)
}

/// What the engine reads, or holds on the device, against ggml.
fn against_ggml(
    path: &Path,
    injections: &[Injection],
    device: bool,
    progress: weights::Progress<'_>,
) -> Result<Outcome> {
    let opened = crate::loaded::LoadedModel::new(path)?;
    let oracle = Oracle::new(path, opened.bytes(), &opened.llama)?;
    let (reader, injected) = Misreading::new(&opened.model, injections)?;
    let (subject, check) = if device {
        // Room for one token: only the weights are looked at.
        let options = Options { step: 1, context: 1, ..Options::default() };
        let engine = CudaEngine::new(&opened.model, options)?;
        let check = weights::check_device(&opened.model, &engine, &oracle, progress)?;
        (format!("cuda ({})", engine.device()), check)
    } else {
        let check = weights::check_reader(&opened.model, &reader, &oracle, progress);
        ("engine".to_owned(), check)
    };
    Ok(Outcome { subject, reference: "ggml".to_owned(), injected, check })
}

/// One file against another. Neither need be a model that can be run; where
/// the first is, decoding errors are looked for as well.
fn against(path: &Path, other: &Path, progress: weights::Progress<'_>) -> Result<Outcome> {
    let (ours, theirs) = (Gguf::open(path)?, Gguf::open(other)?);
    let subject = GgmlWeights::open(path, ours.bytes())?;
    let reference = GgmlWeights::open(other, theirs.bytes())?;
    let model = Model::open(path).ok();
    let graph = model.as_ref().map(Model::graph);
    Ok(Outcome {
        subject: setup::show(path),
        reference: setup::show(other),
        injected: Vec::new(),
        check: weights::check_files(&subject, &reference, graph, progress),
    })
}
