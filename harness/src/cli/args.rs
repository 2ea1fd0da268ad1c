//! The command line.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::str::FromStr;

/// Finds the stage of the layer at which an LLM inference engine first departs
/// from llama.cpp, and says why.
#[derive(Debug, Parser)]
#[command(
    name = "qdiff",
    version,
    after_help = "\
Exit codes: 0 match, 1 diverged, 2 trouble, 3 no divergence but coverage incomplete.

Examples:
  qdiff run --prompt haiku
  qdiff run --prompt haiku --inject qkv-bias-omitted@L07
  qdiff inspect model.gguf"
)]
pub struct Cli {
    /// When to colour the output
    #[arg(long, global = true, value_enum, default_value_t = ColorChoice::Auto, env = "QDIFF_COLOR")]
    pub color: ColorChoice,
    /// Let llama.cpp say what it does, on stderr
    #[arg(short, long, global = true)]
    pub verbose: bool,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// When to colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run subject and reference side by side and judge every stage
    Run(RunArgs),
    /// Say what a GGUF file is and what the graph will use of it
    Inspect(ModelArg),
    /// Check every tensor the graph uses, and its values against ggml's own
    Weights(ModelArg),
    /// Hold llama.cpp, on weights dequantised to F32, against the f64 oracle
    VerifyOracle(OracleArgs),
    /// Write the stages of one runner to disk, as npz with a manifest
    Record(RecordArgs),
    /// List the built-in prompts
    Prompts,
    /// List the faults that can be injected with `run --inject`
    Mutations,
    /// List what the engine can run on
    Devices,
    /// Time and memory against llama.cpp, as ratios of one run
    Bench(BenchArgs),
}

/// The model.
#[derive(Debug, Args)]
pub struct ModelArg {
    /// GGUF file (or QDIFF_MODEL; `./scripts/qdiff` fetches a default)
    #[arg(value_name = "MODEL", env = "QDIFF_MODEL", hide_env_values = true)]
    pub model: Option<PathBuf>,
}

/// Which tokens to run.
#[derive(Debug, Args)]
pub struct PromptArgs {
    /// GGUF file (or QDIFF_MODEL; `./scripts/qdiff` fetches a default)
    #[arg(short, long, env = "QDIFF_MODEL", hide_env_values = true)]
    pub model: Option<PathBuf>,
    /// A built-in prompt (see `qdiff prompts`), text, @FILE, or - for standard input
    #[arg(short, long, default_value = "haiku", env = "QDIFF_PROMPT")]
    pub prompt: String,
    /// Take the text as it stands instead of as a user turn
    #[arg(long, env = "QDIFF_RAW")]
    pub raw: bool,
    /// Token ids, such as 1,2,3; they take precedence over a prompt
    #[arg(long, value_delimiter = ',', env = "QDIFF_TOKENS")]
    pub tokens: Vec<u32>,
    /// Decode steps after the prompt, forced on the reference's choices
    #[arg(short = 'n', long, default_value_t = 8, env = "QDIFF_DECODE")]
    pub decode: usize,
    /// Threads for llama.cpp and the CPU engine [default: all cores]
    #[arg(short, long, env = "QDIFF_THREADS")]
    pub threads: Option<usize>,
}

/// `qdiff run`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qdiff run --prompt haiku
  qdiff run --prompt 'Why is the sky blue?' -n 16
  qdiff run --prompt @notes.txt --raw --stages 'attn_*' --layers 0,5-7 --full
  qdiff run --inject rope-base:base=10000@L07
  qdiff run --tolerance 'L*.ffn_down=1e-3' --json report.json")]
