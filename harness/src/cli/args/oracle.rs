//! Arguments of `qdiff verify-oracle`.

use super::{OutputArgs, PromptArgs};
use clap::Args;
use std::path::PathBuf;

/// `qdiff verify-oracle`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qdiff verify-oracle -n 2")]
pub struct OracleArgs {
    /// Model and tokens
    #[command(flatten)]
    pub prompt: PromptArgs,
    /// Folder for the dequantised copy of the model (four bytes a weight) [default: the system's]
    #[arg(long, value_name = "DIR", env = "QDIFF_TMP")]
    pub tmp: Option<PathBuf>,
    /// Where the report goes
    #[command(flatten)]
    pub output: OutputArgs,
}
