//! Arguments of `qdiff sweep`.

use super::{FileArgs, MemoryArgs, PromptArgs, at_least_one};
use crate::runners::Spec;
use clap::Args;

/// `qdiff sweep`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qdiff sweep --prompt haiku
  qdiff sweep --prompt code -n 16 --sizes 1,2,3,5,8
  qdiff sweep --prompt long --length 2000 -n 0 --sizes 64 --layers 0 --positions 0,1,63,64,1999")]
pub struct SweepArgs {
    /// Model and tokens; the decode steps become part of the tokens
    #[command(flatten)]
    pub prompt: PromptArgs,
    /// Tokens fed at once, besides all of them; 1 is token by token
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "7,1", env = "QDIFF_SIZES", value_parser = at_least_one)]
    pub sizes: Vec<usize>,
    /// The runner under suspicion: auto, cpu, cuda or llama
    #[arg(long, value_name = "RUNNER", default_value = "auto", env = "QDIFF_SUBJECT")]
    pub subject: Spec,
    /// The runner it is held against: llama, cpu or cuda
    #[arg(long, value_name = "RUNNER", default_value = "llama", env = "QDIFF_REFERENCE")]
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
    /// Allow a stage this relative L2 per row instead of its bound; repeatable
    #[arg(long, value_name = "GLOB=NUMBER", env = "QDIFF_TOLERANCE")]
    pub tolerance: Vec<String>,
    /// Inject a fault into the subject: NAME[:PARAM=VALUE][@L07, @L07.q_rope or @p100..]; repeatable
    #[arg(long, value_name = "FAULT", env = "QDIFF_INJECT")]
    pub inject: Vec<String>,
    /// Memory
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// Where the report goes
    #[command(flatten)]
    pub files: FileArgs,
}
