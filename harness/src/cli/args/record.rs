//! Arguments of `qdiff record`.

use super::{CaptureArgs, PromptArgs};
use crate::runners::Spec;
use clap::Args;
use std::path::PathBuf;

/// `qdiff record`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qdiff record --runner cpu --out golden
  qdiff run --subject capture:golden
  qdiff record --runner llama --like golden --out theirs
  qdiff compare golden theirs")]
pub struct RecordArgs {
    /// Model and tokens
    #[command(flatten)]
    pub prompt: PromptArgs,
    /// Steps and memory
    #[command(flatten)]
    pub capture: CaptureArgs,
    /// What to record: cpu, cuda, cuda-fast, llama (llama.cpp on the CPU), or llama-cuda
    #[arg(long, value_name = "RUNNER", default_value = "cpu", env = "QDIFF_RUNNER")]
    pub runner: Spec,
    /// Take the tokens of this capture, those of its decode steps too, instead of a prompt
    #[arg(long, value_name = "DIR")]
    pub like: Option<PathBuf>,
    /// Folder to write; it must not exist
    #[arg(short, long, value_name = "DIR")]
    pub out: PathBuf,
    /// Only stages that match the pattern, and their operands; repeatable
    #[arg(long, value_name = "GLOB", value_delimiter = ',')]
    pub stages: Vec<String>,
    /// Only these layers, such as 0,5-7
    #[arg(long, value_name = "LIST")]
    pub layers: Option<String>,
    /// Only the rows of these token positions, such as 0,12-15
    #[arg(long, value_name = "LIST")]
    pub positions: Option<String>,
    /// Deflate the arrays: smaller by a tenth or two, and slower
    #[arg(long)]
    pub compress: bool,
    /// Inject a fault: NAME[:PARAM=VALUE][@L07, @L07.q_rope or @p3000..]; repeatable
    #[arg(long, value_name = "FAULT")]
    pub inject: Vec<String>,
}
