//! Arguments of `qdiff run`.

use super::{CaptureArgs, OutputArgs, PromptArgs};
use crate::cli::batch::Shard;
use crate::runners::Spec;
use clap::Args;
use std::path::PathBuf;

/// `qdiff run`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  qdiff run --prompt haiku
  qdiff run --prompt 'Why is the sky blue?' -n 16
  qdiff run --prompt @notes.txt --raw --stages 'attn_*' --layers 0,5-7 --full
  qdiff run --inject rope-base:base=10000@L07
  qdiff run --tolerance 'L*.ffn_down=1e-3' --report report.html --report junit.xml")]
pub struct RunArgs {
    /// Model and tokens
    #[command(flatten)]
    pub prompt: PromptArgs,
    /// Many prompts, with the model loaded once: a file with a prompt a line, each as --prompt takes it, or a folder of .txt files
    #[arg(long, value_name = "FILE|DIR")]
    pub prompts: Option<PathBuf>,
    /// Only this part of --prompts, such as 1/4: for CI matrices
    #[arg(long, value_name = "PART/PARTS", requires = "prompts")]
    pub shard: Option<Shard>,
    /// Where --prompts writes a JSON report per prompt, which `qdiff report` puts together
    #[arg(
        long,
        value_name = "DIR",
        requires = "prompts",
        default_value_if("prompts", clap::builder::ArgPredicate::IsPresent, "qdiff-report")
    )]
    pub json_dir: Option<PathBuf>,
    /// Steps and memory
    #[command(flatten)]
    pub capture: CaptureArgs,
    /// The runner under suspicion: auto (CUDA where there is a GPU, else the CPU), cpu, cuda, cuda-fast, llama, llama-cuda, or capture:DIR
    #[arg(
        long,
        value_name = "RUNNER",
        default_value = "auto",
        env = "QDIFF_SUBJECT"
    )]
    pub subject: Spec,
    /// Names of the subject's arrays: a file of lines THEIRS = OURS (see docs/bring-your-own-engine.md)
    #[arg(long, value_name = "FILE", env = "QDIFF_MAP")]
    pub map: Option<PathBuf>,
    /// The runner it is held against: llama (llama.cpp on the CPU), llama-cuda (on the GPU; see
    /// scripts/build-ggml-cuda), cpu, cuda, cuda-fast, capture:DIR, or none: then by its own
    /// operands and by what no correct model does
    #[arg(
        long,
        value_name = "RUNNER",
        default_value = "llama",
        env = "QDIFF_REFERENCE"
    )]
    pub reference: Spec,
    /// Only stages that match the pattern, such as 'L07.*' or 'attn_*'; repeatable
    #[arg(long, value_name = "GLOB", value_delimiter = ',', env = "QDIFF_STAGES")]
    pub stages: Vec<String>,
    /// Only these layers, such as 0,5-7
    #[arg(long, value_name = "LIST", env = "QDIFF_LAYERS")]
    pub layers: Option<String>,
    /// Only these token positions, such as 0,12-15
    #[arg(long, value_name = "LIST", env = "QDIFF_POSITIONS")]
    pub positions: Option<String>,
    /// Allow a stage this relative L2 per row instead of its bound; repeatable,
    /// the last rule that matches wins
    #[arg(long, value_name = "GLOB=NUMBER", env = "QDIFF_TOLERANCE")]
    pub tolerance: Vec<String>,
    /// Seconds that the search for causes may take
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 10.0,
        env = "QDIFF_WHY_BUDGET"
    )]
    pub why_budget: f64,
    /// Inject a fault into the subject: NAME[:PARAM=VALUE,…][@L07, @L07.q_rope or @p3000..]; repeatable
    #[arg(long, value_name = "FAULT", env = "QDIFF_INJECT")]
    pub inject: Vec<String>,
    /// Run the subject so often first, and compare the runs bit by bit: a race shows before all else
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..), env = "QDIFF_REPEAT")]
    pub repeat: u16,
    /// Where the report goes
    #[command(flatten)]
    pub output: OutputArgs,
    /// Exit with 125 instead of 2 and 3, for `git bisect run`
    #[arg(long)]
    pub bisect: bool,
}
