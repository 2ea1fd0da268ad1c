//! The command line: one file per command with arguments of its own.

mod bench;
mod compare;
mod dequantise;
mod exclusive;
mod generate;
mod logits;
mod mutations;
mod oracle;
mod output;
mod record;
mod report;
mod run;
mod sides;
mod sweep;
mod weights;

pub use bench::{BenchArgs, Measure};
pub use compare::CompareArgs;
pub use dequantise::DequantiseArgs;
pub use generate::GenerateArgs;
pub use logits::LogitsArgs;
pub use mutations::{MutationsArgs, MutationsCommand, ScoreArgs, ScoreSubject};
pub use oracle::OracleArgs;
pub use output::{Ci, FileArgs, OutputArgs};
pub use record::RecordArgs;
pub use report::ReportArgs;
pub use run::RunArgs;
pub use sides::SidesArgs;
pub use sweep::SweepArgs;
pub use weights::WeightsArgs;

use crate::arithmetic::Number;
use crate::capture::{BUDGET, Store};
use crate::prompts::Template;
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};
use qdiff_engine::cuda::Gemm;
use std::path::PathBuf;
use std::sync::Arc;

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

impl Cli {
    /// What was typed, and the environment for what was not.
    ///
    /// # Errors
    /// What clap says of it; help and version are among it.
    pub fn read() -> Result<Self, clap::Error> {
        let mut command = Self::command();
        let matches = command.try_get_matches_from_mut(std::env::args_os())?;
        exclusive::check(&mut command, &matches)?;
        let mut cli = Self::from_arg_matches(&matches)?;
        if let Some(prompt) = cli.command.prompt() {
            exclusive::give_way(prompt, &matches);
        }
        Ok(cli)
    }
}

impl Command {
    /// Which tokens to run, of a command that runs any.
    fn prompt(&mut self) -> Option<&mut PromptArgs> {
        Some(match self {
            Self::Run(args) => &mut args.sides.prompt,
            Self::Logits(args) => &mut args.sides.prompt,
            Self::Sweep(args) => &mut args.prompt,
            Self::Record(args) => &mut args.prompt,
            Self::Generate(args) => &mut args.prompt,
            Self::Bench(args) => &mut args.prompt,
            Self::VerifyOracle(args) => &mut args.prompt,
            _ => return None,
        })
    }
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
    #[command(after_help = "\
Examples:
  qdiff inspect model.gguf")]
    Inspect(ModelArg),
    /// Compare every weight with ggml's reading, or with another file, down to the block and its field
    Weights(WeightsArgs),
    /// Ask of every logit whether it is the product it should be, and which ids are suspicious
    Logits(LogitsArgs),
    /// Hold llama.cpp, on weights dequantised to F32, against the f64 oracle
    VerifyOracle(OracleArgs),
    /// Show saved reports again, in any format
    Report(ReportArgs),
    /// Judge two captures: a subject and a reference
    Compare(Box<CompareArgs>),
    /// Feed the same tokens in one batch, in parts and token by token: prefill against decode
    Sweep(SweepArgs),
    /// Write the stages of one runner to disk, as npz with a manifest
    Record(RecordArgs),
    /// Let subject and reference speak freely, and say where their texts part and why
    Generate(GenerateArgs),
    /// Write a copy of a model with its matrices dequantised
    Dequantise(DequantiseArgs),
    /// List the built-in prompts
    #[command(after_help = "\
Examples:
  qdiff prompts")]
    Prompts,
    /// The faults that can be injected and recognised
    Mutations(MutationsArgs),
    /// List what the engine can run on
    #[command(after_help = "\
Examples:
  qdiff devices")]
    Devices,
    /// Time and memory against llama.cpp, as ratios of one run
    Bench(BenchArgs),
    /// Print the JSON schema of what qdiff writes and reads
    #[command(after_help = "\
Examples:
  qdiff schema run
  qdiff schema capture")]
    Schema {
        /// Of what
        #[arg(value_enum, default_value_t = Schema::Run)]
        of: Schema,
    },
    /// Print the completions of a shell
    #[command(after_help = "\
Examples:
  qdiff completions bash
  qdiff completions zsh")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write one per command to a folder
    #[command(after_help = "\
Examples:
  qdiff man
  qdiff man man1")]
    Man {
        /// Folder to write to; it is made if need be
        #[arg(value_name = "DIR")]
        folder: Option<PathBuf>,
    },
}

