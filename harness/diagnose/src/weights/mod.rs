//! The stage before all others: every tensor there, and every value as ggml
//! reads it; where not, down to the block and the field of it.
//!
//! `blocks` finds and describes the blocks that differ, `field` says of values that differ over equal bytes which field
//! was decoded wrongly (`codes`, where weights are numbers of a table), `cause` looks for the fault of the catalogue that reads so, `metadata` holds the keys of two files
//! against each other, `sides` holds what is not a file, `kept` remembers which file was compared by which program.

mod blocks;
mod cause;
mod check;
mod codes;
mod compared;
mod field;
mod kept;
mod metadata;
mod sides;

pub use cause::WeightCause;
pub use check::{BlockDiff, FieldDiff, Mismatch, WeightCheck};
use compared::Compared;
pub use metadata::KeyDiff;
pub use sides::misread;

use crate::llama::gguf::GgmlWeights;
use crate::loaded::LoadedModel;
use crate::oracle::Oracle;
use crate::progress::{Progress, silent};
use anyhow::Result;
use kept::once;
use qdiff_engine::cuda::CudaEngine;
use qdiff_engine::gguf::Gguf;
use qdiff_engine::model::{Graph, Model, Weight, WeightSource};
use sides::ReadBack;
use std::collections::HashSet;
use std::convert::Infallible;

/// What is being done, as progress tells it.
const DOING: &str = "comparing weights";

/// Compares every weight of a model that a run judges with the oracle's reading; `hash` is the model's.
pub fn of_run(opened: &LoadedModel, oracle: &Oracle<'_>, hash: &str) -> WeightCheck {
    if opened.is_read_alone() {
        let why = "this build has no ggml: the engine's own reader gave the weights for the evaluation in f64";
        return WeightCheck { unchecked: Some(why.to_owned()), ..WeightCheck::default() };
    }
    once(hash, || check(&opened.model, &opened.model, oracle, &silent))
}

/// Compares every value of every tensor the graph reads with ggml's, bit by bit: as `subject` reads them.
pub fn check(model: &Model, subject: &dyn WeightSource, oracle: &Oracle<'_>, progress: Progress<'_>) -> WeightCheck {
    let Ok(check) = check_used::<Infallible>(model, oracle, progress, |_, against_ggml| Ok(against_ggml(subject)));
    check
}

/// As [`check`], for the tensors on a device: bytes and values.
///
/// # Errors
/// If CUDA fails.
pub fn check_device(
    model: &Model, engine: &CudaEngine, oracle: &Oracle<'_>, progress: Progress<'_>,
) -> Result<WeightCheck> {
    check_used(model, oracle, progress, |tensor, against_ggml| {
        let (ty, bytes) = engine.read_weight(tensor)?;
        Ok(against_ggml(&ReadBack { ty, extent: model.extent(tensor), bytes }))
    })
}

/// Every tensor the graph reads: `compare` is given its name, and what holds a reader of it against ggml.
fn check_used<E>(
    model: &Model, oracle: &Oracle<'_>, progress: Progress<'_>,
    compare: impl Fn(&str, &dyn Fn(&dyn WeightSource) -> Option<Mismatch>) -> Result<Option<Mismatch>, E>,
) -> Result<WeightCheck, E> {
    let used = model.graph().tensors();
    let mut check = WeightCheck::default();
    let reference = &oracle.weights;
    for (done, Weight { name: tensor, .. }) in used.iter().enumerate() {
        progress(DOING, done, used.len());
        let start = reference.start(tensor);
        let against_ggml = |subject: &dyn WeightSource| {
            let file = file_of(model.gguf(), tensor);
            let compared = Compared { tensor, subject, reference, start, file, one_reader: false };
            blocks::compare(&compared, Some(model.graph()))
        };
        check.count(model.extent(tensor), compare(tensor, &against_ggml)?);
    }
    progress(DOING, used.len(), used.len());
    Ok(check)
}

/// Compares the metadata and tensors of two files, each with its weights as ggml reads them. Offsets are those of
/// `subject`; `graph` is the subject's, where it is a model that can be run.
pub fn check_files(
    (ours, subject): (&Gguf, &GgmlWeights<'_>), (theirs, reference): (&Gguf, &GgmlWeights<'_>), graph: Option<&Graph>,
    progress: Progress<'_>,
) -> WeightCheck {
    let (metadata, not_finite) = (metadata::compare(ours, theirs), ours.not_finite());
    // What reads NaN out of a damaged block decodes it rightly: no cause is looked for.
    let damaged: HashSet<String> = not_finite.iter().cloned().chain(theirs.not_finite()).map(|t| t.tensor).collect();
    let mut check = WeightCheck { metadata, not_finite, ..WeightCheck::default() };
    let names = subject.names();
    let only_theirs = reference.names().into_iter().filter(|t| subject.dims(t).is_none());
    check.unpaired = only_theirs.map(|t| format!("{t}: only in the file it is held against")).collect();
    for (done, tensor) in names.iter().enumerate() {
        progress(DOING, done, names.len());
        match reference.dims(tensor) {
            None => check.unpaired.push(format!("{tensor}: only in the file under suspicion")),
            Some(dims) if Some(dims) != subject.dims(tensor) => check.unpaired.push(format!(
                "{tensor}: of shape {:?} here, {dims:?} there",
                subject.dims(tensor).unwrap_or_default()
            )),
            Some(_) => {
                let (start, file) = (subject.start(tensor), file_of(ours, tensor));
                let compared = Compared { tensor, subject, reference, start, file, one_reader: true };
                let sound = graph.filter(|_| !damaged.contains(*tensor));
                check.count(subject.extent(tensor), blocks::compare(&compared, sound));
            }
        }
    }
    progress(DOING, names.len(), names.len());
    check
}

/// The file that a tensor is in, where there are several.
fn file_of(model: &Gguf, tensor: &str) -> Option<String> {
    model.tensor(tensor).and_then(|info| model.file_of(info))
}
