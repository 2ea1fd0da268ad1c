//! What is measured.

use crate::report::bench::usual_depth;
use anyhow::Result;
use clap::{Args, ValueEnum};
use qdiff::loaded::LoadedModel;
use qdiff::products::OracleChoice;
use qdiff::tasks::{GemmRequest, PromptRequest, ThreadsRequest, values};
use qdiff::verdict::CheckMode;
use std::path::PathBuf;

/// What to measure.
#[derive(Clone, Debug, Args)]
pub struct BenchRequest {
    /// What to measure
    #[arg(long, value_enum, default_value_t = Measure::Speed)]
    pub measure: Measure,
    #[command(flatten)]
    pub prompt: PromptRequest,
    #[command(flatten)]
    pub threads: ThreadsRequest,
    #[command(flatten)]
    pub gemm: GemmRequest,
    /// Rounds; both sides run in each, and the medians are printed
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..), help_heading = "How to run it")]
    pub rounds: u16,
    /// Tokens of context before the first decode step that is timed (`--measure cuda` and `batch`)
    #[arg(long, value_name = "TOKENS", default_value_t = usual_depth(), env = "QDIFF_DEPTH", help_heading = "How to run it")]
    pub depth: usize,
    /// Tokens of the timed prefill, and of a step at most (`--measure cuda` and `batch`)
    #[arg(long, value_name = "TOKENS", default_value_t = usual_depth(), env = "QDIFF_PREFILL", help_heading = "How to run it")]
    pub prefill: usize,
    /// Sequences that decode in one pass (`--measure batch`)
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 8, 32], help_heading = "How to run it")]
    pub sequences: Vec<usize>,
    /// Skip llama.cpp and the ratios to it (`--measure cuda` and `batch`)
    #[arg(long, env = "QDIFF_ALONE", help_heading = "How to run it")]
    pub alone: bool,
    /// llama.cpp's own program to measure it, `llama-bench`, built with CUDA: the faster of it and of llama.cpp in this
    /// process is what counts (`--measure cuda`)
    #[arg(long, value_name = "PROGRAM", env = "QDIFF_LLAMA_BENCH", help_heading = "How to run it")]
    pub llama_bench: Option<PathBuf>,
    /// Stages that are tapped where some are (`--measure cuda`), such as 'L*.attn_*'; unless given, the residual stream
    /// after each layer and the logits
    #[arg(long, value_name = "GLOB", value_delimiter = ',', env = "QDIFF_TAPS", value_parser = values::STAGE,
          hide_possible_values = true, help_heading = "What to run")]
    pub taps: Vec<String>,
    /// Further models to measure (`--measure verdict`)
    #[arg(long, value_name = "FILE", num_args = 1.., help_heading = "What to run")]
    pub also: Vec<PathBuf>,
    /// Tokens of the prompts (`--measure verdict`), each length twice the one before, to measure growth
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [64, 128, 256, 512, 1024], help_heading = "What to run")]
    pub lengths: Vec<usize>,
    /// How the stages are checked (`--measure verdict`); above 512 tokens, `full` is skipped on the CPU
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [CheckMode::Full, CheckMode::Probe], help_heading = "How to run it")]
    pub check: Vec<CheckMode>,
    /// Where linear layers are evaluated in f64 (`--measure verdict`)
    #[arg(long, value_name = "WHERE", value_enum, value_delimiter = ',', default_values_t = [OracleChoice::Cpu], help_heading = "How to run it")]
    pub oracle: Vec<OracleChoice>,
    /// Print the change against the figures of an earlier --json file (`--measure cuda`)
    #[arg(long, value_name = "FILE", env = "QDIFF_BASELINE", help_heading = "Output", display_order = 99)]
    pub baseline: Option<PathBuf>,
}

impl BenchRequest {
    /// The prompt's tokens, repeated or cut to `length`.
    pub(super) fn cycled(&self, opened: &LoadedModel, length: usize) -> Result<Vec<u32>> {
        let ready = self.prompt.ready(opened, 0)?;
        Ok(ready.tokens.iter().copied().cycle().take(length).collect())
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Measure {
    /// Prefill and decode of the CPU engine, untapped, against llama.cpp
    Speed,
    /// Prefill and decode of the CUDA engine, with and without taps, against llama.cpp on the same card
    Cuda,
    /// Decode of several sequences in one pass by the fused CUDA path, against llama.cpp on the same card
    Batch,
    /// Decode steps of the fused CUDA path to the end of the context: host and device memory must stay flat
    Soak,
    /// Wall time and peak memory of a whole `run -n 0` against llama.cpp loading and doing the tapped prefill alone
    Run,
    /// That tapped prefill alone: what `run` is measured against
    TappedPrefill,
    /// Judging the CPU engine, by tokens, layers, models, check and oracle, against llama.cpp's tapped prefill
    Verdict,
}

/// The value in the middle; of an even number of values, the mean of the two.
pub(super) fn median(mut x: Vec<f64>) -> f64 {
    x.sort_by(f64::total_cmp);
    (x[(x.len() - 1) / 2] + x[x.len() / 2]) / 2.0
}
