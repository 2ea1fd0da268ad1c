//! Arguments of `qdiff compare`.

use super::RunArgs;
use clap::Args;
use std::path::PathBuf;

/// `qdiff compare`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qdiff compare mine llama -m model.gguf
  qdiff compare mine llama -m model.gguf --tolerance 'L*.ffn_down=1e-3'
  qdiff compare mine llama

Without a model only how far the two are apart can be told.")]
pub struct CompareArgs {
    /// Folder of the capture under suspicion
    #[arg(value_name = "SUBJECT")]
    pub a: PathBuf,
    /// Folder of the capture it is held against
    #[arg(value_name = "REFERENCE")]
    pub b: PathBuf,
    /// How to judge and report, as for `run`; the captures name the tokens
    #[command(flatten)]
    pub run: RunArgs,
}