pub struct RunArgs {
    /// Model and tokens
    #[command(flatten)]
    pub prompt: PromptArgs,
    /// The runner under suspicion: auto (CUDA where there is a GPU, else the CPU), cpu, cuda, or capture:DIR
    #[arg(
        long,
        value_name = "RUNNER",
        default_value = "auto",
        env = "QDIFF_SUBJECT"
    )]
    pub subject: Subject,
    /// The runner it is held against: llama, or capture:DIR
    #[arg(
        long,
        value_name = "RUNNER",
        default_value = "llama",
        env = "QDIFF_REFERENCE"
    )]
    pub reference: Reference,
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
    /// A row per stage and layer
    #[arg(long)]
    pub full: bool,
    /// Inject a fault into the subject: NAME[:PARAM=VALUE][@L07 or @L07.q_rope]; repeatable
    #[arg(long, value_name = "FAULT", env = "QDIFF_INJECT")]
    pub inject: Vec<String>,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE", env = "QDIFF_JSON")]
    pub json: Option<PathBuf>,
    /// Exit with 125 instead of 2 and 3, for `git bisect run`
    #[arg(long)]
    pub bisect: bool,
}

/// A runner under suspicion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// CUDA where there is a GPU, else the CPU; the CPU where faults are injected.
    Auto,
    /// The engine's CPU interpreter.
    Cpu,
    /// The engine's CUDA forward pass, every stage materialised.
    Cuda,
    /// A recorded capture, of whatever engine.
    Capture(PathBuf),
}

impl FromStr for Subject {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda),
            _ => capture(text)
                .map(Self::Capture)
                .ok_or_else(|| "expected auto, cpu, cuda or capture:DIR".to_owned()),
        }
    }
}

/// A runner that a subject is held against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    /// llama.cpp on the CPU.
    Llama,
    /// A recorded capture.
    Capture(PathBuf),
}

impl FromStr for Reference {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "llama" => Ok(Self::Llama),
            _ => capture(text)
                .map(Self::Capture)
                .ok_or_else(|| "expected llama or capture:DIR".to_owned()),
        }
    }
}

fn capture(text: &str) -> Option<PathBuf> {
    text.strip_prefix("capture:")
        .filter(|p| !p.is_empty())
        .map(PathBuf::from)
}

/// `qdiff record`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qdiff record --runner cpu --out golden
  qdiff run --subject capture:golden")]
pub struct RecordArgs {
    /// Model and tokens
    #[command(flatten)]
    pub prompt: PromptArgs,
    /// What to record
    #[arg(long, value_enum, default_value_t = RunnerKind::Cpu)]
    pub runner: RunnerKind,
    /// Folder to write; it must not exist
    #[arg(short, long, value_name = "DIR")]
    pub out: PathBuf,
    /// Only stages that match the pattern, and their operands; repeatable
    #[arg(long, value_name = "GLOB", value_delimiter = ',')]
    pub stages: Vec<String>,
    /// Only these layers, such as 0,5-7
    #[arg(long, value_name = "LIST")]
    pub layers: Option<String>,
    /// Inject a fault: NAME[:PARAM=VALUE][@L07 or @L07.q_rope]; repeatable
    #[arg(long, value_name = "FAULT")]
    pub inject: Vec<String>,
}

/// Runners that can be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RunnerKind {
    /// The engine's CPU interpreter
    Cpu,
    /// The engine's CUDA forward pass
    Cuda,
    /// llama.cpp on the CPU
    Llama,
}

/// `qdiff verify-oracle`.
#[derive(Debug, Args)]
pub struct OracleArgs {
    /// Model and tokens
    #[command(flatten)]
    pub prompt: PromptArgs,
    /// Folder for the dequantised copy of the model (four bytes a weight) [default: the system's]
    #[arg(long, value_name = "DIR", env = "QDIFF_TMP")]
    pub tmp: Option<PathBuf>,
}

/// `qdiff bench`.
#[derive(Debug, Args)]
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
}

/// What `bench` measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Measure {
    /// Prefill and decode of the CPU engine, untapped, against llama.cpp
    Speed,
    /// Wall time and peak memory of a whole `run -n 0` against llama.cpp
    /// loading and doing the tapped prefill alone
    Run,
    /// That tapped prefill alone: what `run` is measured against
    TappedPrefill,
}
