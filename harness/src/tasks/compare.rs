//! Two captures: judged where there is a model, else only held apart.

use super::Console;
use super::request::{
    CaptureRequest, FaultRequest, FilterRequest, GemmRequest, MemoryRequest, ModelRequest, PromptRequest,
    RunnerRequest, ThreadsRequest, TokensRequest, ToleranceRequest,
};
use super::run::{BatchRequest, RunRequest, run};
use super::sides::{MapRequest, SidesRequest, WhyRequest};
use crate::arithmetic::Number;
use crate::compare::{Comparison, compare as apart};
use crate::prompts::Template;
use crate::report::Report;
use crate::runners::Source;
use anyhow::{Context as _, Result};
use clap::Args;
use qdiff_engine::cuda::Gemm;
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
    /// Names of arrays
    #[command(flatten)]
    pub map: MapRequest,
    /// Which stages
    #[command(flatten)]
    pub filter: FilterRequest,
    /// What they are allowed
    #[command(flatten)]
    pub tolerance: ToleranceRequest,
    /// The search for causes
    #[command(flatten)]
    pub why: WhyRequest,
    /// Threads
    #[command(flatten)]
    pub threads: ThreadsRequest,
    /// Memory
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
    let prompt = PromptRequest {
        model: ModelRequest { model: request.model.clone() },
        prompt: String::new(),
        typed: false,
        raw: false,
        system: None,
        template: Template::Bare,
        tokens: Vec::new(),
        length: None,
    };
    let runner = RunnerRequest {
        threads: request.threads.clone(),
        gemm: GemmRequest { gemm: Gemm::Own },
        memory: request.memory.clone(),
    };
    let capture = CaptureRequest { runner, ubatch: usize::MAX, kv_type: Number::F32 };
    RunRequest {
        sides: SidesRequest {
            tokens: TokensRequest { prompt, decode: 0 },
            capture,
            subject: Source::Recorded(request.a.clone()),
            map: request.map.clone(),
            reference: Source::Recorded(request.b.clone()),
            faults: FaultRequest { inject: Vec::new() },
            why: request.why.clone(),
        },
        batch: BatchRequest { prompts: None, shard: None, json_dir: None },
        filter: request.filter.clone(),
        tolerance: request.tolerance.clone(),
        taps: Vec::new(),
        repeat: 1,
    }
}
