//! The command line: the commands, their options, and the places of their reports.

mod mutations;
mod output;

pub use mutations::MutationsCommand;
pub use output::{Asked, Bisected, Ci, FileArgs, JsonArgs, OutputArgs, ReportArgs, Reported};

use super::program::CommandLine;
use super::schemas::schemas;
use crate::tasks::ModelRequest;
use crate::tasks::check::CheckRequest;
use crate::tasks::compare::CompareRequest;
use crate::tasks::dequantise::DequantiseRequest;
use crate::tasks::fetch::FetchRequest;
use crate::tasks::generate::GenerateRequest;
use crate::tasks::judge::JudgeRequest;
use crate::tasks::logits::LogitsRequest;
use crate::tasks::prompts::PromptsRequest;
use crate::tasks::record::RecordRequest;
use crate::tasks::rl::RlRequest;
use crate::tasks::run::RunRequest;
use crate::tasks::sweep::SweepRequest;
use crate::tasks::synth::SynthRequest;
use crate::tasks::verify::VerifyRequest;
use crate::tasks::weights::WeightsRequest;
use clap::builder::{PossibleValuesParser, Resettable};
use clap::{Arg, Args, Subcommand};
use std::path::PathBuf;

/// The command line of `qdiff`.
pub type Cli = CommandLine<Command>;

/// What is explained.
#[derive(Clone, Debug, Args)]
pub struct ExplainRequest {
    /// A saved report of `qdiff run`, as JSON
    #[arg(value_name = "REPORT")]
    pub report: PathBuf,
    /// Print every operand and term of the worked example, to compare a kernel with
    #[arg(long)]
    pub patch: bool,
}

/// Where the demo writes, and which bug it plants.
#[derive(Clone, Debug, Args)]
pub struct DemoRequest {
    /// Folder for the model and the two reports; qdiff creates it
    #[arg(value_name = "DIR", default_value = "qdiff-demo")]
    pub out: PathBuf,
    /// Bug to plant in qdiff's own CPU engine, in the form of `qdiff run --inject`
    #[arg(long, value_name = "MUTATION", default_value = "rope-base:base=10000@L01")]
    pub inject: String,
}

/// What `qdiff stages` prints.
#[derive(Debug, Args)]
pub struct StagesArgs {
    /// Print the tables that the hooks of the Python package read, as its module `_stages.py`
    #[arg(long)]
    pub(crate) python: bool,
}

/// An option as the argument of a command.
fn argument(option: Arg) -> Arg {
    option.short(None).long(Resettable::Reset).help_heading(Resettable::Reset)
}

/// An option that a command refuses, as it would say nothing.
fn unheard(option: Arg) -> Arg {
    option.hide(true)
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show a first verdict without a download: write a small model, plant a bug, and find it
    #[command(after_help = "\
qdiff prints each command before it runs it: `qdiff synth`, then `qdiff run` without a bug and with
one. The folder then holds the model and both reports.

Examples:
  qdiff demo
  qdiff demo out --inject gelu-for-silu@L01")]
    Demo(DemoRequest),
    /// Run subject and reference side by side and judge every stage
    #[command(after_help = "\
Examples:
  qdiff run --prompt haiku
  qdiff run --prompt 'Why is the sky blue?' -n 16
  qdiff run --prompt @notes.txt --raw --stages 'attn_*' --layers 0,5-7 --full
  qdiff run --prompt @notes.txt --raw --length 63 --passes 50,3x1,10
  qdiff run --taps 'L*.layer_out,logits'
  qdiff run --inject rope-base:base=10000@L07
  qdiff run --tolerance 'L*.ffn_down=1e-3' --report report.html --report junit.xml")]
    Run(Box<Bisected<RunRequest>>),
    /// Run a battery of token sequences and give one verdict
    #[command(after_help = "\
The cases: one token; lengths not divisible by 8; a prompt in two and more parts, and token by
token; a second turn after decode steps; one token repeated; ids from 131,072 on; decode over
positions 256 and 4,096. qdiff leaves out a case if the model is too small for this case, or if the
subject's command lacks a placeholder that the case needs, such as {passes}. The verdict names each
case that was left out.

With --serving the cases are batches: sequences of unequal lengths in one pass; sequences that join
and leave, whose cache slots others take; a prefill in parts beside decode steps; cached prefixes,
one of which outlives the sequence that wrote it; drafts of which 0 to 5 tokens are rejected.
Every sequence is judged as if it had run alone. The subject is cpu, cuda, llama, a
command with {sequences}, or `serve: COMMAND`.

Exit codes: 0 every case that was run matches; 1 a case diverged; 2 trouble; 3 no divergence, but
a case could not be judged whole.

Examples:
  qdiff check
  qdiff check -m model.gguf --subject cpu --quick --json check.json
  qdiff check --serving --expect bitwise
  qdiff check --subject 'cmd: ./engine {model} {tokens} {decoded} {passes}'")]
    Check(Reported<CheckRequest>),
    /// Print metadata, tensors, and the stages of the graph of a model
    #[command(
        mut_arg("model", argument),
        after_help = "\
Examples:
  qdiff inspect model.gguf
  qdiff inspect model.gguf --json model.json"
    )]
    Inspect(Reported<ModelRequest, JsonArgs>),
    /// Compare every weight with ggml's reading, or with another file, down to the block and its field
    #[command(
        mut_arg("model", argument),
        after_help = "\
Examples:
  qdiff weights model.gguf
  qdiff weights model.gguf --inject nibble-order@L00.ffn_down
  qdiff weights model.gguf --inject tensor-not-loaded@blk.1.attn_q.weight --json weights.json
  qdiff weights damaged.gguf --against model.gguf"
    )]
    Weights(Reported<WeightsRequest>),
    /// Compute every logit again in f64, and list suspicious ids
    #[command(after_help = "\
