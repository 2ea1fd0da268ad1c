//! The command line: one file per command with arguments of its own.

mod bench;
mod compare;
mod dequantise;
mod exclusive;
mod generate;
mod inspect;
mod logits;
mod mutations;
mod oracle;
mod output;
mod record;
mod report;
mod run;
mod sweep;
mod weights;

pub use bench::BenchArgs;
pub use compare::CompareArgs;
pub use dequantise::DequantiseArgs;
pub use generate::GenerateArgs;
pub use inspect::InspectArgs;
pub use logits::LogitsArgs;
pub use mutations::{MutationsArgs, MutationsCommand, ScoreArgs};
pub use oracle::OracleArgs;
pub use output::{Ci, FileArgs, JsonArgs, OutputArgs};
pub use record::RecordArgs;
pub use report::ReportArgs;
pub use run::RunArgs;
pub use sweep::SweepArgs;
pub use weights::WeightsArgs;

use super::project::Project;
use crate::tasks::prompts::PromptsRequest;
use crate::tasks::request::PromptRequest;
use crate::tasks::run::REPORTS;
use clap::error::ErrorKind;
use clap::{ArgAction, ArgMatches, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

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
    /// Print the verdict alone
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Say on stderr what is being done, and what llama.cpp warns of; twice, all that llama.cpp says
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
    /// Write all that to a file, whatever is shown
    #[arg(long, global = true, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// What `words` ask for, the program's name first, and the environment for what they do not say.
    ///
    /// # Errors
    /// What clap says of it; help and version are among it.
    pub fn read(words: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let mut command = Self::command();
        let words: Vec<OsString> = words.into_iter().collect();
        let mut matches = command.try_get_matches_from_mut(&words)?;
        let project = match Project::find() {
            Ok(project) => project,
            Err(e) => return Err(clap::Error::raw(ErrorKind::Io, format!("{e:#}\n"))),
        };
        if let Some(project) = &project {
            command = project.apply(Self::command());
            matches = command.try_get_matches_from_mut(&words)?;
        }
        exclusive::check(&mut command, &matches)?;
        let mut cli = Self::from_arg_matches(&matches)?;
        if let Some(prompt) = cli.command.prompt() {
            exclusive::give_way(prompt, &matches);
        }
        if let Some(project) = &project {
            cli.command.take(project, &matches);
        }
        Ok(cli)
    }
}

impl Command {
    /// Which tokens to run, of a command that runs any.
    pub(in crate::cli) fn prompt(&mut self) -> Option<&mut PromptRequest> {
        Some(match self {
            Self::Run(args) => &mut args.request.sides.tokens.prompt,
            Self::Logits(args) => &mut args.request.sides.tokens.prompt,
            Self::Sweep(args) => &mut args.request.tokens.prompt,
            Self::Record(args) => &mut args.request.tokens.prompt,
            Self::Generate(args) => &mut args.request.tokens.prompt,
            Self::Bench(args) => &mut args.request.prompt,
            Self::VerifyOracle(args) => &mut args.request.tokens.prompt,
            _ => return None,
        })
    }
}

impl Command {
    /// Takes what a project sets that no argument's default can say.
    fn take(&mut self, project: &Project, matches: &ArgMatches) {
        let from = Project::sets_tolerance(matches).then(|| project.path.clone());
        match self {
            Self::Run(args) => {
                args.request.tolerance.from = from;
                if let Some(prompts) = project.prompts(matches) {
                    args.request.batch.prompts = Some(prompts);
                    args.request.batch.json_dir.get_or_insert_with(|| PathBuf::from(REPORTS));
                }
            }
            Self::Compare(args) => args.request.tolerance.from = from,
            Self::Sweep(args) => args.request.tolerance.from = from,
            _ => {}
        }
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
    Inspect(InspectArgs),
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
    /// List the built-in prompts with their text
    #[command(after_help = "\
Examples:
  qdiff prompts
  qdiff prompts -m model.gguf")]
    Prompts(PromptsRequest),
    /// The faults that can be injected and recognised
    Mutations(MutationsArgs),
    /// List what the engine can run on
    #[command(after_help = "\
Examples:
  qdiff devices
  qdiff devices --json devices.json")]
    Devices(JsonArgs),
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