/// What has a JSON schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Schema {
    /// What `run --json` writes
    #[value(alias = "report")]
    Run,
    /// What `run --prompts` writes for a prompt that failed
    Failure,
    /// What `generate --json` writes
    #[value(alias = "generation")]
    Generate,
    /// What `logits --json` writes
    Logits,
    /// What `weights --json` writes
    Weights,
    /// What `sweep --json` writes
    Sweep,
    /// What `compare --json` writes without a model
    Compare,
    /// What `verify-oracle --json` writes
    VerifyOracle,
    /// What `mutations score --json` writes
    Score,
    /// What `bench --json` writes
    Bench,
    /// The manifest.json of a capture
    Capture,
}

/// The model.
#[derive(Debug, Args)]
pub struct ModelArg {
    /// GGUF file (or QDIFF_MODEL; `./scripts/qdiff` fetches a default)
    #[arg(value_name = "MODEL", env = "QDIFF_MODEL", hide_env_values = true)]
    pub model: Option<PathBuf>,
}

/// Which tokens to run.
#[derive(Clone, Debug, Args)]
pub struct PromptArgs {
    /// GGUF file (or QDIFF_MODEL; `./scripts/qdiff` fetches a default)
    #[arg(short, long, env = "QDIFF_MODEL", hide_env_values = true)]
    pub model: Option<PathBuf>,
    /// A built-in prompt (see `qdiff prompts`), text, @FILE, or - for standard input; of a recorded subject, the prompt that its tokens should be of
    #[arg(short, long, default_value = "haiku", env = "QDIFF_PROMPT")]
    pub prompt: String,
    /// Whether a prompt or tokens were typed.
    #[arg(skip)]
    pub typed: bool,
    /// Take the text as it stands instead of as a user turn
    #[arg(long, env = "QDIFF_RAW")]
    pub raw: bool,
    /// A system prompt before the user turn
    #[arg(long, value_name = "TEXT", env = "QDIFF_SYSTEM")]
    pub system: Option<String>,
    /// What makes a turn of the text
    #[arg(long, value_enum, default_value_t = Template::Bare, env = "QDIFF_TEMPLATE")]
    pub template: Template,
    /// Token ids, such as 1,2,3; they take precedence over a prompt
    #[arg(long, value_delimiter = ',', env = "QDIFF_TOKENS")]
    pub tokens: Vec<u32>,
    /// Repeat or cut the tokens to this many
    #[arg(long, value_name = "N", env = "QDIFF_LENGTH", value_parser = at_least_one)]
    pub length: Option<usize>,
    /// Decode steps after the prompt, forced on the reference's choices
    #[arg(short = 'n', long, default_value_t = 8, env = "QDIFF_DECODE")]
    pub decode: usize,
    /// Threads for llama.cpp and the CPU engine [default: all cores]
    #[arg(short, long, env = "QDIFF_THREADS")]
    pub threads: Option<usize>,
    /// Linear layers of the CUDA engine: own kernels, or cublas
    #[arg(long, value_name = "GEMM", default_value = "own", env = "QDIFF_GEMM")]
    pub gemm: Gemm,
}

/// How captured stages come about and where they stay.
#[derive(Clone, Debug, Args)]
pub struct CaptureArgs {
    /// Most tokens of the prompt that are run at once, on both sides; 1 is token by token
    #[arg(long, value_name = "N", default_value_t = 512, env = "QDIFF_UBATCH", value_parser = at_least_one)]
    pub ubatch: usize,
    /// Type of the KV cache on both sides: its rows are rounded to it
    #[arg(long, value_name = "TYPE", value_enum, default_value_t, env = "QDIFF_KV_TYPE")]
    pub kv_type: Number,
    /// Memory
    #[command(flatten)]
    pub memory: MemoryArgs,
}

/// Where captured stages stay.
#[derive(Clone, Debug, Args)]
pub struct MemoryArgs {
    /// Memory for captured stages, in MiB; what exceeds it goes to a file without a name
    #[arg(long, value_name = "MIB", default_value_t = BUDGET >> 20, env = "QDIFF_MEMORY")]
    pub memory: usize,
    /// Folder for that file [default: the system's]
    #[arg(long, value_name = "DIR", env = "QDIFF_TMP")]
    pub tmp: Option<PathBuf>,
}

impl MemoryArgs {
    /// Where captured stages go.
    pub fn store(&self) -> Arc<Store> {
        let folder = self.tmp.clone().unwrap_or_else(std::env::temp_dir);
        Store::new(folder, self.memory.saturating_mul(1 << 20))
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("it must be at least 1".to_owned()),
        Ok(n) => Ok(n),
        Err(_) => Err("it is not a number".to_owned()),
    }
}
