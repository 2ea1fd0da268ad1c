//! Arguments of `qdiff compare`.

use super::OutputArgs;
use crate::tasks::compare::CompareRequest;
use clap::Args;

/// `qdiff compare`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  qdiff compare mine llama -m model.gguf
  qdiff compare mine llama -m model.gguf --tolerance 'L*.ffn_down=1e-3'
  qdiff compare mine llama

Without a model only how far the two are apart can be told.")]
pub struct CompareArgs {
    /// What to compare
    #[command(flatten)]
    pub request: CompareRequest,
    /// Where the report goes
    #[command(flatten)]
    pub output: OutputArgs,
    /// Exit with 125 instead of 2 and 3, for `git bisect run`
    #[arg(long, help_heading = "Output")]
    pub bisect: bool,
}