Examples:
  qdiff logits --prompt haiku
  qdiff logits --inject lm-head-transposed
  qdiff logits --inject one-column-wrong:column=77 --positions 0-3 --json logits.json
  qdiff logits --subject capture:mine -m model.gguf")]
    Logits(Reported<LogitsRequest>),
    /// Check the f64 evaluation against llama.cpp on weights dequantised to F32
    #[command(after_help = "\
Examples:
  qdiff verify-oracle -n 2")]
    VerifyOracle(Reported<VerifyRequest, OutputArgs>),
    /// Print saved reports in any format
    #[command(after_help = "\
Examples:
  qdiff report qdiff-report/haiku/report.json --html haiku.html
  qdiff report a.json b.json --report junit.xml
  qdiff report a.json --badge badge.svg
  qdiff report a.json --verify

--verify: exit code 0 the run gives the same verdict again; 1 it does not; 2 trouble.")]
    Report(ReportArgs),
    /// Work out one wrong element for the first origins of a report
    #[command(after_help = "\
qdiff prints Markdown that can be pasted into an issue. Without --patch a table has only a
few terms: of a sum the largest.

Examples:
  qdiff explain a.json
  qdiff explain qdiff-report/haiku/report.json --patch

Exit codes: that of the report's verdict; 2 trouble.")]
    Explain(ExplainRequest),
    /// Judge two captures: a subject and a reference
    #[command(after_help = "\
Examples:
  qdiff compare mine llama -m model.gguf
  qdiff compare mine llama -m model.gguf --tolerance 'L*.ffn_down=1e-3'
  qdiff compare mine llama

Without a model, qdiff only measures how far the two captures are apart.")]
    Compare(Box<Bisected<CompareRequest>>),
    /// Judge a part of two captures, as one of several machines; `qdiff report` combines the parts
    #[command(
        mut_arg("model", |a| a.help("The model of both captures: a GGUF file or a folder of safetensors").required(true)),
        after_help = "\
Examples:
  qdiff judge mine llama -m model.gguf --shard 1/2 --out part-1.json
  qdiff judge mine llama -m model.gguf --shard 2/2 --out part-2.json
  qdiff report part-1.json part-2.json

Exit codes: 0 the part was judged, even if stages are wrong; 2 trouble."
    )]
    Judge(Box<JudgeRequest>),
    /// Feed the same tokens in one batch, in parts and token by token: prefill against decode
    #[command(after_help = "\
Examples:
  qdiff sweep --prompt haiku
  qdiff sweep --prompt code -n 16 --sizes 1,2,3,5,8
  qdiff sweep --prompt long --length 2000 -n 0 --sizes 64 --layers 0 --positions 0,1,63,64,1999")]
    Sweep(Reported<SweepRequest>),
    /// Judge a trainer and a rollout, and find the gap of their logprobs that rounding does not explain
    #[command(
        mut_arg("decode", |option| option.help("Decode steps of the rollout after the prompt, by its own choices")),
        after_help = "\
Each stage of each side is judged alone. For each token the report has both logprobs, their gap,
and the gap that rounding may cause. If reported logprobs are not those of the logits, qdiff tries
other meanings: shifted by a position, at a temperature, over a part of the vocabulary, or without
special tokens.

