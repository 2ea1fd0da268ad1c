//! Arguments of `qdiff bench`.

use super::PromptArgs;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// `qdiff bench`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qdiff bench --rounds 1")]
pub struct BenchArgs {
    /// Model and tokens
    #[command(flatten)]
    pub prompt: PromptArgs,
    /// What to measure
    #[arg(long, value_enum, default_value_t = Measure::Speed)]
    pub measure: Measure,
    /// Rounds; both sides run in each, and the medians are printed
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// Also write the figures as JSON (`--measure cuda`)
    #[arg(long, value_name = "FILE", env = "QDIFF_JSON")]
    pub json: Option<PathBuf>,
    /// Print the change against the figures of an earlier --json file
    #[arg(long, value_name = "FILE", env = "QDIFF_BASELINE")]
    pub baseline: Option<PathBuf>,
    /// Leave llama.cpp out, and so the ratios (`--measure cuda`)
    #[arg(long, env = "QDIFF_ALONE")]
    pub alone: bool,
}

/// What `bench` measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Measure {
    /// Prefill and decode of the CPU engine, untapped, against llama.cpp
    Speed,
    /// Prefill and decode of the CUDA engine, with and without taps, against
    /// llama.cpp on the same card
    Cuda,
    /// Decode steps of the fused CUDA path to the end of the context: host and
    /// device memory must stay flat
    Soak,
    /// Wall time and peak memory of a whole `run -n 0` against llama.cpp
    /// loading and doing the tapped prefill alone
    Run,
    /// That tapped prefill alone: what `run` is measured against
    TappedPrefill,
}
