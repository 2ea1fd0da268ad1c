//! Arguments of the commands that hold one runner against another.

use super::{CaptureArgs, PromptArgs};
use crate::diagnose::BUDGET;
use crate::runners::Spec;
use clap::Args;
use std::path::PathBuf;

/// The two sides, on which tokens.
#[derive(Clone, Debug, Args)]
pub struct SidesArgs {
    /// Model and tokens
    #[command(flatten)]
    pub prompt: PromptArgs,
    /// Steps and memory
    #[command(flatten)]
    pub capture: CaptureArgs,
    /// The runner under suspicion: auto (CUDA where there is a GPU, else the CPU), cpu, cuda, cuda-fast, llama, llama-cuda, or capture:DIR
    #[arg(long, value_name = "RUNNER", default_value = "auto", env = "QDIFF_SUBJECT")]
    pub subject: Spec,
    /// Names of the subject's arrays: a file of lines THEIRS = OURS (see docs/bring-your-own-engine.md)
    #[arg(long, value_name = "FILE", env = "QDIFF_MAP")]
    pub map: Option<PathBuf>,
    /// The runner it is held against: llama (llama.cpp on the CPU), llama-cuda (on the GPU; see
    /// scripts/build-ggml-cuda), cpu, cuda, cuda-fast, capture:DIR, or none: then by its own
    /// operands and by what no correct model does
    #[arg(long, value_name = "RUNNER", default_value = "llama", env = "QDIFF_REFERENCE")]
    pub reference: Spec,
    /// Seconds that the search for causes may take
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = BUDGET.as_secs_f64(),
        env = "QDIFF_WHY_BUDGET"
    )]
    pub why_budget: f64,
    /// Inject a fault into the subject: NAME[:PARAM=VALUE,…][@L07, @L07.q_rope or @p3000..]; repeatable
    #[arg(long, value_name = "FAULT", env = "QDIFF_INJECT")]
    pub inject: Vec<String>,
}