Exit codes: 0 both sides are right and rounding explains the gap; 1 a side is wrong, or rounding
does not explain it; 2 trouble; 3 no divergence, but not everything could be judged.

Examples:
  qdiff rl capture:trainer capture:rollout -m model.gguf
  qdiff rl llama cpu -m model.gguf --prompt haiku -n 16"
    )]
    Rl(Box<Reported<RlRequest>>),
    /// Write the stages of one engine to disk, as npz with a manifest
    #[command(
        mut_arg("timeout", unheard),
        after_help = "\
Examples:
  qdiff record --runner cpu --out golden
  qdiff run --subject capture:golden
  qdiff record --runner llama --like golden --out theirs
  qdiff compare golden theirs
  qdiff record --runner cpu --shards 2 --out in-parts"
    )]
    Record(RecordRequest),
    /// Let subject and reference generate text, and judge the first different token
    #[command(after_help = "\
Without --temp both sides take the most probable token. With it they draw, with
llama.cpp's defaults for the other samplers and the same seed.

Exit codes: 0 the same text, or texts that differ by rounding alone (a flip);
1 a stage, sampler, token or end of text is wrong; 2 trouble; 3 not all judged.

Examples:
  qdiff generate --prompt haiku -n 64
  qdiff generate --prompt 'Tell me a joke' -n 64 --temp 0.8 --seed 7
  qdiff generate --prompt haiku -n 32 --inject rope-base:base=10000@L07
  qdiff generate --nonce -n 32")]
    Generate(Reported<GenerateRequest>),
    /// Write a copy of a model with its matrices in F16, F32 or any block format
    #[command(after_help = "\
Examples:
  qdiff dequantise --to f16 --out model-f16.gguf
  qdiff dequantise --to iq4_nl --out model-iq4_nl.gguf
  qdiff dequantise -m model.gguf --to f32 --out model-f32.gguf")]
    Dequantise(DequantiseRequest),
    /// Write a small model with random weights, for tests of an engine
    #[command(after_help = "\
The file is a GGUF of some megabytes that llama.cpp loads, with a vocabulary and a chat
template, written in a second. Test an engine with several: tied and untied, head dimensions
other than embedding / heads, each block format, without keys that are optional.

Examples:
  qdiff synth tiny.gguf
  qdiff synth tied.gguf --arch qwen3 --tied --head-dim 128 --weights Q4_0
  qdiff synth mixed.gguf --weights Q4_K --tensor blk.0.ffn_down.weight=Q6_K
  qdiff run -m tiny.gguf --prompt haiku --inject rope-base@L01")]
    Synth(SynthRequest),
    /// Fetch a model into the cache, verify its hash, and print its path
    #[command(after_help = "\
`qdiff run -m \"$(qdiff fetch-model)\"` runs on the model, and fetches it once.

Examples:
  qdiff fetch-model --path
  qdiff fetch-model 1.5b --path")]
    FetchModel(FetchRequest),
    /// List the built-in prompts with their text
    #[command(after_help = "\
Examples:
  qdiff prompts
  qdiff prompts -m model.gguf
  qdiff prompts haiku --tokens -m model.gguf")]
    Prompts(PromptsRequest),
    /// List every stage: its meaning, its shape, and its name in other engines
    #[command(after_help = "\
Examples:
  qdiff stages")]
    Stages(StagesArgs),
    /// List the mutations: bugs that qdiff can inject and recognise
    #[command(after_help = "\
Examples:
  qdiff mutations
  qdiff mutations show rope-base
  qdiff run --inject rope-base:base=10000@L07")]
    Mutations {
        /// Command on the catalogue [default: list]
        #[command(subcommand)]
        command: Option<MutationsCommand>,
    },
    /// List the devices that qdiff can use
    #[command(after_help = "\
Examples:
  qdiff devices
  qdiff devices --json devices.json")]
    Devices(JsonArgs),
    /// Print the JSON schema of a file that qdiff writes or reads
    #[command(after_help = "\
Examples:
  qdiff schema run
  qdiff schema capture")]
    Schema {
        /// The kind of JSON file
        #[arg(value_parser = PossibleValuesParser::new(schemas().map(|(name, _)| name)), default_value = "run")]
        of: String,
    },
    /// Print shell completions
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
        /// Folder to write to; qdiff creates it
        #[arg(value_name = "DIR")]
        folder: Option<PathBuf>,
    },
}
