//! The stages of one runner, written to disk.

use super::faults::{self, InjectedFaults};
use super::request::{CaptureRequest, FaultRequest, FilterRequest, TokensRequest};
use super::{Console, sides, values};
use crate::capture::npz;
use crate::loaded::LoadedModel;
use crate::pair::{Pair, Tokens};
use crate::runners::Source;
use anyhow::Result;
use clap::Args;
use std::path::{Path, PathBuf};

/// What to record.
#[derive(Clone, Debug, Args)]
pub struct RecordRequest {
    /// Model and tokens
    #[command(flatten)]
    pub tokens: TokensRequest,
    /// Take the tokens of this capture, those of its decode steps too, instead of a prompt
    #[arg(long, value_name = "DIR", help_heading = "What to run")]
    pub like: Option<PathBuf>,
    /// Steps and memory
    #[command(flatten)]
    pub capture: CaptureRequest,
    /// What to record
    #[arg(
        long,
        value_name = "RUNNER",
        default_value = "cpu",
        env = "QDIFF_RUNNER",
        value_parser = values::live(),
        help_heading = "Sides"
    )]
    pub runner: Source,
    /// Faults
    #[command(flatten)]
    pub faults: FaultRequest,
    /// Which stages
    #[command(flatten)]
    pub filter: FilterRequest,
    /// Folder to write; it must not exist
    #[arg(short, long, value_name = "DIR", help_heading = "Output")]
    pub out: PathBuf,
    /// Deflate the arrays: smaller by a tenth or two, and slower
    #[arg(long, help_heading = "Output")]
    pub compress: bool,
}

/// What was recorded.
pub struct Recorded {
    /// Arrays written.
    pub arrays: usize,
    /// Steps run.
    pub steps: usize,
    /// What ran.
    pub engine: String,
}

/// What is run.
struct Like {
    tokens: Vec<u32>,
    ubatch: usize,
    decode: usize,
    forced: Option<Vec<u32>>,
}

/// Runs one runner, and writes every step as soon as it is done.
///
/// # Errors
/// A folder that cannot be written, or whatever keeps the runner from running.
pub fn record(request: &RecordRequest, console: Console<'_>) -> Result<Recorded> {
    let injections = faults::read(&request.faults.inject)?;
    let rewriting = faults::rewriting(&injections, &request.runner)?;
    let kind = sides::subject(&request.runner, rewriting, console)?;
    npz::check_target(&request.out)?;
    let settings = request.capture.settings()?;
    let opened = request.tokens.prompt.model.open()?;
    let mut pair = Pair::new(&opened, settings, console.progress)?;
    pair.filter = request.filter.filter(&pair.oracle.graph)?;
    let like = match &request.like {
        Some(folder) => like(&opened, folder)?,
        None => Like {
            tokens: request.tokens.ready(&opened)?.tokens,
            ubatch: request.capture.ubatch,
            decode: request.tokens.decode,
            forced: None,
        },
    };
    let tokens = like.tokens;
    pair.filter.check(&pair.oracle.graph, tokens.len() + like.decode)?;
    let faults = InjectedFaults::new(&opened, &injections, &[])?.stages;
    let what = Tokens { prompt: &tokens, ubatch: like.ubatch, decode: like.decode, forced: like.forced.as_deref() };
    let mut writer = npz::Writer::create(&request.out, request.compress)?;
    let mut runner = pair.runner(kind, what, faults)?;
    let fed = pair.steps(runner.as_mut(), what, |step| writer.step(&step))?;
    let of = runner.manifest();
    let (steps, engine) = (what.steps(), of.name.clone());
    let manifest = npz::Manifest {
        schema_version: npz::SCHEMA_VERSION,
        engine: engine.clone(),
        model_sha256: Some(opened.sha256()),
        ubatch: (what.longest() < tokens.len()).then_some(what.ubatch),
        positions: pair.filter.kept(tokens.len() + fed.len()),
        tokens: tokens.clone(),
        decoded: fed,
        arithmetic: Some(of.arithmetic.clone()),
    };
    Ok(Recorded { arrays: writer.finish(&manifest)?, steps, engine })
}

/// The tokens of the capture in `folder`, in its steps.
fn like(opened: &LoadedModel, folder: &Path) -> Result<Like> {
    let manifest = npz::manifest(folder)?;
    manifest.check_model(folder, &opened.sha256())?;
    opened.check(&[manifest.tokens.as_slice(), &manifest.decoded].concat(), 0)?;
    Ok(Like {
        ubatch: manifest.ubatch.unwrap_or(manifest.tokens.len()),
        tokens: manifest.tokens,
        decode: manifest.decoded.len(),
        forced: Some(manifest.decoded),
    })
}
